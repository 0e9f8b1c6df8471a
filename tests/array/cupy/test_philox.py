"""Random numbers drawn on a device: NumPy's bit by bit, wherever they are in a matrix."""

from importlib.resources import files
from itertools import product

import numpy as np
import pytest
from helpers.device_arrays import FLOATS, bits_same, xp

import pdla
from pdla import Balanced, Cuts, Cyclic, Layout, config
from pdla.array import numpy as host
from pdla.array.draw import Draw
from pdla.array.quantile import normal
from pdla.indices import IndexSet


def held(shape, layout=None, sizes=None, coords=None):
    """The rows and columns of a rank, and the matrix's columns."""
    return *(layout or Layout()).indices(shape, sizes or {}, coords or {}), shape[1]


def spaced(count, step):
    return IndexSet(np.arange(count) * step, np.arange(count) * step + 1)


GRID = {"row": 2, "col": 3}
HERE = [{"row": row, "col": col} for row, col in ((0, 0), (1, 2))]
TILED = {
    "whole": [held((300, 264))],
    "odd": [held((130, 259)), held((1, 1)), held((1, 150))],
    "narrow": [held((5000, 3)), held((17000, 1)), held((2400, 7)), held((240, 7), Layout(Cuts("row", (0, 1, 240))), GRID, HERE[1])],
    "blocks": [held((300, 264), Layout("row", "col"), GRID, here) for here in HERE],
    "ragged": [held((200, 277), Layout(Balanced("row", 5), Cuts("col", (0, 1, 131, 277))), GRID, here) for here in HERE],
    "cyclic": [held((300, 264), Layout(Cyclic("col", 7), Cyclic("row", 3, 1)), GRID, here) for here in HERE],
    "cyclic by tiles": [held((300, 600), Layout(Cyclic("row", 64), Cyclic("col", 64)), GRID, here) for here in HERE],
    "empty": [held((0, 5)), held((5, 0)), held((1, 9), Layout("row"), GRID, HERE[1])],
    "the same places of tiles": [(spaced(5, 2**14), spaced(1, 1), 1), (spaced(3, 1), spaced(5, 128), 700)],
    "far": [(*(IndexSet.interval(10**9 + 3, 10**9 + 3 + n) for n in (40, 270)), 3 * 10**9)],
}
DRAWN = [
    ("uniform", 0, 1), ("uniform", -3, 9.7), ("uniform", 4.0, 4.0), ("integers", -3, 9), ("integers", 5, 6),
    ("integers", 7, 7 + 2**32), ("integers", -(2**63), 5 - 2**63), ("integers", 2**63 - 10**7, 2**63), ("integers", -2, 3 * 2**30),
    ("normal", 0, 1),
]


@pytest.fixture
def host_draws(monkeypatch):
    """The tiles that have been drawn on the host since it was last emptied."""
    tiles, tile = [], Draw.tile
    monkeypatch.setattr(Draw, "tile", lambda draw, i, j: [tiles.append((i, j)), tile(draw, i, j)][1])
    return tiles


@pytest.mark.parametrize(("distribution", "low", "high"), DRAWN)
@pytest.mark.parametrize("where", TILED)
def test_drawn_is_numpys_bit_by_bit(where, distribution, low, high, host_draws):
    for number, (rows, cols, columns) in enumerate(TILED[where]):
        for dtype in FLOATS:
            draw = Draw(columns, np.dtype(dtype), number - 1, distribution, low, high)
            wanted = host.draw_part(rows, cols, draw)
            host_draws.clear()
            bits_same(xp.draw_part(rows, cols, draw), wanted)
            assert distribution == "integers" or not host_draws


@pytest.mark.parametrize("where", ["whole", "cyclic", "cyclic by tiles", "ragged"])
def test_tiles_in_which_numpy_passes_over_bits_and_no_others_come_from_the_host(where, host_draws):
    seen, passed = 0, 0
    for seed, (rows, cols, columns) in product(range(8), TILED[where]):
        draw = Draw(columns, np.dtype("complex64"), seed, "integers", 0, 3 << 15)  # one draw in 2^16 is passed over
        wanted = host.draw_part(rows, cols, draw)
        seen += len(host_draws)
        host_draws.clear()
        bits_same(xp.draw_part(rows, cols, draw), wanted)
        passed += len(host_draws)
        host_draws.clear()
    assert 0 < passed < seen


