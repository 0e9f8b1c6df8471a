"""Process grids: which rank has which place, which communicators there are, and that none is left open."""

from itertools import product
from unittest.mock import patch

import numpy as np
import pytest

import pdla
from pdla import Layout, ProcessGrid, balanced_shape, run, tiled_order
from pdla.errors import AgreementError, GridError
from pdla.grid import find_communicator


def on_ranks(size, program):
    """What a program gives on every rank; in threads."""
    return run(size, program)


# ---------------------------------------------------------------------------------------------- places


@pytest.mark.parametrize("shape", [(5,), (2, 3), (3, 1), (2, 3, 4), (1, 2, 2)])
def test_default_order(shape):
    def program(comm):
        grid = ProcessGrid(shape)
        return dict(grid.coords), dict(grid.sizes)

    pr, pc, _ = (*shape, 1, 1)[:3] if len(shape) > 1 else (1, *shape, 1)
    size = shape[0] if len(shape) == 1 else pr * pc * (shape[2] if len(shape) == 3 else 1)
    for rank, (coords, sizes) in enumerate(on_ranks(size, program)):
        if len(shape) == 1:
            assert coords == {"row": rank}
        else:
            assert rank == coords["col"] + pc * coords["row"] + pr * pc * coords.get("depth", 0)
        assert tuple(sizes.values()) == shape


@pytest.mark.parametrize("order", ["C", "F", [3, 1, 2, 0, 5, 4]])
def test_orders(order):
    def program(comm):
        grid = ProcessGrid((2, 3), order=order)
        assert grid.rank_of(grid.coords) == comm.rank
        assert grid.coords_of(-1) is grid.coords_of(6) is None
        assert [grid.coords_of(r) for r in range(6)] == comm.share(dict(grid.coords))
        return grid.coords["row"], grid.coords["col"]

    places = on_ranks(6, program)
    for i, j in product(range(2), range(3)):
        expected = {"C": 3 * i + j, "F": i + 2 * j}[order] if isinstance(order, str) else order[3 * i + j]
        assert places.index((i, j)) == expected


def test_four_axes_are_named():
    def program(comm):
        with pytest.raises(GridError, match="name the axes"):
            ProcessGrid((2, 1, 2, 1))
        grid = ProcessGrid((2, 1, 2, 1), axes=("a", "b", "c", "d"))
        return tuple(grid.coords.values()), repr(grid)

    assert on_ranks(4, program)[3] == ((1, 0, 1, 0), "ProcessGrid(a=2, b=1, c=2, d=1)")


def test_an_order_of_one_s_own_is_shown():
    """Else an error would name two grids that differ by the same words."""

    def program(comm):
        orders = ((2, 2), (0, 2, 1, 3)), ((3, 3), range(8, -1, -1)), ((2, 2), range(4))
        return [repr(ProcessGrid(shape, order=order)) for shape, order in orders]

    assert on_ranks(9, program)[0] == [
        "ProcessGrid(row=2, col=2, order=[0, 2, 1, 3]; 5 idle)",
        "ProcessGrid(row=3, col=3, order=[8, 7, 6, 5, 4, 3, 2, 1, ..., digest 93fcb63a])",
        "ProcessGrid(row=2, col=2; 5 idle)",
    ]


def test_orders_that_are_alike_at_first_are_told_apart():
    """Ranks agreed on a grid that was another one on one of them."""

    def program(comm):
        first, *others = (ProcessGrid((2, 5), order=(7, 6, 5, 4, 3, 2, 1, 0, *rest)) for rest in ((8, 9), (9, 8)))
        with pytest.raises(AgreementError, match=r"order=\[7, 6, 5, 4, 3, 2, 1, 0, ..., digest "):
            pdla.zeros((4, 4), *(others if comm.rank == 9 else [first]), pdla.Layout("row", "col"))

    pdla.run(10, program)


