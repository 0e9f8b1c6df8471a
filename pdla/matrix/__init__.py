"""Distributed matrices.

core.py           DistMatrix: sizes, layout and grid, views and arithmetic
create.py         functions that make matrices
keys.py           keys of A[...]
elements.py       single elements, rows and columns
sharing.py        blocks in memory of a whole node
reductions.py     sums and norms over blocks
statistics.py     sums, means and extremes of rows and columns
diagonals.py      diagonals
triangles.py      triangles
stacking.py       matrices of matrices
redistribute.py   routes: a rank's messages from one layout to another
"""
