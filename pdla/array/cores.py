"""How many cores this process may use: those that it is bound to, and no more than its container's CPU quota lets it use at once.

A container that may use two of 64 cores usually sees all 64, and is stopped for the rest of each
tenth of a second in which it has used what two cores could. Its quota stands in the files of its
control group (cgroup v1 or v2), or of one around that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import inf
from pathlib import Path


def usable(bound: int | None = None) -> int:
    """Cores that processes of this container can use at once, at least 1.

    bound: cores on which they may run, if not this process's alone.
    """
    return max(1, int(min(len(os.sched_getaffinity(0)) if bound is None else bound, quota())))


def share(ranks: int) -> int:
    """Cores for each of `ranks` ranks on this machine.

    An equal share or, where this process is bound to some cores, these; but no more than its share
    of the quota.
    """
    mine, all_cores = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    own = mine if mine < all_cores else all_cores // ranks
    return max(1, int(min(own, quota() / ranks)))


def quota(proc: str = "/proc/self") -> float:
    """The CPU quota of this process's control group and of those around it, in cores; infinite without one."""
    return min(map(_limit, _groups(Path(proc))), default=inf)


def _groups(proc: Path) -> Iterator[Path]:
    """The folders of the control groups that hold this process, as far out as they are seen here."""
    own = {name: place for _, names, place in _lines(proc / "cgroup", ":", 2) for name in names.split(",")}  # v2's has no name
    for fields in _lines(proc / "mountinfo", " "):
        kind, _, options = fields[fields.index("-") + 1 :]
        name = "" if kind == "cgroup2" else "cpu" if kind == "cgroup" and "cpu" in options.split(",") else None
        if name in own:
            root, mount = Path(fields[3]), Path(fields[4])
            group = Path(own[name])
            inner = group.relative_to(root) if group.is_relative_to(root) else Path()
            yield from (mount / one for one in (inner, *inner.parents))


def _lines(path: Path, separator: str, splits: int = -1) -> list[list[str]]:
    """A file's lines in fields; none where there is no such file."""
    try:
        return [line.split(separator, splits) for line in path.read_text().splitlines()]
    except OSError:
        return []


def _limit(group: Path) -> float:
    """The quota of one control group, in cores; infinite without one: "max" in v2, -1 in v1."""
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        try:
            microseconds, period = map(float, " ".join((group / name).read_text() for name in names).replace("max", "inf").split())
        except (OSError, ValueError):
            continue
        return microseconds / period if microseconds > 0 else inf
    return inf
