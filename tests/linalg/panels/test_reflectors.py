"""Block reflectors, whole and cut: integers bitwise, LAPACK's ratios of factors on 1 to 6 ranks, whatever each has, words."""

import numpy as np
import pytest
from helpers.systems import KINDS, drawn

import pdla
from pdla.linalg.panels import reflectors
from pdla.linalg.panels.blocks import Dimension

W = 5
HEIGHTS = [
    (9,), (9, 9), (5, 0), (7, 1), (6, 9, 3), (12, 0, 5), (5, 1, 2), (8, 8, 8, 8), (5, 2, 0, 1), (20, 4, 3, 6), (5, 1, 1, 1, 1, 9),
]


def along(comm, total):
    """The rows of a panel, cut over all ranks."""
    return Dimension(total, 1, comm.size, comm.rank, comm if comm.size > 1 else None)


def cut(heights, root=0):
    """As many ranks' shares as slices, whose root is rank `root`."""
    size, ends, found = len(heights), 0, {}
    for i in range(size):
        rank = (root + i) % size
        found[rank] = slice(ends, ends + heights[i])
        ends += heights[i]
    return [found[rank] for rank in range(size)]


def ratio(left, right, size, eps):
    return float(np.abs(left - right).sum(0).max(initial=0) / (size * eps * max(1, *left.shape)))


def right(a, v, t, r):
    """The worst of LAPACK's ratios: of the first columns of I - V T V^H, times R, less a; and of its orthogonality."""
    wide, w = np.result_type(a.dtype, np.float64), a.shape[1]
    v, t, r = (x.astype(wide) for x in (v, t, r))
    h, eps = np.eye(len(v)) - v @ t @ v.conj().T, float(np.finfo(a.dtype).eps)
    size = max(float(np.abs(a).sum(0).max(initial=0)), float(np.finfo(a.dtype).tiny))
    return max(ratio(h[:, :w] @ r, a, size, eps), ratio(h.conj().T @ h, np.eye(len(v)), 1, eps))


def whole_numbers(shape, dtype, seed):
    x = np.round(3 * drawn(shape, "complex128", seed))
    return (x if np.dtype(dtype).kind == "c" else x.real).astype(dtype)


def test_triangles_on_top_of_reflections():
    v = np.arange(1.0, 13).reshape(4, 3)
    r = reflectors.copy_upper(pdla.array.namespace(v), v)
    assert np.array_equal(r, np.triu(v[:3]))
    reflectors.clear(pdla.array.namespace(v), v)
    assert np.array_equal(v, [[1, 0, 0], [4, 1, 0], [7, 8, 1], [10, 11, 12]])


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("dtype", KINDS)
def test_reflections_are_applied_to_integers_exactly(dtype, adjoint):
    for heights in HEIGHTS[:8]:
        total = sum(heights)
        v, t, c = (whole_numbers(shape, dtype, i) for i, shape in enumerate(((total, W), (W, W), (total, 4))))
        v, t = np.tril(v, -1) + np.eye(total, W, dtype=dtype), np.triu(t)
        wanted = c - v @ (t.conj().T if adjoint else t) @ (v.conj().T @ c)

        def program(comm):
            mine = cut(heights)[comm.rank]  # noqa: B023
            found, none = c[mine].copy(), np.empty((mine.stop - mine.start, 0), dtype)  # noqa: B023
            rows = along(comm, total)  # noqa: B023
            for x in (none, found):
                reflectors.apply(comm.xp, v[mine].copy(), t, x, adjoint, rows)  # noqa: B023
            assert np.array_equal(found, wanted[mine])  # noqa: B023
            alone = c.copy()  # noqa: B023
            reflectors.apply(comm.xp, v, t, alone, adjoint)  # noqa: B023
            assert np.array_equal(alone, wanted)  # noqa: B023

        pdla.run(len(heights), program)


@pytest.mark.parametrize("dtype", KINDS)
def test_a_panel_that_is_whole(dtype):
    for shape in ((1, 1), (W, W), (9, W), (40, 33)):
        a = drawn(shape, dtype)
        v = a.copy("F")
        t, sizes, r = reflectors.factor_local(pdla.array.namespace(v), v)
        d = np.abs(r.diagonal())
        assert right(a, v, t, r) < 30 and np.array_equal(sizes, np.array([d.min(), d.max()], dtype)) and not np.tril(r, -1).any()


