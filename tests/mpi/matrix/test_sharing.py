"""Matrices in memory that the ranks of a node have in common."""

import errno
import gc
import glob
import itertools
import mmap
import os
import random
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from helpers.matmuls import LAYOUT, exact

import pdla
from pdla import Cyclic, Layout, ProcessGrid, config
from pdla.errors import AgreementError, PdlaError
from pdla.linalg.products import rank_k, rank_k_plan, stationary
from pdla.matmul.schedules import shared

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(config.settings.array != "numpy", reason="devices do not see the host's memory"),
]
needs_memory = pytest.mark.skipif(not config.settings.shared, reason="PDLA_SHARED=0")

OURS = "/dev/shm/pdla-"


def square(comm):
    return ProcessGrid(pdla.balanced_shape(comm.size))


def taken(comm):
    """Collective: bytes of pdla's shared memory that this rank holds, mapped or open, and the job's files in it that have a name.

    What is in use there altogether is also other programs' doing.
    """
    held = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        if OURS in line:
            begin, end = (int(number, 16) for number in line.split()[0].split("-"))
            held[line.split()[4]] = end - begin
    for file in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one by which they are listed
            if OURS in os.readlink(file):
                held.setdefault(str(file.stat().st_ino), file.stat().st_size)
    names = [name for pid in comm.share(os.getpid()) for name in glob.glob(f"{OURS}{pid}-*")]
    return sum(held.values()), names


@needs_memory
def test_whether_any_block_has_gaps_between_its_rows_is_known_everywhere(comm):
    """A rank whose block is empty, or all columns, may see none; a plan foretells by it what is packed. An axis of one rank does
    not count as copies."""
    grid = ProcessGrid((comm.size, 1))
    cut = {(6, 1): False, (6, 2): comm.size > 1, (6, 7): comm.size > 1}
    for shape, gaps in cut.items():
        for layout, expected in ((Layout("row"), False), (Layout(cols="row"), gaps)):
            A = exact(shape, grid, layout)
            assert (A.shared().gaps, A.T.shared().gaps) == (expected, expected), (shape, layout)
            assert np.array_equal(A.T.shared().gather(), A.gather().T)


def test_other_matrices_on_other_ranks_are_told(comm):
    if comm.size > 1:
        A, B = (exact((4, n), ProcessGrid(comm.size), Layout("row")) for n in (5, 6))
        with pytest.raises(AgreementError, match="shared"):
            (A if comm.rank else B).shared()


@needs_memory
def test_products_are_exact_and_take_no_workspace(comm):
    grid = square(comm)
    A, B = exact((61, 70), grid, LAYOUT, seed=1), exact((70, 45), grid, LAYOUT, seed=2)
    whole, S, T = A.gather() @ B.gather(), A.shared(), B.shared()
    C = pdla.zeros((61, 45), grid, LAYOUT)
    plan = pdla.plan_matmul(S, T, out=C)
    for _ in range(3):
        C.local.fill(np.nan)
        with pdla.record() as ledger:
            plan(S, T, out=C)
        assert np.array_equal(C.gather(), whole)
        assert ledger.peak_workspace == plan.predicted.peak_workspace == 0
        assert np.array_equal((T.T @ S.T).gather(), whole.T)
    total = ledger.total(comm)
    assert (total["max_bytes_received"], total["max_messages"]) == (plan.predicted.bytes_received, plan.predicted.messages)


def test_a_cyclic_product_of_shared_factors(comm):
    """Its faces are no parts of them that can be read where they lie."""
    grid = square(comm)
    A, B = exact((61, 70), grid, LAYOUT, seed=1).shared(), exact((70, 45), grid, LAYOUT, seed=2).shared()
    C = pdla.zeros((61, 45), grid, Layout(Cyclic("row", 2), Cyclic("col", 3)))
    plan = pdla.plan_matmul(A, B, out=C, schedule="shared")
    for times in (1, -2):
        A *= times
        assert np.array_equal(plan(A, B, out=C).gather(), A.gather() @ B.gather())


def test_who_is_first_out_of_a_product_may_write(comm, monkeypatch):
    grid, multiply = square(comm), shared.multiply
    A, B = exact((24, 24), grid, LAYOUT, seed=1).shared(), exact((24, 24), grid, LAYOUT, seed=2).shared()
    C, whole = pdla.zeros((24, 24), grid, LAYOUT), A.gather() @ B.gather()
    plan = pdla.plan_matmul(A, B, out=C)

    def slowly(*args):
        time.sleep(0.05 * (comm.rank == comm.size - 1))
        multiply(*args)

    monkeypatch.setattr(shared, "multiply", slowly)
    for step in range(3):
        plan(A, B, out=C)
        A *= 2
        assert np.array_equal(C.gather(), 2**step * whole)


