"""The fastest of many ways to multiply on a described machine: closed forms choose what is run dry.

estimate  closed forms for the first rank: its memory, moves and work (estimate.py)
search    dry runs of the most promising candidates, unless they cannot be among the fastest (fastest.py)
product   the candidates: every algorithm, on the grids with few words (products.py)
"""
