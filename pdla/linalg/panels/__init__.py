"""Factorizations, and systems of triangles: where a matrix is worked on, what that costs, and the steps."""
