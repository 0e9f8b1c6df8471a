"""End an MPI job whose ranks cannot go on: after PDLA_TIMEOUT seconds, with the stacks of waiting ranks, or after an exception."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from functools import cache
from io import StringIO
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from pdla import config
from pdla.comm.mpi import failures, libmpi
from pdla.comm.mpi.libmpi import MPI

_HERE = str(Path(__file__).parents[2])  # pdla's own folder
_PATIENCE = 2.0  # seconds for other ranks to print their stacks


def say(text: str) -> None:
    """Print a line, with this rank's number in the job, on the process's stderr, whatever sys.stderr is."""
    line = f"[rank {MPI.COMM_WORLD.Get_rank()} of {MPI.COMM_WORLD.Get_size()}] {text}\n"
    with suppress(OSError):  # when the job ends, stderr may be closed already
        os.write(2, line.encode(errors="backslashreplace"))


def give_up(call: str, passing: BaseException | None = None) -> None:
    """Print this rank's stack and end the job, as the rank has waited too long.

    passing  the exception that caused the wait, as at the end of a with-block; no user would see it otherwise
    """
    try:
        say(f"has waited {config.settings.timeout:g} s (PDLA_TIMEOUT) for other ranks in {call}; its stack:")
        faulthandler.dump_traceback(2)
        if passing is not None:
            say("it waits there after this error: " + "".join(traceback.format_exception(passing)))
        time.sleep(_PATIENCE)
    finally:
        _abort()


def _abort() -> NoReturn:
    """End the job. Callers use a finally clause, as a signal's handler may raise before.

    MPICH's MPI_Abort may return while another rank is in MPI_Finalize; this rank must not go on then.
    """
    MPI.COMM_WORLD.Abort(1)
    os._exit(1)


@contextmanager
def watch(call: str) -> Iterator[None]:
    """Watch a with-block of blocking calls of MPI: `give_up` if they take longer than PDLA_TIMEOUT."""
    timer = threading.Timer(min(config.settings.timeout, threading.TIMEOUT_MAX), give_up, [call, sys.exception()])
    if config.settings.timeout:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def end_job(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    """Print this rank's exception, unless a rank with the same error has printed it, and end the job.

    The job goes on if MPI is not running, and if this process was forked from a rank, which may go on.
    """
    if libmpi.is_forked() or not libmpi.is_running():
        sys.__excepthook__(kind, error, trace)  # type: ignore[arg-type]
        return
    try:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        if issubclass(kind, KeyboardInterrupt) and not libmpi.is_first():
            time.sleep(_PATIENCE)  # a launcher interrupts all ranks: the first one reports that and ends the job meanwhile
        if issubclass(kind, KeyboardInterrupt):
            say(f"{_find_place(trace)}: interrupted; the job ends")
            time.sleep(failures.HEARD)
        else:
            key = f"{_find_place(trace)}: {''.join(traceback.format_exception_only(kind, error))}"
            failures.report_once(_format_uncaught(kind, error, trace), key, say)
    finally:
        _abort()


def _format_uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> str:
    """Format an uncaught exception as Python prints it, with suggested names; without a trace, its last line alone."""
    if trace is None:
        return "".join(traceback.format_exception_only(kind, error)).rstrip("\n")
    with redirect_stderr(StringIO()) as printed:
        sys.__excepthook__(kind, error, trace)  # type: ignore[arg-type]
    return (printed.getvalue() or "".join(traceback.format_exception(kind, error, trace))).rstrip("\n")


def _find_place(trace: TracebackType | None) -> str:
    """Find the program's file and line of an exception: where it called pdla, if it did.

    (Deeper frames outside pdla may be Python's, or NumPy's.)
    """
    frames = traceback.extract_tb(trace)
    program = [*takewhile(lambda frame: not frame.filename.startswith(_HERE), frames)]
    own = [frame for frame in program if not frame.filename.startswith("<frozen ")]  # `python -m`
    return next((f"{at.filename}:{at.lineno}" for at in [*own[-1:], *frames[-1:]]), "nowhere")


@cache
def end_when_interrupted() -> None:
    """End a job of several ranks, from here on, by a Ctrl-C that the program does not catch, in one line.

    Otherwise each rank prints its stack, and waits in MPI_Finalize for ranks that were not interrupted.
    At a Python prompt nothing changes.
    """
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        interrupted = issubclass(kind, KeyboardInterrupt) and not hasattr(sys, "ps1")
        (end_job if interrupted else before)(kind, error, trace)  # type: ignore[arg-type]

    if MPI.COMM_WORLD.Get_size() > 1:
        sys.excepthook = hook


def abort_on_exception() -> None:
    """End the whole job, from here on, if a rank does not catch an exception, in any thread; see pdla.abort_on_exception."""

    def end_in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit:
            end_job(args.exc_type, args.exc_value, args.exc_traceback)

    sys.excepthook = end_job
    threading.excepthook = end_in_thread
