"""All settings of pdla, read once, here, from PDLA_* environment variables."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from pdla.errors import find_closest, list_choices

ARRAYS = ("numpy", "cupy")
ELSEWHERE = ("PBLAS_LEAST", "PBLAS_REPORT", "PYTHON", "SCALAPACK")  # variables that pdla/native reads in C
LAUNCHERS = (  # prefixes of the variables that launchers of MPI set
    "PMI", "PRTE_", "HYDI", "HYDRA", "MPI_LOCAL", "MPIEXEC", "SLURM", "PALS",
    "OMPI_COMM", "OMPI_UNIVERSE", "OMPI_MCA_ess", "OMPI_MCA_orte", "MV2_COMM",
)
OWN = ("timeout", "threads", "progress", "tf32")  # settings that may differ between ranks


@dataclass(frozen=True)
class Settings:
    """The settings of pdla, each from its environment variable, read when pdla is imported.

    Parameters
    ----------
    check : bool
        PDLA_CHECK: compare the arguments of collective calls between ranks (1) or trust them (0).
    timeout : float
        PDLA_TIMEOUT: seconds that a rank waits for others before it prints its stack and ends the
        job; 0: no limit.
    threads : int
        PDLA_THREADS: BLAS threads of each rank; 0: an equal share of its node's cores.
    blas : str
        PDLA_BLAS: the BLAS library for products on the host, with Fortran's names and 32-bit sizes.
        Its path, or its name, if the loader finds it, or Python's environment has it. Empty: the
        one of NumPy and SciPy.
    progress : float
        PDLA_PROGRESS: seconds between calls of MPI by the thread that moves messages between nodes
        while a rank computes; 0: no such thread. Multiplied by the ranks to a core, if more than
        one.
    crowded : float
        PDLA_CROWDED: processes to a core, if other programs use this node's cores, too. Above 1
        ranks sleep between polls, as they always do if they outnumber their node's cores.
    shared : bool
        PDLA_SHARED: let the ranks of one node read A and B in memory that they share (1), or send
        messages (0).
    verify : bool
        PDLA_VERIFY: check every product, factor and solution after it was computed (1), as
        ``matmul(verify=True)`` does. The same on every rank.
    pblas_flops : float
        PDLA_PBLAS_FLOPS: the operations of a process, in all repetitions of a PBLAS call, from
        which on the call gets a plan.
    machine : str
        PDLA_MACHINE: the machine of all plans: a TOML file, as ``python -m pdla.bench calibrate
        --out`` writes, or the name of one that comes with pdla. Empty: a machine of round figures.
    array : str
        PDLA_ARRAY: the arrays of matrices: numpy, or cupy, on each rank's GPU.
    gpu_mpi : str
        PDLA_GPU_MPI: give MPI device memory (on), copy to the host first (off), use NCCL instead
        (nccl), or use the best of these that works (auto).
    tf32 : bool
        PDLA_TF32: let the GPU round float32 factors to 10 bits of mantissa, and multiply them in
        tensor cores (1).
    """

    check: bool = True
    timeout: float = 300.0
    threads: int = 0
    blas: str = ""
    progress: float = 1e-3
    crowded: float = 1.0
    shared: bool = True
    verify: bool = False
    pblas_flops: float = 4e9
    machine: str = ""
    array: str = "numpy"
    gpu_mpi: str = "auto"
    tf32: bool = False


@dataclass(frozen=True)
class _Variables:
    """PDLA_* variables as values of their kinds, with a default for those that are not set, or empty.

    ValueError for one that cannot be read.
    """

    environ: Mapping[str, str]

    def text(self, name: str, otherwise: str = "") -> str:
        return self.environ.get(f"PDLA_{name}", "") or otherwise

    def number(self, name: str, cast: type, otherwise: float) -> float:
        text = self.text(name)
        try:
            value = cast(text) if text else otherwise
            if value != value:
                raise ValueError
        except ValueError:
            raise ValueError(f"PDLA_{name}={text!r} is not a number") from None
        if value < 0:
            raise ValueError(f"PDLA_{name}={text!r} is negative")
        return value

    def switch(self, name: str, otherwise: bool) -> bool:
        text = self.text(name, str(int(otherwise)))
        if text not in ("0", "1"):
            raise ValueError(f"PDLA_{name}={text!r} is neither 0 nor 1")
        return text == "1"

    def word(self, name: str, words: tuple[str, ...], otherwise: str) -> str:
        text = self.text(name, otherwise)
        if text not in words:
            raise ValueError(f"PDLA_{name}={text!r}: {list_choices(text, words)}")
        return text


def read(environ: Mapping[str, str]) -> Settings:
    """Read settings from PDLA_* variables. ValueError for a wrong value, and for a name that is almost one of these."""
    _check_spelling(environ)
    given, default = _Variables(environ), Settings()
    return Settings(
        check=given.switch("CHECK", default.check),
        timeout=float(given.number("TIMEOUT", float, default.timeout)),
        threads=min(int(given.number("THREADS", int, default.threads)), 2**31 - 1),  # BLAS takes C's int
        blas=given.text("BLAS", default.blas),
        progress=min(float(given.number("PROGRESS", float, default.progress)), 1e6),  # longer sleeps overflow
        crowded=min(float(given.number("CROWDED", float, default.crowded)), 1e3),  # a factor of the length of sleeps
        shared=given.switch("SHARED", default.shared),
        verify=given.switch("VERIFY", default.verify),
        pblas_flops=float(given.number("PBLAS_FLOPS", float, default.pblas_flops)),
        machine=given.text("MACHINE", default.machine),
        array=given.word("ARRAY", ARRAYS, default.array),
        gpu_mpi=given.word("GPU_MPI", ("auto", "on", "off", "nccl"), default.gpu_mpi),
        tf32=given.switch("TF32", default.tf32),
    )


def _check_spelling(environ: Mapping[str, str]) -> None:
    """ValueError for a variable whose name is nearly one of pdla's; others may be another program's."""
    known = (*(field.name.upper() for field in fields(Settings)), *ELSEWHERE)
    for name in environ:
        own = name.removeprefix("PDLA_")
        if own != name and own not in known and not own.startswith("TEST_") and (meant := find_closest(own, known, 0.8)):
            raise ValueError(f"{name} is no variable of pdla: PDLA_{meant} is")


def _read_environment() -> Settings:
    """Read the settings of this environment.

    If a module of pdla is the program, no caller could catch a ValueError: it is printed as one
    line.
    """
    try:
        return read(os.environ)
    except ValueError as error:
        if sys.argv[:1] != ["-m"]:  # sys.argv while `python -m pdla.bench` imports pdla
            raise
        sys.stderr.write(f"pdla: {error}\n")
        raise SystemExit(2) from error


settings: Settings = _read_environment()


@contextmanager
def override(**changes: Any) -> Iterator[None]:
    """Change settings for a with-block, in the whole process, so from one thread only.

    Parameters
    ----------
    **changes
        Fields of `Settings`.

    Yields
    ------
    None
        Nothing.

    Examples
    --------
    >>> from pdla import config
    >>> with config.override(check=False):
    ...     config.settings.check
    False
    """
    global settings
    before = settings
    settings = replace(before, **changes)
    try:
        yield
    finally:
        settings = before
