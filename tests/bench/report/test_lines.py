"""Lines of a report: of one product together, each with its roof."""

import pytest

from pdla.bench.report import lines
from pdla.model.machine import Machine


def test_lines_of_one_product_stand_together(files):
    found = lines.lines(lines.read([*files, files[0]]))
    assert [line.label for line in found[:2]] == ["gather 1x1, 1x1.json", "summa 1x1, 1x1.json"]
    assert (found[0].seconds, found[2].seconds, found[0].ranks) == (0.02, None, 1)
    assert [line.product for line in found] == sorted(line.product for line in found)


def test_a_line_knows_its_roof(files):
    line = lines.lines(lines.read(files))[3]
    assert (line.ranks, line.peak, line.link) == (2, 1e9, 2 * Machine().bandwidth)
    assert line.intensity == 2 * 64 * 48 * 32 / 2 / line.received
    assert lines._rate(Machine(), "complex64") == pytest.approx(2 * Machine().flops, rel=1e-2)
