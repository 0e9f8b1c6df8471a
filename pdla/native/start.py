"""Imported first by the Python in a C or Fortran program: MPI is there already, and the program's to initialise and to finalise."""

from __future__ import annotations

import ctypes
import re
import signal
import sys
from pathlib import Path

import mpi4py

mpi4py.rc.initialize = mpi4py.rc.finalize = False
mpi4py.rc.errors = "default"  # else errors on the program's own communicators would return to it, where they ended it

MPICH, ALIAS = "libmpi.so.12", "pdla_mpich.so"


def _lend_a_name() -> None:
    """mpi4py asks for MPICH by its usual name, and Debian's has another: an empty library, beside pdla's, lends it the name.

    MPI itself is in the process already, and its functions are found there.
    """
    process, files = ctypes.CDLL(None), Path("/proc/self/maps").read_text()
    ours = re.search(r"(/.*)/libpdla(_pblas)?\.so$", files, re.MULTILINE)
    if ours and hasattr(process, "MPI_Init") and not hasattr(process, "ompi_mpi_comm_self") and MPICH not in files:
        ctypes.CDLL(f"{ours[1]}/{ALIAS}", ctypes.RTLD_GLOBAL)


def _leave_interrupts() -> None:
    """Python takes Ctrl-C where the program has not: nothing would end a program that does not call pdla again."""
    if not sys.orig_argv and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is a program of Python's
        signal.signal(signal.SIGINT, signal.SIG_DFL)


_lend_a_name()
_leave_interrupts()
