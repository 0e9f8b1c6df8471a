"""Distributed matrices.

matrix  DistMatrix: its sizes, layout and grid, views and arithmetic (core.py); ways to make one (create.py)
block   what a rank has of it, in memory of its own or of a whole node (sharing.py); sums and norms over blocks (reductions.py),
        and of each row or column (statistics.py); its diagonals and triangles (diagonals.py,
        triangles.py)
whole   what matrices are put together to (stacking.py)
route   what a rank sends and receives on the way from one layout to another (redistribute.py)
"""
