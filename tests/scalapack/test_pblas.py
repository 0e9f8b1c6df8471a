"""pdla.scalapack from Python: descriptors to layouts and back, and every routine taken over, on submatrices, against NumPy."""

from dataclasses import fields, replace

import hypothesis.strategies as st
import numpy as np
import pytest
from helpers.matmuls import numbers
from hypothesis import given

import pdla
from pdla import Cuts, Cyclic, Layout, ProcessGrid
from pdla.array.meta import Meta
from pdla.comm import cache
from pdla.errors import AgreementError, GridError, LayoutError, ShapeError
from pdla.scalapack import Descriptor, from_descriptor, pblas, to_descriptor
from pdla.scalapack.pblas import DTYPES, Call, Context


def numroc(n, first, block, me, source, parts):
    """Which of n indices a process holds, index by index."""
    return [i for i in range(n) if ((i + block - first) // block + source) % parts == me]


def dealt(whole, desc, coords, shape):
    """This process's block in Fortran order, with lld rows, and which rows and columns it has."""
    rows = numroc(desc.m, desc.imb, desc.mb, coords[0], desc.rsrc, shape[0])
    cols = numroc(desc.n, desc.inb, desc.nb, coords[1], desc.csrc, shape[1])
    block = np.full((desc.lld, len(cols)), 77, whole.dtype, order="F")
    block[: len(rows)] = whole[np.ix_(rows, cols)]
    return block, rows, cols


# ---------------------------------------------------------------------------------------------- descriptors


def test_short_blocks_of_a_long_dimension_are_not_listed():
    """2^38 of them would not fit any memory."""
    words = [1, 0, 2**40, 3, 2, 2, 1, 0, 2**39]

    def program(comm):
        A = from_descriptor(words, Meta((2**39, 2)), ProcessGrid((2, 2), comm=comm))
        return A.shape, A.local.shape

    assert pdla.dry_run(4, program, rank=3)[0] == ((2**40, 3), (2**39, 1))


@pytest.mark.parametrize("words", [(1, 5, 11, 9, 3, 2, 1, 0, 9), (2, 5, 11, 9, 2, 1, 3, 2, 1, 2, 12)], ids=str)
@pytest.mark.parametrize("flat", [True, False])
def test_a_code_s_own_memory_by_its_descriptor(words, flat):
    whole = numbers((11, 9), "float64", 0)

    def program(comm):
        grid = ProcessGrid((2, 3))
        desc = Descriptor.read(words)
        local, _, _ = dealt(whole, desc, tuple(grid.coords.values()), (2, 3))
        A = from_descriptor(words, local.reshape(-1, order="F") if flat else local, grid)
        assert np.array_equal(A.gather(), whole)
        assert np.shares_memory(A.base, local) or flat
        assert to_descriptor(A, 5).tolist() == [*words[:-1], desc.lld] and A.transposed
        C = from_descriptor(words, local.copy(order="F"), grid)
        pdla.gemm(1, A, pdla.eye(9, grid, Layout()), 1, C)
        assert np.array_equal(C.gather(), 2 * whole)
        assert np.array_equal(to_descriptor(A[2:, 4:], 5)[2:4], (9, 5))

    pdla.run(6, program)


@pytest.mark.parametrize("words", [[1, 0, 11, 9, 3, 3, 0, 0, 11], [2, 0, 11, 9, 2, 1, 3, 3, 0, 0, 12]], ids=str)
def test_blocks_are_told_where_one_process_has_them_all(words):
    """LU wants square ones, on one process, too."""

    def program(comm):
        return to_descriptor(from_descriptor(words, np.zeros((words[-1], 9), order="F"), ProcessGrid((1, 1)))).tolist()

    assert pdla.run(1, program) == [words]


def test_a_communicator_stands_for_its_near_square_grid():
    def program(comm):
        local = np.full((3, 2), comm.rank, order="F")
        return from_descriptor((1, 0, 6, 6, 3, 2, 0, 0, 3), local, comm).gather()

    assert np.array_equal(pdla.run(6, program)[0], np.repeat(np.repeat([[0, 1, 2], [3, 4, 5]], 3, 0), 2, 1))


@pytest.mark.parametrize(
    ("layout", "shape", "words"),
    [
        (Layout("row", "col"), (6, 9), [1, 0, 6, 9, 3, 3, 0, 0, 3]),
        (Layout("row", "col"), (5, 8), [1, 0, 5, 8, 3, 3, 0, 0, 3]),
        (Layout(Cyclic("row", 2, 1, 1), Cyclic("col", 4)), (7, 7), [2, 0, 7, 7, 1, 4, 2, 4, 1, 0, 4]),
        (Layout(Cuts("row", (0, 4, 7)), Cuts("col", (0, 3, 6, 7))), (7, 7), [1, 0, 7, 7, 4, 3, 0, 0, 4]),
    ],
)
def test_layouts_that_a_descriptor_can_say(layout, shape, words):
    def program(comm):
        grid = ProcessGrid((2, 3))
        local = np.zeros(layout.local_shape(shape, grid.sizes, grid.coords), order="F")
        return to_descriptor(pdla.from_local(local, shape, grid, layout)).tolist()

    assert pdla.run(6, program)[0] == words


@pytest.mark.parametrize("step", [-1, 0])
def test_columns_that_do_not_follow_each_other(step):
    def program(comm):
        x = np.lib.stride_tricks.as_strided(np.zeros((9, 3), order="F")[:, 2:], (3, 3), (8, step * 24))
        with pytest.raises(LayoutError, match="must lie column by column"):
            to_descriptor(pdla.from_local(x, (3, 3), ProcessGrid((1, 1)), Layout(Cyclic("row", 2), Cyclic("col", 2))))

    pdla.run(1, program)


@pytest.mark.parametrize(
    ("layout", "order", "message"),
    [
        (Layout("row"), "F", "cut by .* are not dealt out in equal blocks along 'col'"),
        (Layout("row", Cuts("col", (0, 1, 5, 7))), "F", "are not dealt out in equal blocks along 'col'"),
        (Layout("col", "row"), "F", "are not dealt out in equal blocks along 'row'"),
        (Layout(Cyclic("col", 2), Cyclic("row", 2)), "F", "are not dealt out in equal blocks along 'row'"),
        (Layout(Cyclic("row", 2), Cyclic("col", 2)), "C", "must lie column by column"),
    ],
)
def test_layouts_that_it_cannot(layout, order, message):
    def program(comm):
        grid = ProcessGrid((2, 3))
        local = np.zeros(layout.local_shape((7, 7), grid.sizes, grid.coords), order=order)
        A = pdla.from_local(local, (7, 7), grid, layout)
        if order == "C" and min(local.shape) < 2:
            return
        with pytest.raises(LayoutError, match=message):
            to_descriptor(A)

    pdla.run(6, program)


def test_a_matrix_with_more_rows_than_a_descriptor_s_integers_go():
    def program(comm):
        A = pdla.from_local(np.empty((3 * 10**9, 0)), (3 * 10**9, 0), ProcessGrid((1, 1)), Layout("row", "col"))
        with pytest.raises(LayoutError, match=r"3000000000, .* to 2147483647"):
            to_descriptor(A)

    pdla.run(1, program)


@pytest.mark.parametrize(("context", "message"), [
    (2.5, "context=2.5: that of BLACS, an integer"), ("0", "context="), (-(2**31) - 1, "-2147483649.* from -2147483648 to"),
])
def test_contexts_that_are_none(context, message):
    """Of 2.5 the descriptor would say 2."""

    def program(comm):
        A = from_descriptor([1, 0, 2, 2, 2, 2, 0, 0, 2], np.zeros((2, 2), order="F"), ProcessGrid((1, 1)))
        assert to_descriptor(A, np.int32(3))[1] == to_descriptor(A.conj(), 3)[1] == 3
        with pytest.raises(LayoutError, match=message):
            to_descriptor(A, context)
        with pytest.raises(ShapeError, match="A is an ndarray, not a DistMatrix"):
            to_descriptor(A.stored, 3)
        with pytest.raises(LayoutError, match="neither partial sums nor conjugates"):
            to_descriptor(A.astype(complex).T.conj())

    pdla.run(1, program)


@pytest.mark.parametrize(
    ("words", "size", "error", "message"),
    [
        ((1, 0, 6, 6, 3, 2, 0, 0), 6, LayoutError, "nine integers, the first 1, or eleven"),
        ((501, 0, 6, 6, 3, 2, 0, 0, 3), 6, LayoutError, "nine integers"),
        ((1, 0, 6, 6, 0, 2, 0, 0, 3), 6, LayoutError, "blocks and lld at least 1"),
        ((1, 0, 2**63, 6, 3, 2, 0, 0, 3), 6, LayoutError, "integers beyond"),
        ((1, 0, 6, 6, 3, 2, 2, 0, 3), 6, LayoutError, "source must be below 2"),
        ((1, 0, 6, 6, 3, 2, 0, 0, 2), 6, ShapeError, "6 elements, lld=2: this rank's 3 x 2 need lld x 2, lld >= 3"),
        ((1, 0, 6, 6, 3, 2, 0, 0, 3), 5, ShapeError, "5 elements, lld=3"),
    ],
)
def test_descriptors_that_do_not_fit(words, size, error, message):
    def program(comm):
        with pytest.raises(error, match=message):
            from_descriptor(words, np.zeros(size), ProcessGrid((2, 3)))

    pdla.run(6, program)


def test_contexts_are_a_rank_s_own_affair():
    """Handles differ from process to process, and outside of the grid they are -1."""

    def program(comm):
        grid = ProcessGrid((2, 2))
        context = comm.rank if grid.active else -1
        return from_descriptor((1, context, 4, 4, 2, 2, 0, 0, 2 + comm.rank), np.ones((2, 2), order="F"), grid).gather()

    assert np.array_equal(pdla.run(5, program)[4], np.ones((4, 4)))


@pytest.mark.parametrize(("wrong", "error", "message"), [
    (None, LayoutError, "^rank 1: desc=None: a dense matrix has nine integers"),
    ("words", LayoutError, "^rank 1: desc='words': a dense matrix has nine integers"),
    ((1, 0, 4, 4, 2, float("inf"), 0, 0, 2), LayoutError, "^rank 1: .*a dense matrix has nine integers"),
    ((1, 0, 4, 4, 2.5, 2, 0, 0, 2), LayoutError, "^rank 1: .*a dense matrix has nine integers"),
    ((1, 0, 4, 5, 2, 2, 0, 0, 2), AgreementError, r"rank 1: from_descriptor\(\[1, 4, 5, 2, 2, 0, 0\] without context and lld"),
])
def test_a_descriptor_that_is_wrong_on_one_rank(wrong, error, message):
    def program(comm):
        with pytest.raises(error, match=message):
            from_descriptor(wrong if comm.rank == 1 else (1, 0, 4, 4, 2, 2, 0, 0, 2), np.zeros(4), ProcessGrid((2, 2)))

    pdla.run(4, program)


def test_a_grid_of_three_axes_is_none_of_a_descriptor():
    def program(comm):
        with pytest.raises(GridError, match="has two axes"):
            from_descriptor((1, 0, 6, 6, 3, 2, 0, 0, 3), np.zeros(6), ProcessGrid((1, 2, 1)))

    pdla.run(2, program)


# ---------------------------------------------------------------------------------------------- routines


@st.composite
def operands(draw, shape, grid):
    """A descriptor of a matrix with sub(X) of this shape somewhere in it."""
    at = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    m, n = (size + corner - 1 + draw(st.integers(0, 3)) for size, corner in zip(shape, at, strict=True))
    mb, nb = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    source = draw(st.integers(0, grid[0] - 1)), draw(st.integers(0, grid[1] - 1))
    return at, Descriptor(0, m, n, draw(st.integers(1, mb)), draw(st.integers(1, nb)), mb, nb, *source, m + draw(st.integers(0, 2)))


WORDS = {
    "g": [a + b for a in "NTC" for b in "NTC"], "s": ["LL", "LU", "RL", "RU"], "h": ["LL", "LU", "RL", "RU"],
    "k": ["LN", "LT", "UN", "UT"], "j": ["LN", "LC", "UN", "UC"], "a": ["NN", "TN", "CN"],
}
TURN = {"N": lambda x: x, "T": lambda x: x.T, "C": lambda x: x.conj().T}


def shapes_of(routine, words, m, n, k):
    """Shapes of sub(A), sub(B), sub(C)."""
    if routine == "g":
        return (m, k) if words[0] == "N" else (k, m), (k, n) if words[1] == "N" else (n, k), (m, n)
    if routine in "sh":
        return (m, m) if words[0] == "L" else (n, n), (m, n), (m, n)
    if routine in "kj":
        return (n, k) if words[1] == "N" else (k, n), (n, n), (n, n)
    return (m, n) if words[0] == "N" else (n, m), (m, n), (m, n)


def expected(routine, words, alpha, a, b, beta, c):
    """What BLAS says; beta = 0 does not read C."""
    old = beta * c if beta else np.zeros_like(c)
    if routine == "g":
        return alpha * (TURN[words[0]](a) @ TURN[words[1]](b)) + old
    if routine == "a":
        return alpha * TURN[words[0]](a) + old
    if routine in "sh":
        half = np.tril(a) if words[1] == "L" else np.triu(a)
        strict = half - np.diag(np.diagonal(half))
        diagonal = np.diagonal(half).real if routine == "h" else np.diagonal(half)
        whole = strict + (strict.conj().T if routine == "h" else strict.T) + np.diag(diagonal)
        return alpha * (whole @ b if words[0] == "L" else b @ whole) + old
    x = TURN[words[1]](a)
    if routine == "j":
        old = old - 1j * np.diag(np.diagonal(old).imag)
    whole = alpha * (x @ (x.conj().T if routine == "j" else x.T)) + old
    return np.where(np.tri(*c.shape) if words[0] == "L" else np.tri(*c.shape).T, whole, c)


@given(
    st.data(), st.sampled_from("gshkja"), st.sampled_from([(1, 1), (2, 2), (1, 3), (3, 2)]), st.sampled_from("sdcz"), st.booleans()
)
def test_routines_on_windows(data, routine, shape, type, by_rows):
    type = {"s": "c", "d": "z"}.get(type, type) if routine in "hj" else type
    words = data.draw(st.sampled_from(WORDS[routine]))
    shapes = shapes_of(routine, words, *(data.draw(st.integers(1, 9)) for _ in range(3)))
    places = [data.draw(operands(s, shape)) for s in shapes]
    if routine in "kja":
        places[1] = places[2]
    alpha, beta = data.draw(st.sampled_from([1, 2, -1])), data.draw(st.sampled_from([0, 1, 3]))
    if type in "cz" and routine not in "j":
        alpha = alpha + 1j
    corners, descriptors = zip(*places, strict=True)
    call = Call(routine, np.dtype(DTYPES[type]), words, tuple(shapes), corners, descriptors)
    wholes = [numbers(d.shape, call.dtype, seed) for seed, d in enumerate(descriptors)]
    if beta == 0 and routine not in "kj":
        wholes[2][window(call, 2)] = np.nan
    result = wholes[2].copy()
    a, b, c = (whole[window(call, i)] for i, whole in enumerate(wholes))
    result[window(call, 2)] = expected(routine, words, alpha, a, b, beta, c)

    def program(comm):
        here = divmod(comm.rank, shape[1]) if by_rows else divmod(comm.rank, shape[0])[::-1]
        context = Context(comm, shape, here)
        mine = [replace(d, lld=d.lld + comm.rank) for d in descriptors]  # a rank's own affair, unknown to the plan
        blocks = [dealt(whole, d, here, shape) for whole, d in zip(wholes, mine, strict=True)]
        a, b, c = (block for block, _, _ in blocks)
        before = a.copy(), b.copy()
        run = context.find(b"key", 1e30, lambda: call)
        at = [(block.ctypes.data, d.lld) for block, d in zip((a, b, c), mine, strict=True)]
        context.run(run, alpha, at[0], at[1], beta, at[2])
        rows, cols = blocks[2][1:]
        assert np.array_equal(c[: len(rows)], result[np.ix_(rows, cols)], equal_nan=True), (routine, words, comm.rank)
        assert (c[len(rows) :] == 77).all() and np.array_equal(a, before[0]) and np.array_equal(b, before[1])

    pdla.run(shape[0] * shape[1], program)


def window(call, i):
    (row, col), (m, n) = call.corners[i], call.shapes[i]
    return np.s_[row - 1 : row - 1 + m, col - 1 : col - 1 + n]


SIMPLE = Call("g", np.dtype(np.float64), "NN", ((8, 8),) * 3, ((1, 1),) * 3, (Descriptor(0, 8, 8, 2, 2, 2, 2, 0, 0, 8),) * 3)


def simple():
    return SIMPLE


def test_a_call_is_planned_once_its_work_pays(monkeypatch):
    monkeypatch.setattr(pdla.config, "settings", replace(pdla.config.settings, pblas_flops=100))

    def program(comm):
        context = Context(comm, (2, 2), divmod(comm.rank, 2))
        met = [context.find(b"often", 150, simple) is None for _ in range(4)]
        assert met == [True, True, False, False]  # 400 operations for 4 processes
        assert context.find(b"large", 400, simple) is not None
        assert context.find(b"seldom", 150, simple) is None

    pdla.run(4, program)


def test_of_calls_without_a_plan_no_more_than_so_many_are_remembered(monkeypatch):
    monkeypatch.setattr(pdla.config, "settings", replace(pdla.config.settings, pblas_flops=100))
    monkeypatch.setattr(pblas, "REMEMBERED", 2)

    def program(comm):
        def planned(keys):
            context = Context(comm, (2, 2), divmod(comm.rank, 2))
            return [context.find(key, 150, simple) is not None for key in keys]

        assert planned("abaa") == [False, False, False, True]  # 400 operations for 4 processes
        assert planned("abcaaa") == [False] * 5 + [True]  # all are forgotten at the third

    pdla.run(4, program)


def test_of_plans_that_used_last_is_kept(monkeypatch):
    monkeypatch.setattr(cache, "MOST", 2)

    def program(comm):
        context = Context(comm, (2, 2), divmod(comm.rank, 2))
        for key in "abac":
            context.find(key, 1e30, simple)
        assert list(context.calls) == ["a", "c"]

    pdla.run(4, program)


@pytest.mark.parametrize("kept", [0, 1])
def test_so_many_plans_are_kept(monkeypatch, kept):
    monkeypatch.setattr(cache, "MOST", kept)

    def program(comm):
        context = Context(comm, (2, 2), divmod(comm.rank, 2))
        assert all(context.find(key, 1e30, simple) is not None for key in (b"one", b"two", b"two"))
        assert len(context.calls) == kept

    pdla.run(4, program)


def test_a_plan_that_was_dropped_is_to_be_paid_for_again(monkeypatch):
    monkeypatch.setattr(cache, "MOST", 1)
    monkeypatch.setattr(pdla.config, "settings", replace(pdla.config.settings, pblas_flops=100))

    def program(comm):
        context = Context(comm, (2, 2), divmod(comm.rank, 2))
        met = [context.find(key, 250, simple) is not None for key in (b"one", b"one", b"two", b"two", b"one", b"one")]
        assert met == [False, True] * 3

    pdla.run(4, program)


OTHERS = {
    "routine": "k", "dtype": np.dtype(np.float32), "words": "NT", "shapes": ((8, 8), (8, 8), (8, 7)),
    "corners": ((1, 1), (2, 1), (1, 1)),
}


@pytest.mark.parametrize("field", [*OTHERS, *(field.name for field in fields(Descriptor))])
def test_processes_that_disagree_are_told(field):
    """Of descriptors the context and the leading dimension are a process's own affair."""
    one, two, three = SIMPLE.descriptors
    descriptors = {} if field in OTHERS else {"descriptors": (one, replace(two, **{field: getattr(two, field) + 1}), three)}
    other = replace(SIMPLE, **descriptors or {field: OTHERS[field]})

    def program(comm):
        def find():
            return Context(comm, (2, 2), divmod(comm.rank, 2)).find(b"key", 1e30, lambda: other if comm.rank == 3 else SIMPLE)

        if field in ("context", "lld"):
            assert find() is not None
        else:
            with pytest.raises(AgreementError, match="ranks disagree"):
                find()

    pdla.run(4, program)
