"""Kernels whose blocks are fewer than what there is to do."""

import numpy as np
import pytest
from helpers.device_arrays import close, same, there, xp
from helpers.matmuls import numbers

from pdla.array import numpy as host
from pdla.array.draw import Draw
from pdla.indices import IndexSet


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_a_block_takes_tiles_in_turn(blocks, monkeypatch):
    monkeypatch.setattr("pdla.array.cupy.launch.GRID", blocks)
    sources = [numbers((65, 70 + number), "float32", number) for number in range(5)]
    targets = [there(np.zeros_like(x), "CFCFC"[number]) for number, x in enumerate(sources)]
    xp.copy_all([(target, there(x, "CCFFF"[number])) for number, (target, x) in enumerate(zip(targets, sources, strict=True))])
    for target, x in zip(targets, sources, strict=True):
        same(target, x)
    rows, cols = np.arange(70), np.arange(71)
    same(xp.uniform(rows, cols, 3), host.uniform(rows, cols, 3))
    held = IndexSet.interval(0, 300), IndexSet.interval(0, 150)
    for draw in (Draw(150, np.dtype("float32"), 3, "uniform", 0, 1), Draw(150, np.dtype("float64"), 3, "integers", 0, 3 << 17)):
        same(xp.draw_part(*held, draw), host.draw_part(*held, draw))
    x, y = numbers((300, 140), "float32", 1), numbers((300, 140), "float32", 2)
    for found, wanted in zip(xp.column_sums(there(x), there(y)), host.column_sums(x, y), strict=True):
        same(found, wanted)
    close(xp.gelu(there(x), False, there(x[:1]))[0], host.gelu(x.copy(), False, x[:1])[0], x)
    for found, wanted in zip(xp.moments(there(x)), host.moments(x), strict=True):
        close(found, wanted, x * x, terms=140)
