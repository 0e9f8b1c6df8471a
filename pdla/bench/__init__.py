"""The benchmark: `mpirun -n 4 python -m pdla.bench`. Every product is checked before it is timed.

cli       the command line; it starts each command on its ranks
screen    printed lines, and a command's progress
table     tables, printed row by row
commands  the sub-commands, a file each
measure   measurements
report    JSON, tables, plots

pdla.simulate predicts; commands here parse and print.
"""
