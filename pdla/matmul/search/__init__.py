"""The fastest of many ways to multiply on a described machine: closed forms choose what is run dry.

estimate  what the first rank holds, receives and computes, in closed form (estimate.py)
search    the most promising candidates are run dry, and those that cannot be among the fastest never (fastest.py)
product   its candidates: every algorithm, on the grids with few words (products.py)
"""
