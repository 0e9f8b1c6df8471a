"""Symmetric tridiagonal matrices on which eigensolvers go wrong, and LAPACK's ratios."""

import numpy as np


def wilkinson(n):
    """W+: pairs of eigenvalues that agree to many digits."""
    return np.abs(np.arange(n) - n // 2) * 1.0, np.ones(n - 1)


def glued(part, count, glue):
    d, e = part
    return np.tile(d, count), np.append(np.tile(np.append(e, glue), count - 1), e)


def of_spectrum(w, seed=0):
    """A tridiagonal matrix with these eigenvalues, as a random matrix has it."""
    from scipy.linalg import hessenberg

    q = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(w), len(w))))[0]
    h = hessenberg((q * w) @ q.T)
    return h.diagonal().copy(), h.diagonal(1).copy()


def zoo(dtype, n=61):
    eps, tiny, huge = (float(getattr(np.finfo(dtype), name)) for name in ("eps", "tiny", "max"))
    rng = np.random.default_rng(n)
    d, e, i = rng.standard_normal(n), rng.standard_normal(n - 1), np.arange(n)
    split, signs = e.copy(), e.copy()
    split[n // 5 - 1 :: n // 5] = 0
    signs[::2] *= -1
    made = {
        "random": (d, e), "GOE": (d * np.sqrt(2), np.sqrt(rng.chisquare(np.arange(n - 1, 0, -1)))), "signs": (d, -np.abs(signs)),
        "1-2-1": (np.full(n, 2.0), np.full(n - 1, -1.0)), "0-1-0": (np.zeros(n), np.ones(n - 1)),
        "zero": (np.zeros(n), np.zeros(n - 1)), "identity": (np.ones(n), np.zeros(n - 1)), "diagonal": (d, np.zeros(n - 1)),
        "split": (d, split), "hardly coupled": (np.ones(n), np.full(n - 1, 3 * eps)), "coupled less": (d, np.full(n - 1, eps**1.5)),
        "W+": wilkinson(n), "glued": glued(wilkinson(21), 3, np.sqrt(eps)), "glued by eps": glued(wilkinson(21), 3, 10 * eps),
        "glued by 1e-3": glued(wilkinson(15), 4, 1e-3), "Clement": (np.zeros(n), np.sqrt((i * (n - i))[1:] * 1.0)),
        "graded": (eps ** (2 * i / n), eps ** (2 * i[1:] / n)),
        "graded up": (eps ** (2 - 2 * i / n), eps ** (2 - 2 * i[1:] / n) / 3),
        "graded beyond": (tiny ** (0.9 * i / n), tiny ** (0.9 * i[1:] / n) / 2),
        "one large": of_spectrum(np.where(i == 0, 1, eps)), "one small": of_spectrum(np.where(i == 0, eps, 1.0)),
        "clusters": of_spectrum(np.sort(np.repeat([1.0, 2, 3], n)[:n] + 10 * eps * d)), "geometric": of_spectrum(eps ** (i / n)),
        "near overflow": (d * (huge / 16), e * (huge / 16)), "near underflow": (d * tiny, e * tiny),
        "subnormal": (d * tiny * 64 * eps, e * 0),
        "large beside small": (np.where(i < n // 2, d, d * tiny * 8), np.where(i[1:] < n // 2, e, e * tiny * 8)),
    }
    return {name: (d.astype(dtype), e.astype(dtype)) for name, (d, e) in made.items()}


def ratios(d, e, w, Z=None):
    """|T Z - Z w| / (n |T| eps), |Z^T Z - I| / (n eps), and the largest error of w against LAPACK's, over |T| eps sqrt(n)."""
    n, eps = len(d), float(np.finfo(d.dtype).eps)
    scale = np.ldexp(1.0, -int(np.frexp(max(np.abs(d).max(initial=0), np.abs(e).max(initial=0)))[1]) // 2)
    d, e, w = (x.astype(float) * scale * scale for x in (d, e, w))
    T = np.diag(d) + np.diag(e, 1) + np.diag(e, -1) if n else np.zeros((0, 0))
    size = np.abs(T).sum(0).max(initial=0) or 1.0
    error = np.abs(w - np.linalg.eigvalsh(T)).max(initial=0) / (size * eps * max(1, n) ** 0.5)
    if Z is None:
        return 0.0, 0.0, error
    Z = Z.astype(float)
    residual = np.abs(T @ Z - Z * w).sum(0).max(initial=0) / (max(1, n) * size * eps)
    return residual, np.abs(Z.T @ Z - np.eye(n)).sum(0).max(initial=0) / (max(1, n) * eps), error
