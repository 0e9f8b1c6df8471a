"""Making matrices: from whole arrays, from functions, and at random: the same numbers on every grid."""

import re
from itertools import product as cross

import ml_dtypes
import numpy as np
import pytest
from helpers.matrices import on_a_grid

import pdla
from pdla import Balanced, Cuts, Cyclic, Layout, ProcessGrid
from pdla.errors import AgreementError, ArgumentError, GridError, LayoutError, ShapeError
from pdla.matrix import create

PLACES = [
    (1, (1, 1), Layout()),
    (4, (2, 2), Layout("row", "col")),
    (5, (2, 2), Layout(cols=("col", "row"))),
    (6, (2, 3), Layout(Cyclic("col", 7), Cyclic("row", 3, 1))),
    (3, (3, 1), Layout(Balanced("row", 5), partial="col")),
    (6, (3, 2), Layout(cols=Cuts("row", (0, 0, 140, 150)))),
]
each_place = pytest.mark.parametrize(("ranks", "shape", "layout"), PLACES, ids=str)


def whole_of(make, ranks, shape, layout):
    """The whole of the matrix that make(grid, layout) makes, the same on every rank."""
    wholes = pdla.run(ranks, lambda comm: make(ProcessGrid(shape), layout).gather())
    for whole in wholes[1:]:
        np.testing.assert_array_equal(whole, wholes[0])
    return wholes[0]


# ---------------------------------------------------------------------------------------------- where none is given

MAKERS = {
    "zeros": lambda **at: pdla.zeros((5, 3), **at),
    "ones": lambda **at: pdla.ones((5, 3), **at),
    "eye": lambda **at: pdla.eye((5, 3), **at),
    "random": lambda **at: pdla.random((5, 3), **at),
    "from_function": lambda **at: pdla.from_function(lambda i, j: i - j, (5, 3), **at),
    "from_global": lambda **at: pdla.from_global(np.arange(15).reshape(5, 3), **at),
    "from_global of a root": lambda **at: pdla.from_global(np.arange(15).reshape(5, 3), root=0, **at),
    "load": lambda **at: pdla.load("A.npy", **at),
}


@pytest.fixture
def stored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("A.npy", np.arange(15).reshape(5, 3))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
def test_matrices_lie_on_the_default_grid(ranks, stored):
    shape = pdla.balanced_shape(ranks)

    def program(comm, gathers=True):
        line = ProcessGrid(ranks, "x")
        for make in MAKERS.values():
            A = make()
            assert A.grid is ProcessGrid.default() and A.layout == Layout("row", "col")
            assert make(layout=Layout("col")).layout == Layout("col")
            assert make(grid=line).layout == Layout("x")
            if gathers:
                np.testing.assert_array_equal(A.gather(), make(grid=ProcessGrid(shape), layout=Layout("row", "col")).gather())
        return A.grid.shape

    assert pdla.run(ranks, program) == [shape] * ranks
    assert pdla.dry_run(ranks, program, False)[0] == shape


def test_the_rest_lies_on_the_default_grid():
    def program(comm):
        grid = ProcessGrid.default()
        block = np.full(Layout("row", "col").local_shape((5, 3), grid.sizes, grid.coords), comm.rank)
        A, S = pdla.from_local(block, (5, 3)), pdla.stack(np.ones((2, 4, 4)))
        assert A.grid is S.grid is grid and A.layout == S.layout == Layout("row", "col")
        empty = pdla.zeros((0, 3))
        assert empty.grid is grid and (empty.T @ empty).gather().tolist() == np.zeros((3, 3)).tolist()

    pdla.run(4, program)
    clock = pdla.Machine(latency=1e-6, bandwidth=1e9, flops=1e9)
    product = pdla.dry_run_all(4, lambda comm: (pdla.ones((8, 8)) @ pdla.ones((8, 8))).grid.shape, machine=clock)
    assert product.results == [(2, 2)] * 4


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_no_layout_is_guessed_for_three_axes(make, stored):
    def program(comm):
        with pytest.raises(LayoutError, match=r"ProcessGrid\(row=1, col=2, depth=1\) has no default layout: give a pdla.Layout"):
            make(grid=ProcessGrid((1, 2, 1)))

    pdla.run(2, program)