@pytest.mark.parametrize(("tile", "row"), [(3649, 5), (3022, 127)])
def test_a_number_passed_over_shifts_what_comes_after_it(tile, row, host_draws):
    """Of seed 0 tile 3649 passes over its fourth number alone, 3022 the last but one."""
    rows, cols = IndexSet.interval(row, row + 1), IndexSet.interval(128 * tile, 128 * tile + 128)
    draw = Draw(10**6, np.dtype("float64"), 0, "integers", 0, 3 << 17)
    bits_same(xp.draw_part(rows, cols, draw), host.draw_part(rows, cols, draw))
    assert host_draws == 2 * [(0, tile)]


@pytest.mark.parametrize("n", [1, 5, 6, 7, 8, 11])
@pytest.mark.parametrize("dtype", FLOATS)
def test_philox_reads_and_writes_nothing_past_its_block(dtype, n):
    from pdla.array.cupy.launch import launch  # which imports CuPy, or the stand-in, once that is found

    rows, cols = (xp.asarray(np.arange(20) * step) for step in (128, 1))
    made = xp.asarray(np.full((20, n), 7, dtype))
    for kernel, low, count in (("uniform", np.float64(0), np.float64(1)), ("normal", np.float64(0), np.float64(1)),
                               ("integers", np.int64(-4), np.uint64(8))):
        args = rows, cols, np.uint64(3), made, np.int64(3 * n), np.int64(n), low, count
        launch("philox.cu", f"{kernel}_{dtype}", (2,), (64,), *args)
        draw = Draw(128, np.dtype(dtype), 3, kernel, int(low), int(low) + int(count))
        wanted = host.draw_part(IndexSet.interval(0, 3), IndexSet.interval(0, n), draw)
        bits_same(made, np.concatenate([wanted, np.full((17, n), 7, dtype)]))


def test_a_normal_number_has_the_bits_of_the_processors_wherever_it_is():
    """Far out in the tails, too, where one in 10^11 is."""
    import cupy

    ends = np.concatenate([np.geomspace(1, 2**52, 500).astype(np.int64), 2**52 - np.arange(5)]) - 1
    x = np.concatenate([ends, 2**53 - 1 - ends]) * 2.0**-53
    source = files("pdla.cuda").joinpath("philox.cu").read_text()
    source += 'extern "C" __global__ void quantiles(double* x) { x[blockIdx.x] = quantile(x[blockIdx.x]); }'
    found = xp.asarray(x)
    cupy.RawModule(code=source, options=("--std=c++17", "--fmad=false")).get_function("quantiles")((len(x),), (1,), (found,))
    bits_same(found, normal(x))


@pytest.mark.parametrize(
    ("dtype", "distribution", "low", "high"),
    [
        ("float16", "normal", 0, 1), ("int8", "integers", -3, 9), ("int64", "integers", 0, 2**40), ("float16", "uniform", -1, 1),
        ("float64", "integers", 0, 2**32 + 1), ("float32", "integers", -(2**63), 2**63), ("complex64", "uniform", -0.0, -5e-324),
        ("float64", "uniform", np.float32(0.1), 1), ("bool", "uniform", 0, 1),
    ],
)
def test_what_no_kernel_draws_comes_from_the_host(dtype, distribution, low, high, host_draws):
    rows, cols, columns = TILED["cyclic"][1]
    draw = Draw(columns, np.dtype(dtype), 3, distribution, low, high)
    wanted, drawn = host.draw_part(rows, cols, draw), list(host_draws)
    bits_same(xp.draw_part(rows, cols, draw), wanted)
    assert host_draws == 2 * drawn


def test_what_no_integer_of_64_bits_can_be_is_refused():
    for low, high in ((-(2**63) - 1, 5 - 2**63), (2**63 - 5, 2**63 + 1)):
        with pytest.raises(ValueError, match="out of bounds"):
            xp.draw_part(*TILED["blocks"][0][:2], Draw(264, np.dtype("float64"), 0, "integers", low, high))


def test_random_is_the_same_matrix_on_devices():
    def program(comm, how):
        return pdla.random((70, 150), pdla.ProcessGrid((2, 2)), Layout(Cyclic("row", 16), partial="col"), seed=5, **how).gather()

    for how in ({}, {"distribution": "integers", "low": -4, "high": 5, "dtype": "complex64"}, {"distribution": "normal"}):
        with config.override(array="cupy"):
            found = pdla.run(4, program, how)
        for x, wanted in zip(found, pdla.run(4, program, how), strict=True):
            bits_same(x, wanted)
