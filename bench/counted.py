"""Run a Python program as `python` would, and write to a file in FOLDER the bytes from other hosts that its ledgers counted.

python -m bench.counted FOLDER (program.py | -m module) [arguments]

`bench/cluster.py` starts each rank in this way. A ledger is open for the whole run. The program's own ledgers count, too, except
those of dry runs.
"""

import os
import runpy
import socket
import sys
from pathlib import Path

from pdla.comm import current_world, ledger
from pdla.comm.dry import DryComm

Ledger = ledger.Ledger


class Counted(list):
    """A ledger's events, whose bytes from other hosts are summed as they come."""

    sum = 0

    def append(self, event):
        Counted.sum += event.far
        super().append(event)


class Summed(Counted):
    """Events that are summed and not kept, for the ledger of the whole run, which would grow."""

    def append(self, event):
        Counted.sum += event.far


def open_ledger():
    """Open a ledger for the program."""
    return Ledger() if isinstance(current_world.get(), DryComm) else Ledger(events=Counted())


def run(program):
    """Run a program, or with -m a module, as `python` does."""
    module = program[0] == "-m"
    sys.argv = program[1:] if module else program
    sys.path[0] = os.getcwd() if module else str(Path(program[0]).resolve().parent)
    if module:
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program[0], run_name="__main__")


def main(folder, *program):
    ledger.Ledger = open_ledger
    try:
        with ledger.record() as run_ledger:
            run_ledger.events = Summed()
            run(list(program))
    finally:
        Path(folder, str(os.getpid())).write_text(f"{socket.gethostname()} {Counted.sum}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    if not Path(sys.argv[1]).is_dir():
        sys.exit(f"counted.py: there is no folder {sys.argv[1]} to write to")
    main(*sys.argv[1:])
