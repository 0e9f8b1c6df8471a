"""pdla.h's functions, called from Python with C's arguments, in the threads world: what they refuse, they refuse on every rank."""

import numpy as np
import pytest

import pdla

cffi = pytest.importorskip("cffi")
interface = pytest.importorskip("pdla.native.interface")
OK, SHAPE, LAYOUT, GRID, HANDLE, OTHER = 0, 1, 2, 3, 6, 7


class Client:
    """A C program's rank: a grid of one row, matrices of doubles, and calls that answer with a number and a text."""

    def __init__(self, comm):
        self.ffi = cffi.FFI()
        self.face = interface.Interface(self.ffi)
        self.kept = []  # the matrices' memory
        self.grid = self.face.handles.new(pdla.ProcessGrid((1, comm.size), comm=comm))

    def call(self, name, *arguments):
        status, said = self.ffi.new("int *"), self.ffi.new("char[5000]")
        self.face.return_errors(getattr(self.face, name))(*arguments, status, said)
        return status[0], self.ffi.string(said).decode()

    def matrix(self, x, layout, strides=None, type=b"d"):
        """Its handle; an error as it is answered."""
        self.kept.append(x)
        down, across = strides or (stride // x.itemsize for stride in x.strides)
        made, text = self.ffi.new("int64_t *"), self.ffi.new("char[]", layout.encode())
        local = self.ffi.cast("void *", x.ctypes.data)
        answer = self.call("matrix", self.grid, type, *x.shape, text, local, down, across, made)
        return made[0] if answer[0] == OK else answer

    def gemm(self, a, c, op=b"N"):
        one = self.ffi.new("double *", 1)
        return self.call("gemm", op, b"N", one, a, a, one, c)

    def copy(self, a, c, op=b"N"):
        return self.call("copy", op, a, c)


def answers(program, ranks=2):
    """What every rank is answered."""
    said = set(pdla.run(ranks, lambda comm: program(Client(comm), comm)))
    assert len(said) == 1, said
    return said.pop()


@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize("wrong", [{"a": 99}, {"c": 99}, {"op": b"x"}], ids=str)
@pytest.mark.parametrize("function", ["gemm", "copy"])
def test_what_is_wrong_on_one_rank_is_answered_on_all(function, wrong, everywhere):
    def program(client, comm):
        said = {"op": b"N", "a": client.matrix(np.eye(4), ""), "c": client.matrix(np.eye(4), "")}
        said |= wrong if everywhere or comm.rank == 1 else {}
        return getattr(client, function)(**said)

    if "op" in wrong:
        status, text = SHAPE, f"{'opa' if function == 'gemm' else 'op'}='x': N, T or C"
    else:
        status, text = HANDLE, f"{'A' if 'a' in wrong else 'C'}=99 is the handle of nothing, not of a matrix"
    assert answers(program) == (status, text if everywhere else f"rank 1: {text}")


@pytest.mark.parametrize("wrong", [["a"], ["b"], ["c"], ["a", "no b"], ["no a", "c"]], ids=str)
def test_a_matrix_of_another_communicator_on_one_rank_is_answered_on_all(wrong):
    """The others are on the communicator of most of the matrices, or the larger one."""

    def program(client, comm):
        handles = {name: client.matrix(np.eye(4), "") for name in "abc"}
        halves = comm.split([0, 1] if comm.rank < 2 else [2], "half")
        client.grid = client.face.handles.new(pdla.ProcessGrid((1, halves.size), comm=halves))
        other = client.matrix(np.eye(4), "")
        if comm.rank == 0:
            handles |= {name[-1]: 99 if name.startswith("no ") else other for name in wrong}
        one = client.ffi.new("double *", 1)
        return client.call("gemm", b"N", b"N", one, *(handles[name] for name in "ab"), one, handles["c"])

    status, text = answers(program, 3)
    if any(name.startswith("no ") for name in wrong):
        assert status == HANDLE and text.startswith("rank 0: ") and "=99 is the handle of nothing" in text
    else:
        other = "B" if "c" not in wrong else "C"
        sizes = "2 and 3" if "a" in wrong else "3 and 2"
        said = f"rank 0: A and {other} are on different communicators, of {sizes} ranks"
        assert status == GRID and text.startswith(said)


def test_letters_are_quoted_as_they_were_given():
    def program(client, comm):
        a, made = client.matrix(np.eye(4), ""), client.ffi.new("int64_t *")
        part = client.call("part", client.grid, 0, 1, 0, 1, made)
        return client.gemm(a, a, b"\xdf"), client.matrix(np.eye(4), "", type=b"I"), part

    assert answers(program) == (
        (SHAPE, "opa='ß': N, T or C"), (SHAPE, "type='I': s, d, c or z"),
        (HANDLE, "matrix=1 is the handle of a grid, not of a matrix"),
    )


@pytest.mark.parametrize(("null", "says"), [
    ("layout", (7, "rank 1: ")), ("local", (SHAPE, "rank 1: local is NULL: this process has a block of 4 x 4")),
    ("alpha", (7, "rank 1: ")),
])
def test_a_pointer_that_is_null_on_one_rank_is_answered_on_all(null, says):
    def program(client, comm):
        ffi, x, made = client.ffi, np.eye(4), client.ffi.new("int64_t *")
        a, c = client.matrix(np.eye(4), ""), client.matrix(np.eye(4), "")
        given = {"layout": ffi.new("char[]", b""), "local": ffi.cast("void *", x.ctypes.data), "alpha": ffi.new("double *", 1)}
        given |= {null: ffi.NULL} if comm.rank == 1 else {}
        if null == "alpha":
            return client.call("gemm", b"N", b"N", given["alpha"], a, a, ffi.new("double *", 1), c)
        return client.call("matrix", client.grid, b"d", 4, 4, given["layout"], given["local"], 4, 1, made)

    status, text = answers(program)
    assert status == says[0] and says[1] in text


@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize(("wrong", "says"), [
    ({"shape": None}, (OTHER, "shape is NULL")), ({"made": None}, (OTHER, "grid is NULL")),
    ({"axes": -1}, (GRID, "axes=-1: a grid has one to three")), ({"axes": 4}, (GRID, "axes=4: a grid has one to three")),
], ids=str)
def test_a_grid_that_cannot_be_is_answered_on_all(monkeypatch, wrong, says, everywhere):
    monkeypatch.setattr(interface, "from_fortran", lambda handle: pdla.comm.world())

    def program(client, comm):
        given = {"axes": 1, "shape": client.ffi.new("int[]", [2, 1, 1, 1]), "made": client.ffi.new("int64_t *")}
        given |= wrong if everywhere or comm.rank == 1 else {}
        return client.call("grid", 0, *(client.ffi.NULL if value is None else value for value in given.values()))

    status, text = answers(program)
    assert status == says[0] and text.startswith(says[1] if everywhere else f"rank 1: {says[1]}")


def test_results_that_have_nowhere_to_go():
    """A handle that one process alone does not get leaves it out of every later call."""

    def program(client, comm):
        ffi, x = client.ffi, np.eye(4)
        text, local, null = ffi.new("char[]", b""), ffi.cast("void *", x.ctypes.data), ffi.cast("int64_t *", 0)
        made = null if comm.rank == 1 else ffi.new("int64_t *")
        return (
            client.call("matrix", client.grid, b"d", 4, 4, text, local, 4, 1, made),
            client.call("part", client.matrix(x, ""), 0, 1, 0, 1, null),
            client.call("local_shape", client.grid, 4, 4, text, null, null),
        )

    said = answers(program)
    assert [status for status, _ in said] == [OTHER] * 3
    assert [text.partition(" is NULL")[0] for _, text in said] == ["rank 1: matrix", "part", "rows"]


@pytest.mark.parametrize(("size", "layout", "says"), [
    (-4, "", (SHAPE, "not shape (-4, 4)")), (4, "'row'), ('col'", (LAYOUT, "not the arguments of one layout")),
], ids=str)
def test_blocks_of_no_matrix_and_of_no_layout(size, layout, says):
    def program(client, comm):
        rows, text = client.ffi.new("int64_t *"), client.ffi.new("char[]", layout.encode())
        return client.call("local_shape", client.grid, size, 4, text, rows, rows)

    status, text = answers(program)
    assert status == says[0] and says[1] in text


def test_partial_sums_cannot_be_made_by_a_copy():
    def program(client, comm):
        whole, sums = client.matrix(np.eye(4), ""), client.matrix(np.eye(4), "partial='col'")
        assert client.copy(sums, client.matrix(np.eye(4), "partial='col'"))[0] == OK
        return client.copy(whole, sums)

    status, text = answers(program)
    assert status == LAYOUT and "cannot make partial sums Layout(partial=('col',)) from Layout()" in text


@pytest.mark.parametrize(("shape", "strides", "fine"), [
    ((4, 4), (1, 2), False), ((4, 4), (2, 1), False), ((4, 4), (1, 3), False), ((4, 4), (1, 4), True), ((3, 4), (4, 1), True),
    ((4, 1), (1, 1), True), ((1, 4), (9, 1), True), ((3, 2), (2, 3), True), ((4, 4), (0, 4), False), ((0, 4), (0, 0), True),
])
def test_elements_that_lie_on_one_another_are_refused(shape, strides, fine):
    def program(client, comm):
        made = client.matrix(np.zeros((4, 9))[: shape[0], : shape[1]], "", strides)
        return "made" if isinstance(made, int) else made

    answer = answers(program)
    assert answer == "made" if fine else answer[0] == SHAPE and f"down={strides[0]}, across={strides[1]}: " in answer[1]


@pytest.mark.parametrize("strides", [(1, 2**63 - 1), (2**63 - 1, 1), (1, 2**59), (1, 2**60 // 3)], ids=str)
def test_blocks_that_end_beyond_all_memory_are_refused(strides):
    def program(client, comm):
        return client.matrix(np.zeros((4, 4)), "", strides if comm.rank else (1, 4))

    status, text = answers(program)
    down, across = strides
    assert status == SHAPE and f"rank 1: down={down}, across={across}: a 4 x 4 block of float64 ends beyond all memory" in text


def test_an_empty_block_longer_than_any_array_is_refused():
    def program(client, comm):
        made, text = client.ffi.new("int64_t *"), client.ffi.new("char[]", b"rows=Cuts('col', (0, 0, 2**62))")
        return client.call("matrix", client.grid, b"d", 2**62, 0, text, client.ffi.NULL, 1, 1, made)

    refused = f"rank 1: pdla_matrix: no array has as many bytes as a block of {2**62} x 0 float64: cut it further"
    assert answers(program) == (SHAPE, refused)


def test_types_as_op_letters_in_either_case():
    def program(client, comm):
        a, c = client.matrix(np.eye(4), "", type=b"D"), client.matrix(np.eye(4), "", type=b"d")
        return client.gemm(a, c, op=b"t")

    assert answers(program) == (OK, "")


def test_a_layout_that_is_no_utf_8():
    def program(client, comm):
        rows, text = client.ffi.new("int64_t *"), client.ffi.new("char[]", b"rows=\xff")
        return client.call("local_shape", client.grid, 4, 4, text, rows, rows)

    status, text = answers(program)
    assert status == LAYOUT and text.startswith(r"layout 'rows=\\xff': ")


@pytest.mark.parametrize(("layout", "reason", "most"), [
    ("a" * 200_000, "' is not defined; write \"rows='row', cols=Cyclic('col', 64)\"", 600),
    ("'" + "é" * 200_000, "; write \"rows='row', cols=Cyclic('col', 64)\"", 900),
    ("().__iter__().__next__()" + " " * 200_000, "': StopIteration(); write \"rows='row', cols=Cyclic('col', 64)\"", 600),
    ("'" + "a" * 200_000 + "'", "'; the grid has row, col", 4095),
    ("'" + "é" * 200_000 + "'", "'; the grid has row, col", 4095),
], ids=["a name", "a text without end", "a text of no reason", "an axis", "an axis in UTF-8"])
def test_the_reason_is_told_though_the_layout_is_long(layout, reason, most):
    def program(client, comm):
        rows, text = client.ffi.new("int64_t *"), client.ffi.new("char[]", layout.encode())
        return client.call("local_shape", client.grid, 4, 4, text, rows, rows)

    status, text = answers(program)
    assert status == LAYOUT and text.endswith(reason) and " ... " in text and len(text.encode()) <= most