@pytest.mark.parametrize("second", [float, np.dtype(int), "float32", Layout("row")], ids=str)
def test_what_stands_where_the_grid_should_is_told_its_place(second):
    with pytest.raises(GridError, match=r"ones: grid=.* a layout goes to layout=, a dtype to dtype="):
        pdla.run(1, lambda comm: pdla.ones((2, 2), second))


def test_a_default_and_another_layout_on_one_rank_are_told_apart():
    def program(comm):
        with pytest.raises(AgreementError, match=r"rank 0: zeros\(.*Layout\(rows='row', cols='col'\).*; rank 1: zeros\(.*'col'\)"):
            pdla.zeros((4, 4), layout=Layout(cols="col") if comm.rank else None)
        pdla.zeros((4, 4), layout=Layout("row", "col") if comm.rank else None)  # what the default is

    pdla.run(2, program)


# ---------------------------------------------------------------------------------------------- at random


@pytest.mark.parametrize(
    ("dtype", "distribution"),
    [*cross(["float64", "float32", "complex64"], ["uniform", "integers", "normal"]), ("int8", "integers")],
)
@pytest.mark.parametrize("size", [(300, 150), (1, 150), (200, 150)])
def test_random_is_the_same_on_every_grid(size, dtype, distribution):
    def make(grid, layout):
        return pdla.random(size, grid, layout, dtype=dtype, seed=7, distribution=distribution, low=-3, high=9)

    first = whole_of(make, *PLACES[0])
    assert first.dtype == dtype and first.shape == size
    for place in PLACES[1:]:
        np.testing.assert_array_equal(whole_of(make, *place), first)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_random_numbers_are_distributed_as_asked(dtype):
    def drawn(**how):
        return whole_of(lambda grid, layout: pdla.random((300, 150), grid, layout, dtype=dtype, **how), *PLACES[1])

    parts = [np.real, np.imag] if dtype == "complex128" else [np.real]
    for part in parts:
        uniform, normal = part(drawn(low=2, high=4)), part(drawn(distribution="normal"))
        integers = part(drawn(distribution="integers", low=-2, high=3))
        assert 2 <= uniform.min() < 2.01 and 3.99 < uniform.max() < 4
        assert abs(uniform.mean() - 3) < 0.02 and len(np.unique(uniform)) == 45_000
        assert abs(normal.mean()) < 0.03 and abs(normal.std() - 1) < 0.03 and np.isfinite(normal).all()
        assert sorted(set(integers.ravel().tolist())) == [-2, -1, 0, 1, 2]
    if dtype == "complex128":
        assert abs(np.corrcoef(drawn().real.ravel(), drawn().imag.ravel())[0, 1]) < 0.02


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, "float16", "float32", ">f8", ml_dtypes.float8_e4m3fn, ml_dtypes.int4])
@pytest.mark.parametrize("sign", [1, -1])
def test_integers_are_drawn_in_every_dtype_that_has_them_all(dtype, sign):
    """Rounded, the last of them would be `high` itself."""
    kind = np.dtype(dtype)
    top = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**24, "float64": 2**53, "float8_e4m3fn": 2**4}.get(kind.name, 2**3)

    def program(comm, far):
        ends = {"low": far - 1, "high": far + 1} if sign > 0 else {"low": -far, "high": 2 - far}
        return pdla.random((2, 40), ProcessGrid(1), Layout(), dtype=dtype, distribution="integers", **ends).gather()

    far = top - (sign > 0 and kind == ml_dtypes.int4)
    assert set(pdla.run(1, program, far)[0].astype(np.float64).ravel()) == {sign * far, sign * (far - 1)}
    with pytest.raises(ValueError, match="has no such numbers, or rounds those between"):
        pdla.run(1, program, top + 2)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("bool", 0, 2), ("int8", -128, 128), ("uint8", 0, 256), ("int64", -(2**63), 2**63), ("uint64", 0, 2**63)],
)
def test_integers_may_be_all_that_a_dtype_has(dtype, low, high):
    """uint64 has more than are drawn."""
    ends = {"distribution": "integers", "low": low, "high": high}
    x = whole_of(lambda grid, how: pdla.random((60, 70), grid, how, dtype=dtype, **ends), *PLACES[1]).astype(float)
    assert np.allclose([x.min(), x.mean(), x.max()], [low, (low + high - 1) / 2, high - 1], atol=(high - low) / 32)


