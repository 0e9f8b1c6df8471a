"""Count the cores that this process may use: those that it is bound to, but no more than its container's CPU quota.

A container that may use two of 64 cores usually sees all 64. When it has used the time of two cores,
it is stopped for the rest of each tenth of a second. The quota is in the files of its control group
(cgroup v1 or v2), or of an outer one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import inf
from pathlib import Path


def usable(bound: int | None = None) -> int:
    """Count the cores that processes of this container can use at once, at least 1.

    bound: the cores on which they may run; by default this process's.
    """
    return max(1, int(min(len(os.sched_getaffinity(0)) if bound is None else bound, quota())))


def share(ranks: int) -> int:
    """Count the cores for each of `ranks` ranks on this machine.

    The cores to which this process is bound, if it is; else an equal share. No more than a share of
    the quota.
    """
    mine, all_cores = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    own = mine if mine < all_cores else all_cores // ranks
    return max(1, int(min(own, quota() / ranks)))


def quota(proc: str = "/proc/self") -> float:
    """The CPU quota, in cores, of this process's control group and the outer ones; infinite without one."""
    return min(map(_limit, _groups(Path(proc))), default=inf)


def _groups(proc: Path) -> Iterator[Path]:
    """List the folders of the control groups of this process, as far out as visible here."""
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
    """Read a file's lines as fields; none if there is no such file."""
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
