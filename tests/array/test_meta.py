"""Arrays without data: shapes, dtypes, gaps and errors are NumPy's."""

import contextvars
import operator
from functools import partial

import numpy as np
import pytest

import pdla
from pdla.array import meta, numpy
from pdla.array.meta import Meta

MILLION = 10**6


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x + 1,
        lambda x: 2.5 * x,
        lambda x: x * x,
        lambda x: -x,
        lambda x: abs(x),
        lambda x: x / 2,
        lambda x: x * True,
        lambda x: x * np.bool_(True),
        lambda x: x * np.float32(2),
        lambda x: np.conjugate(x),
        lambda x: x.T,
        lambda x: x[2:5, ::2],
        lambda x: x[[1, 1, 0]],
        lambda x: x.astype("float32"),
        lambda x: x.reshape(-1),
        lambda x: x.reshape(2, -1, 4),
        lambda x: x.max().reshape(1),
        lambda x: x.max(axis=1),
        lambda x: x.max(axis=-1, keepdims=True),
        lambda x: x.copy(),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex64", "int8"])
def test_a_meta_has_the_shape_and_dtype_that_numpy_gives(operation, dtype):
    real, dry = operation(np.ones((6, 4), dtype)), operation(Meta((6, 4), dtype))
    assert (dry.shape, dry.dtype, dry.nbytes, dry.size) == (real.shape, real.dtype, real.nbytes, real.size)
    assert len(dry) == len(real) and dry.ndim == real.ndim


def test_metas_that_do_not_fit():
    with pytest.raises(ValueError, match="cannot copy"):
        meta.copy(Meta((2, 3)), Meta((3, 2)))
    with pytest.raises(ValueError, match="cannot multiply"):
        meta.gemm(Meta((2, 3)), Meta((2, 3)), Meta((2, 3)))


@pytest.mark.parametrize("xp", [numpy, meta], ids=["numpy", "meta"])
@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (ValueError, lambda xp, x: xp.copy(x(2, 3), x(3, 2))),
        (ValueError, lambda xp, x: xp.copy_all([(x(2, 3), x(2, 3)), (x(2, 3), x(3, 2))])),
        (ValueError, lambda xp, x: xp.land(x(2, 3), x(3, 2))),
        (ValueError, lambda xp, x: xp.add(x(2, 3), x(3, 2))),
        (ValueError, lambda xp, x: xp.maximum(x(2, 3), x(3, 2))),
        (ValueError, lambda xp, x: xp.combine(x(2, 3), 2, x(3, 2))),
        (ValueError, lambda xp, x: xp.put(x(4, 3), slice(0, 2), slice(None), x(3, 2))),
        (ValueError, lambda xp, x: operator.setitem(x(4, 3), slice(0, 2), x(3, 2))),
        (ValueError, lambda xp, x: x(2, 3) + x(3, 2)),
        (ValueError, lambda xp, x: x(2, 3) @ x(2, 3)),
        (ValueError, lambda xp, x: xp.gemm(x(2, 3), x(2, 4), x(2, 4))),
        (ValueError, lambda xp, x: xp.gemm(x(2, 3), x(3, 4), x(4, 2))),
        (TypeError, lambda xp, x: xp.copy(x(2, 3), x(2, 3).astype(complex))),
    ],
)
def test_metas_that_do_not_fit_are_the_errors_of_numpy(xp, kind, call):
    with pytest.raises(kind):
        call(xp, lambda *shape: xp.empty(shape, "float64"))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: Meta((2, 3)) + Meta((3,), "float32"), [("touch", 48 + 48 + 12)]),
        (lambda: Meta((5, 2, 3)) @ Meta((3, 4), "float32"), [("gemm", 2, 4, 3, "float64", 5, "float64")]),
        (lambda: Meta((2, 3), "float16") @ Meta((3, 4), "float16"), [("gemm", 2, 4, 3, "float16", 1, "float16")]),
        (lambda: Meta((2, 3)).sum(axis=1), [("touch", 48)]),
        (lambda: meta.copy_all([(Meta((2, 3)), Meta((2, 3))), (Meta((1, 1)), Meta((1, 1)))]), [("touch", 96), ("touch", 16)]),
        (lambda: meta.land(Meta((2, 3)), Meta((2, 3))), [("touch", 96)]),
        (lambda: meta.gemm(Meta((2, 3)), Meta((3, 4)), Meta((2, 4))), [("gemm", 2, 4, 3, "float64", 1, "float64")]),
        (
            lambda: meta.gemm(Meta((2, 3), "float16"), Meta((3, 4), "float16"), Meta((2, 4), "float32")),
            [("gemm", 2, 4, 3, "float16", 1, "float32")],
        ),
        (lambda: meta.square(Meta((7, 3)), Meta((7, 7)), 1), [("gemm", 7, 4, 3, "float64", 1, "float64")]),
        (lambda: meta.erf(Meta((2, 3), "float32")), [("erf", 6, 4)]),
        (lambda: meta.uniform(np.arange(2), np.arange(3), 0), [("touch", 48)]),
    ],
)
def test_what_a_meter_is_told(call, told):
    """The bytes that are read and written, and the sizes of products: of a square half its columns, as half is computed."""
    heard = []

    class Recorder:
        def gemm(self, m, n, k, dtype, count=1, out=None):
            heard.append(("gemm", m, n, k, np.dtype(dtype).name, count, np.dtype(out).name))

        def touch(self, size):
            heard.append(("touch", size))

        def erf(self, count, itemsize):
            heard.append(("erf", count, itemsize))

    def program():
        meta.metered.set(Recorder())
        call()

    call()  # without a meter
    contextvars.copy_context().run(program)
    assert heard == told


def test_pieces_have_the_described_machines_size():
    program = partial(pdla.dry_run, 1, lambda comm: meta.AT_ONCE)
    assert (program()[0], meta.AT_ONCE) == (numpy.AT_ONCE, numpy.AT_ONCE)
    assert program(machine=pdla.Machine(at_once=100))[0] == 100
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        meta.other  # noqa: B018


def test_a_meta_of_any_size_costs_nothing():
    x, every_third = Meta((MILLION, MILLION)), np.arange(0, MILLION, 3)
    assert meta.take(x, every_third, every_third).shape == (len(every_third),) * 2
    assert meta.take(x, every_third, slice(5, 10**7)).shape == (len(every_third), MILLION - 5)
    meta.put(x, every_third, slice(0, 2), Meta((len(every_third), 2)))
    with pytest.raises(ValueError, match="cannot copy"):
        meta.put(x, every_third, slice(0, 2), Meta((2, 2)))


VIEWS = {
    "whole": lambda x: x,
    "some rows": lambda x: x[1:3],
    "some columns": lambda x: x[:, 1:3],
    "every other row": lambda x: x[::2],
    "one row": lambda x: x[1:2, 2:5],
    "transposed": lambda x: x.T,
    "transposed twice": lambda x: x.T.T,
    "a row, transposed": lambda x: x[:1].T,
    "axes turned": lambda x: x.transpose(1, 0),
    "rows of columns": lambda x: x[:, :3][1:],
    "nothing": lambda x: x[2:2, 1:3],
    "backwards": lambda x: x[::-1],
    "flat": lambda x: x.reshape(-1)[3:9],
    "elements": lambda x: x[np.array([0, 2])],
    "a row alone": lambda x: x[1],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_meta_has_gaps_where_numpy_has(view):
    real, ghost = view(np.zeros((4, 6))), view(Meta((4, 6)))
    assert ghost.shape == real.shape and meta.is_contiguous(ghost) == real.flags.c_contiguous