@pytest.mark.parametrize("product", [pdla.syrk, pdla.herk])
def test_who_is_first_out_of_a_triangle_may_write(comm, monkeypatch, product):
    products = rank_k._multiply_tiles
    A = exact((24, 16), square(comm), LAYOUT, complex).shared()
    C, a = pdla.zeros((24, 24), A.grid, LAYOUT, dtype=complex), A.gather()

    def slowly(*args):
        time.sleep(0.05 * (comm.rank == comm.size - 1))
        return products(*args)

    monkeypatch.setattr(rank_k, "_multiply_tiles", slowly)
    monkeypatch.setattr(rank_k_plan, "choose_together", lambda n, k, layout, sizes: stationary.Stationary(layout, sizes))
    for step in range(3):
        product(A, out=C)
        A *= 2
        assert np.array_equal(C.gather(), 4**step * np.tril(a @ (a.T if product is pdla.syrk else a.conj().T)))


def test_turns_of_every_kind_follow_one_another(comm):
    """Of small shared buffers and large ones, of matrices in common and not: who comes first to a turn finds nobody in the last
    one."""
    grid, chance, cases = square(comm), random.Random(5), []
    for n in (40, 600):
        A, B = exact((n, n), grid, LAYOUT, seed=1), exact((n, n), grid, LAYOUT, seed=2)
        whole, S, T = (A.gather() @ B.gather())[np.ix_(*(held.indices() for held in A.indices))], A.shared(), B.shared()
        for left, right in itertools.product((A, S), (B, T)):
            cases.append((pdla.plan_matmul(left, right, schedule="shared", layout=LAYOUT), left, right, whole))
    wrong = 0
    for step in range(60):
        plan, left, right, whole = chance.choice(cases)
        time.sleep(0.001 * ((comm.rank + step) % 3))
        wrong += not np.array_equal(plan(left, right).local, whole)
    assert sum(comm.share(wrong)) == 0


@needs_memory
def test_memory_goes_with_the_last_array_over_it(comm):
    grid, size = square(comm), 2048
    gc.collect()
    comm.barrier()
    before = taken(comm)[0]
    X = pdla.zeros((size, size), grid, LAYOUT).shared()
    comm.barrier()
    during, named = taken(comm)
    view = X[: size // 2, :].T
    comm.barrier()
    del X
    gc.collect()
    comm.barrier()
    still = taken(comm)[0]
    comm.barrier()
    del view
    gc.collect()
    comm.barrier()
    after = taken(comm)[0]
    assert during - before >= 8 * size * size and not named  # nobody finds it, and a job that is killed leaves nothing
    assert still - before >= 8 * size * size and after - before < 4 * size * size


@needs_memory
def test_more_than_there_is_is_refused_before_any_is_taken(comm):
    before = taken(comm)[0]
    size = 2 * os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize
    with pytest.raises(PdlaError, match=rf"{size} bytes of shared memory: No space left"):
        comm.common(size)
    comm.barrier()
    after, named = taken(comm)
    assert after - before < 2**26 and not named


@needs_memory
@pytest.mark.parametrize(
    ("where", "call", "number", "hint"),
    [
        (os, "posix_fallocate", errno.ENOSPC, ""), (os, "open", errno.EACCES, ""), (mmap, "mmap", errno.ENOMEM, ""),
        (os, "open", errno.EMFILE, ": each .* `ulimit -n`"),
    ],
    ids=["no room", "not seen", "not mapped", "no file"],
)
def test_memory_that_one_rank_does_not_get_is_an_error_on_all(comm, monkeypatch, where, call, number, hint):
    grid, last = square(comm), comm.size - 1
    X = exact((40, 40), grid, LAYOUT, seed=1)

    def refused(*args):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as failing:
        if comm.rank == last:
            failing.setattr(where, call, refused)
        with pytest.raises(PdlaError, match=rf"12800 bytes .*{os.strerror(number)} \(rank {last}\){hint}; .*PDLA_SHARED=0"):
            X.shared()
    comm.barrier()
    _, named = taken(comm)
    assert not named
    assert np.array_equal(X.shared().gather(), X.gather())


@needs_memory
@pytest.mark.parametrize("calls", range(1, 5))
def test_a_signal_leaves_no_file_with_a_name(comm, monkeypatch, calls):
    """All ranks are interrupted at the same exchange: after the first one the file is there."""
    exchanges, share = itertools.count(), comm.share

    def interrupted(value):
        if next(exchanges) == calls:
            raise KeyboardInterrupt
        return share(value)

    with monkeypatch.context() as failing:
        failing.setattr(comm, "share", interrupted)
        with pytest.raises(KeyboardInterrupt):
            comm.common(64)
    assert not taken(comm)[1]
