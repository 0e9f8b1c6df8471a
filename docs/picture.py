"""What a benchmark printed, as a picture: `mpirun -n 4 python -m pdla.bench | python docs/picture.py`."""

import io
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

TITLE = "mpirun -n 4 python -m pdla.bench"


def main():
    lines = [line.rstrip() for line in sys.stdin]
    screen = Console(record=True, width=max(map(len, lines)) + 1, file=io.StringIO())
    for line in lines:
        screen.print(Text(line), soft_wrap=True)
    screen.save_svg(str(Path(__file__).parent / "_static" / "bench.svg"), title=TITLE, theme=MONOKAI, unique_id="bench")


if __name__ == "__main__":
    main()
