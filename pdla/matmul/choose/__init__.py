"""The choice of the cheapest way to multiply, from sizes and layouts alone: every rank finds the same.

problem  a product's sizes, ranks and machine, and the layouts of A, B and C (problem.py)
way      roles and a schedule on the matrices' own grid, or a table on a grid of its own with ranks in some order (candidates.py,
         mapping.py, nodes.py)
price    words, messages and idle ranks of a way, in multiples of the lower bound (price.py; boxes.py, one package above)
"""
