"""The program of `python -m pdla.bench`."""

import signal
import sys

from pdla.bench.cli import has_launcher, main
from pdla.bench.output import take_output
from pdla.bench.stop import Stop


def run_alone() -> int:
    """Run main() in a process that no launcher has started; it ends early as other tools do."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # silently, when the reader goes: | head
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # and at Ctrl-C, without a traceback
    try:
        status = main()
        sys.stdout.flush()
    except Stop as stop:  # raised by the output itself
        stop.print()
        status = stop.status
    return status


if __name__ == "__main__":
    take_output(alone=not has_launcher())
    sys.exit(main() if has_launcher() else run_alone())
