"""The algorithms that have grids of their own, by name. To add one, write a file with an `Algorithm`, and a line here.

algorithm  a name, the grids to try, and the tables of a grid
table      the axes that carry m, n or k, the layouts of A, B and C, and a schedule (table.py)
box        the ranks along m, n and k
"""

from pdla.matmul.algorithms import box, stationary, tesseract, two_point_five_d

BOX = box.ALGORITHM  # any box of ranks: these are searched if the caller names no algorithm
NAMED = {algorithm.name: algorithm for algorithm in (two_point_five_d.ALGORITHM, tesseract.ALGORITHM, BOX, *stationary.ALGORITHMS)}
