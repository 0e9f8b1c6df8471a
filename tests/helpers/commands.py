"""Commands of the benchmark as tests give them."""

import json
import os
from contextlib import contextmanager
from math import inf
from unittest.mock import patch

import jsonschema

from pdla.bench import screen
from pdla.bench.arguments import Parser
from pdla.bench.cli import main
from pdla.bench.commands import predict
from pdla.bench.measure import peak
from pdla.bench.report.content import SCHEMA
from pdla.bench.stop import Stop

SIZES = ["-m", "30", "-n", "20", "-k", "25"]


def command(capsys, *words, module=predict):
    """Exit status and what was printed."""
    parser = Parser("pdla.bench")
    parser.set_defaults(machine=None, json=None, wide=False)  # options that may stand before the command
    try:
        module.add(parser)
        with on_a_screen():
            status = module.run(parser.parse_args(words))
    except Stop as stop:
        return stop.status, "", str(stop)
    return status, capsys.readouterr().out, ""


@contextmanager
def on_a_screen(columns=200):
    """A pipe, for lines of so many characters; nothing is said of where a command is, however slow this machine."""
    environ = {name: text for name, text in os.environ.items() if name != "FORCE_COLOR"} | {"COLUMNS": str(columns)}
    with patch.dict(os.environ, environ, clear=True), patch.object(screen, "SILENCE", inf):
        yield


def faults(err):
    """What a process of the program has printed of faults: all but where it was, on a slow machine."""
    return "".join(line for line in err.splitlines(keepends=True) if not line.startswith("... "))


def quick_peaks():
    """The machine's peak is that of one short product: no test asks how high it is, and to find it takes seconds."""
    return patch.multiple(peak, FLOPS=1e6, REPEATS=1, SHORTEST=0.0)


def run(capsys, *words):
    """Exit status and what was printed."""
    with quick_peaks(), on_a_screen():
        status = main(list(words))
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def valid(path):
    """A report that obeys the schema."""
    content = json.loads(path.read_text())
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(content)
    return content