def test_seeds_differ_and_repeat():
    def drawn(seed):
        return whole_of(lambda grid, layout: pdla.random((20, 30), grid, layout, seed=seed), *PLACES[1])

    np.testing.assert_array_equal(drawn(1), drawn(1))
    for seed in (2, -1, 2**63 + 1, 2**64 - 2):
        assert not (drawn(seed) == drawn(1)).any()
    assert not (drawn(2**64 - 2) == drawn(-1)).any()


@pytest.mark.parametrize(
    ("how", "numbers"),
    [
        ({}, [0.7337459554446363, 0.9005742138336001, 0.930492527325139, 0.41048862999259594, 0.5679542897514284]),
        (
            {"distribution": "normal"},
            [0.6241819657849793, 1.284830355191926, 1.4794692444976747, -0.2262882198470941, 0.17116831532223734],
        ),
        ({"distribution": "integers", "low": -100, "high": 100}, [-59, 47, -94, -61, -19]),
        ({"distribution": "integers", "high": 100, "dtype": complex, "seed": 7}, [16 + 74j, 55 + 10j, 53 + 88j, 14 + 4j, 85 + 14j]),
    ],
    ids=["uniform", "normal", "integers", "complex"],
)
def test_a_seed_means_the_same_numbers_in_every_release(how, numbers):
    """A program that names a seed is repeated by it years later: in the first tile, at its ends, and in the last."""
    x = whole_of(lambda grid, layout: pdla.random((300, 200), grid, layout, **({"seed": 5} | how)), *PLACES[0])
    assert x[[0, 1, 0, 128, 299], [0, 0, 128, 0, 199]].tolist() == numbers


def test_random_says_what_it_can_do():
    def program(comm):
        grid = ProcessGrid((1, 2), order=[0, 1])
        with pytest.raises(ValueError, match="distribution='cauchy': one of 'uniform'"):
            pdla.random((3, 3), grid, Layout(), distribution="cauchy")
        with pytest.raises(ValueError, match="low=4, high=4"):
            pdla.random((3, 1), grid, Layout(cols="col"), distribution="integers", low=4, high=4)
        with pytest.raises(AgreementError, match=r"rank 0: random\(seed=0.*; ranks 1, 2: random\(seed=1"):
            pdla.random((3, 3), grid, Layout(), seed=min(comm.rank, 1))

    pdla.run(3, program)


# ---------------------------------------------------------------------------------------------- from nothing


@each_place
@pytest.mark.parametrize("dtype", ["float64", "complex64", "int8", "bool"])
def test_zeros_ones_eye(ranks, shape, layout, dtype):
    for size in [(10, 150), (150, 150), (0, 150), (1, 150)]:
        for make, wanted in [
            (pdla.zeros, np.zeros(size, dtype)),
            (pdla.ones, np.ones(size, dtype)),
            (pdla.eye, np.eye(*size, dtype=dtype)),
        ]:
            whole = whole_of(
                lambda grid, how, make=make, size=size: make(size, grid, how, dtype=dtype), ranks, shape, layout
            )
            np.testing.assert_array_equal(whole, wanted)
            assert whole.dtype == dtype


