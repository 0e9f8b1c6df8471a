"""Paths are short: how many Python calls products and layers take, as bench/cases/calls.py counts them."""

import subprocess
import sys
from pathlib import Path

import pytest
import scipy.linalg  # noqa: F401 - so that none of its import is counted

import pdla
from bench.cases import calls

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("ranks", "most", "most_later"), [(4, 4_750, 312), (64, 8_500, 1_110), (1024, 8_600, 2_090)])
@pytest.mark.parametrize("layout", calls.LAYOUTS)
def test_calls_of_the_first_product_and_a_later_one(layout, ranks, most, most_later):
    """Dry, in a process of its own, where nothing is known of such a product yet."""
    work = f"pdla.dry_run({ranks}, calls.count_products, calls.LAYOUTS[{layout!r}])[0]"
    program = f"import pdla; from bench.cases import calls; print(*{work})"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    first, later, again = map(int, done.stdout.split())
    assert first <= most and again <= most and later <= most_later


@pytest.mark.parametrize("scheme", calls.SCHEMES)
def test_calls_of_a_linear_s_second_pass(scheme):
    """On 2 x 2 ranks: less than half of the 862 forward and of the 1,156 backward that it once was."""
    for forward, backward in pdla.run(4, calls.count_passes, scheme):
        assert forward <= 220 and backward <= 405


@pytest.mark.parametrize(("name", "most", "files"), [("solve(A, b)", 870, 47), ("cholesky(A)", 460, 35)])
def test_calls_of_a_later_solution_and_factorization(name, most, files):
    """On 2 x 2 ranks: less than 40 and 60 per cent of the 2,121 and 767, in 41 and 32 files, when each call planned anew."""
    for _, later, seen in pdla.run(4, calls.count_systems, name):
        assert later <= most and seen <= files


def test_calls_within_pdla_are_counted():
    assert calls.count_calls(lambda: sum(n for n in range(9))) == 0
    assert calls.count_calls(lambda: pdla.Layout("row")) > 1
