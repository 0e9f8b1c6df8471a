"""python -m pdla.bench"""

import signal
import sys

from pdla.bench.cli import launched, main

if __name__ == "__main__":
    if not launched():
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end silently, as other tools do, when the reader goes: | head
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # and at Ctrl-C, without a traceback
    sys.exit(main())
