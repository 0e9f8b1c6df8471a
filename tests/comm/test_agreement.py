"""Ranks whose calls differ all raise the same error, which quotes each call; without checks (PDLA_CHECK=0) none is raised."""

import importlib
import re
import threading
from contextlib import nullcontext, suppress
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import pdla
from pdla import Layout, ProcessGrid, config
from pdla.comm.agreement import agree, agreed, collective_section, name_ranks, raise_everywhere, raise_out_of_step, to_text
from pdla.comm.ledger import buffer
from pdla.errors import AgreementError, DeadlockError, LayoutError, PdlaError, PlanError, ShapeError

redistribute = importlib.import_module("pdla.matrix.redistribute")  # of which the function has the same name


def odd_one_out(comm, usual, odd):
    """`odd` on rank 2, `usual` elsewhere."""
    return odd if comm.rank == 2 else usual


def texts(program, kind=AgreementError, ranks=4):
    """The text of the error that the program raises on every rank, which is the same."""

    def caught(comm):
        with pytest.raises(kind) as error:
            program(comm)
        comm.barrier()  # the ranks still go together
        return str(error.value)

    (text,) = set(pdla.run(ranks, caught))
    return text


CALLS = {
    "shapes": (lambda grid, x: pdla.zeros(x, grid, Layout()), (3, 4), (4, 3), ["shape=(3, 4)", "shape=(4, 3)"]),
    "dtypes": (
        lambda grid, x: pdla.ones((3, 3), grid, Layout(), dtype=x),
        "float32", "int8", ["dtype='float32'", "dtype='int8'"],
    ),
    "layouts": (
        lambda grid, x: pdla.eye(3, grid, x), Layout("row"), Layout("col"), ["Layout(rows='row')", "Layout(rows='col')"]
    ),
    "seeds": (lambda grid, x: pdla.random((3, 3), grid, Layout(), seed=x), 1, 2, ["seed=1", "seed=2"]),
    "roots": (lambda grid, x: pdla.ones((3, 3), grid, Layout()).gather(x), None, 1, ["root=None", "root=1"]),
    "arrays": (lambda grid, x: pdla.from_global(np.ones(x), grid, Layout()), (3, 4), (3, 5), ["(3, 4)", "(3, 5)"]),
    "target layouts": (
        lambda grid, x: pdla.ones((3, 3), grid, Layout("row")).redistribute(x),
        Layout("col"), Layout(), ["to Layout(rows='col')"],
    ),
    "algorithms": (
        lambda grid, x: pdla.matmul(*[pdla.ones((4, 4), grid, Layout("row", "col"))] * 2, algorithm=x),
        "gather", "summa", ["'gather'", "'summa'"],
    ),
    "panels": (
        lambda grid, x: pdla.matmul(*[pdla.ones((4, 4), grid, Layout("row", "col"))] * 2, algorithm="summa", panel=x),
        1, 2, ["panel=1", "panel=2"],
    ),
}


@pytest.mark.parametrize("what", CALLS)
def test_ranks_that_differ(what):
    call, usual, odd, quoted = CALLS[what]
    text = texts(lambda comm: call(ProcessGrid((2, 2)), odd_one_out(comm, usual, odd)))
    assert re.match("ranks disagree( in .*)?: ranks 0, 1, 3: ", text) and "; rank 2: " in text
    for words in quoted:
        assert words in text


