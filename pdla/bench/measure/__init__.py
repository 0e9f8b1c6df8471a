"""What measures: products that are checked, counted and timed, the job that they run in, and its machine.

case      a product, as values               check  whether a product is right     product  one: checked, counted, timed
peak      what the local GEMMs reach         facts  machine, MPI, BLAS, waiting    verbs    timed, beside what is predicted
progress  a bar on the terminal              calibration  a machine's figures
"""
