"""Products that are checked: a local GEMM that errs once is found wherever it errs, named and mended, and right ones pass."""

import threading
import warnings

import numpy as np
import pytest
from helpers.covers import cover
from helpers.matmuls import op

import pdla
from pdla import Cuts, Cyclic, Layout, ProcessGrid, config
from pdla.array import numpy as host
from pdla.comm.threads import ThreadComm
from pdla.errors import PlanError, VerificationError
from pdla.matmul.verify import Check

LAYOUT = Layout("row", "col")
WAYS = [
    *({"algorithm": name} for name in (*pdla.algorithms, "auto")),
    *({"schedule": name} for name in ("gather", "shared", "summa", "cannon", "fetch")),
]
EPS = np.finfo(float).eps
words = pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way.values()))


class Errs:
    """The local GEMM, which adds `error` to an element of what it gives, once, in one call of one rank."""

    def __init__(self, monkeypatch, rank, call, error, element=(1, 2)):
        self.rank, self.left, self.error, self.element, self.right = rank, call, error, element, host.gemm
        self.mine = threading.local()
        self.done = False
        monkeypatch.setattr(host, "gemm", self)

    def __call__(self, a, b, c, *args, **named):
        self.right(a, b, c, *args, **named)
        if getattr(self.mine, "rank", None) != self.rank or not c.size or self.done:
            return
        self.left -= 1
        if self.left < 0:
            self.done = True
            i, j = (at % n for at, n in zip(self.element, c.shape, strict=True))
            c[i, j] += self.error

    def of(self, comm):
        """Say whose thread this is."""
        self.mine.rank = comm.rank


def factors(grid, dtype="float64", shape=(24, 16, 20)):
    m, n, k = shape
    sizes = enumerate([(m, k), (k, n)])
    return (pdla.random(size, grid, LAYOUT, seed=seed, dtype=dtype, distribution="normal") for seed, size in sizes)


def bound(a, b):
    """The least error that is always found, in any row."""
    return 2.01 * (b.shape[1] + a.shape[1] + 4 + 8) * EPS * (np.abs(a) @ np.abs(b)).sum(axis=1).max()


@pytest.mark.parametrize(
    ("way", "error", "rank"), list(cover((WAYS, ("bound", -1e-6, 1.0, 1e300, np.nan, np.inf), (0, 3)), 0)),
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else str(value),
)
def test_a_wrong_element_is_found_and_mended(monkeypatch, way, rank, error):
    errs = Errs(monkeypatch, rank, 0, 0)

    def program(comm):
        A, B = factors(ProcessGrid((2, 2)))
        a, b = A.gather(), B.gather()
        if comm.rank == 0:
            errs.error = bound(a, b) if error == "bound" else error
        comm.barrier()
        errs.of(comm)
        C = pdla.matmul(A, B, verify=True, **way)
        return np.allclose(C.gather(), a @ b, rtol=1e-12, atol=1e-12)

    said = r"rank \d has wrong elements in rows \d+ to \d+, columns .*; computed again, it was right"
    with pytest.warns(RuntimeWarning, match=said):
        assert all(pdla.run(4, program))
    assert errs.done


