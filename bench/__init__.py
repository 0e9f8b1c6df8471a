"""Scripts that measure, run from the root of a checkout: `python -m bench.peers`, `mpirun -n 4 python -m bench.boxes ...`.

products       peers (beside other packages), boxes (pdla's choice), volume, planning, conversion, level3, call_cost, calls, blas,
               rates
factorizations factor, hpl
messages       ablation, broadcasts, exchanges, overlap, large_counts
clusters       cluster (emulated hosts, for any command), network (peers on them), counted
layers         layer_memory, layer_overlap, million, train_digits, train_gpt, experiments (the papers' claims)
and            predicted (beside measured), gpu, pblas (from C), lines (of code)

What two of them do is in common/; sides/ is what pdla is compared with, claims/ what papers claim, clients/ are in C and Fortran.
"""