@pytest.mark.parametrize(("told", "call"), [
    (" in alpha=1 and alpha=2", lambda A, mine: pdla.matmul(A, A, alpha=1 + mine)),
    (" in algorithm='gather' and algorithm='summa'", lambda A, mine: pdla.matmul(A, A, algorithm=("gather", "summa")[mine])),
    (" in assume_a='gen' and assume_a='pos'", lambda A, mine: pdla.linalg.solve(A, A, assume_a=("gen", "pos")[mine])),
    (" in the elements of an array", lambda A, mine: pdla.linalg.solve(A, np.full(4, mine))),
    ("", lambda A, mine: pdla.matmul(A, A, alpha=1 + mine, algorithm=("gather", "summa")[mine])),  # two arguments
    ("", lambda A, mine: pdla.matmul(A, (A, A[:, :2])[mine])),  # a long one
    ("", lambda A, mine: A.astype(("float64", "float32")[mine]).norm()),  # one without a name
    ("", lambda A, mine: (pdla.matmul, pdla.linalg.solve)[mine](A, A)),  # another call
])  # fmt: skip
def test_one_argument_that_differs_comes_first(told, call):
    text = texts(lambda comm: call(pdla.eye(4, ProcessGrid((2, 2))), odd_one_out(comm, 0, 1)))
    assert text.startswith(f"ranks disagree{told}: ranks 0, 1, 3: "), text


ONES = (1, 1.0, True, np.float64(1), np.int8(1), np.float32(1), np.longdouble(1), Fraction(1))


def square(grid):
    return pdla.random((4, 4), grid, Layout(), distribution="integers", low=0, high=9)


@pytest.mark.parametrize(
    "call",
    [
        lambda grid, A, C, x: pdla.matmul(A, A, alpha=x),
        lambda grid, A, C, x: pdla.matmul(A, A, out=C, alpha=2, beta=x),
        lambda grid, A, C, x: pdla.syrk(A, alpha=x),
        lambda grid, A, C, x: pdla.herk(A, out=C, beta=x),
        lambda grid, A, C, x: pdla.symm(A, A, alpha=x),
        lambda grid, A, C, x: pdla.matmul(A, A, memory_limit=1000 * (float(x) if type(x) is float else 1)),
        lambda grid, A, C, x: pdla.random((4, 4), grid, Layout(), high=x),
        lambda grid, A, C, x: pdla.zeros((np.int64(4), 4) if isinstance(x, np.generic) else (4, 4), grid, Layout("row")),
        lambda grid, A, C, x: pdla.zeros((4, 4), ProcessGrid((np.int64(4),) if isinstance(x, np.generic) else (4,)), Layout("row")),
    ],
)
def test_equal_numbers_of_different_types_are_the_same_argument(call):
    """And the result is the same on all ranks: every rank gives another type."""

    def program(comm, first):
        grid = ProcessGrid((2, 2))
        found = call(grid, square(grid), square(grid), ONES[(first + comm.rank) % len(ONES)])
        assert found.check_copies() and np.array_equal(found.gather(), call(grid, square(grid), square(grid), 1).gather())

    for first in range(0, len(ONES), 2):
        pdla.run(4, program, first)


def test_equal_complex_numbers_are_the_same_argument_and_unequal_ones_are_not():
    """Neither is what differs by less than a float's last digit, and what has no words in decimal."""

    def program(comm, one, other):
        A = pdla.ones((4, 4), ProcessGrid((2, 2)), Layout(), dtype="clongdouble")
        return pdla.matmul(A, A, alpha=odd_one_out(comm, one, other)).local[0, 0]

    for other in (2.0, 2 + 0j, np.complex64(2), np.clongdouble(2)):
        assert set(pdla.run(4, program, 2, other)) == {8}
    assert to_text(10**5000) != to_text(10**5000 + 1)
    for one, other in ((2, 2 + 1j), (0.1, np.float32(0.1)), (2**70, 2**70 + 1), (0.1, Fraction(1, 10)), (0.5, Decimal("0.25"))):
        with pytest.raises(AgreementError, match="rank 2: matmul"):
            pdla.run(4, program, one, other)


def test_operands_that_differ():
    def program(comm):
        grid = ProcessGrid((2, 2))
        dtype = odd_one_out(comm, "float64", "float32")
        A = pdla.DistMatrix(np.ones((2, 2), dtype), (4, 4), grid, Layout("row", "col"))
        return A @ A

    text = texts(program)
    assert "ranks 0, 1, 3: matmul(4 x 4, float64" in text and "rank 2: matmul(4 x 4, float32" in text


