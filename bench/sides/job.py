"""One mpirun of sides that share an MPI: make and check each product, then time the sides in alternating turns.

python -m bench.sides.job SPEC

SPEC is JSON of {work: [{sizes: [m, n, k, dtype], sides: [[module, variant]]}], check, turns, turn, results}; turn is in seconds.
Rank 0 appends a line of JSON to the file `results` for each product and side.
"""

from __future__ import annotations

import importlib
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from mpi4py import MPI

from bench.common import turns
from bench.common.meeting import Meeting, count_received
from bench.common.product import Product, Side, fill_at_random

MOST = 50  # products in a turn, at most


def time_sides(meeting: Meeting, sides: list[Side], rounds: int, turn: float) -> list[list[tuple[float, float]]]:
    """Collective: each side's turns of products back to back, of about `turn` seconds by a first product.

    A turn has the seconds of a product, and the bytes on the link of the host that received most. If several sides alternate, a
    turn of several products starts with one more. This one does not count, as caches hold another side's data, and idle links
    start slowly.
    """
    counts = [round(min(MOST, max(1, turn / meeting.seconds(side.multiply)))) for side in sides]

    def time_turn(side: Side, count: int) -> tuple[float, float]:
        if len(sides) > 1 and count > 1:
            meeting.seconds(side.multiply)
        before = count_received()
        seconds = meeting.seconds(side.multiply, count)
        return seconds, meeting.largest([(count_received() - before) / count])[0]

    works = zip(sides, counts, strict=True)
    return list(turns.take_turns(rounds, {i: partial(time_turn, *work) for i, work in enumerate(works)}).values())


def measure(meeting: Meeting, product: Product, names: list[tuple[str, str]], spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Collective: the figures of a product, one line for each side."""
    modules = [(importlib.import_module(f"bench.sides.{name}"), variant) for name, variant in names]
    sides = [module.make(meeting.comm, product, variant) for module, variant in modules]
    exact = [turns.is_exact(meeting, product, side, 2) if spec["check"] else None for side in sides]
    for side in sides:
        fill_at_random(side, meeting.comm.rank)
    spaces = [meeting.largest([float(side.workspace or 0)])[0] for side in sides]
    holders = [meeting.comm.allreduce(int(all(map(len, side.c)))) for side in sides]
    lines = zip(names, sides, exact, spaces, holders, time_sides(meeting, sides, spec["turns"], spec["turn"]), strict=True)
    return [
        {
            "side": name, "variant": variant, "m": product.m, "n": product.n, "k": product.k, "dtype": product.dtype,
            "exact": is_exact, "workspace": None if side.workspace is None else int(space), "about": side.about,
            "holders": holder_count, "volume": side.volume,
            "seconds": [seconds for seconds, _ in turns_of_side], "link_bytes": [size for _, size in turns_of_side],
        }
        for (name, variant), side, is_exact, space, holder_count, turns_of_side in lines
    ]


def main(spec: dict[str, Any]) -> None:
    meeting = Meeting(MPI.COMM_WORLD)
    for item in spec["work"]:
        lines = measure(meeting, Product(*item["sizes"]), item["sides"], spec)
        if meeting.comm.rank == 0:
            with Path(spec["results"]).open("a") as results:
                results.writelines(json.dumps(line) + "\n" for line in lines)
    meeting.barrier()


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except Exception:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
