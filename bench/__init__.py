"""What measures, run from the root of a checkout.

`python -m bench NAME`, or `mpirun -n 4 python -m bench NAME` on the ranks of a job, runs a case,
which shows one figure or one table; `python -m bench --help` lists them. A new case is a function
in cases/, in the file of its subject, and nothing else:

    @case("n:6 | seconds:9.3f")
    def product(comm, n: positive = 512, *, dtype: str = "float64"):
        '''What this shows.'''
        yield n, Meeting(comm.mpi).seconds(...)

The table has a head and a form for each column; a row is yielded as soon as it is known, and so is a
line of text. Positional words and options are the parameters: an annotation reads a word, or is the
choice of words. `comm` is there where the ranks of a job run the case. The docstring is the help.
What cases share is in common/.

Larger experiments are programs of their own, of which parts take minutes: peers (beside other
packages), network (the same between hosts), cluster (emulated hosts, for any command), experiments
(the papers' claims), gpu, and counted, which cluster starts. sides/ is what pdla is compared
with, claims/ what papers claim, clients/ are in C and Fortran.
"""