def test_grids_that_differ():
    text = texts(lambda comm: ProcessGrid(odd_one_out(comm, (2, 2), (4, 1))))
    assert "ranks 0, 1, 3: ProcessGrid((2, 2)" in text and "rank 2: ProcessGrid((4, 1)" in text


@pytest.mark.parametrize(
    ("factor", "kind", "text"),
    [
        (None, AgreementError, r"a DistMatrix @ a NoneType, or the other way round"),
        (np.ones((4, 4)), TypeError, "rank 2: a DistMatrix and an ndarray: pdla.matvec"),
    ],
    ids=["None", "array"],
)
def test_a_factor_that_is_no_matrix_on_one_rank(factor, kind, text):
    def program(comm):
        grid = ProcessGrid((2, 2))
        A, S = pdla.ones((4, 4), grid, Layout("row")), pdla.stack(np.ones((3, 4, 4)), grid, Layout("row"))
        for call in (lambda: A @ odd_one_out(comm, A, factor), lambda: odd_one_out(comm, A, factor) @ A):
            with pytest.raises(kind, match=text):
                call()
        with pytest.raises(ShapeError, match=f"rank 2: B is an? {type(factor).__name__}, not a Stack"):
            S @ odd_one_out(comm, S, factor)
        assert ((A @ A).local == 4).all()

    pdla.run(4, program)


def test_a_bad_argument_on_one_rank():
    text = texts(
        lambda comm: pdla.ones((4, 4), ProcessGrid((2, 2)), Layout(odd_one_out(comm, "row", "x"))), LayoutError
    )
    assert text == "rank 2: Layout(rows='x') names the axis 'x'; the grid has row, col"


def test_a_bad_argument_on_all_ranks_is_told_plainly():
    text = texts(lambda comm: pdla.ones((4, 4), ProcessGrid((2, 2)), Layout("x")), LayoutError)
    assert text == "Layout(rows='x') names the axis 'x'; the grid has row, col"


def test_different_errors_are_all_told():
    def program(comm):
        with agreed(comm, "it"):
            if comm.rank:
                raise ShapeError("even" if comm.rank % 2 == 0 else "odd")

    assert texts(program, ShapeError, 5) == "ranks 1, 3: odd; ranks 2, 4: even"


@pytest.mark.parametrize("callers", [[0, 1], [1]])
def test_calls_within_a_call_that_only_some_ranks_make_leave_all_together(callers):
    """Told of it once more, by ranks that have gone on, those that wait would take that for an answer."""

    def program(comm):
        A, idle = pdla.ones((4, 4), ProcessGrid(comm.size), Layout("row")), ProcessGrid(comm.size - 1)
        return pdla.from_function(lambda i, j: i + j * (A.norm() if comm.rank in callers else 1), (5, 5), idle, Layout("row"))

    text = texts(program, ranks=3)
    assert text.startswith("ranks disagree: ") and "norm of 4 x 4" in text and "from_function: f" in text


def test_an_error_from_before_that_one_rank_raises_again_is_told_again():
    def program(comm):
        grid, known = ProcessGrid(comm.size), []
        with pytest.raises(AgreementError) as raised:
            pdla.ones((4, 4 + comm.rank), grid, Layout("row"))
        known.append(raised.value)

        def again(i, j):
            if comm.rank == 1:
                raise known[0]
            return i + j

        return pdla.from_function(again, (5, 5), grid, Layout("row"))

    assert texts(program, ranks=3).startswith("rank 1: ranks disagree: ")


class Picky(RuntimeError):
    """An error that takes more than a text, and so does not travel."""

    def __init__(self, code, reason):
        super().__init__(f"{code}: {reason}")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Picky(3, "no"), RuntimeError),
        (UnicodeDecodeError("ascii", b"x", 0, 1, "no"), ValueError),
        (np.exceptions.AxisError(3, 2), ValueError),
        (FileNotFoundError("no"), FileNotFoundError),
        (KeyError("no"), KeyError),
        (ShapeError("no"), ShapeError),
        (ExceptionGroup("no", [ShapeError("this"), KeyError("that")]), Exception),
        (StopIteration("no"), Exception),
    ],
    ids=lambda x: getattr(x, "__name__", type(x).__name__),
)
def test_any_error_of_one_rank_reaches_the_others(error, kind):
    def program(comm):
        with agreed(comm, "it"):
            if comm.rank == 2:
                raise error

    text = texts(program, kind)
    assert "rank 2: " in text and str(error) in text


