"""Commands of the benchmark as tests give them."""

import json
from unittest.mock import patch

import jsonschema

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
    parser.set_defaults(machine=None, json=None)  # as the parser of which this is a command: the options may stand before it
    try:
        module.add(parser)
        status = module.run(parser.parse_args(words))
    except Stop as stop:
        return stop.status, "", str(stop)
    return status, capsys.readouterr().out, ""


def quick_peaks():
    """The machine's peak is that of one short product: no test asks how high it is, and to find it takes seconds."""
    return patch.multiple(peak, FLOPS=1e6, REPEATS=1, SHORTEST=0.0)


def run(capsys, *words):
    """Exit status and what was printed."""
    with quick_peaks():
        status = main(list(words))
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def valid(path):
    """A report that obeys the schema."""
    content = json.loads(path.read_text())
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(content)
    return content
