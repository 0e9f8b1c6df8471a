"""PyTorch's shards as cuts, and what is told to who has no torch.distributed that fits. tests/mpi/test_torch.py has DTensors."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

import pdla
from pdla import Layout, ProcessGrid
from pdla.errors import DeviceError, GridError, LayoutError, ShapeError
from pdla.layout import share

torch = pytest.importorskip("torch", reason="pdla.torch is for who has PyTorch: python -m pip install torch==2.13.0")
dist = torch.distributed

from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh  # noqa: E402
from torch.distributed.tensor.placement_types import _StridedShard  # noqa: E402

from pdla.torch import DEVICES, _cuts, _layout, from_dtensor, to_dtensor  # noqa: E402


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def chunks(x, parts):
    """PyTorch's, and the empty ones that torch.chunk leaves out."""
    found = [*torch.chunk(x, parts)] if len(x) else []
    return found + [x[:0]] * (parts - len(found))


def test_shards_are_cuts_and_most_shards_of_shards_are():
    undescribed = []
    for n, sizes in product(range(14), [(1,), (2,), (3,), (4,), (6,), (2, 2), (3, 2), (2, 3), (4, 2), (2, 2, 2)]):
        axes = [f"axis{i}" for i in range(len(sizes))]
        cuts = _cuts(n, (*zip(axes, sizes, strict=True),))
        if cuts is None:
            undescribed.append((n, sizes))
            continue
        for place in np.ndindex(sizes):
            held = torch.arange(n)
            for i, parts in zip(place, sizes, strict=True):
                held = chunks(held, parts)[i]
            found = share(n, cuts, dict(zip(axes, sizes, strict=True)), dict(zip(axes, place, strict=True)))
            assert found.indices().tolist() == held.tolist(), (n, sizes, place)
    assert undescribed == [(7, (2, 3)), (13, (2, 3))]


def test_even_shards_are_the_layout_that_everybody_writes():
    grid = SimpleNamespace(axes=("dp", "tp"), sizes={"dp": 2, "tp": 4})
    assert _layout("", (8, 12), grid, [Shard(0), Shard(-1)]) == Layout("dp", "tp")
    assert _layout("", (8, 12), grid, [Shard(0), Shard(0)]) == Layout(("dp", "tp"))
    assert _layout("", (8, 12), grid, [Partial(), Replicate()]) == Layout(partial="dp")
    assert _layout("", (9, 5), grid, [Replicate(), Shard(1)]) == Layout(cols=pdla.Balanced("tp", 2))


@pytest.mark.parametrize(("placements", "says"), [
    ([Shard(0)], "one for each dimension of the mesh, of 2"),
    ([Shard(0), Partial("max")], r"placement Partial\(max\): redistribute T to Shard"),
    ([Shard(0), Partial("avg")], "placement Partial"),
    ([Shard(2), Replicate()], r"placement Shard\(dim=2\)"),
    ([_StridedShard(0, split_factor=2), Shard(0)], "placement .*StridedShard.*: redistribute T to"),
    ([Shard(0), Shard(0)], "shards of shards of a 7 x 7 tensor, .*: shard a dimension along one dimension of the mesh alone"),
])
def test_placements_that_are_no_layout(placements, says):
    grid = SimpleNamespace(axes=("row", "col"), sizes={"row": 2, "col": 3})
    with pytest.raises(LayoutError, match=f"^f: .*{says}"):
        _layout("f", (7, 7), grid, placements)


def errors(ranks, kind, says, program):
    def caught(comm):
        with pytest.raises(kind, match=says) as error:
            program(comm)
        return str(error.value)

    assert len(set(pdla.run(ranks, caught))) == 1


def test_ranks_of_pytorch_that_are_not_those_of_pdla(alone):
    T = distribute_tensor(torch.eye(3), alone, [Shard(0)])
    errors(2, GridError, "torch.distributed has 1 ranks: init_process_group.*comm, of 2 ranks", lambda comm: from_dtensor(T))
    dist.destroy_process_group()
    errors(1, GridError, "^from_dtensor: torch.distributed is not initialised: init_pr", lambda comm: from_dtensor(T))
    errors(1, GridError, "^to_dtensor: torch.distributed is not init", lambda comm: to_dtensor(pdla.eye(3, *here()), alone))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def here():
    return ProcessGrid(1), Layout("row")


def test_what_is_no_matrix(alone):
    turned = {
        "from_dtensor: a Tensor, no DTensor": torch.eye(3),
        "from_dtensor: a DTensor of shape (3,): give a DTensor of two": distribute_tensor(torch.ones(3), alone, [Shard(0)]),
        "a DTensor that requires a gradient, .*: give T.detach()": distribute_tensor(torch.eye(3), alone).requires_grad_(),
    }
    for says, T in turned.items():
        errors(1, ShapeError, says.replace("(", r"\(").replace(")", r"\)"), lambda comm, T=T: from_dtensor(T))
    long = "longdouble"
    errors(1, ShapeError, "elements of dtype float128: cast", lambda comm: to_dtensor(pdla.eye(3, *here(), dtype=long), alone))
    errors(1, GridError, "to_dtensor: mesh is a str: give a DeviceMesh, as", lambda comm: to_dtensor(pdla.eye(3, *here()), "cpu"))
    errors(1, ShapeError, "A is an ndarray, not a DistMatrix", lambda comm: to_dtensor(np.eye(3), alone))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex128", "int64", "bool"])
def test_memory_is_shared_where_pytorch_can_write_to_it(alone, dtype):
    def program(comm):
        x = np.arange(12.0).reshape(3, 4).astype(dtype)
        backwards, constant = x[::-1], x.copy()
        constant.flags.writeable = False
        shared, copied = (x, x.repeat(2, 0)[::2, 1:], np.asfortranarray(x)), (backwards, constant)
        for block, same in (*((block, True) for block in shared), *((block, False) for block in copied)):
            T = to_dtensor(pdla.from_local(block, block.shape, *here()), alone)
            assert (T.to_local().data_ptr() == block.ctypes.data) is same
            A = from_dtensor(T)
            assert A.local.ctypes.data == T.to_local().data_ptr() and A.dtype == dtype and A.local.tolist() == block.tolist()
            assert (T + T).shape == A.shape

    pdla.run(1, program)


def test_a_mesh_of_other_devices(alone, monkeypatch):
    monkeypatch.setitem(DEVICES, "numpy", "cuda")
    errors(1, DeviceError, "the mesh is of cpu, the matrix of numpy's arrays", lambda comm: to_dtensor(pdla.eye(3, *here()), alone))


def test_names_of_axes(alone):
    def program(comm):
        names = [("tp",), ("tensor-parallel",), None]
        meshes = [init_device_mesh("cpu", (1,), mesh_dim_names=name) for name in names]
        grids = [from_dtensor(distribute_tensor(torch.eye(2), mesh)).grid for mesh in meshes]
        assert isinstance(to_dtensor(pdla.eye(2, grids[0], Layout("tp")), meshes[1]), DTensor)
        return [grid.axes for grid in grids]

    assert pdla.run(1, program) == [[("tp",), ("row",), ("row",)]]