def test_an_error_without_words_is_named():
    def program(comm):
        with agreed(comm, "it"):
            if comm.rank == 2:
                raise NotImplementedError

    assert texts(program, NotImplementedError) == "rank 2: NotImplementedError"


def test_what_is_the_same_passes():
    def program(comm):
        agree(comm, "it")
        with agreed(comm, "it"):
            return comm.rank

    assert pdla.run(3, program) == [0, 1, 2]


def test_ranks_in_words():
    assert name_ranks([3]) == "rank 3"
    assert name_ranks([0, 2]) == "ranks 0, 2"
    assert name_ranks(list(range(8))) == "ranks 0, 1, 2, 3, 4, 5, 6, 7"
    assert name_ranks(list(range(12))) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more"


# ---------------------------------------------------------------------------------------------- calls that name no communicator


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_an_error_of_a_rank_that_was_given_no_communicator_is_told_over_the_only_one(odd):
    def program(comm):
        ProcessGrid(2, comm=comm)
        ProcessGrid((1, 3), comm=comm)
        for _ in range(2):
            with pytest.raises(ShapeError, match=f"^rank {odd}: no matrix$"):
                raise_everywhere(ShapeError("no matrix")) if comm.rank == odd else agree(comm, "norm")
        with pytest.raises(ShapeError, match=r"^no matrix$"):
            raise_everywhere(ShapeError("no matrix"))
        return comm.share(1)

    assert pdla.run(3, program) == [[1, 1, 1]] * 3


@pytest.mark.parametrize("others", ["none", "several", "unchecked", "of a dry run"])
def test_where_there_is_no_only_communicator_it_is_raised_on_this_rank_alone(others):
    def program(comm):
        for over in (comm, comm.split([comm.rank], "alone"))[: {"none": 0, "several": 2}.get(others, 1)]:
            ProcessGrid(1, comm=over)
        with pytest.raises(ShapeError, match=r"^no matrix$"):
            if others == "of a dry run":
                pdla.dry_run(2, lambda comm: raise_everywhere(ShapeError("no matrix")))
            elif comm.rank == 1:
                raise_everywhere(ShapeError("no matrix"))
            else:
                raise ShapeError("no matrix")
        return comm.share(1)

    with config.override(check=others != "unchecked"):
        assert pdla.run(2, program) == [[1, 1]] * 2


def test_a_dry_run_has_no_part_in_which_communicator_is_the_only_one():
    def program(comm):
        ProcessGrid(2, comm=comm)
        pdla.dry_run(4, lambda dry: ProcessGrid(4, comm=dry))
        with pytest.raises(ShapeError, match=r"^rank 1: no matrix$"):
            raise_everywhere(ShapeError("no matrix")) if comm.rank else agree(comm, "norm")

    pdla.run(2, program)


# ---------------------------------------------------------------------------------------------- errors amid messages


def failing(comm, verbs):
    """A call that fails behind so many verbs; None: it does not."""
    ring = comm.split(range(comm.size), "ring")
    with suppress(MemoryError), collective_section(comm, "a call"):
        for _ in range(4 if verbs is None else verbs):
            ring.alltoall({}, {}).wait()
        if verbs is not None:
            raise MemoryError("no room")


@pytest.mark.parametrize(("verbs", "who"), [([None, 4, None], "rank 1"), ([4, 2, 2], "ranks 0, 1, 2")])
def test_a_rank_that_goes_on_after_an_error_amid_messages_is_an_error_on_all(verbs, who):
    """It would take what is left of one call for parts of the next."""

    def program(comm):
        failing(comm, verbs[comm.rank])
        for _ in range(2):
            with pytest.raises(PdlaError, match=rf"^{who}: went on after an error in a call .* \(MemoryError: no room\)"):
                agree(comm, "the next")

    pdla.run(3, program)