def test_tiled_order_puts_consecutive_ranks_into_tiles():
    order = tiled_order((4, 6), (2, 3))
    place = {rank: divmod(i, 6) for i, rank in enumerate(order)}
    for node in range(4):
        tiles = {(place[r][0] // 2, place[r][1] // 3) for r in range(6 * node, 6 * node + 6)}
        assert tiles == {divmod(node, 2)}
    assert sorted(order) == list(range(24))
    assert tiled_order((2, 3), (1, 1)) == tiled_order((2, 3), (2, 3)) == tuple(range(6))
    for tile in [(3, 3), (2,), (2, 3, 1)]:
        with pytest.raises(GridError, match="do not divide"):
            tiled_order((4, 6), tile)


@pytest.mark.parametrize(
    ("ranks", "ndim", "shape"),
    [(1, 2, (1, 1)), (12, 2, (3, 4)), (7, 2, (1, 7)), (64, 2, (8, 8)), (64, 3, (4, 4, 4)), (6, 1, (6,))],
)
def test_balanced_shape(ranks, ndim, shape):
    assert balanced_shape(ranks, ndim) == shape


def test_idle_ranks_have_no_place():
    def program(comm):
        grid = ProcessGrid((1, 3))
        assert (grid.size, grid.active) == (3, comm.rank < 3)
        assert "2 idle" in repr(grid)
        assert grid["col"] is None or grid["col"].size == 3
        return grid.coords and dict(grid.coords), grid["row", "col"] is None

    results = on_ranks(5, program)
    assert results == [({"row": 0, "col": j}, False) for j in range(3)] + [(None, True)] * 2


def test_a_grid_of_some_ranks():
    def program(comm):
        grid = ProcessGrid(2, order=[4, 1])
        return grid.coords and grid.coords["row"]

    assert on_ranks(5, program) == [None, 1, None, None, 0]


# ---------------------------------------------------------------------------------------------- errors


def test_one_rank_is_told_how_to_start_more():
    """Whatever has started it: mpirun and a program in C, or threads."""
    message = r"has 1; start as many: mpirun -n 6 ... of the MPI that the program uses, or pdla.run\(6, \.\.\.\)"
    with pytest.raises(GridError, match=message):
        on_ranks(1, lambda comm: ProcessGrid((2, 3)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ProcessGrid((2, 3)), r"shape \(2, 3\) needs 6 ranks, the communicator has 4; \(2, 2\) would fit"),
        (lambda: ProcessGrid((0, 3)), "has no ranks"),
        (lambda: ProcessGrid((1,) * 5), "one to four axes, not 5"),
        (lambda: ProcessGrid(()), "one to four axes, not 0"),
        (lambda: ProcessGrid((2, 2), axes=("x", "x")), "must be 2 different names"),
        (lambda: ProcessGrid((2, 2), axes=("x", "y z")), "a word of letters"),
        (lambda: ProcessGrid(2, 2), "^axes is an int, not names"),
        (lambda: ProcessGrid((2, 2), ProcessGrid((2, 2)).comm), "^axes is a ThreadComm, not names; a communicator is given as"),
        (lambda: ProcessGrid((2, 2), order="X"), "order='X'"),
        (lambda: ProcessGrid((2, 2), order=[0, 1, 2, 2]), "must name 4 different ranks"),
        (lambda: ProcessGrid((2,), order=[0, 4]), "names rank 4; there are 4"),
        (lambda: ProcessGrid((2,), order=[0.9, 1.2]), "must name 2 different ranks"),
        (lambda: ProcessGrid((2,), order=[[0], [1, 2]]), "must name 2 different ranks"),
        (lambda: ProcessGrid((2,), order=3), "must name 2 different ranks"),
        (lambda: ProcessGrid((2,), order=[0, -1]), "must name 2 different ranks"),
        (lambda: ProcessGrid((2, 2), comm=3), "3 is not a communicator"),
        (lambda: ProcessGrid((2, 2))["depth"], "has no axis 'depth'"),
        (lambda: ProcessGrid((2, 2))[0], "has no axis 0"),
        (lambda: ProcessGrid((2, 2))["row", "row"], "an axis is named twice"),
    ],
)
def test_errors_are_the_same_on_every_rank(make, message):
    def program(comm):
        with pytest.raises(GridError, match=message) as caught:
            make()
        return str(caught.value)

    assert len(set(on_ranks(4, program))) == 1


def test_different_grids_on_different_ranks():
    def program(comm):
        with pytest.raises(AgreementError) as caught:
            ProcessGrid((1, 4) if comm.rank == 2 else (2, 2))
        return str(caught.value)

    (text,) = set(on_ranks(4, program))
    assert "ranks 0, 1, 3: ProcessGrid((2, 2)" in text and "rank 2: ProcessGrid((1, 4)" in text


def test_one_bad_rank_is_an_error_on_all():
    def program(comm):
        with pytest.raises(GridError, match="rank 1: a grid of shape") as caught:
            ProcessGrid((9, 9) if comm.rank == 1 else (2, 2))
        return str(caught.value)

    assert len(set(on_ranks(4, program))) == 1


# ---------------------------------------------------------------------------------------------- communicators


def test_communicators_along_axes():
    def program(comm):
        grid = ProcessGrid((2, 3, 2))
        here = grid.coords
        for names in ["row", "col", "depth", ("row", "col"), ("col", "row"), ("depth", "row"), ("row", "col", "depth")]:
            group, axes = grid[names], (names,) if isinstance(names, str) else names
            points = product(*(range(grid.sizes[axis]) for axis in axes))
            expected = [grid.rank_of({**here, **dict(zip(axes, point, strict=True))}) for point in points]
            assert group.share(comm.rank) == expected
            assert expected[group.rank] == comm.rank
            assert grid[names] is group
            assert group.axis == ",".join(axes)

    on_ranks(12, program)


def test_holders_are_all_ranks_at_some_coordinates():
    def program(comm):
        grid = ProcessGrid((2, 2), order=[3, 0, 2, 1])
        return grid.holders({"row": 0}).tolist(), grid.holders({"col": 1, "row": 1}).tolist(), grid.holders({}).tolist()

    assert on_ranks(4, program)[0] == ([0, 3], [1], [0, 1, 2, 3])


def test_grids_are_equal_when_they_say_the_same():
    def program(comm):
        grid = ProcessGrid((2, 2))
        assert grid == ProcessGrid((2, 2)) and hash(grid) == hash(ProcessGrid((2, 2)))
        assert grid != ProcessGrid((1, 4))
        assert grid != ProcessGrid((2, 2), order="F")
        assert grid != ProcessGrid((2, 2), axes=("x", "y"))
        assert grid != ProcessGrid((2, 2), comm=grid["row", "col"])
        assert grid == ProcessGrid((2, 2), order=[0, 1, 2, 3])
        assert ProcessGrid((2, 2), order=[[3, 0], [2, 1]]) == ProcessGrid((2, 2), order=[3, 0, 2, 1])
        with pytest.raises(TypeError, match="cannot be pickled"):
            grid.__reduce__()

    on_ranks(4, program)


def test_a_closed_grid_gives_no_communicators():
    def program(comm):
        with ProcessGrid((2, 2)) as grid:
            assert grid["row"].size == 2
            assert len(comm._families.kept) == 1
        assert not comm._families.kept and not comm._families.open
        grid.close()
        with pytest.raises(GridError, match="is closed"):
            grid["row"]

    on_ranks(4, program)


@pytest.mark.parametrize(("ranks", "shape"), [(1, (1, 1)), (2, (1, 2)), (3, (1, 3)), (4, (2, 2)), (6, (2, 3))])
def test_a_communicator_keeps_one_default_grid_until_either_is_closed(ranks, shape):
    def program(comm):
        grid = ProcessGrid.default()
        assert grid is ProcessGrid.default(comm) and grid.shape == shape
        with ProcessGrid(shape) as twin:
            row = grid["row"]
            assert twin == grid
        assert grid["row"] is row  # not closed with one that is equal
        half = comm.split([comm.rank], "alone")
        alone = ProcessGrid.default(half)
        assert alone.shape == (1, 1) and alone is ProcessGrid.default(half)
        half.close()
        assert alone.closed and not grid.closed
        grid.close()
        assert ProcessGrid.default() is not grid and not ProcessGrid.default().closed
        return True

    assert all(on_ranks(ranks, program))
    assert pdla.dry_run(ranks, program)[0]


def test_default_layouts():
    def program(comm):
        return [ProcessGrid(shape, axes).default_layout for shape, axes in (
            (4, None), (4, "x"), ((2, 2), None), ((2, 2), ("x", "y")), ((1, 2, 2), None),
        )]

    expected = [Layout("row"), Layout("x"), Layout("row", "col"), Layout("x", "y"), None]
    assert on_ranks(4, program) == [expected] * 4


def test_a_grid_that_is_closed_leaves_others_their_communicators_and_plans():
    def program(comm):
        ours, other = ProcessGrid((2, 2)), ProcessGrid((1, 4))
        A = pdla.random((8, 8), ours, Layout("row", "col"))
        plan = pdla.plan_matmul(A, A, algorithm="summa")
        before = plan(A, A).gather()
        with ProcessGrid((2, 2)) as theirs:  # equal to ours
            row = theirs["row"]
        assert ours["row"] is row and row.share(comm.rank) == ours.group(("row",))
        assert np.array_equal(plan(A, A).gather(), before)
        col = other["col"]
        ours.close()
        assert other["col"] is col
        other.close()
        assert not comm._families.kept

    on_ranks(4, program)


def test_of_too_many_communicators_the_one_that_was_asked_for_longest_ago_is_closed():
    """And not the one that was made first: by then one along another axis may be in use all the time."""

    def program(comm):
        grids = [ProcessGrid((2, 2), axes=(f"r{i}", f"c{i}")) for i in range(8)]

        def kept():
            return [axes[0] for _, axes in comm._families.kept]

        made = [grid[grid.axes[0]] for grid in grids]
        assert grids[0]["r0"] is made[0] and grids[2]["r2"] is made[2]  # asked for again
        assert kept() == ["r1", "r3", "r4", "r5", "r6", "r7", "r0", "r2"]
        grids[0]["c0"], grids[0]["r0", "c0"]
        assert kept() == ["r4", "r5", "r6", "r7", "r0", "r2", "c0", "r0"]
        again = [grid[grid.axes[0]] for grid in grids]
        assert [i for i, one in enumerate(made) if again[i] is one] == [0, 2]
        assert again[1].share(comm.rank) == grids[1].group(("r1",))

    with patch.object(pdla.grid, "FAMILIES", 8):
        on_ranks(4, program)


def test_ten_thousand_grids_keep_a_bounded_number_of_communicators():
    def program(comm):
        first = ProcessGrid(2, axes="first")
        assert first["first"].size == 2
        for i in range(10_000):
            grid = ProcessGrid((1, 2) if i % 3 else (2, 1), axes=(f"r{i}", f"c{i}"), order=[i % 2, 1 - i % 2])
            assert grid[f"c{i}" if i % 3 else f"r{i}"].size == 2
        assert first["first"].share(comm.rank) == [0, 1]
        return len(comm._families.kept)

    with patch.object(pdla.grid, "FAMILIES", 50):
        assert on_ranks(2, program) == [50] * 2


# ---------------------------------------------------------------------------------------------- where ranks meet


def test_ranks_meet_where_most_operands_are_or_most_ranks():
    def program(comm):
        pair, alone = comm.split([comm.rank // 2 * 2, comm.rank // 2 * 2 + 1], "pair"), comm.split([comm.rank], "alone")
        A, B, C = (pdla.ones((4, 4), ProcessGrid(over.size, comm=over), Layout("row")) for over in (comm, pair, alone))
        assert find_communicator([B, A]) is find_communicator([A, B]) is find_communicator([C, B, A]) is comm
        assert find_communicator([C, B, C]) is alone
        assert find_communicator([None, 3, B, "grid"]) is find_communicator([B, B, A]) is pair
        assert find_communicator([]) is find_communicator([None, np.ones(3), A.grid]) is None

    on_ranks(4, program)


@pytest.mark.parametrize("odd", [0, 1, 3])
def test_a_first_operand_on_fewer_ranks_is_an_error_where_the_others_are(odd):
    def program(comm):
        pair = comm.split([comm.rank // 2 * 2, comm.rank // 2 * 2 + 1], "pair")
        A, other = (pdla.ones((4, 4), ProcessGrid(over.size, comm=over), Layout("row")) for over in (comm, pair))
        first = other if comm.rank == odd else A
        for call in (lambda: first @ A, lambda: pdla.linalg.solve(first, A), lambda: pdla.vstack([first, A])):
            with pytest.raises(GridError, match=f"^rank {odd}: .*different communicators, of 2 and 4 ranks"):
                call()
        return A.sum()

    assert on_ranks(4, program) == [16.0] * 4
