"""Blocks of other libraries' arrays are matrices' memory, and matrices' blocks are theirs: what one writes the other sees."""

import numpy as np
import pytest

import pdla
from pdla import Layout, ProcessGrid
from pdla.errors import DeviceError, ShapeError

ROWS = Layout("row")


class Foreign:
    """An array of a library that has nothing but DLPack."""

    def __init__(self, x, device=(1, 0)):
        self.x, self.device = x, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        return self.x.__dlpack__(**options)


def of_blocks(make, ranks=2):
    """Each rank's (block, what it has become in a matrix), for a block of 2 x 3 on each rank."""

    def program(comm):
        block = make(np.arange(6.0).reshape(2, 3) + 10 * comm.rank)
        return block, pdla.from_local(block, (2 * ranks, 3), ProcessGrid(ranks), ROWS)

    return pdla.run(ranks, program)


def errors_of(make, kind, says):
    """The one error of two ranks, of which only the last brings such a block."""

    def program(comm):
        x = np.ones((2, 3))
        with pytest.raises(kind, match=says) as caught:
            pdla.from_local(make(x) if comm.rank else x, (4, 3), ProcessGrid(2), ROWS)
        return str(caught.value)

    assert len(set(pdla.run(2, program))) == 1


@pytest.mark.parametrize("lying", [lambda x: x, np.asfortranarray, lambda x: x.repeat(2, 1)[:, ::2]])
def test_the_memory_is_shared(lying):
    for rank, (block, A) in enumerate(of_blocks(lambda x: Foreign(lying(x)))):
        assert np.shares_memory(A.local, block.x) and A.local.strides == block.x.strides
        A.local[0, 0] = -1
        assert block.x.tolist() == [[-1, 1 + 10 * rank, 2 + 10 * rank], [3 + 10 * rank, 4 + 10 * rank, 5 + 10 * rank]]


def test_what_is_only_to_be_read_is_multiplied_and_not_written_to():
    def program(comm):
        x = np.ones((2, 3))
        x.flags.writeable = False
        A = pdla.from_local(Foreign(x), (4, 3), ProcessGrid(2), ROWS)
        assert (A.T @ A).gather().tolist() == [[4.0] * 3] * 3
        with pytest.raises(ShapeError, match="out is in read-only memory"):
            pdla.matmul(A, pdla.eye(3, A.grid, Layout()), out=A)

    pdla.run(2, program)


def test_memory_of_a_device_is_refused_on_the_host():
    errors_of(lambda x: Foreign(x, (2, 0)), DeviceError, r"^rank 1: from_local: a Foreign on a device \(DLPack's kind 2\), .*=cupy")


def test_a_matrix_is_no_array_of_one_rank():
    def program(comm):
        A = pdla.ones((2, 3), ProcessGrid(2), ROWS)
        with pytest.raises(TypeError, match=r"A.local this rank's block"):
            np.from_dlpack(A)
        return np.from_dlpack(A.local).tolist()

    assert pdla.run(2, program) == [[[1.0] * 3]] * 2


class TestPyTorch:
    @pytest.fixture
    def torch(self):
        return pytest.importorskip("torch", reason="PyTorch is a user's of pdla, which does not need it")

    @pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16", "int32", "complex64", "bool"])
    def test_there_and_back(self, torch, dtype):
        for block, A in of_blocks(lambda x: torch.from_numpy(x).to(getattr(torch, dtype))):
            assert A.dtype == dtype and A.local.ctypes.data == block.data_ptr()
            assert A.local.astype("complex128").tolist() == block.to(torch.complex128).tolist()
            if dtype != "bfloat16":  # of which NumPy has no DLPack
                assert torch.from_dlpack(A.local).data_ptr() == block.data_ptr()

    def test_what_cannot_be_shared(self, torch):
        told = {
            "from_local: a Tensor, whose .* require gradient, use tensor.detach": lambda x: x.requires_grad_(),
            "negated in a view: give x.resolve_neg": lambda x: torch.complex(x, x).conj().imag,
            "conjugate bit set": lambda x: torch.complex(x, x).conj(),
            "Unsupported dtype": lambda x: x.to(torch.float8_e4m3fn),
            "meta": lambda x: x.to("meta"),
        }
        for says, turned in told.items():
            errors_of(lambda x, turned=turned: turned(torch.from_numpy(x)), ShapeError, says)
