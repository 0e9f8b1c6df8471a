"""pdla.scalapack from Python: descriptors to layouts and back, and every routine taken over, on submatrices, against NumPy."""

from dataclasses import fields, replace

import hypothesis.strategies as st
import numpy as np
import pytest
from helpers.descriptors import dealt
from helpers.matmuls import numbers
from hypothesis import given

import pdla
from pdla.comm import cache
from pdla.errors import AgreementError
from pdla.scalapack import Descriptor, pblas
from pdla.scalapack.pblas import DTYPES, Call, Context


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
