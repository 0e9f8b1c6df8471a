"""Every knob of pdla: read from PDLA_* environment variables once, here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

BROADCASTS = ("mpi", "flat", "scatter", "chain")
ARRAYS = ("numpy", "cupy")
ELSEWHERE = ("PBLAS_LEAST", "PBLAS_REPORT", "PYTHON")  # read by pdla/native, before Python runs
LAUNCHERS = (  # what names of variables begin with that MPI's launchers set
    "PMI", "PRTE_", "HYDI", "HYDRA", "MPI_LOCAL", "MPIEXEC", "SLURM", "PALS",
    "OMPI_COMM", "OMPI_UNIVERSE", "OMPI_MCA_ess", "OMPI_MCA_orte", "MV2_COMM",
)  # fmt: skip
OWN = ("timeout", "threads", "progress", "tf32")  # settings that may differ between ranks


@dataclass(frozen=True)
class Settings:
    """What the environment asks for.

    check    PDLA_CHECK: agree on the arguments of collective calls (1) or trust them (0).
    timeout  PDLA_TIMEOUT: seconds a rank waits for others before it prints its stack and ends the job; 0: for ever.
    threads  PDLA_THREADS: BLAS threads a rank; 0: the cores of the node shared out among its ranks.
    blas     PDLA_BLAS: the library that multiplies on the host, with Fortran's names and 32-bit sizes, by its path or as the loader
             finds it; empty: NumPy's and SciPy's.
    panel    PDLA_PANEL: width of a SUMMA panel, in indices; 0: chosen by the plan.
    bcast    PDLA_BCAST: how broadcasts travel: auto, mpi, flat, scatter, chain (pdla/comm/broadcast.py).
    bcast_chunk PDLA_BCAST_CHUNK: bytes of a chain's chunk; 0: chosen by size.
    progress PDLA_PROGRESS: seconds between two looks of the thread that lets MPI work on messages between nodes while a rank
             computes, so much longer as there are ranks to a core; 0: no such thread.
    crowded  PDLA_CROWDED: processes to a core, where others than this job's ranks on this node take the cores, too: above 1 ranks
             sleep between polls, as they do anyway where they outnumber their node's cores.
    shared   PDLA_SHARED: let ranks of one node read A and B in memory that they share (1), or send messages (0).
    subcomms PDLA_SUBCOMMS: sub-communicator families kept for reuse on one communicator.
    plans    PDLA_PLANS: plans of multiplications kept for reuse on one communicator, and as many routes of matrices and triangles.
    keep     PDLA_KEEP: bytes of workspace that products without a plan of their own keep between calls; the same on every
             rank, as what ranks share all of them give back at once.
    pblas_flops PDLA_PBLAS_FLOPS: operations a process, all repetitions of a call of PBLAS together, from which it is worth a plan.
    machine  PDLA_MACHINE: the machine that plans are made for: a TOML file (`python -m pdla.bench calibrate --out` writes one), or
             one that pdla brings, by name; empty: a machine of round figures.
    array    PDLA_ARRAY: what matrices are made of: numpy, or cupy: on the GPU of each rank.
    gpu_mpi  PDLA_GPU_MPI: give MPI device memory (on), bring it to the host first (off), use NCCL instead (nccl), or find out which
             works (auto).
    tf32     PDLA_TF32: let the GPU round float32 factors to 10 bits of mantissa and multiply in tensor cores (1).
    """

    check: bool = True
    timeout: float = 300.0
    threads: int = 0
    blas: str = ""
    panel: int = 0
    bcast: str = "auto"
    bcast_chunk: int = 0
    progress: float = 1e-3
    crowded: float = 1.0
    shared: bool = True
    subcomms: int = 128
    plans: int = 128
    keep: int = 64 * 2**20
    pblas_flops: float = 4e9
    machine: str = ""
    array: str = "numpy"
    gpu_mpi: str = "auto"
    tf32: bool = False


def read(environ: Mapping[str, str]) -> Settings:
    """Settings from PDLA_* variables. A value that cannot be read, and a name that is almost one of these, raise ValueError."""
    _spelt(environ)
    default = Settings()

    def number(name: str, cast: type, otherwise: float) -> float:
        text = environ.get(f"PDLA_{name}", "")
        try:
            value = cast(text) if text else otherwise
            if value != value:
                raise ValueError
        except ValueError:
            raise ValueError(f"PDLA_{name}={text!r} is not a number") from None
        if value < 0:
            raise ValueError(f"PDLA_{name}={text!r} is negative")
        return value

    def word(name: str, words: tuple[str, ...], otherwise: str) -> str:
        text = environ.get(f"PDLA_{name}", "") or otherwise
        if text not in words:
            raise ValueError(f"PDLA_{name}={text!r} is none of {', '.join(words)}")
        return text

    return Settings(
        check=bool(number("CHECK", int, default.check)),
        timeout=float(number("TIMEOUT", float, default.timeout)),
        threads=min(int(number("THREADS", int, default.threads)), 2**31 - 1),  # BLAS takes C's int
        blas=environ.get("PDLA_BLAS", default.blas),
        panel=int(number("PANEL", int, default.panel)),
        bcast=word("BCAST", ("auto", *BROADCASTS), default.bcast),
        bcast_chunk=int(number("BCAST_CHUNK", int, default.bcast_chunk)),
        progress=min(float(number("PROGRESS", float, default.progress)), 1e6),  # nobody can sleep for ever
        crowded=min(float(number("CROWDED", float, default.crowded)), 1e3),  # nor so many times as long
        shared=bool(number("SHARED", int, default.shared)),
        subcomms=max(8, int(number("SUBCOMMS", int, default.subcomms))),
        plans=int(number("PLANS", int, default.plans)),
        keep=int(number("KEEP", int, default.keep)),
        pblas_flops=float(number("PBLAS_FLOPS", float, default.pblas_flops)),
        machine=environ.get("PDLA_MACHINE", default.machine),
        array=word("ARRAY", ARRAYS, default.array),
        gpu_mpi=word("GPU_MPI", ("auto", "on", "off", "nccl"), default.gpu_mpi),
        tf32=bool(number("TF32", int, default.tf32)),
    )


def _spelt(environ: Mapping[str, str]) -> None:
    """Names that are like none of ours are somebody else's."""
    known = (*(field.name.upper() for field in fields(Settings)), *ELSEWHERE)
    for name in environ:
        own = name.removeprefix("PDLA_")
        if own != name and own not in known and not own.startswith("TEST_"):
            from difflib import get_close_matches

            if meant := get_close_matches(own, known, 1, 0.8):
                raise ValueError(f"{name} is no variable of pdla: PDLA_{meant[0]} is")


def _asked() -> Settings:
    """The environment's. Where a module of pdla is the program what is wrong is one line: nobody is there to catch an exception."""
    try:
        return read(os.environ)
    except ValueError as error:
        if sys.argv[:1] != ["-m"]:  # what stands there while `python -m pdla.bench` imports pdla
            raise
        sys.stderr.write(f"pdla: {error}\n")
        raise SystemExit(2) from error


settings = _asked()


@contextmanager
def override(**changes) -> Iterator[None]:
    """Change settings for the length of a with-block, in this process, by one thread: `with override(check=False): ...`."""
    global settings
    before = settings
    settings = replace(before, **changes)
    try:
        yield
    finally:
        settings = before
