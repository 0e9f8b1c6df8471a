"""bench/cases/spectra.py and fits.py: spectra and components are SciPy's and scikit-learn's to rounding."""

import re

import pytest

import pdla
from bench.cases import fits, spectra

ROUNDING = 1e-12


def rows(case, *given, **named):
    """What a case gives on two ranks: lines of text, and rows of figures."""
    found = pdla.run(2, lambda comm: [*case(comm, *given, **named)])[0]
    return [each for each in found if isinstance(each, str)], [each for each in found if not isinstance(each, str)]


def test_a_flake_has_the_spectrum_of_its_lattice():
    lines, (_, values, vectors) = rows(spectra.hueckel, 72)
    assert max(values[2], *vectors[2:]) < ROUNDING
    assert "symmetric about 0 within " in lines[0] and all(float(size) < 1e-10 for size in re.findall(r"\d+e-\d+", lines[0]))
    assert sum(int(line.split()[3]) for line in lines[1:]) == 72


def test_bands_with_overlap_by_one_kept_factor():
    lines, figures = rows(spectra.bands, 20, 4, field=0.1)
    ours = [row for row in figures if row[0].startswith("eigh")]
    assert len(ours) == 2 and max(max(row[2:]) for row in ours) < ROUNDING
    gaps = [float(line.split()[-1]) for line in lines]
    assert abs(gaps[0]) < 0.01 and gaps[1] > 0.1, "states at the edges meet, and a field parts them"


def test_stacks_have_the_spectra_of_their_matrices():
    _, figures = rows(spectra.stacks, 5, 24)
    assert len(figures) == 3 and all(error < ROUNDING for *_, error in figures)


@pytest.mark.parametrize("case", [fits.pca, fits.ridge], ids=lambda case: case.__name__)
def test_fits_are_scikit_learns(case):
    pytest.importorskip("sklearn")
    _, figures = rows(case, 300, 24)
    for row in figures:
        differences = row[3:] if case is fits.pca else row[2:]
        assert max(differences) < 1e-10, row
