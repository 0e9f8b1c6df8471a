"""The algorithms of collective verbs, as messages; the same in every world.

* broadcast: from one rank to all, at once or along a chain (broadcast.py).
* step: short pieces are gathered and summed in log2 P steps (circulant.py).
* ring: long pieces go around the nodes (ring.py), into memory that a node's ranks share (shared_gather.py).
* pipeline: long sums go from node to node (pipeline.py).
"""
