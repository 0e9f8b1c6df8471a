"""Which way to multiply is cheapest: found from sizes and layouts alone, so that every rank finds the same.

problem  a product's sizes, ranks and machine, and how A, B and C lie (problem.py)
way      roles and a schedule on the matrices' own grid, or a table on a grid of its own with ranks in some order (candidates.py,
         mapping.py, nodes.py)
price    words, messages and idle ranks of a way, in multiples of the lower bound (price.py; boxes.py, one package above)
"""
