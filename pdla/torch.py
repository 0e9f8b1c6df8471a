"""PyTorch's distributed tensors: a DTensor's mesh is a grid, its placements are a layout, and its memory is a matrix's.

Along one dimension of the mesh `Shard` is a cut, `Replicate` a copy, and `Partial` an addend.
PyTorch's shards of n rows over p ranks have ceil(n / p) rows each, the last ones fewer or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from pdla import checks
from pdla.comm import as_communicator
from pdla.comm.agreement import agreed, to_text
from pdla.comm.cache import find_or_make
from pdla.comm.communicator import Communicator
from pdla.cuts import Block
from pdla.errors import DeviceError, GridError, LayoutError, ShapeError, kind_of
from pdla.grid import ProcessGrid
from pdla.layout import Layout, axes_of
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import from_local

__all__ = ["from_dtensor", "to_dtensor"]

DEVICES = {"numpy": "cpu", "cupy": "cuda"}  # PyTorch's names of the devices of pdla's arrays


def from_dtensor(T: DTensor, comm: Any = None) -> DistMatrix:
    """Make a matrix over a DTensor's memory, without a copy: both share the memory.

    Collective over `comm`, with ranks outside the tensor's mesh.

    Parameters
    ----------
    T : DTensor
        2-D, of one to four mesh dimensions, placed by `Shard`, `Replicate` and `Partial("sum")`.
    comm : Communicator or mpi4py.MPI.Comm, optional
        The ranks of torch.distributed's default group, in the same order. The world by default.

    Returns
    -------
    DistMatrix
        On a grid with an axis for each dimension of the mesh, of the same name if that is a word.

    Raises
    ------
    GridError
        If torch.distributed is not initialised or numbers ranks differently, and for a mesh whose
        ranks do not ascend along each dimension, on every rank.
    LayoutError
        For another placement, and for shards of shards that no layout describes, on every rank.
    ShapeError
        For anything but a DTensor of two dimensions without gradient, on every rank.
    DeviceError
        For a tensor on another device than PDLA_ARRAY's, on every rank.

    See Also
    --------
    to_dtensor : The other way.

    Examples
    --------
    >>> import torch
    >>> from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
    >>> from pdla.torch import from_dtensor, to_dtensor
    >>> def program(comm):
    ...     mesh = init_device_mesh("cpu", (comm.size,))
    ...     A = from_dtensor(distribute_tensor(torch.eye(3), mesh, [Shard(0)]))
    ...     return A.layout, to_dtensor(A @ A, mesh).placements
    >>> store = torch.distributed.HashStore()
    >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    >>> pdla.run(1, program)[0]
    (Layout(rows='row'), (Shard(dim=0),))
    >>> torch.distributed.destroy_process_group()
    """
    comm = as_communicator(comm)
    with agreed(comm, f"from_dtensor({_in_words(T)})"):
        if not isinstance(T, DTensor) or T.ndim != 2:
            what = f"a DTensor of shape {tuple(T.shape)}" if isinstance(T, DTensor) else f"{kind_of(T)}, no DTensor"
            raise ShapeError(f"from_dtensor: {what}: give a DTensor of two dimensions")
        if T.requires_grad:
            raise ShapeError("from_dtensor: a DTensor that requires a gradient, which pdla does not compute: give T.detach()")
        _check_ranks("from_dtensor", comm, T.device_mesh)
    grid = _grid(T.device_mesh, comm)
    shape = (T.shape[0], T.shape[1])
    with agreed(comm, "the placements of from_dtensor"):
        layout = _layout("from_dtensor", shape, grid, T.placements)
        block: Any = T.to_local() if grid.active else None
        if hasattr(block, "wait"):  # an unfinished collective of PyTorch's
            block = block.wait()
    return from_local(block, shape, grid, layout)


def to_dtensor(A: DistMatrix, mesh: DeviceMesh, placements: Sequence[Placement] | None = None) -> DTensor:
    """Make a DTensor of a matrix. Collective over its grid's communicator, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        On any grid over the ranks of torch.distributed's default group.
    mesh : DeviceMesh
        The mesh of the DTensor.
    placements : sequence of Placement, optional
        One placement for each dimension of the mesh. By default that of A's layout: `Shard` along
        an axis that cuts A, `Partial` along one with partial sums, else `Replicate`. A's grid must
        then have the mesh's shape and ranks.

    Returns
    -------
    DTensor
        Over A's memory, if A has these placements and its memory is writeable; else over a copy,
        to which A is redistributed.

    Raises
    ------
    GridError
        As by `from_dtensor`; without placements also for a grid that is not the mesh's.
    LayoutError
        As by `from_dtensor`, and for partial sums that A has not.
    ShapeError
        For a dtype that PyTorch has not.
    DeviceError
        For a mesh of other devices than the matrix's. All of these are raised on every rank.

    See Also
    --------
    from_dtensor : The other way, with an example.

    Examples
    --------
    >>> import torch
    >>> from pdla.torch import to_dtensor
    >>> def program(comm):
    ...     mesh = torch.distributed.init_device_mesh("cpu", (comm.size,))
    ...     A = pdla.eye(3, pdla.ProcessGrid(comm.size), pdla.Layout("row"))
    ...     return (to_dtensor(A, mesh) * 2).full_tensor().trace().item()
    >>> store = torch.distributed.HashStore()
    >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    >>> pdla.run(1, program)[0]
    6.0
    >>> torch.distributed.destroy_process_group()
    """
    comm = checks.communicator([A])
    with agreed(comm, f"to_dtensor({getattr(A, 'description', '')}, {_mesh_in_words(mesh)}, {to_text(placements)})"):
        checks.matrix(A)
        if not isinstance(mesh, DeviceMesh):
            raise GridError(f"to_dtensor: mesh is {kind_of(mesh)}: give a DeviceMesh, as init_device_mesh('cpu', {A.grid.shape})")
        _check_ranks("to_dtensor", comm, mesh)
        if mesh.device_type != DEVICES.get(A.xp.name):
            raise DeviceError(f"to_dtensor: the mesh is of {mesh.device_type}, the matrix of {A.xp.name}'s arrays (PDLA_ARRAY)")
        _tensor(A.xp.empty((0, 0), A.dtype))
    grid = _grid(mesh, comm)
    if A.grid.shape == grid.shape and A.grid.order == grid.order:
        grid = A.grid  # whose axes may have other names
    with agreed(comm, "the placements of to_dtensor"):
        placed = _placements(A, grid) if placements is None else list(placements)
        layout = _layout("to_dtensor", A.shape, grid, placed)
    if grid != A.grid or not A.matches_layout(layout):
        A = A.redistribute(layout, grid)
    strides = (1, A.shape[0]) if A.transposed else (A.shape[1], 1)
    return DTensor.from_local(_tensor(A.local), mesh, placed, run_check=False, shape=torch.Size(A.shape), stride=strides)


# ---------------------------------------------------------------------------------------------- ranks


def _in_words(T: Any) -> str:
    if not isinstance(T, DTensor):
        return kind_of(T)
    return f"{tuple(T.shape)}, {T.dtype}, {T.placements} on {_mesh_in_words(T.device_mesh)}"


def _mesh_in_words(mesh: Any) -> str:
    return f"{tuple(mesh.shape)} of ranks {_ranks(mesh)}" if isinstance(mesh, DeviceMesh) else kind_of(mesh)


def _ranks(mesh: DeviceMesh) -> list[int]:
    """List the mesh's ranks, in C order of their places."""
    return mesh.mesh.flatten().tolist()


