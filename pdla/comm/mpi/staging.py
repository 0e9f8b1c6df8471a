"""Staging: memory without gaps for MPI, the host's or, if MPI takes device memory, a device's.

Otherwise a device's arrays go through pinned memory of the host, which the device reads and writes
itself. One launch packs all short messages of a round. Long messages go piece by piece, so that
packing, sending and unpacking overlap. A piece is sent after the event recorded after its packing,
so that MPI never reads memory that a device may still write. No rank waits for all work of its device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np

from pdla.array import namespace, numpy
from pdla.comm.group import Array
from pdla.comm.ledger import buffer
from pdla.comm.mpi.messages import piece_length

PIECE = 8 << 20  # least bytes of a piece through pinned memory: each is a launch, and shorter ones take longer in all


def make_gapless(xp: ModuleType, x: Array) -> Array:
    """Make an array of x's shape without gaps, contents undefined; return `x` itself if it has none."""
    return x if xp.is_contiguous(x) else buffer(xp, x.shape, x.dtype)


# ---------------------------------------------------------------------------------------------- receives


class Landing:
    """Receives a message for `out` in `box`: `out` itself, or memory without gaps that `land` copies to `out`."""

    xp: ModuleType
    out: Array
    box: Array

    by_piece = False

    def __init__(self, xp: ModuleType, out: Array) -> None:
        self.xp, self.out, self.box = xp, out, make_gapless(xp, out)

    def land(self, number: int) -> bool:
        """Take piece `number` from the box; return whether all of the message is in `out` now.

        Without `by_piece` the caller calls this only for the last piece to come.
        """
        if self.box is not self.out:
            self.xp.land(self.out, self.box)
        return True


class Staged(Landing):
    """Receives a message for a device's array in pinned memory; rows go to the device while later ones arrive."""

    xp: ModuleType
    after: Any

    by_piece = True

    def __init__(self, xp: ModuleType, out: Array, after: Any) -> None:
        """Allocate pinned memory. after: the event after which no work on the device uses `out`."""
        self.xp, self.after = xp, after
        self.box: Any = self.xp.empty_pinned(out.shape, out.dtype)
        self.parts: list[tuple[Array, Array]] = _cut_in_pieces(out, self.box, whole=False)
        self.come: set[int] = set()
        self.landed: int = 0

    def land(self, number: int) -> bool:
        self.come.add(number)
        while self.landed in self.come:  # pieces may come out of order
            target, box = self.parts[self.landed]
            self.landed += 1
            self.xp.land(target, box, self.after, self.landed == len(self.parts))
        return self.landed == len(self.parts)


def make_landings(outs: Sequence[Array], staged: bool) -> dict[int, Landing]:
    """Make landings for the arrays to which MPI cannot write, by their positions in `outs`.

    All arrays are the host's, or all are on one device. The device's work so far ends before MPI
    writes to them.
    """
    if not outs:
        return {}
    xp, made = namespace(outs[0]), dict[int, Landing]()
    if xp is not numpy:
        if staged:
            after = xp.mark()
            return {i: Staged(xp, out, after) for i, out in enumerate(outs)}
        xp.finish()
    for i, out in enumerate(outs):
        if not out.flags.c_contiguous:
            made[i] = Landing(xp, out)
    return made


def _cut_in_pieces(x: Array, box: np.ndarray, whole: bool) -> list[tuple[Array, Array]]:
    """Cut x and its box into rows: for each piece of the message, the rows to copy with it.

    Received rows are complete when the piece has come. Rows to send (`whole`) include all of the piece.
    """
    if namespace(x).is_contiguous(x):
        x, box = x.reshape(-1), box.reshape(-1)
    length = piece_length(box.nbytes, PIECE)
    if not length:
        return [(x, box)]
    ends = [min(end, box.nbytes) * len(box) for end in range(length, box.nbytes + length + 1, length)]
    rows = [-(-end // box.nbytes) if whole else end // box.nbytes for end in ends]
    return [(x[lo:hi], box[lo:hi]) for lo, hi in pairwise([0, *rows])]


# ---------------------------------------------------------------------------------------------- sends


# Memory without gaps for MPI to read: each piece after its event, or at once without events.
Packed = tuple[Array, Sequence[Any]]


def pack(arrays: Sequence[Array], staged: bool) -> dict[int, Packed]:
    """Pack the arrays that MPI cannot read in place; return the packed ones by the id of the array.

    All arrays are the host's, or all are on one device. An array for many ranks is packed once.
    """
    if not arrays:
        return {}
    xp, by_id = namespace(arrays[0]), dict(zip(map(id, arrays), arrays, strict=True))
    if staged and xp is not numpy:
        return _pack_through_host(xp, by_id)
    boxes: dict[int, Packed] = {}
    for key, x in by_id.items():
        if not x.flags.c_contiguous:
            boxes[key] = buffer(xp, x.shape, x.dtype), ()
    if boxes:
        xp.copy_all([(box, by_id[key]) for key, (box, _) in boxes.items()])
    if xp is not numpy:
        xp.finish()
    return boxes


def _pack_through_host(xp: ModuleType, by_id: Mapping[int, Array]) -> dict[int, Packed]:
    arrays = [*by_id.values()]
    boxes = [xp.empty_pinned(x.shape, x.dtype) for x in arrays]
    parts = [_cut_in_pieces(x, box, whole=True) for x, box in zip(arrays, boxes, strict=True)]
    xp.copy_all([(box, x) for first, *more in parts if not more for x, box in [first]])
    short = xp.mark()

    def pack_piece(x: Array, box: np.ndarray) -> Any:
        xp.copy_all([(box, x)])
        return xp.mark()

    events = [[pack_piece(*part) for part in pieces] if len(pieces) > 1 else [short] for pieces in parts]
    return dict(zip(by_id, zip(boxes, events, strict=True), strict=True))