def test_a_rank_that_goes_on_after_a_redistribution_failed_on_it_says_so(monkeypatch):
    def program(comm):
        A = pdla.ones((4, 4), ProcessGrid(2, comm=comm), Layout("row"))
        with suppress(MemoryError):
            A.redistribute(Layout(None, "row"))
        comm.share(1)

    def short(shape, layout, grid, whole=redistribute.local_shape):
        if grid.comm.rank == 1:
            raise MemoryError("no room")
        return whole(shape, layout, grid)

    monkeypatch.setattr(redistribute, "local_shape", short)
    with pytest.raises(DeadlockError, match="rank 1 waits in going on after an error in a redistribution, in verb 0"):
        pdla.run(2, program)


@pytest.mark.parametrize("verb", [lambda c: c.share(1), lambda c: c.barrier(), lambda c: c.split([c.rank], "new")])
def test_a_rank_that_goes_on_after_an_error_asks_first(verb):
    """In a verb that is no round of messages, too."""

    def program(comm):
        with suppress(MemoryError), collective_section(comm, "a call"):
            if comm.rank == 1:
                raise MemoryError("no room")
        with pytest.raises(PdlaError, match=r"^rank 1: went on after an error in a call"):
            verb(comm) if comm.rank == 1 else agree(comm, "the next")

    pdla.run(3, program)


def test_messages_of_a_call_within_a_call_count_for_both():
    """Rank 0 fails before them, the others behind them: not at the same place."""

    def program(comm):
        ring = comm.split(range(comm.size), "ring")
        with suppress(MemoryError), collective_section(comm, "a call"):
            if comm.rank:
                with collective_section(comm, "a part of it"):
                    ring.alltoall({}, {}).wait()
            raise MemoryError
        with pytest.raises(PdlaError, match=r"^ranks 0, 1, 2: went on after an error in a call"):
            agree(comm, "the next")

    pdla.run(3, program)


MEETINGS = {
    "a verb": lambda comm: comm.allreduce(np.zeros(1)).wait(),
    "a share": lambda comm: comm.share(1),
    "a barrier": lambda comm: comm.barrier(),
    "an agreement": lambda comm: agree(comm, "it"),
    "two verbs, one within a call within the call": lambda comm: (comm.allreduce(np.zeros(1)).wait(), inner(comm)),
}


def inner(comm):
    with collective_section(comm, "a part of it"):
        comm.allreduce(np.zeros(1)).wait()


def along_rows(grid, verbs):
    """Verbs in which idle ranks take no part, and others in as many."""
    for _ in range(verbs if grid.active else 0):
        grid["row"].alltoall({}, {}).wait()


@pytest.mark.parametrize(("ranks", "shape"), [(3, 2), (5, (2, 2)), (2, (1, 1)), (4, (1, 3)), (2, 2)])
@pytest.mark.parametrize("meeting", MEETINGS)
def test_an_error_behind_a_meeting_of_all_ranks_is_one_that_all_have(meeting, ranks, shape):
    """Idle ranks have begun fewer verbs by then."""

    def program(comm):
        grid = ProcessGrid(shape, comm=comm)
        assert (grid["row"] is None) == (not grid.active)
        with suppress(ArithmeticError), collective_section(comm, "a call"):
            along_rows(grid, 2)
            MEETINGS[meeting](comm)
            raise ArithmeticError("singular")
        agree(comm, "the next")
        return comm.share(comm.rank)

    assert pdla.run(ranks, program) == [[*range(ranks)]] * ranks


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_an_error_behind_another_meeting_than_the_others_is_one_that_they_do_not_have(odd):
    """Also where as many verbs have begun since: what one sent in between was received by nobody."""

    def program(comm):
        grid = ProcessGrid(2, comm=comm)
        assert (grid["row"] is None) == (not grid.active)
        with suppress(ArithmeticError), collective_section(comm, "a call"):
            for _ in range(1 if comm.rank == odd else 2):
                comm.alltoall({}, {}).wait()
                along_rows(grid, 1)
            raise ArithmeticError("singular")
        agree(comm, "the next")

    with pytest.raises(DeadlockError, match=f"rank {odd} waits in going on after an error in a call, .* after 1 of all ranks"):
        pdla.run(3, program)


