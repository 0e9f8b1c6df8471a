"""Measurements, run from the root of a checkout.

`python -m bench NAME` runs a case, which shows one figure or table. `mpirun -n 4 python -m bench
NAME` runs it on the ranks of a job, and `python -m bench --help` lists all cases. A new case is a
function in cases/, in the file of its subject, and nothing else:

    @case("n:6 | seconds:9.3f")
    def product(comm, n: positive = 512, *, dtype: str = "float64"):
        '''What this shows.'''
        yield n, Meeting(comm.mpi).seconds(...)

The argument of `case` gives a head and a form for each column. The function yields rows, and lines
of text, as soon as it has them. Its parameters are the words and options of the command line; an
annotation reads a word, or lists the possible words. A case with `comm` runs on the ranks of a job.
The docstring is the help.

| folder or script | content |
|---|---|
| common/ | what cases share |
| sides/, peers | other packages, and pdla beside them |
| cluster, network | emulated hosts for any command, and pdla beside others there |
| claims/, experiments | the papers' claims, and their test |
| gpu | speeds on a GPU |
| counted | the program by which cluster starts each rank |
| clients/ | programs in C and Fortran |
"""
