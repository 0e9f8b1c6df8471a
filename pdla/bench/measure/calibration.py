"""Measure a machine's figures, by all ranks of a job at once, as programs use it."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from statistics import median
from typing import Any

import numpy as np

from pdla import config, nn
from pdla.array import cores
from pdla.array.numpy import gemm, potrf
from pdla.bench.measure.facts import processor
from pdla.bench.screen import Screen
from pdla.comm.clock import current as clock
from pdla.comm.communicator import Communicator
from pdla.comm.dry import dry_run
from pdla.comm.pending import Pending
from pdla.cuts import Cyclic
from pdla.errors import plural
from pdla.grid import ProcessGrid
from pdla.layout import Layout
from pdla.linalg import cho_factor
from pdla.matrix.create import eye, zeros
from pdla.model.machine import Machine

LEAST, TURNS = 3, 7  # turns of a measurement: LEAST if they take long
SHORT, LONG = 0.01, 1.0  # seconds: of a turn without repetitions; the most of TURNS turns
LARGE = 1024  # n of a product at full rate
SMALL = 8  # n of the smallest measured product
STACK = 1 << 21  # elements of a stack of factors, more than a core's cache holds
BRIEF, MESSAGE = 1 << 16, 4 << 20  # the least and the most bytes of a message at full rate; in between as many as take
FULL = 0.05  # seconds
AT_ONCE = 16  # messages under way at the same time
STREAM = 4 << 20  # elements of a sum that no cache holds
STEPS, PANEL = 16, 32  # of a factorization with almost no arithmetic: its panels, and the columns of a panel
Link = tuple[float, float, float]  # gap, latency, bytes a second
CALLS = Machine(flops=1e300, memory=1e300, bandwidth=1e300, network=1e300, latency=0.0, far_latency=0.0, call=1.0)  # counts calls


def measure_machine(comm: Communicator, screen: Screen) -> Machine:
    """Collective: measure this job's machine, the same on every rank. A figure is the slowest rank's, the median of a few turns."""
    screen.show_progress("products")
    flops, reached = _measure_rates(comm)
    screen.show_progress("links")
    near = comm.node_comm if comm.nodes > 1 else comm
    gap, latency, bandwidth = _find_slowest(comm, _measure_link(near, 1) if near.size > 1 else None)
    far = _far_distance(comm)
    far_gap, far_latency, shared = _measure_link(comm, far) if far else (gap, Machine.far_latency, 0.0)
    ranks = comm.size // comm.nodes
    network = max(shared, _measure_far_alone(comm)) if far else Machine.network
    screen.show_progress("products in float32")
    single = _measure_rate(comm, LARGE, "float32") / flops
    screen.show_progress("calls, sums, overlap and factorizations")
    many, here = f"{comm.size} {plural(comm.size, 'rank')}", cores.usable(os.cpu_count())
    absent = ["latency, bandwidth"] * (comm.size == comm.nodes) + ["far_latency, network"] * (not far)
    but = f"; {', '.join(absent)} by default: no such links" if absent else ""
    machine = Machine(
        flops=flops, single=single, half=single, reached=reached, call=_measure_call(comm), memory=_measure_stream(comm),
        erf=_measure_erf(comm), bandwidth=bandwidth, latency=latency, network=network, far_latency=far_latency,
        gap=max(gap, far_gap), node=ranks if comm.nodes > 1 else 0, injection=ranks * shared,
        overlap=_measure_overlap(comm, far or int(comm.size > 1)),
        name=f"{many} on {f'{comm.nodes} nodes of ' if comm.nodes > 1 else ''}{here} {plural(here, 'core')} of {processor()}",
        source=f"measured by `pdla.bench calibrate`, {many} at once, on {datetime.date.today()}, NumPy {np.__version__}{but}",
        narrow=_measure_narrow(comm, flops),
    )
    return comm.share(_round(replace(machine, step=_measure_step(comm, machine))))[0]


def _round(machine: Machine) -> Machine:
    """Round figures to four digits: further digits differ from run to run."""
    figures = asdict(machine)
    figures.update((name, float(f"{x:.4g}")) for name, x in asdict(machine).items() if isinstance(x, float))
    return Machine(**figures)


def time_median(comm: Communicator, work: Callable[[], object], repeats: int = 1) -> float:
    """Collective: seconds of work() on the slowest rank, the median of a few turns.

    A turn repeats short work up to `repeats` times.
    """
    first = _time_slowest(comm, work)
    repeats = min(repeats, 1 + int(SHORT / first))
    turns = [_time_rank(comm, work, repeats) for _ in range(_count_turns(repeats * first))]
    return median(map(max, zip(*comm.share(turns), strict=True)))


def _count_turns(seconds: float) -> int:
    """The number of turns of `seconds` seconds each."""
    return TURNS if TURNS * seconds < LONG else LEAST


def _time_slowest(comm: Communicator, work: Callable[[], object]) -> float:
    """Collective: seconds of one work() on the slowest rank."""
    return max(comm.share(_time_rank(comm, work)))


def _time_rank(comm: Communicator, work: Callable[[], object], repeats: int = 1) -> float:
    """Collective: seconds of work() on this rank, the mean of `repeats`, after a barrier."""
    comm.barrier()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats


def predict_second_call(comm: Communicator, work: Callable[[], object]) -> float:
    """Seconds of the second work() by a dry rank's clock; the first may plan."""
    work()
    here: Any = clock.get()
    start = here.time
    work()
    return here.time - start