def test_eye_of_an_int_is_square():
    np.testing.assert_array_equal(whole_of(lambda grid, layout: pdla.eye(9, grid, layout), *PLACES[1]), np.eye(9))


@each_place
def test_from_function(ranks, shape, layout):
    i, j = np.ogrid[:20, :150]
    whole = whole_of(
        lambda grid, how: pdla.from_function(lambda i, j: 10 * i - j, (20, 150), grid, how), ranks, shape, layout
    )
    np.testing.assert_array_equal(whole, 10 * i - j)


def test_a_function_may_write_to_its_arguments():
    """Also where a block has several tiles, which have rows and columns in common."""

    def doubled(i, j):
        i *= 2
        j *= 2
        return i + j

    def program(comm):
        return pdla.from_function(doubled, (200, 200), ProcessGrid((1, 1)), Layout()).gather()

    assert np.array_equal(pdla.run(1, program)[0], 2 * np.add.outer(np.arange(200), np.arange(200)))


def test_a_function_may_give_whole_numbers_as_floats():
    def halves(i, j):
        return (i + j) // 2.0

    whole = whole_of(lambda grid, how: pdla.from_function(halves, (9, 7), grid, how, dtype="uint8"), *PLACES[1])
    np.testing.assert_array_equal(whole, halves(*np.ogrid[:9, :7]))


