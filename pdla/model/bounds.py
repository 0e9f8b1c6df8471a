"""Lower bounds on communication: what every algorithm must move, whatever its layouts and schedule."""

from __future__ import annotations

from math import sqrt


def accessed_lower_bound(m: int, n: int, k: int, P: int) -> float:
    """Words of A (m x k), B (k x n) and C (m x n) that the busiest of P ranks must at least touch, whatever its memory.

    A rank that does 1/P of the m n k multiplications touches parts of A, B and C whose sizes have a product of at least
    (m n k / P)^2 (Loomis and Whitney 1949), and at least 1/P of each of the three; the least sum has three cases, for
    one, two and three of them cut. Al Daas, Ballard, Grigori, Kumar and Rouse 2022 (SPAA), theorem 3. Not collective.
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


def received_lower_bound(m: int, n: int, k: int, P: int) -> float:
    """Words that some rank of P must receive to multiply m x k by k x n: what it touches less the 1/P that it owns.

    Memory-independent: it holds however much memory a rank has. A, B and C start and end spread evenly, without copies.
    0 where nothing has to move: one rank, or an empty matrix. Raises ValueError for a negative size or P < 1.
    """
    owned = (m * n + m * k + k * n) / P if P > 0 else 0.0
    return max(0.0, accessed_lower_bound(m, n, k, P) - owned)
