"""The benchmark: `mpirun -n 4 python -m pdla.bench`. Every product is checked before it is timed.

cli      which commands there are, and how each is started

measure  the commands of ranks       suite    what runs without arguments      gemm     one product, measured or predicted
check    whether a product is right  peak     what the local GEMMs reach       split    where the time of a run goes
info     machine, MPI, BLAS          table    what rank 0 prints               report   JSON, plots, a page
calibrate   this machine's figures   predict  the fastest ways, predicted      scale    the same on ever more ranks
compare  two results, side by side
"""