@pytest.mark.parametrize("error", [ValueError("no"), RuntimeError("no"), UnicodeDecodeError("ascii", b"x", 0, 1, "no")])
def test_an_error_in_the_function_on_one_rank_is_an_error_on_all(error):
    def program(comm):
        def f(i, j):
            if comm.rank == 2:
                raise error
            return i + j

        with pytest.raises((ValueError, RuntimeError), match="no") as caught:
            pdla.from_function(f, (6, 6), ProcessGrid((2, 2)), Layout("row", "col"))
        return str(caught.value)

    (text,) = set(pdla.run(5, program))
    assert text.startswith("rank 2: ")


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda grid: pdla.zeros((3, -1), grid, Layout()), ShapeError, r"not shape \(3, -1\)"),
        (lambda grid: pdla.ones((3,), grid, Layout()), ShapeError, r"not shape \(3,\)"),
        (lambda grid: pdla.zeros((2**63, 0), grid, Layout()), ShapeError, r"shape \(9223372036854775808, 0\) are too long"),
        (lambda grid: pdla.zeros((2**63 - 1, 0), grid, Layout("row")), ShapeError, "block of 4611686018427387904 x 0 float64"),
        (lambda grid: pdla.eye(2**32, grid, Layout()), ShapeError, "a block of 4294967296 x 4294967296 float64: cut it further"),
        (lambda grid: pdla.ones((3, 3), grid, Layout("x")), LayoutError, "names the axis 'x'"),
        (lambda grid: pdla.ones((3, 3), grid, Layout(), dtype="flaot"), TypeError, "flaot"),
        (lambda grid: pdla.ones((3, 3), grid, Layout(), dtype=object), ShapeError, "elements of dtype object: give booleans"),
        (lambda grid: pdla.from_global(np.full((3, 3), "x"), grid, Layout()), ShapeError, "elements of dtype <U1"),
        (lambda grid: pdla.from_global(np.ones((3, 3), object), grid, Layout(), root=1), ShapeError, "rank 1: .* dtype object"),
        (lambda grid: pdla.from_global(np.ma.masked_equal(np.eye(3), 0), grid, Layout()), ShapeError, "masked elements"),
        (lambda grid: pdla.from_local(np.ones((3, 3), "M8[s]"), (6, 6), grid, Layout("row", "col")), ShapeError, "datetime64"),
        (lambda grid: pdla.random((4, 1), grid, Layout(cols="col"), seed=None), ArgumentError, "seed=None: give an integer"),
        (lambda grid: pdla.random((4, 1), grid, Layout(cols="col"), low="x"), ValueError, "low='x', high=1: give fin"),
        (lambda grid: pdla.random((4, 1), grid, Layout(cols="col"), high=np.inf), ValueError, "high=inf: give finite real"),
        (lambda grid: pdla.random((4, 1), grid, Layout(cols="col"), high=10**400), ValueError, "0: give finite real numbers"),
        (
            lambda grid: pdla.random((4, 1), grid, Layout(cols="col"), distribution=np.arange(3)), ValueError,
            r"distribution=array\(\[0, 1, 2\]\): one of 'uniform'",
        ),
        *[
            (
                lambda grid, how=how: pdla.random((4, 1), grid, Layout(cols="col"), distribution="integers", **how),
                ValueError, f"integers as {how['dtype']} can be from",
            )
            for how in (
                {"dtype": "int8", "high": 129}, {"dtype": "uint8", "low": -1}, {"dtype": "float64", "high": 2**63 + 1},
                {"dtype": "bool", "high": 3},
            )
        ],
        *[
            (lambda grid, how=how: pdla.random((4, 1), grid, Layout(cols="col"), **how), ValueError, text)
            for how, text in (
                ({"dtype": ml_dtypes.int4}, "'uniform' numbers as int4 would be cut off"),
                ({"low": -1e308, "high": 1e308}, "not so far apart"),
                ({"dtype": "float16", "high": 1e6}, "float16 has no such numbers"),
                ({"dtype": "float16", "high": 10**6, "distribution": "integers"}, "float16 has no such numbers"),
                ({"dtype": "float16", "high": 2050, "distribution": "integers"}, "high=2050: float16 .* or rounds"),
                ({"low": -(2**24) - 2, "dtype": "complex64", "distribution": "integers"}, "complex64 has no such numbers, or"),
                ({"low": 0.5, "high": 3, "distribution": "integers"}, "low=0.5, high=3: integers are drawn between whole numbers"),
            )
        ],
        (
            lambda grid: pdla.from_function(lambda i, j: np.ones(7), (3, 4), grid, Layout()), ShapeError,
            r"f gives an array of shape \(7,\) for 3 rows and 4 columns: give one of shape \(3, 4\)",
        ),
        (lambda grid: pdla.from_function(lambda i, j: [[1], [2, 3]], (3, 3), grid, Layout()), ShapeError, "f: a list that is no"),
        (lambda grid: pdla.from_global([[1], [2, 3]], grid, Layout()), ShapeError, "from_global: a list that is no array"),
        (lambda grid: pdla.from_function(lambda i, j: None, (3, 3), grid, Layout()), ShapeError, "f: elements of dtype object"),
        (
            lambda grid: pdla.from_function(lambda i, j: np.ma.masked_equal(i - j, 0), (3, 3), grid, Layout()), ShapeError,
            "f: an array with masked elements",
        ),
        (
            lambda grid: pdla.from_function(lambda i, j: i + 1j * j, (3, 3), grid, Layout()), ShapeError,
            "f gives complex128, the matrix has float64: give dtype=complex",
        ),
        *[
            (
                lambda grid, f=f, dtype=dtype: pdla.from_function(f, (3, 3), grid, Layout(), dtype=dtype),
                ShapeError, f"f gives {re.escape(str(given))}, the matrix has {np.dtype(dtype)}: give another dtype=, or round",
            )
            for f, dtype, given in (
                (lambda i, j: (i + j) / 2, "int64", 0.5),
                (lambda i, j: np.nan, "int8", np.nan),
                (lambda i, j: i - 2.0**70, "int64", -(2.0**70)),
                (lambda i, j: 200 * i + j, "int8", 200),
                (lambda i, j: j - i, "uint16", -1),
                (lambda i, j: i + j, bool, 2),
                (lambda i, j: (i + j) / 2, ml_dtypes.int4, 0.5),
            )
        ],
        (
            lambda grid: pdla.from_local(np.ma.masked_equal(np.eye(3), 0), (3, 3), grid, Layout()), ShapeError,
            "from_local: .*masked elements",
        ),
        (lambda grid: pdla.from_global(np.ones(3), grid, Layout()), ShapeError, r"not shape \(3,\)"),
        (lambda grid: pdla.from_global(np.ones((3, 3)), grid, Layout(partial="row")), LayoutError, "partial sums"),
        (lambda grid: pdla.from_global(np.ones((3, 3)), grid, Layout(), root=4), GridError, "root=4"),
        (lambda grid: pdla.from_global(np.ones(3), grid, Layout(), root=1), ShapeError, r"rank 1: .*not shape \(3,\)"),
        (
            lambda grid: pdla.from_local(np.ones((3, 3)), (6, 7), grid, Layout("row", "col")),
            ShapeError,
            r"needs \(3, 4\)",
        ),
    ],
)
def test_what_cannot_be_made(make, kind, message):
    def program(comm):
        with pytest.raises(kind, match=message) as caught:
            make(ProcessGrid((2, 2)))
        return str(caught.value)

    assert len(set(pdla.run(4, program))) == 1