def panels(dtype):
    """Panels on which trees go wrong: of less than full rank, of rows of zeros, ill-conditioned, and of very different rows."""
    most = max(map(sum, HEIGHTS))
    a = drawn((most, W), dtype)
    zeros, twins = a.copy(), a.copy()
    zeros[:W] = 0
    twins[:, 3] = twins[:, 1]
    grades = np.geomspace(1, np.finfo(dtype).eps, W).astype(a.real.dtype)
    return {
        "drawn": a, "zero": 0 * a, "zeros on top": zeros, "twins": twins, "graded columns": a * grades,
        "graded rows": a * np.geomspace(1, 1e-6, most, dtype=a.real.dtype)[:, None], "ones": np.ones_like(a),
        "identity": np.eye(most, W, dtype=dtype),
    }


@pytest.mark.parametrize("heights", HEIGHTS[1:], ids=str)
@pytest.mark.parametrize("dtype", KINDS)
def test_a_panel_that_is_cut_has_the_reflections_of_a_whole_one(dtype, heights):
    """Whatever rank has the first rows; others have any number of rows, or none, and R is of the first one alone."""
    total, size = sum(heights), len(heights)
    for number, (name, a) in enumerate(panels(dtype).items()):
        a, root = a[:total], number % size

        def program(comm):
            mine, rows = cut(heights, root)[comm.rank], along(comm, total)  # noqa: B023
            v = a[mine].copy()  # noqa: B023
            share = [s.stop - s.start for s in cut(heights, root)]  # noqa: B023
            t, sizes, r = reflectors.factor_distributed(comm.xp, rows, root, v, share)  # noqa: B023
            return v, t.copy(), sizes.copy(), r

        found = pdla.run(size, program)
        _, t, sizes, r = found[root]
        v = np.vstack([found[(root + i) % size][0] for i in range(size)])
        d = np.abs(r.diagonal())
        assert right(a, v, t, r) < 30, (name, root)
        assert np.array_equal(np.triu(v[:W], 1), np.zeros((W, W))) and np.array_equal(v[:W].diagonal(), np.ones(W))
        assert np.array_equal(sizes, np.array([d.min(), d.max()], dtype)) and not np.tril(r, -1).any()
        for _, other, told, _ in found:
            assert np.array_equal(other, t) and np.array_equal(told, sizes)


@pytest.mark.parametrize("heights", [*HEIGHTS, (3, 2), (0, 3, 0, 4)], ids=str)
def test_q_of_a_tree(heights):
    """Also of ranks none of which has as many rows as there are columns."""
    total, size = sum(heights), len(heights)
    for number, dtype in enumerate(KINDS):
        a, root = drawn((total, W), dtype), number % size if heights[0] >= W else 0

        def program(comm):
            mine = cut(heights, root)[comm.rank]  # noqa: B023
            share = [s.stop - s.start for s in cut(heights, root)]  # noqa: B023
            q, r = reflectors.factor_tree(comm.xp, along(comm, total), root, a[mine], share)  # noqa: B023
            return q.copy(), r.copy()

        found = pdla.run(size, program)
        q, r = np.vstack([found[(root + i) % size][0] for i in range(size)]), found[root][1]
        eps, wide = float(np.finfo(dtype).eps), np.result_type(dtype, np.float64)
        q, r = q.astype(wide), r.astype(wide)
        assert ratio(q @ r, a, np.abs(a).sum(0).max(), eps) < 30 and ratio(q.conj().T @ q, np.eye(W), 1, eps) < 30


def test_nan_stays_nan_and_hangs_nobody():
    a = drawn((12, W), "float64")
    a[7, 2] = np.nan

    def program(comm):
        v = a[cut((6, 6))[comm.rank]].copy()
        with np.errstate(invalid="ignore"):
            return reflectors.factor_distributed(comm.xp, along(comm, 12), 0, v, (6, 6))[1].copy()

    for sizes in pdla.run(2, program):
        assert np.isnan(sizes).all()


@pytest.mark.parametrize("ranks", [2, 4, 7])
def test_words_of_a_tree_are_those_of_a_dry_run(ranks):
    heights = [W + 3] * ranks

    def program(comm):
        v = comm.xp.empty((W + 3, W), np.dtype("float64"))
        comm.xp.copy(v, comm.xp.asarray(drawn((W + 3, W), "float64", comm.rank)))
        with pdla.record() as ledger:
            reflectors.factor_distributed(comm.xp, along(comm, sum(heights)), 1, v, heights)
        return ledger.by_verb(), ledger.messages, ledger.flops

    ran = pdla.run(ranks, program)
    assert ran == [pdla.dry_run(ranks, program, rank=rank)[0] for rank in range(ranks)]
    sent, told = sum(verbs.get("recv", 0) for verbs, *_ in ran), sum(verbs.get("bcast", 0) for verbs, *_ in ran)
    assert sent == 8 * 2 * (ranks - 1) * W * W and told == 8 * (ranks - 1) * (2 * W * W + 2)