def test_ranks_that_are_lost_are_told_so_at_every_further_call():
    def program(comm):
        told = pytest.raises(AgreementError, match=r"^rank 1 went elsewhere; they stay out of step, so let an")
        with told, collective_section(comm, "a call"):
            raise_out_of_step(comm, "rank 1 went elsewhere")
        for call in (comm.barrier, lambda: comm.shift(np.ones(3), np.empty(3)), comm.barrier):
            with told:
                call()

    pdla.run(2, program)


@pytest.mark.parametrize("check", [True, False])
def test_ranks_that_have_all_failed_there_go_on(check):
    def program(comm):
        A = pdla.ones((4, 4), ProcessGrid((1, 2)), Layout("row", "col"))  # rank 2 is idle
        plan = pdla.plan_matmul(A, A)
        failing(comm, 3)
        with pytest.raises(PlanError, match="this plan is for"):
            plan(A, A[:2, :])
        return plan(A, A).norm()

    with config.override(check=check):
        assert pdla.run(3, program) == [16.0] * 3


def test_a_plan_that_fails_on_one_rank_takes_no_panels_of_the_next_product():
    def program(comm):
        A = pdla.ones((4, 4), ProcessGrid((2, 2)), Layout("row", "col"))
        plan = pdla.plan_matmul(A, A, algorithm="summa")
        with suppress(PlanError):
            plan(A, odd_one_out(comm, A, A[:2, :]))
        plan(A, A)

    with pytest.raises(DeadlockError, match="rank 2 waits in going on after an error in a plan's call, in verb 0"):
        pdla.run(4, program)


OWN = {
    "share": lambda comm, along: comm.share(comm.rank),
    "barrier": lambda comm, along: comm.barrier(),
    "split": lambda comm, along: comm.split(range(3), "ring"),
    "shift": lambda comm, along: comm.shift(np.ones(3), np.empty(3)).wait(),
    "along an axis": lambda comm, along: along.shift(np.ones(3), np.empty(3)).wait(),
}


@pytest.mark.parametrize("verb", OWN)
@pytest.mark.parametrize("failed", [1, 3])
def test_own_messages_of_a_rank_that_failed_are_not_taken_for_those_of_the_call(verb, failed):
    """Of one that catches the error, and brings the others words of its own: they would be summands of theirs."""

    def program(comm):
        along = ProcessGrid(3)["row"]
        with suppress(MemoryError), collective_section(comm, "a call"):
            if comm.rank < failed:
                raise MemoryError
            total = sum(comm.share(1))
            along.shift(np.zeros(3), np.empty(3)).wait()
            return total
        OWN[verb](comm, along)
        return comm.rank

    if failed == 3:
        assert pdla.run(3, program) == [0, 1, 2]
    else:
        with pytest.raises(DeadlockError, match="rank 0 waits in going on after an error in a call, in verb 0 "):
            pdla.run(3, program)


def test_who_goes_on_after_an_error_of_its_own_amid_a_save_asks_first(tmp_path, monkeypatch):
    def fails_on_rank_0(*args):
        if threading.current_thread().name == "rank 0":
            raise MemoryError("no room")
        return buffer(*args)

    def program(comm):
        with suppress(MemoryError):
            pdla.save(tmp_path / "x.h5", pdla.ones((3, 3), ProcessGrid(3), Layout("row")))
        comm.barrier()

    monkeypatch.setattr("pdla.io.files.buffer", fails_on_rank_0)
    with pytest.raises(DeadlockError, match="rank 0 waits in going on after an error in save, in verb 0 "):
        pdla.run(3, program)


# ---------------------------------------------------------------------------------------------- without checks


