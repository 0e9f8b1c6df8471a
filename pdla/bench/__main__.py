"""python -m pdla.bench"""

import signal
import sys

from pdla.bench.cli import launched, main

if __name__ == "__main__":
    if not launched():
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end as other tools do where nobody reads on: | head
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # and at Ctrl-C: no stack of ours
    sys.exit(main())
