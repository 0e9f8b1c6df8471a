"""A zoo of matrices on which factorizations go wrong: ill-conditioned, graded, singular, badly scaled, of great growth.

As LAPACK's testers, and Higham, Accuracy and Stability of Numerical Algorithms (2002), chapter 28.
"""

import numpy as np

from helpers.systems import drawn, hilbert


def spectrum(mode, n, condition, rng):
    """latms: one large, one small, geometric, arithmetic, random in the logarithm, random."""
    i = np.arange(n) / max(1, n - 1)
    return {
        1: np.where(i == 0, 1, 1 / condition), 2: np.where(i < 1, 1, 1 / condition) if n > 1 else np.ones(n),
        3: condition**-i, 4: 1 - i * (1 - 1 / condition), 5: np.exp(-np.log(condition) * rng.uniform(size=n)),
        6: rng.uniform(0.1, 1, n),
    }[mode]


def orthogonal(n, dtype, seed):
    return np.linalg.qr(drawn((n, n), "complex128" if np.dtype(dtype).kind == "c" else "float64", seed))[0]


def latms(mode, condition, hermitian=False):
    def made(n, dtype):
        d, u = spectrum(mode, n, condition(np.finfo(dtype).eps), np.random.default_rng(mode)), orthogonal(n, dtype, mode)
        return (u * d) @ (u.conj().T if hermitian else orthogonal(n, dtype, mode + 10))

    return made


def plain(n, dtype, seed=0):
    return drawn((n, n), "complex128" if np.dtype(dtype).kind == "c" else "float64", seed)


def grades(n, dtype, by=5):
    return np.geomspace(1, np.finfo(dtype).eps ** (by / 10), n)


def scaled(dtype, large):
    """As latms: near the largest or the smallest number, with room for sums."""
    return np.finfo(dtype).max ** 0.45 if large else np.finfo(dtype).tiny ** 0.45


def kahan(n, dtype):
    c, s = np.cos(1.2), np.sin(1.2)
    return s ** np.arange(n)[:, None] * (np.eye(n) - c * np.triu(np.ones((n, n)), 1))


def wilkinson(n, dtype):
    """Elements of U grow as 2^n: of the ratio, which has no growth in it, too large n would fail."""
    a = np.eye(n) - np.tril(np.ones((n, n)), -1)
    a[:, -1:] = 1
    return a


def frank(n, dtype):
    i, j = np.indices((n, n))
    return np.where(j >= i - 1, n - np.maximum(i, j), 0.0)


def lauchli(n, dtype):
    """Square, of Lauchli's columns: ones above a small diagonal."""
    a = np.sqrt(np.finfo(dtype).eps) * np.eye(n)
    a[:1] = 1
    return a


def of_rank(n, dtype):
    k = max(1, n // 3)
    return plain(n, dtype)[:, :k] @ plain(n, dtype, 1)[:k]


def zero_columns(n, dtype):
    a = plain(n, dtype)
    a[:, n // 2 : n // 2 + 2] = 0
    return a


CONDITIONS = {"1e2": lambda eps: 1e2, "root": lambda eps: eps**-0.5, "most": lambda eps: 0.1 / eps}
GENERAL = {
    "random": plain,
    **{f"mode {mode}, {name}": latms(mode, of) for mode in range(1, 7) for name, of in CONDITIONS.items()},
    "graded rows": lambda n, dtype: grades(n, dtype)[:, None] * plain(n, dtype),
    "graded columns": lambda n, dtype: grades(n, dtype) * plain(n, dtype),
    "growing rows": lambda n, dtype: grades(n, dtype)[::-1, None] * plain(n, dtype),
    "large": lambda n, dtype: scaled(dtype, True) * plain(n, dtype),
    "small": lambda n, dtype: scaled(dtype, False) * plain(n, dtype),
    "hilbert": lambda n, dtype: hilbert(n), "kahan": kahan, "frank": frank, "lauchli": lauchli,
    "wilkinson": lambda n, dtype: wilkinson(min(n, 12), dtype),
    "identity": lambda n, dtype: np.eye(n), "reversed": lambda n, dtype: np.eye(n)[::-1], "toeplitz": lambda n, dtype: toeplitz(n),
    "rank": of_rank, "zero columns": zero_columns,
    "zero": lambda n, dtype: np.zeros((n, n)), "ones": lambda n, dtype: np.ones((n, n)),
}


def toeplitz(n):
    return 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)


def shifted(a):
    """A A^H and a little, so that it is positive definite in rounded numbers, too."""
    s = a @ a.conj().T
    return s + np.eye(len(a)) * (np.abs(s).sum(0).max(initial=0) * 1e-3 or 1)


POSITIVE = {
    **{f"mode {mode}, {name}": latms(mode, CONDITIONS[name], hermitian=True) for mode in range(1, 7) for name in ("1e2", "root")},
    "toeplitz": lambda n, dtype: toeplitz(n), "identity": lambda n, dtype: np.eye(n),
    "graded": lambda n, dtype: grades(n, dtype)[:, None] * shifted(plain(n, dtype)) * grades(n, dtype),
    "growing": lambda n, dtype: grades(n, dtype)[::-1, None] * shifted(plain(n, dtype)) * grades(n, dtype)[::-1],
    "large": lambda n, dtype: scaled(dtype, True) * shifted(plain(n, dtype)),
    "small": lambda n, dtype: scaled(dtype, False) * shifted(plain(n, dtype)),
    "rank and a shift": lambda n, dtype: shifted(of_rank(n, dtype)), "ones and a shift": lambda n, dtype: shifted(np.ones((n, n))),
}


def kernel(width, jitter):
    """Of Gaussians at equally spaced points; jitter, in eps, keeps it positive definite."""

    def made(n, dtype):
        x = np.linspace(0, 1, n)
        return np.exp(-((x[:, None] - x) ** 2) / (2 * width**2)) + jitter * np.finfo(dtype).eps * np.eye(n)

    return made


KERNELS = {
    **{f"width {w}, {j:g} eps": kernel(w, j) for w, j in zip((0.05, 0.1, 0.3) * 2, np.geomspace(450, 4.5e6, 6), strict=True)},
    "hilbert + n eps": lambda n, dtype: hilbert(n) + n * np.finfo(dtype).eps * np.eye(n),
}


def animal(kind, name, n, dtype):
    """The matrix, rounded to the dtype; complex ones of real kinds have phases on rows and columns."""
    a = {"general": GENERAL, "positive": POSITIVE, "kernel": KERNELS}[kind][name](n, dtype)
    if np.dtype(dtype).kind == "c" and not np.iscomplexobj(a):
        phases = np.exp(1j * np.arange(len(a)))
        a = phases[:, None] * a * (phases if kind == "general" else phases.conj())
    a = a.astype(dtype)
    return a if kind == "general" else (a + a.conj().T) / 2