# ---------------------------------------------------------------------------------------------- a rank alone


def _measure_narrow(comm: Communicator, flops: float) -> float:
    """Collective: the inner size of a product that takes as long as a Cholesky factorization beyond its arithmetic."""
    a = np.eye(LARGE)
    return max(0.0, time_median(comm, lambda: potrf(a)) * flops - LARGE**3 / 3) / (2 * LARGE**2)


def _measure_step(comm: Communicator, machine: Machine) -> float:
    """Collective: measured minus predicted seconds of a step of a Cholesky factorization of narrow panels."""

    def prepare(comm: Communicator) -> Callable[[], object]:
        A = eye(STEPS * PANEL, ProcessGrid((1, comm.size), comm=comm), Layout(Cyclic("row", PANEL), Cyclic("col", PANEL)))
        return lambda: cho_factor(A, check_finite=False)

    predicted = dry_run(comm.size, lambda dry: predict_second_call(dry, prepare(dry)), machine=replace(machine, step=0.0))[0]
    return max(0.0, time_median(comm, prepare(comm), 10) - predicted) / STEPS


def _measure_rates(comm: Communicator) -> tuple[float, tuple[tuple[float, float], ...]]:
    """Collective: flops a second of a large product, and smaller products' shares of that rate, by n."""
    flops, sizes = _measure_rate(comm, LARGE), [SMALL << step for step in range((LARGE // SMALL).bit_length() - 1)]
    return flops, tuple((float(n), float(f"{min(1.0, _measure_rate(comm, n) / flops):.3g}")) for n in sizes)


def _measure_rate(comm: Communicator, n: int, dtype: str = "float64") -> float:
    """Collective: flops a second of n x n x n products, too many for a cache, as programs seldom find factors there."""
    count = max(1, STACK // n**2)
    a, b, c = (np.ones((count, n, n), dtype) for _ in range(3))
    each = list(zip(a, b, c, strict=True))

    def stack() -> None:  # one call of NumPy's library, without the cost of calls; other libraries multiply one pair a call
        if not config.settings.blas:
            np.matmul(a, b, out=c)
            return
        for x, y, z in each:
            gemm(x, y, z)

    return 2.0 * count * n**3 / time_median(comm, stack)


def _measure_call(comm: Communicator) -> float:
    """Collective: seconds of a call besides its work: the time of a tiny layer over its number of calls."""
    alone = comm.split([comm.rank], "alone")
    assert alone is not None
    calls = dry_run(1, lambda comm: predict_second_call(comm, _make_layer(comm)), machine=CALLS)[0]
    return time_median(comm, _make_layer(alone), 10) / calls


def _make_layer(comm: Communicator) -> Callable[[], object]:
    """Make a pass, forward and backward, through a transformer layer of a few elements."""
    scheme = nn.Megatron1D(ProcessGrid((1,), ("row",), comm))
    layer = nn.TransformerLayer(scheme, 8, 1, sequence=4)
    x = zeros((4, 8), scheme.grid, scheme.residual(4))
    return lambda: layer.backward(layer.forward(x))


def _measure_stream(comm: Communicator) -> float:
    """Collective: bytes a second, read and written, of x += y."""
    x, y = np.ones(STREAM), np.ones(STREAM)
    return 3 * x.nbytes / time_median(comm, lambda: comm.xp.add(x, y))


def _measure_erf(comm: Communicator) -> float:
    x = np.linspace(-4, 4, STREAM >> 2)
    return x.size / time_median(comm, lambda: comm.xp.erf(x))


# ---------------------------------------------------------------------------------------------- two ranks


def _far_distance(comm: Communicator) -> int:
    """The least distance from every rank to a rank of another node; 0 on one node."""
    steps = (step for step in range(1, comm.size) if all(home != comm.homes[r - step] for r, home in enumerate(comm.homes)))
    return next(steps, 0) if comm.nodes > 1 else 0


def _measure_far_alone(comm: Communicator) -> float:
    """Collective: bytes a second from another node to one rank a node, while the node's other ranks are idle."""
    firsts = [comm.homes.index(home) for home in sorted(set(comm.homes))]
    alone = comm.split(firsts if comm.rank in firsts else None, "firsts")
    return _find_slowest(comm, _measure_link(alone, 1) if alone else None)[2]


def _find_slowest(comm: Communicator, link: Link | None) -> Link:
    """Collective: the largest gap and latency and the lowest rate of all links; None: a rank alone on its node has no link."""
    links = [one for one in comm.share(link) if one] or [(Machine.gap, Machine.latency, Machine.bandwidth)]
    gaps, latencies, rates = zip(*links, strict=True)
    return max(gaps), max(latencies), min(rates)


def _measure_link(comm: Communicator, step: int) -> Link:
    """Collective: gap, latency and bytes a second of messages to the rank `step` further, all ranks at once."""
    small = _make_shift(comm, 8, step)

    def many() -> None:
        for pending in [small() for _ in range(AT_ONCE)]:
            pending.wait()

    one = time_median(comm, lambda: small().wait(), 50)
    gap = min(one, max(0.0, time_median(comm, many, 5) - one) / (AT_ONCE - 1))
    size = _find_full_size(comm, step, 8 * one)
    large = _make_shift(comm, size, step)
    whole = time_median(comm, lambda: large().wait())
    return gap, one - gap, size / max(1e-9, whole - one)


def _find_full_size(comm: Communicator, step: int, least: float) -> int:
    """Collective: bytes of a message at full rate: those that take FULL seconds, or `least` seconds if that is longer."""

    def seconds(size: int) -> float:
        message = _make_shift(comm, size, step)
        return min(_time_slowest(comm, lambda: message().wait()) for _ in range(2))

    size = BRIEF
    while size < MESSAGE and seconds(size) <= max(FULL, least):
        size *= 4
    return size


def _make_shift(comm: Communicator, size: int, step: int) -> Callable[[], Pending]:
    """Make a call that sends `size` bytes to the rank `step` further and receives as many."""
    x = np.ones(size, np.uint8)
    out = np.empty_like(x)
    return lambda: comm.shift(x, out, step)


def _measure_overlap(comm: Communicator, step: int) -> float:
    """Collective: the share of a message's time that products of equal time hide.

    The median of the turns' shares, since times drift between turns by more than the share's effect.
    """
    if step == 0:
        return 1.0
    begin = _make_shift(comm, 4 * _find_full_size(comm, step, 0.0), step)
    a, b, c = (np.ones((LARGE // 4, LARGE // 4)) for _ in range(3))

    def message() -> None:
        begin().wait()

    def products() -> None:
        for _ in range(count):
            comm.xp.gemm(a, b, c)

    def both() -> None:
        pending = begin()
        products()
        pending.wait()

    count = 1
    count = max(1, round(time_median(comm, message) / time_median(comm, products)))
    number = 3 * _count_turns(_time_slowest(comm, both))
    turns = [[_time_slowest(comm, work) for work in (message, products, both)] for _ in range(number)]
    return float(min(1.0, max(0.0, median((alone + work - together) / min(alone, work) for alone, work, together in turns))))
