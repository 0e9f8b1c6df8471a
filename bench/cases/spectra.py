"""Spectra of electrons on a lattice, in Hueckel's approximation, beside SciPy's."""

from functools import partial
from math import isqrt, sqrt
from statistics import median

import numpy as np
import scipy.linalg

import pdla
from bench.common.case import case
from bench.common.clock import run_alone, time_median
from bench.common.turns import take_turns
from pdla import linalg
from pdla.bench.arguments import positive

HOPPING = -1.0  # the unit of energy, between neighbours
NEAR = 1.1  # within which sites are neighbours: bonds have length 1
PERIOD = sqrt(3)  # of a ribbon
BINS = 13  # of the density of states
BAR = 60  # characters of the highest one
TURNS = 5


def place_sites(sites, width):
    """The positions of sites of a honeycomb lattice, as complex numbers: two a cell, `width` cells a row."""
    cell, second = sites // 2, sites % 2
    across, along = np.divmod(cell, width)
    return PERIOD * along + (PERIOD / 2 + 1.5j) * across + 1j * second


def is_bonded(x, y):
    """1 where two positions are neighbours, else 0."""
    far = abs(x - y)
    return (far > 0) * (far < NEAR) * 1.0


@case("what:<24 | seconds:9.3f | from SciPy's:14.1e | residual:11.1e")
def hueckel(comm, sites: positive = 2048):
    """The spectrum of a flake of graphene, of its geometry alone, beside SciPy's (on rank 0 alone).

    mpirun -n 2 python -m bench hueckel

    Prints differences of eigenvalues, and residuals H V - V diag(w), over the largest eigenvalue.
    Bonds connect one half of the sites with the other. Therefore the spectrum is symmetric about 0,
    and each site has one electron (Coulson and Rushbrooke 1940).
    """
    width = isqrt(max(1, sites // 2))

    def element(i, j):
        return HOPPING * is_bonded(place_sites(i, width), place_sites(j, width))

    H = pdla.from_function(element, (sites, sites))
    whole = H.gather(root=0)
    expected, seconds = run_alone(comm, lambda: scipy.linalg.eigvalsh(whole))
    largest = abs(expected).max()
    yield "SciPy's eigvalsh", seconds, 0.0, None
    w, seconds = time_median(comm, lambda: linalg.eigvalsh(H))
    yield "eigvalsh", seconds, abs(w - expected).max() / largest, None
    (w, V), seconds = time_median(comm, lambda: linalg.eigh(H))
    residual = abs(H @ V - V * pdla.from_function(lambda i, j: w[j] + 0 * i, V.shape, V.grid, V.layout)).max()
    yield "eigh", seconds, abs(w - expected).max() / largest, residual / largest
    # two electrons a state below 0; one in states so near to 0 that they mix with their mirror images
    charges = pdla.matvec(V * V, 1 - np.sign(w) * (abs(w) > 1e-3 * largest))
    yield f"symmetric about 0 within {abs(w + w[::-1]).max() / largest:.0e}, electrons a site 1 within {abs(charges - 1).max():.0e}"
    yield from draw_density(w)


def draw_density(w):
    """Draw a histogram of eigenvalues, as lines."""
    counts, edges = np.histogram(w, BINS)
    for count, low, high in zip(counts, edges, edges[1:], strict=False):
        yield f"{low:6.2f} to {high:5.2f} {count:5} {'#' * round(BAR * count / counts.max())}"


@case("what:<24 | seconds:9.3f | from SciPy's:14.1e | residual:11.1e")
def bands(comm, orbitals: positive = 128, points: positive = 16, *, overlap: float = 0.1, field: float = 0.02):
    """Bands of a graphene ribbon at many k, with overlap, beside SciPy's for each k (on rank 0 alone).

    mpirun -n 2 python -m bench bands

    H(k) v = w S(k) v, complex Hermitian, S = 1 + overlap on bonds, in stacks. The factor of S serves
    two H, without a field across the ribbon and with a field. Prints differences of eigenvalues, and
    residuals H V - S V diag(w), over the largest eigenvalue.
    """
    sites = np.arange(orbitals)
    place = place_sites(sites, 1)
    # sum over the cell itself and those beside it
    near = [(cell, is_bonded(place[:, None], place + cell * PERIOD)) for cell in (-1, 0, 1)]
    bonds = np.array([sum(b * np.exp(1j * k * cell) for cell, b in near) for k in np.linspace(0, np.pi, points)])
    S = np.eye(orbitals) + overlap * bonds
    bare = HOPPING * bonds
    tilted = bare + np.diag(field * (place.imag - place.imag.mean()))
    stacked = pdla.stack(S)
    factor, seconds = time_median(comm, lambda: linalg.cho_factor(stacked))
    yield "factor of S, kept", seconds, None, None
    for name, H in (("no field", bare), ("a field", tilted)):
        expected, seconds = run_alone(comm, lambda: np.array([scipy.linalg.eigh(*each)[0] for each in zip(H, S)]))  # noqa: B023, B905
        yield f"SciPy's eigh, {name}", seconds, 0.0, None
        stack = pdla.stack(H)
        (w, V), seconds = time_median(comm, lambda: linalg.eigh(stack, factor))  # noqa: B023
        v, largest = V.gather(), abs(expected).max()
        residual = abs(H @ v - S @ v * w[:, None]).max()
        yield f"eigh, {name}", seconds, abs(w - expected).max() / largest, residual / largest
        yield f"{name}: gap {w[:, orbitals // 2].min() - w[:, (orbitals - 1) // 2].max():.4f}"


@case("what:<32 | seconds:9.3f | over SciPy's:13.2f | from SciPy's:14.1e")
def stacks(comm, batch: positive = 64, n: positive = 256):
    """Eigenvectors of many symmetric matrices, in stacks, beside SciPy's of an equal share on each rank.

    mpirun -n 4 python -m bench stacks

    SciPy's matrices, and a stack's that is cut along an axis, lie where they are decomposed. A stack
    that is not cut along an axis is redistributed there and back. Prints medians of 5 turns, and
    differences of eigenvalues over the largest.
    """
    drawn = np.random.default_rng(1).standard_normal((batch, n, n))
    problems = drawn + drawn.transpose(0, 2, 1)
    groups = pdla.ProcessGrid((comm.size, 1, 1), ("group", "row", "col"))
    stacked = {
        "eigh, each matrix on one rank": pdla.stack(problems, groups, pdla.Layout("row", "col"), axis="group"),
        "eigh, each matrix on all ranks": pdla.stack(problems),
    }
    works = {"SciPy's eigh": lambda: [scipy.linalg.eigh(each, driver="evd") for each in problems[comm.rank :: comm.size]]}
    works |= {name: partial(linalg.eigh, S) for name, S in stacked.items()}
    taken = take_turns(TURNS, {name: lambda work=work: time_median(comm, work, 1)[1] for name, work in works.items()}, first=1)
    expected = np.linalg.eigvalsh(problems)
    for name, seconds in taken.items():
        error = abs(linalg.eigh(stacked[name])[0] - expected).max() / abs(expected).max() if name in stacked else 0.0
        yield name, median(seconds), median(seconds) / median(taken["SciPy's eigh"]), error
