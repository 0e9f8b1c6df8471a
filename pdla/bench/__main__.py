"""python -m pdla.bench"""

import sys

from pdla.bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
