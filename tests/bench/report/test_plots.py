"""Figures show the numbers."""

import pytest
from helpers import results

from pdla.bench.report import lines, plots


def test_figures_show_the_numbers(files):
    pytest.importorskip("matplotlib")
    made = lines.lines(lines.read(files))
    bars = plots.draw_split(made).axes[0].patches
    assert sum(bar.get_width() for bar in bars[:3]) == pytest.approx(results.RUN.seconds)
    assert sum(bar.get_width() for bar in bars[3:6]) == pytest.approx(results.FORETOLD.seconds)
    volumes = [bar.get_width() for bar in plots.draw_volume(made).axes[0].patches]
    assert volumes == [line.multiple for line in made if line.multiple is not None] and len(volumes) == 6
    curve = plots.draw_scaling(made).axes[0].lines[0]
    assert [*zip(*curve.get_data(), strict=True)] == [(1, 0.02), (2, 0.02), (4, 0.02)]
    roofline = plots.draw_roofline(made).axes[0].lines
    points = {tuple(map(float, one.get_xydata()[0])) for one in roofline if len(one.get_xydata()) == 1}
    assert (made[3].intensity, made[3].flops / 0.02) in points