# ---------------------------------------------------------------------------------------------- from arrays


@pytest.mark.parametrize("dtype", ["float64", "complex64", "int8", "float16"])
@each_place
def test_from_global(ranks, shape, layout, dtype):
    whole = (np.arange(20 * 150).reshape(20, 150) % 101).astype(dtype)

    def program(comm):
        grid = ProcessGrid(shape)
        for root in (None, *range(ranks)):
            array = whole if root in (None, comm.rank) else None
            A = pdla.from_global(array, grid, layout.summed, root)
            rows, cols = (held.indices() for held in A.indices)
            np.testing.assert_array_equal(A.local, whole[np.ix_(rows, cols)])
            assert A.dtype == dtype and not np.shares_memory(A.local, whole)

    pdla.run(ranks, program)


def test_from_global_looks_at_the_array_of_root_only():
    for other in (None, "text", np.ma.masked_equal(np.eye(3), 0), np.ones(3)):
        def program(comm, other=other):
            return pdla.from_global(np.eye(3) if comm.rank == 1 else other, ProcessGrid(3), Layout("row"), root=1).trace()

        assert pdla.run(3, program) == [3] * 3


def test_from_global_of_different_arrays():
    def program(comm):
        with pytest.raises(AgreementError, match=r"rank 0: from_global of shape \(3, 3\).* ranks 1, 2: .*\(3, 4\)"):
            pdla.from_global(np.ones((3, 3 + min(comm.rank, 1))), ProcessGrid(3), Layout("row"))

    pdla.run(3, program)


def test_from_local_of_different_dtypes():
    def program(comm):
        with pytest.raises(ShapeError, match="different dtypes: float32, float64"):
            pdla.from_local(
                np.ones((1, 3), "float32" if comm.rank else "float64"), (3, 3), ProcessGrid(3), Layout("row")
            )

    pdla.run(3, program)


def test_short_whole_numbers_of_numpy_s_do_not_wrap_around():
    def program(comm):
        x = pdla.random((60, 60), ProcessGrid((1, 1)), Layout(), low=np.int8(-100), high=np.int8(100)).gather()
        assert -100 <= x.min() < -90 and 90 < x.max() < 100

    pdla.run(1, program)


def test_from_local_in_a_dry_run_as_an_idle_rank_says_what_is_missing():
    def program(comm):
        grid = ProcessGrid((2, 1), comm=comm)
        return pdla.from_local(np.ones((2, 3), "float32") if grid.active else None, (4, 3), grid, Layout("row")).dtype

    assert pdla.dry_run(3, program, rank=1)[0] == np.float32
    with pytest.raises(ShapeError, match="as rank 2, an idle one, knows no dtype: give it another rank="):
        pdla.dry_run(3, program, rank=2)