def test_without_checks_ranks_are_trusted():
    def program(comm):
        grid = ProcessGrid((2, 2))
        before = next(comm._calls)
        A = pdla.random((4, 4), grid, Layout("row", "col"), seed=comm.rank)
        pdla.ones((4, 4), grid, Layout("row")) + 1
        assert next(comm._calls) == before + 1  # no rank asked another
        with pytest.raises(LayoutError) if comm.rank == 2 else nullcontext():
            pdla.zeros((4, 4), grid, Layout(odd_one_out(comm, "row", "x")))
        return A.norm()

    with config.override(check=False):
        pdla.run(4, program)


def test_without_checks_results_are_the_same():
    def program(comm):
        grid = ProcessGrid((2, 2))
        A = pdla.random((7, 9), grid, Layout("row", "col"), distribution="integers", high=5)
        return (A @ A.T).redistribute(Layout("col")).gather()

    checked = pdla.run(4, program)
    with config.override(check=False):
        for x, y in zip(checked, pdla.run(4, program), strict=True):
            np.testing.assert_array_equal(x, y)


# ---------------------------------------------------------------------------------------------- threads of one rank


def two_threads(comm, calls=30):
    """Products of two threads, each on a grid of its own over the one communicator; what each of them raised."""
    grids, raised = [ProcessGrid((1, comm.size), comm=comm) for _ in range(2)], []

    def work(grid):
        try:
            for _ in range(calls):
                A = pdla.random((20, 20), grid, pdla.Layout(cols="col"))
                (A @ A).sum()
        except pdla.errors.PdlaError as error:
            raised.append(error)

    threads = [threading.Thread(target=work, args=(grid,)) for grid in grids]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return raised


CLASH = r"two threads of rank \d are in collective calls on 'all' at once, in .+ and in .+: let one thread make them, or give"


def test_two_threads_of_a_rank_in_calls_at_once_are_told_of_both():
    with pytest.raises(AgreementError, match=CLASH):
        pdla.run(4, two_threads)


def test_dry_too():
    """One of them waits within its call, until the other has begun one."""

    def program(comm):
        inside, begun = threading.Event(), threading.Event()

        def first():
            with collective_section(comm, "the first call"):
                inside.set()
                begun.wait(10)

        other = threading.Thread(target=first)
        other.start()
        inside.wait(10)
        with pytest.raises(AgreementError, match=r"in the first call and in ProcessGrid.*: let one"):
            ProcessGrid(2, comm=comm)
        begun.set()
        other.join()
        with pytest.raises(AgreementError, match="in the first call and in ProcessGrid"):  # and at every further call
            ProcessGrid(2, comm=comm)

    pdla.dry_run(2, program)


def test_threads_may_take_turns():
    def program(comm):
        turn = threading.Lock()
        grid, sums = ProcessGrid((2, 2), comm=comm), []

        def work():
            with turn:
                sums.append(pdla.ones((4, 4), grid, pdla.Layout("row", "col")).sum())

        for _ in range(3):
            one = threading.Thread(target=work)
            one.start()
            one.join()
        return sums

    assert pdla.run(4, program)[0] == [16.0] * 3


@pytest.mark.parametrize("view", [lambda A: A.T, lambda A: A.conj()], ids=["T", "conj"])
@pytest.mark.parametrize(
    "call",
    [
        lambda A: A @ A, lambda A: A.redistribute(Layout("row")), lambda A: A.gather(), lambda A: A.check_copies(),
        lambda A: A.norm(), lambda A: A.trace(), lambda A: A.sum(),
    ],
    ids=["@", "redistribute", "gather", "check_copies", "norm", "trace", "sum"],
)
def test_a_view_on_one_rank_alone_is_an_error_on_every_rank(call, view):
    """Otherwise the ranks' pieces would be taken for parts of one matrix, or their messages for each other's."""

    def program(comm):
        A = pdla.ones((4, 4), ProcessGrid((2, 2)), Layout(), dtype=complex)
        with pytest.raises(pdla.errors.AgreementError, match=r"rank 0: .*(by columns|conjugated).*; ranks 1, 2, 3: "):
            call(view(A) if comm.rank == 0 else A)

    pdla.run(4, program)