@pytest.mark.parametrize("alpha", [1e-8, -1e8])
def test_of_a_multiple_the_bound_is_so_many_times_as_large(monkeypatch, alpha):
    errs = Errs(monkeypatch, None, 0, 0)

    def program(comm, rank=None):
        A, B = factors(ProcessGrid((2, 2)))
        a, b = A.gather(), B.gather()
        if comm.rank == 0:
            errs.rank, errs.error = rank, abs(alpha) * bound(a, b)
        comm.barrier()
        errs.of(comm)
        pdla.matmul(A, B, alpha=alpha, schedule="gather", verify=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdla.run(4, program)
    with pytest.warns(RuntimeWarning, match=r"rank 3 has wrong elements in rows .*; computed again, it was right"):
        pdla.run(4, program, 3)


@words
def test_in_whichever_call_and_element_it_is(monkeypatch, way):
    """Until the calls of rank 1 are over: then nothing is wrong, and nothing is said."""
    found = 0
    for call in range(12):
        errs = Errs(monkeypatch, 1, call, 1e-3, (5 * call + 1, 3 * call))

        def program(comm, errs=errs):
            A, B = factors(ProcessGrid((2, 2)))
            errs.of(comm)
            return abs(pdla.matmul(A, B, verify=True, panel=3, **way).gather() - A.gather() @ B.gather()).max()

        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            assert max(pdla.run(4, program)) < 1e-10
        monkeypatch.undo()
        assert bool(said) == errs.done
        found += errs.done
    assert found


def test_the_block_is_named_by_its_rank_and_place(monkeypatch):
    errs = Errs(monkeypatch, 2, 0, 1.0, (4, 1))

    def program(comm):
        A, B = factors(ProcessGrid((2, 2)))
        C = pdla.zeros((24, 16), A.grid, LAYOUT)
        errs.of(comm)
        with pytest.raises(VerificationError) as error:
            pdla.matmul(A, B, out=C, schedule="gather", verify=True)
        return str(error.value)

    said = "rank 2 has wrong elements in rows 16 to 16, columns 0 to 7; out was overwritten: verify='keep'"
    told = set(pdla.run(4, program))
    assert len(told) == 1 and told.pop().startswith(said)


@pytest.mark.parametrize("beta", [0, 3])
def test_what_is_kept_is_computed_again(monkeypatch, beta):
    errs = Errs(monkeypatch, 2, 0, 1.0)

    def program(comm):
        A, B = factors(ProcessGrid((2, 2)))
        C = pdla.ones((24, 16), A.grid, LAYOUT)
        errs.of(comm)
        pdla.matmul(A, B, out=C, alpha=2, beta=beta, verify="keep")
        return np.allclose(C.gather(), 2 * A.gather() @ B.gather() + beta)

    with pytest.warns(RuntimeWarning, match="computed again"):
        assert all(pdla.run(4, program))


def test_a_product_that_is_wrong_twice_is_an_error(monkeypatch):
    right = host.gemm

    def wrong(a, b, c, *args, **named):
        right(a, b, c, *args, **named)
        c[:1, :1] += 1

    monkeypatch.setattr(host, "gemm", wrong)

    def program(comm):
        with pytest.raises(VerificationError, match=r"rank 0 has wrong .*; computed again: rank 0 has wrong"):
            pdla.matmul(*factors(ProcessGrid((2, 2))), verify=True)

    pdla.run(4, program)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128", "int8", "int64", "bfloat16", "float16"])
@pytest.mark.parametrize("view", ["N", "T", "C"])
def test_every_dtype_and_view_with_beta_and_idle_ranks(monkeypatch, dtype, view):
    def program(comm, errs=None):
        grid = ProcessGrid((2, 2))
        A, B = (pdla.random((12, 12), grid, LAYOUT, seed=s, dtype=dtype, distribution="integers", low=0, high=3) for s in (0, 1))
        C = pdla.ones((12, 12), grid, Layout(Cyclic("col", 2), "row"), dtype=dtype)
        if errs:
            errs.of(comm)
        pdla.matmul(op(A, view), op(B, view), out=C, alpha=2, beta=3, verify=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdla.run(5, program)
    errs = Errs(monkeypatch, 3, 0, 100)
    with pytest.raises(VerificationError, match=r"rank \d has wrong elements"):
        pdla.run(5, program, errs)


@pytest.mark.parametrize("layouts", [
    (Layout(), Layout(), Layout()), (Layout("row"), Layout(None, "col"), LAYOUT), (Layout(Cuts("row", (0, 0, 9))), LAYOUT, LAYOUT),
    (Layout(partial="row"), Layout("row", "col"), Layout(("row", "col"))), (Layout("row", partial="col"), Layout(), Layout()),
], ids=repr)
@pytest.mark.parametrize("shape", [(9, 7, 8), (9, 7, 0), (9, 0, 8), (9, 300, 1)])
def test_any_layouts_and_sizes_without_a_false_alarm(layouts, shape):
    m, n, k = shape

    def program(comm):
        grid = ProcessGrid((2, 2))
        A, B = (pdla.random(size, grid, layout, seed=3) for size, layout in (((m, k), layouts[0]), ((k, n), layouts[1])))
        pdla.matmul(A, B, layout=layouts[2], verify=True)
        pdla.matmul(B.T, A.T, verify=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdla.run(5, program)


@pytest.mark.parametrize("at", [np.nan, np.inf, -np.inf, 1e300, 5e-324])
@pytest.mark.parametrize("where", ["A", "B", "C"])
def test_what_is_no_number_or_infinite_in_the_operands_is_no_fault(at, where):
    def program(comm):
        grid = ProcessGrid((2, 2))
        A, B = factors(grid)
        C = pdla.ones((24, 16), grid, LAYOUT)
        {"A": A, "B": B, "C": C}[where][3:4, 5:6] = at
        with np.errstate(all="ignore"):
            pdla.matmul(A, B, out=C, beta=2, verify=True)
            pdla.matmul(A * 1e200, B * 1e200, verify=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdla.run(4, program)


def test_the_setting_checks_all_products(monkeypatch):
    def program(comm, way, errs):
        A, B = factors(ProcessGrid((2, 2)))
        plan = pdla.plan_matmul(A, B)
        comm.barrier()
        errs.of(comm)
        {"@": lambda: A @ B, "plan": lambda: plan(A, B), "dot": lambda: pdla.multi_dot([A, B])}[way]()

    with config.override(verify=True):
        for way in ("@", "plan", "dot"):
            with pytest.warns(RuntimeWarning, match="wrong elements"):
                pdla.run(4, program, way, Errs(monkeypatch, 1, 0, 1))
            monkeypatch.undo()
        errs = Errs(monkeypatch, 1, 0, 1)

        def unchecked(comm):
            errs.of(comm)
            pdla.matmul(*factors(ProcessGrid((2, 2))), verify=False)

        pdla.run(4, unchecked)
        assert errs.done


def test_a_check_receives_a_few_vectors():
    """Three columns of B's and A's image on every rank, and three of C's along its rows."""

    def program(comm, n):
        A, B = (pdla.ones((n, n), ProcessGrid((2, 2)), LAYOUT) for _ in range(2))
        received = []
        for verify in (False, True):
            with pdla.record() as ledger:
                pdla.matmul(A, B, verify=verify)
            received.append(ledger.bytes_received / 8)
        return received[1] - received[0]

    assert pdla.run(4, program, 64)[0] <= 10 * 64 and pdla.dry_run(4, program, 4096)[0] <= 10 * 4096


@pytest.mark.parametrize("verify", [1, "yes", 0.5, np.ones(2)])
def test_what_is_no_way_to_verify(verify):
    def program(comm):
        with pytest.raises(PlanError, match=r"verify=.*: True, False, 'keep' or None"):
            pdla.matmul(*factors(ProcessGrid((2, 2))), verify=verify)

    pdla.run(4, program)


def test_products_of_all_algorithms_pass():
    """Of every algorithm, on ranks that do not fill its grid, with pieces of all sizes."""

    def program(comm):
        grid = ProcessGrid(pdla.balanced_shape(comm.size))
        for way, mnk, turned in cover((WAYS, ((2, 47, 13), (47, 13, 2), (13, 2, 47)), (False, True)), comm.size):
            A, B = factors(grid, "complex64", mnk)
            pdla.matmul(*(B.T, A.T) if turned else (A, B), verify=True, panel=3, **way)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for ranks in (1, 3, 6, 7):
            pdla.run(ranks, program)


@pytest.mark.parametrize("rank", range(4))
def test_a_copy_that_is_wrong_on_one_rank_is_found_by_it(monkeypatch, rank):
    def program(comm, errs):
        A, B = (X.redistribute(Layout()) for X in factors(ProcessGrid((2, 2))))
        errs.of(comm)
        C = pdla.matmul(A, B, layout=Layout(), schedule="gather", verify=True)
        return np.allclose(C.local, A.local @ B.local)

    with pytest.warns(RuntimeWarning, match=rf"rank {rank} has wrong elements"):
        assert all(pdla.run(4, program, Errs(monkeypatch, rank, 0, 1e-3)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_is_rounded_to_16_bits_is_no_fault(dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdla.run(4, lambda comm: pdla.matmul(*factors(ProcessGrid((2, 2)), dtype, (24, 16, 200)), verify=True))


@pytest.mark.parametrize("to", [np.nan, 1e300, 2.0])
@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("beta", [0, 1])
def test_a_message_of_the_check_that_errs_is_looked_at_again(monkeypatch, to, rank, beta):
    """Also where the product was added to what is lost: it was right, and is not computed again."""
    mine, left, copy, right = threading.local(), [2], ThreadComm._copy, Check.find_faults

    def copied(comm, out, *message):
        copy(comm, out, *message)
        if getattr(mine, "rank", None) == rank and out.size and left[0]:
            left[0] -= 1
            if not left[0]:
                out[np.unravel_index(1 % out.size, out.shape)] = to

    def faults(check, C):
        mine.rank = C.grid.comm.rank
        try:
            return right(check, C)
        finally:
            mine.rank = None

    monkeypatch.setattr(ThreadComm, "_copy", copied)
    monkeypatch.setattr(Check, "find_faults", faults)

    def program(comm):
        A, B = factors(ProcessGrid((2, 2), comm=comm))
        C = pdla.zeros((24, 16), A.grid, LAYOUT)
        with np.errstate(all="ignore"):
            return pdla.matmul(A, B, out=C, beta=beta, verify=True).gather() - (A @ B).gather()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert abs(pdla.run(4, program)[0]).max() < 1e-12
    assert not left[0] and all(str(w.message).endswith("; looked at again, it was right") for w in said)
