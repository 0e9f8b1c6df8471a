"""Lower bounds on communication, for all algorithms, layouts and schedules."""

from __future__ import annotations

from math import ceil, sqrt
from numbers import Integral
from typing import Any


def exact(*sizes: Any) -> tuple[Any, ...]:
    """Convert integers to Python's, whose products do not wrap around as NumPy's do; return all else unchanged."""
    return tuple([int(n) if isinstance(n, Integral) else n for n in sizes])


def accessed_lower_bound(m: int, n: int, k: int, P: int) -> float:
    """Bound the words of A, B and C that a rank touches for 1/P of the multiplications. A is m x k, B k x n.

    The sizes of the touched parts have a product of at least (m n k / P)^2 (Loomis and Whitney
    1949). Each is at least 1/P of its matrix. The least sum of the three sizes has three cases:
    one, two or three dimensions are cut. Al Daas, Ballard, Grigori, Kumar and Rouse 2022 (SPAA),
    theorem 3. Not collective.
    """
    if P < 1 or min(m, n, k) < 0:
        raise ValueError(f"m={m}, n={n}, k={k}, P={P}: sizes are 0 or more, ranks 1 or more")
    d3, d2, d1 = sorted((m, n, k))
    if d3 == 0:
        return (m * n + m * k + k * n) / P
    if P * d2 <= d1:
        return d1 * (d2 + d3) / P + d2 * d3
    if P * d3**2 <= d1 * d2:
        return 2 * sqrt(d1 * d2 * d3**2 / P) + d1 * d2 / P
    return 3 * (d1 * d2 * d3 / P) ** (2 / 3)


def moved_lower_bound(m: int, n: int, k: int, P: int, memory: float) -> float:
    """Bound the words of A, B and sums of C that a rank with `memory` words loads or stores for 1/P of the work.

    Cut the rank's work, in its order, into j parts. Each part touches the words that 1/(P j) of all
    multiplications must touch. Up to `memory` of these words are in memory when the part starts, but
    none when the first part starts. Each j gives the bound

        j accessed(P j) - (j - 1) memory.

    j = 1 is the bound for any memory. If three dimensions are cut, the largest bound is
    2 m n k / (P sqrt(memory)) + memory, for parts of memory^(3/2) multiplications. Kwasniewski et
    al. 2019 (SC), theorem 2; with a smaller constant Irony, Toledo and Tiskin 2004. The bound is
    concave in j, so the best integer is next to the best real j. Not collective.
    """
    best = scaling_ends(m, n, k, memory) / P
    parts = {1, max(1, int(best)), max(1, min(ceil(best), m * n * k // P))}
    return max(j * accessed_lower_bound(m, n, k, P * j) - (j - 1) * memory for j in parts)


def scaling_ends(m: int, n: int, k: int, memory: float) -> float:
    """Find the number P* of ranks, each with some memory, at which perfect strong scaling ends.

    A rank's received words can fall as 1/P from the fewest ranks that hold the matrices up to P*.
    Beyond P*, where memory cannot all be used, they fall as P^(-2/3) at best. Not collective.

    Parameters
    ----------
    m, n, k : int
        Sizes: C is m x n.
    memory : float
        Words of each rank.

    Returns
    -------
    float
        P* = m n k / memory^(3/2), unless one dimension is short; 0 where memory holds the smallest
        matrix.

    Raises
    ------
    ValueError
        For a negative size, and for a memory that is not above 0.

    Notes
    -----
    Ballard, Demmel, Holtz, Lipshitz and Schwartz 2012 (SPAA).

    Examples
    --------
    >>> from pdla.model.bounds import scaling_ends
    >>> scaling_ends(4096, 4096, 4096, 2**20)
    64.0
    """
    if min(m, n, k) < 0 or not memory > 0:
        raise ValueError(f"m={m}, n={n}, k={k}, memory={memory}: sizes are 0 or more, memory above 0")
    d3, d2, d1 = sorted(exact(m, n, k))
    if memory <= d3**2:
        return d1 * d2 * d3 / memory**1.5
    return d1 * d2 * (d3 / memory) ** 2 if memory < d2 * d3 else 0.0


def received_lower_bound(m: int, n: int, k: int, P: int, memory: float | None = None) -> float:
    """Bound the words that some rank of P must receive to multiply m x k by k x n.

    The bound is the words that a rank must touch, less the 1/P that it owns. A, B and C start and
    end spread evenly, without copies, and every rank does 1/P of the multiplications. For uneven
    work the bound is on the words that some rank receives, plus the words of sums that it sends.
    Not collective.

    Parameters
    ----------
    m, n, k : int
        Sizes: C is m x n.
    P : int
        Ranks.
    memory : float, optional
        The most words that a rank holds, with its share of A, B and C; by default the bound is that
        for any memory.

    Returns
    -------
    float
        Words; 0 where nothing has to move.

    Raises
    ------
    ValueError
        For a negative size, P < 1, and a memory that cannot hold a rank's share, or the three words
        of a multiplication.

    Notes
    -----
    For any memory: Al Daas, Ballard, Grigori, Kumar and Rouse 2022 (SPAA), theorem 3, from the
    inequality of Loomis and Whitney 1949. With `memory`: Kwasniewski et al. 2019 (SC), theorem 2.

    Examples
    --------
    >>> from pdla.model.bounds import received_lower_bound
    >>> round(received_lower_bound(1000, 1000, 1000, 8))
    375000
    """
    m, n, k, P, memory = exact(m, n, k, P, memory)
    accessed = accessed_lower_bound(m, n, k, P)
    owned = (m * n + m * k + k * n) / P
    if memory is None:
        return max(0.0, accessed - owned)
    if not memory >= max(owned, 3):
        raise ValueError(f"memory={memory}: {P} ranks need {max(owned, 3):.10g} words each, for A, B and C and to multiply")
    return max(0.0, moved_lower_bound(m, n, k, P, memory) - owned)
