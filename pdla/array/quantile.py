"""The quantile function of the normal distribution, by sums, products, quotients and square roots alone.

Every processor and GPU rounds these in the same way, unlike a library's logarithm: random matrices
are equal everywhere, bit for bit.

Wichura, Algorithm AS 241: the percentage points of the normal distribution, 1988: rational
functions, accurate to about 1e-16.
"""

from __future__ import annotations

from math import log, sqrt

import numpy as np

# (Numerator, denominator), each from the highest power down: near the middle, in the tails, and far
# out in the tails.
_MIDDLE = (
    (2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
     1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0),
    (5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
     5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0),
)
_TAIL = (
    (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0,
     3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
     6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0),
)
_FAR = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
     2.96560571828504891230e-1, 1.78482653991729133580e0, 5.46378491116411436990e0, 6.65790464350110377720e0),
    (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
     1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0),
)
_ATANH = tuple(1 / n for n in range(21, 0, -2))  # of atanh(s) / s, in powers of s^2
_LOG2, _HALF = log(2), sqrt(0.5)


def normal(uniform: np.ndarray) -> np.ndarray:
    """The quantiles of numbers from [0, 1), multiples of 2^-53, plus half a step, so that none is 0 or infinite."""
    q = uniform - 0.5
    q += 2.0**-54  # both exact
    x = _ratio(_MIDDLE, 0.180625 - q * q)
    x *= q
    tails = np.flatnonzero(np.abs(q) > 0.425)
    if tails.size:
        out = q.reshape(-1)[tails]
        r = np.sqrt(_minus_log(0.5 - np.abs(out)))
        far = np.where(r <= 5, _ratio(_TAIL, r - 1.6), _ratio(_FAR, r - 5))
        x.reshape(-1)[tails] = np.copysign(far, out)
    return x


def _minus_log(p: np.ndarray) -> np.ndarray:
    """-log(p), of p = 2^e h (1 + s) / (1 - s), h = sqrt(1/2): log((1 + s) / (1 - s)) = 2 atanh(s), |s| < 0.172."""
    m, e = np.frexp(p)
    s = (m - _HALF) / (m + _HALF)
    return (0.5 - e) * _LOG2 - 2 * s * _powers(_ATANH, s * s)


def _ratio(of: tuple[tuple[float, ...], tuple[float, ...]], r: np.ndarray) -> np.ndarray:
    above, below = (_powers(coefficients, r) for coefficients in of)
    above /= below
    return above


def _powers(coefficients: tuple[float, ...], r: np.ndarray) -> np.ndarray:
    """Evaluate a polynomial by Horner's rule."""
    first, *rest = coefficients
    sums = np.full(r.shape, first)
    for more in rest:
        sums *= r
        sums += more
    return sums
