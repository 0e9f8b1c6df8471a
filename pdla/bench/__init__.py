"""The benchmark: `mpirun -n 4 python -m pdla.bench`. Every product is checked before it is timed.

cli      which commands there are, and how each is started

measure  the commands of ranks       suite    what runs without arguments      gemm     one product, measured or predicted
check    whether it is right         peak     what the local GEMMs reach       split    where its time goes
info     machine, MPI, BLAS          table    what rank 0 prints               report   JSON, plots, a page
calibrate   this machine's figures   predict  the best way, foretold           scale    on ever more ranks
compare  two results
"""
