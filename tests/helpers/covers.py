"""Few of many combinations: a pairwise cover."""

import itertools

import numpy as np


def cover(factors, seed):
    """Rows in which every two values of every two factors meet: each takes the values that meet most new pairs."""
    draw = np.random.default_rng(seed)
    spots = list(itertools.combinations(range(len(factors)), 2))
    missing = {(i, j, a, b) for i, j in spots for a in range(len(factors[i])) for b in range(len(factors[j]))}
    while missing:
        i, j, a, b = min(missing)
        rows = []
        for _ in range(30):
            row = [int(draw.integers(len(values))) for values in factors]
            row[i], row[j] = a, b
            rows.append((sum((x, y, row[x], row[y]) in missing for x, y in spots), row))
        row = max(rows)[1]
        missing -= {(x, y, row[x], row[y]) for x, y in spots}
        yield tuple(values[v] for values, v in zip(factors, row, strict=True))
