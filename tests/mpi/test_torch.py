"""DTensors in and out, on 2 and 4 ranks: PyTorch's own messages are gloo's, and a start of PyTorch is slow."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

import pdla
from pdla import Cuts, Cyclic, Layout, ProcessGrid
from pdla.errors import AgreementError, GridError, LayoutError, PdlaError, ShapeError

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def torch(tmp_path_factory):
    """PyTorch, whose default group is the job."""
    comm = pdla.world()
    if comm.size not in (2, 4):
        pytest.skip("on 2 and 4 ranks alone")
    torch = pytest.importorskip("torch", reason="pdla.torch is for who has PyTorch: python -m pip install torch==2.13.0")
    torch.set_num_threads(1)
    store = Path(comm.share(str(tmp_path_factory.mktemp("gloo") / "store"))[0])
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.FileStore(str(store), comm.size), rank=comm.rank, world_size=comm.size
    )
    yield torch
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def tensors(torch):
    from torch.distributed import tensor

    return tensor


@pytest.fixture(scope="module")
def meshes(tensors):
    """All ranks in a row, in two rows, and in two columns; and all but the last."""
    from torch.distributed.device_mesh import DeviceMesh

    size = pdla.world().size
    return {
        "row": tensors.init_device_mesh("cpu", (size,)),
        "rows": tensors.init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp")),
        "crossed": DeviceMesh("cpu", np.arange(size).reshape(size // 2, 2).T.tolist()),
        "fewer": DeviceMesh("cpu", [*range(size - 1)]),
    }


def numbers(torch, *shape, dtype=None):
    made = torch.arange(float(np.prod(shape))).reshape(shape) % 7 - 3
    return made if dtype is None else made.to(dtype)


def every(tensors, mesh):
    """All placements of a matrix on a mesh."""
    kinds = (tensors.Shard(0), tensors.Shard(1), tensors.Replicate(), tensors.Partial())
    return [list(how) for how in product(kinds, repeat=mesh.ndim)]


@pytest.mark.parametrize(("name", "shapes"), [
    ("row", [(4, 8), (5, 3)]), ("rows", [(4, 8), (5, 3)]), ("crossed", [(5, 3)]), ("fewer", [(1, 9)]),
])
def test_there_and_back(comm, torch, tensors, meshes, name, shapes):
    """In every placement, evenly and unevenly: the same memory, and the same elements."""
    from pdla.torch import from_dtensor, to_dtensor

    mesh = meshes[name]
    for shape, placements in product(shapes, every(tensors, mesh)):
        x = numbers(torch, *shape)
        T = tensors.distribute_tensor(x.clone(), mesh, placements)
        A = from_dtensor(T)
        assert A.grid.shape == tuple(mesh.shape) and np.array_equal(A.gather(), x.numpy()), placements
        back = to_dtensor(A, mesh)
        assert back.placements == T.placements and back.shape == T.shape and back.stride() == T.stride()
        assert torch.equal(back.to_local(), T.to_local())
        if A.local.size:
            assert A.local.ctypes.data == T.to_local().data_ptr() == back.to_local().data_ptr()
        A *= 3
        assert torch.equal(back.full_tensor(), 3 * x) or mesh.get_coordinate() is None


def test_names_of_the_mesh_are_the_grid_s(tensors, torch, meshes):
    from pdla.torch import from_dtensor

    T = tensors.distribute_tensor(numbers(torch, 5, 4), meshes["rows"], [tensors.Shard(1), tensors.Replicate()])
    A, B = from_dtensor(T), from_dtensor(T)
    assert A.layout == Layout(cols="dp") and A.grid.axes == ("dp", "tp") and A.grid is B.grid


@pytest.mark.parametrize(("dtype", "step"), [("float64", 1), ("bfloat16", 5), ("complex64", 6), ("int64", 7)])
def test_products_are_pytorch_s(torch, tensors, meshes, dtype, step):
    """Of integers, so that no sum is rounded: for each placement of A one of B."""
    from pdla.torch import from_dtensor, to_dtensor

    mesh = meshes["rows"]
    a, b = numbers(torch, 5, 8, dtype=getattr(torch, dtype)), numbers(torch, 8, 3, dtype=getattr(torch, dtype))
    ways = every(tensors, mesh)
    for i in range(0, len(ways), step):
        A = tensors.distribute_tensor(a, mesh, ways[i])
        B = tensors.distribute_tensor(b, mesh, ways[(5 * i + 1) % len(ways)])
        C = to_dtensor(pdla.matmul(from_dtensor(A), from_dtensor(B)), mesh)
        assert torch.equal(C.full_tensor(), a @ b), (A.placements, B.placements)


def test_a_layout_that_pytorch_has_not_is_redistributed(comm, torch, tensors, meshes):
    from pdla.torch import to_dtensor

    x, mesh = np.arange(30.0).reshape(6, 5), meshes["rows"]
    pr, pc = mesh.shape
    whole = torch.from_numpy(x)
    grid = ProcessGrid((pr, pc), comm=comm)
    layouts = [Layout(Cyclic("row", 1), "col"), Layout(Cuts("row", (0, 6, 6)), "col"), Layout(("col", "row"))]
    for layout in layouts:
        A = pdla.from_global(x, grid, layout)
        T = to_dtensor(A, mesh)
        assert [type(how) for how in T.placements] == [tensors.Shard] * 2
        assert T.placements[1].dim == (0 if layout == layouts[-1] else 1)
        assert torch.equal(T.full_tensor(), whole)
    other = pdla.from_global(x, ProcessGrid((comm.size,), comm=comm), Layout("row"))
    T = to_dtensor(other, mesh, [tensors.Replicate(), tensors.Shard(-1)])
    assert torch.equal(T.full_tensor(), whole)
    with pytest.raises(GridError, match=r"give placements=, as \[Shard\(0\), Replicate\(\)\]"):
        to_dtensor(other, mesh)
    with pytest.raises(LayoutError):
        to_dtensor(other, mesh, [tensors.Partial(), tensors.Replicate()])


def test_what_one_rank_gives_wrong_is_an_error_on_all(comm, torch, tensors, meshes):
    from pdla.torch import from_dtensor, to_dtensor

    mesh, last = meshes["row"], comm.rank == comm.size - 1
    T = tensors.distribute_tensor(numbers(torch, 4, 4), mesh, [tensors.Shard(0)])
    A = from_dtensor(T)
    short = tensors.DTensor.from_local(T.to_local()[1:], mesh, T.placements, run_check=False, shape=T.shape, stride=T.stride())
    wrong = [
        (ShapeError, "a Tensor, no DTensor", lambda: from_dtensor(T.to_local() if last else T)),
        (ShapeError, "give T.detach", lambda: from_dtensor(T.detach().requires_grad_() if last else T)),
        (ShapeError, r"the local block has shape", lambda: from_dtensor(short if last else T)),
        (AgreementError, "ranks disagree", lambda: from_dtensor(T.to(torch.float64) if last else T)),
        (AgreementError, "ranks disagree", lambda: to_dtensor(A, meshes["rows"] if last else mesh)),
        (GridError, "mesh is a str", lambda: to_dtensor(A, "cpu" if last else mesh)),
        (LayoutError, r"placement Partial\(max\)", lambda: to_dtensor(A, mesh, [tensors.Partial("max")])),
    ]
    for kind, says, call in wrong:
        with pytest.raises(PdlaError, match=says) as caught:
            call()
        assert isinstance(caught.value, kind) and len(set(comm.share(str(caught.value)))) == 1


def test_ranks_in_another_order_are_refused(comm, torch, tensors, meshes):
    """PyTorch gathers in the order of ranks' numbers what a mesh may have in another."""
    from torch.distributed.device_mesh import DeviceMesh

    from pdla.torch import from_dtensor

    turned = [*range(comm.size)][::-1]
    T = tensors.distribute_tensor(numbers(torch, 4, 4), meshes["row"], [tensors.Shard(0)])
    with pytest.raises(GridError, match=r"torch\.distributed numbers this rank \d, pdla \d"):
        from_dtensor(T, comm.split(turned, "turned"))
    T = tensors.distribute_tensor(numbers(torch, 4, 4), DeviceMesh("cpu", turned), [tensors.Shard(0)])
    with pytest.raises(GridError, match=r"from_dtensor: ranks of the mesh \[.*, 0\] do not ascend"):
        from_dtensor(T)
