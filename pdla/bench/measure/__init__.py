"""Measure products (checked, counted and timed), the job that they run in, and its machine.

case         a product, as values
check        whether a product is right
product      check, count and time a product
peak         the rate of local GEMMs
facts        machine, MPI, BLAS, waiting
verbs        time verbs, and predict their times
calibration  measure a machine's figures
"""