def _check_ranks(call: str, comm: Communicator, mesh: DeviceMesh) -> None:
    """GridError unless torch.distributed has this communicator's ranks, and they ascend in the mesh.

    PyTorch gathers along a dimension of a mesh by the numbers of ranks, not by their order in the
    mesh.
    """
    begin = f"init_process_group('gloo', store=store, rank=comm.rank, world_size=comm.size) with pdla's comm, of {comm.size} ranks"
    if not dist.is_initialized():
        raise GridError(f"{call}: torch.distributed is not initialised: {begin}")
    if dist.get_world_size() != comm.size:
        told = "" if comm.size > 1 else "; start a job of MPI's by mpirun, not by torchrun"
        raise GridError(f"{call}: torch.distributed has {dist.get_world_size()} ranks: {begin}{told}")
    if dist.get_rank() != comm.rank:
        raise GridError(f"{call}: torch.distributed numbers this rank {dist.get_rank()}, pdla {comm.rank}: {begin}")
    if any((np.diff(mesh.mesh.numpy(), axis=axis) < 0).any() for axis in range(mesh.ndim)):
        raise GridError(f"{call}: ranks of the mesh {mesh.mesh.tolist()} do not ascend along each dimension; PyTorch sorts them")


def _grid(mesh: DeviceMesh, comm: Communicator) -> ProcessGrid:
    """Collective: the grid of the mesh's ranks, for equal meshes the same."""
    names = mesh.mesh_dim_names
    axes = tuple(names) if names and all(name.isidentifier() for name in names) else None
    shape, ranks = tuple(mesh.shape), tuple(_ranks(mesh))
    return find_or_make(comm, (_grid, shape, ranks, axes), lambda: ProcessGrid(shape, axes, comm, ranks))


