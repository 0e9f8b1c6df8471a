"""What measures: products that are checked, counted and timed, and the job that they run in.

case   a product, as values           check     whether a product is right       product   one product: checked, counted, timed
peak   what the local GEMMs reach     progress  a bar on the terminal            facts     machine, MPI, BLAS, how ranks wait
"""