@pytest.mark.parametrize(("held", "lines", "call"), [
    (((3, 7), (3, 7), (3, 7), (1, 7)), "rows", "pdla.ProcessGrid(4) and pdla.Layout('row')"),
    (((10, 2), (10, 2), (10, 2), (10, 1)), "columns", "pdla.ProcessGrid(4) and pdla.Layout(cols='row')"),
    (((10, 7),) * 4, "matrix", "pdla.from_global(array), or layout=pdla.Layout()"),
])  # fmt: skip
def test_from_local_names_the_call_that_fits_whole_rows(held, lines, call):
    def program(comm):
        with pytest.raises(ShapeError, match=f"^from_local: .* whole {lines}: give {re.escape(call)}$"):  # once, not by rank
            pdla.from_local(np.ones(held[comm.rank]), (10, 7))

    pdla.run(4, program)


@pytest.mark.parametrize("make", [pdla.zeros, pdla.ones, pdla.random, pdla.eye], ids=lambda make: make.__name__)
def test_a_shape_is_one_tuple(make):
    with pytest.raises(GridError, match=r"grid=5 is an int: give a pdla.ProcessGrid; rows and columns are one tuple, as \(5, 5\)"):
        pdla.run(2, lambda comm: make(5, 5))


def test_from_local_with_one_wrong_block():
    def program(comm):
        with pytest.raises(ShapeError, match=r"rank 2: the local block has shape \(2, 3\)") as caught:
            pdla.from_local(np.ones((2 if comm.rank == 2 else 1, 3)), (3, 3), ProcessGrid(3), Layout("row"))
        return str(caught.value)

    assert len(set(pdla.run(3, program))) == 1


# ---------------------------------------------------------------------------------------------- what is not taken


@pytest.mark.parametrize("dtype", [">f8", ">c16", "longdouble"])
def test_any_array_of_numpys_is_dealt_out(dtype):
    """Other machines' byte order becomes this one's; equal numbers are equal whatever is in bytes that they do not use."""

    def program(comm):
        grid, x = ProcessGrid((2, 2)), np.empty((6, 5), dtype)
        x.view(np.uint8)[:] = comm.rank
        x[:] = np.arange(30).reshape(6, 5)
        A = pdla.from_global(x, grid, Layout("row", "col"))
        assert A.dtype.isnative and A.dtype == np.dtype(dtype).newbyteorder("=")
        assert np.array_equal(A.gather(), x)

    pdla.run(4, program)


@pytest.mark.parametrize("shape", [(2, 9000), (9000, 2), (1000, 17)])
def test_ranks_that_draw_their_own_large_arrays_are_told(monkeypatch, shape):
    """Of an array above that size nothing was compared: copies of a matrix could differ."""
    monkeypatch.setattr(create, "DIGESTED", 1000)

    def program(comm):
        grid, own = ProcessGrid((2, 2), comm=comm), np.random.default_rng(comm.rank).random(shape)
        with pytest.raises(AgreementError, match="digest"):
            pdla.from_global(own, grid, Layout("row"))
        return pdla.from_global(np.ones(shape), grid, Layout("row")).norm() ** 2

    assert pdla.run(4, program) == pytest.approx([shape[0] * shape[1]] * 4)


def test_ranks_that_draw_their_own_arrays_are_told():
    def program(comm):
        grid = ProcessGrid((2, 2), comm=comm)
        with pytest.raises(AgreementError, match="digest"):
            pdla.from_global(np.full((4, 4), comm.rank), grid, Layout("row", "col"))
        return pdla.from_global(np.full((4, 4), comm.rank), grid, Layout("row", "col"), root=2).norm()

    assert pdla.run(4, program) == [8] * 4


