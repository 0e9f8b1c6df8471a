"""The algorithms that have grids of their own, by name: to add one, write a file with an `Algorithm`, and a line here."""

from pdla.matmul.algorithms import box, layers, stationary, tesseract

BOX = box.ALGORITHM  # any box of ranks: where the algorithm is left open, these are searched
NAMED = {algorithm.name: algorithm for algorithm in (layers.ALGORITHM, tesseract.ALGORITHM, BOX, *stationary.ALGORITHMS)}
