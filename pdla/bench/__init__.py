"""The benchmark: `mpirun -n 4 python -m pdla.bench`. Every product is checked before it is timed.

cli       the command line: parsed, and each command started on its ranks
screen    lines as they come, and where a command is; width, colours      table  tables, printed row by row
commands  the sub-commands, a file each       measure   what measures         report    JSON, tables, plots

What predicts is in pdla.simulate; here commands parse and print.
"""
