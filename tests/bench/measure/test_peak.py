"""The peak rate of this machine, by products of blocks."""

import pytest

import pdla
from pdla.bench.measure import peak


def test_the_peak_is_that_of_blocks_that_take_a_while(monkeypatch):
    monkeypatch.setattr(peak, "_time_product", lambda comm, side, dtype: 2e-12 * side**3)
    monkeypatch.setattr(peak, "LARGEST", 200)
    assert pdla.run(1, peak.measure_peak, "float64")[0] == pytest.approx(1e12)
