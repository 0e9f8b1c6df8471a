"""The benchmark: `mpirun -n 4 python -m pdla.bench`. Every product is checked before it is timed.

cli      arguments, and what they start        suite    what runs without arguments
gemm     one product, measured or predicted    check    whether it is right
info     machine, MPI, BLAS                    peak     what the local GEMMs reach together
table    what rank 0 prints                    report   what it writes as JSON (schema.json)
"""