# ---------------------------------------------------------------------------------------------- placements


def _placements(A: DistMatrix, grid: ProcessGrid) -> list[Placement]:
    """Convert A's layout to placements, one for each axis of its grid."""
    if grid is not A.grid:
        raise GridError(f"to_dtensor: A is on {A.grid!r}, not on the mesh's {grid!r}: give placements=, as [Shard(0), Replicate()]")
    found: dict[str, Placement] = {axis: Partial() for axis in A.layout.partial}
    for dim, cuts in enumerate((A.layout.rows, A.layout.cols)):
        found |= {axis: Shard(dim) for axis in axes_of(cuts)}
    return [found.get(axis, Replicate()) for axis in grid.axes]


def _layout(call: str, shape: tuple[int, int], grid: ProcessGrid, placements: Sequence[Any]) -> Layout:
    """Convert the placements of a matrix of this shape to a layout; LayoutError if there is none."""
    if len(placements) != len(grid.axes):
        raise LayoutError(f"{call}: placements {placements}: give one for each dimension of the mesh, of {len(grid.axes)}")
    cut: tuple[list[str], list[str]] = ([], [])  # axes along which rows are cut, and columns
    partial = []
    for axis, how in zip(grid.axes, placements, strict=True):
        if type(how) is Shard and -2 <= how.dim < 2:
            cut[how.dim % 2].append(axis)
        elif type(how) is Partial and how.reduce_op == "sum":
            partial.append(axis)
        elif type(how) is not Replicate:
            raise LayoutError(f"{call}: placement {how!r}: redistribute T to Shard(0), Shard(1), Replicate() or Partial() first")
    rows, cols = (_cuts(n, tuple((axis, grid.sizes[axis]) for axis in axes)) for n, axes in zip(shape, cut, strict=True))
    if rows is None or cols is None:
        raise LayoutError(
            f"{call}: shards of shards of a {shape[0]} x {shape[1]} tensor, {list(placements)} on {grid!r}, are of lengths that no "
            "layout has: shard a dimension along one dimension of the mesh alone, or by numbers of ranks that divide its length"
        )
    return Layout(rows, cols, tuple(partial))


@lru_cache
def _cuts(n: int, axes: tuple[tuple[str, int], ...]) -> tuple[Block, ...] | None:
    """Convert PyTorch's shards of n indices along axes, each with its number of ranks, outermost first, to cuts, or None."""
    made: list[Block] = []
    lengths = {n}  # of what the axes before have left
    for axis, parts in axes:
        shards = {length: _shards(length, parts) for length in lengths}
        units = sorted({1, *(held[0] for held in shards.values() if held[0])})
        cuts = (Block(axis, unit) for unit in units)
        cut = next((cut for cut in cuts if all(_lengths(cut, n, parts) == held for n, held in shards.items())), None)
        if cut is None:
            return None
        made.append(cut)
        lengths = {length for held in shards.values() for length in held}
    return tuple(made)


def _shards(n: int, parts: int) -> list[int]:
    """Count the indices of each shard of n indices, as torch.chunk cuts them."""
    size = -(-n // parts)
    return [min(max(n - i * size, 0), size) for i in range(parts)]


def _lengths(cut: Block, n: int, parts: int) -> list[int]:
    return [cut.length(n, parts, i) for i in range(parts)]


# ---------------------------------------------------------------------------------------------- memory


def _tensor(block: Any) -> torch.Tensor:
    """Make a tensor over an array's memory; over a copy if that is read-only, or has negative strides, which tensors have not."""
    if min(block.strides) < 0 or not getattr(block.flags, "writeable", True):
        block = block.copy()
    try:
        if block.dtype.name == "bfloat16":  # NumPy's DLPack has none
            return torch.from_dlpack(block.view(np.int16)).view(torch.bfloat16)
        return torch.from_dlpack(block)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ShapeError(f"to_dtensor: elements of dtype {block.dtype}: cast the matrix by astype first: {error}") from None