@pytest.mark.parametrize(
    ("kind", "text", "call"),
    [
        (ArgumentError, "shape=\\(2.5, 2\\)", lambda c, g, l: ProcessGrid((2.5, 2), comm=c)),
        (GridError, "comm=", lambda c, g, l: ProcessGrid((1, 1), c)),
        (GridError, "comm=", lambda c, g, l: ProcessGrid(1, 1, comm=c)),
        (GridError, "mpirun -n 4", lambda c, g, l: ProcessGrid((2, 2), comm=c)),
        (GridError, "at least one rank", lambda c, g, l: pdla.balanced_shape(0)),
        (ArgumentError, "not shape \\(4.5, 4\\)", lambda c, g, l: pdla.zeros((4.5, 4), g, l)),
        (ShapeError, "not shape 4", lambda c, g, l: pdla.zeros(4, g, l)),
        (LayoutError, "is a str", lambda c, g, l: pdla.zeros((4, 4), g, "row")),
        (LayoutError, "is a tuple", lambda c, g, l: pdla.ones((4, 4), g, l).redistribute(("row", "col"))),
        (GridError, "is a Layout", lambda c, g, l: pdla.zeros((4, 4), l, g)),
        (LayoutError, "is a str", lambda c, g, l: pdla.from_local(np.ones((4, 4)), (4, 4), g, "row")),
        (ShapeError, "not shape \\(-3, 4\\)", lambda c, g, l: pdla.from_local(None, (-3, 4), g, l)),
        (ShapeError, "pdla.Cuts", lambda c, g, l: pdla.from_local(np.ones((3, 4)), (4, 4), g, l)),
        (ArgumentError, "whole numbers", lambda c, g, l: Cyclic("row", 2.5)),
        (LayoutError, "axis comes first", lambda c, g, l: Cyclic(64, "row")),
        (ArgumentError, "whole numbers", lambda c, g, l: Cuts("row", (0, 1.5, 3))),
        (ArgumentError, "whole numbers", lambda c, g, l: Balanced("row", 1.5)),
        (ValueError, "distribution='integers'", lambda c, g, l: pdla.random((4, 4), g, l, dtype=int)),
    ],
)
def test_what_is_not_taken_says_what_is(kind, text, call):
    def program(comm):
        grid, layout = ProcessGrid((1, 1), comm=comm), Layout("row", "col")
        with pytest.raises(kind, match=text):
            call(comm, grid, layout)

    pdla.run(1, program)


@pytest.mark.parametrize("call", [
    lambda grid, layout: pdla.zeros((4, 4), grid, layout),
    lambda grid, layout: pdla.from_function(lambda i, j: i + j, (4, 4), grid, layout),
    lambda grid, layout: pdla.from_local(np.ones((2, 2)), (4, 4), grid, layout),
    lambda grid, layout: pdla.from_global(np.ones((4, 4)), grid, layout),
    lambda grid, layout: pdla.load("x.npy", grid, layout),
])
def test_what_is_no_layout_on_one_rank_is_an_error_on_all(call):
    def program(comm):
        grid = ProcessGrid((2, 2), comm=comm)
        with pytest.raises(LayoutError, match=r"rank 2: .*layout='row' is a str: give a pdla.Layout") as caught:
            call(grid, "row" if comm.rank == 2 else Layout("row", "col"))
        return str(caught.value)

    assert len(set(pdla.run(4, program))) == 1


@pytest.mark.parametrize("how", [np.ascontiguousarray, np.asfortranarray, lambda x: np.repeat(x, 3, 1)[:, ::3]])
def test_from_local_is_the_callers_own_memory(how):
    def program(grid):
        layout = Layout("row", "col")
        mine = how(np.full(layout.local_shape((6, 8), grid.sizes, grid.coords), 1.0)) if grid.active else None
        A = pdla.from_local(mine, (6, 8), grid, layout)
        if mine is not None:
            assert A.local.strides == mine.strides and A.local.ctypes.data == mine.ctypes.data
            mine[0, 0] = 5
            A.T.local[1, 2] = 7
            assert A.local[0, 0] == 5 and mine[2, 1] == 7
        wanted = np.ones((6, 8))
        wanted[::3, ::4], wanted[2::3, 1::4] = 5, 7
        np.testing.assert_array_equal(A.gather(), wanted)

    on_a_grid(program)
