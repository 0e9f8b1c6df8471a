"""How the measuring scripts are started: wrong arguments are named."""

import pytest
from helpers.jobs import ended_here

NAMED = {
    "network.py --sides x": "--sides x: give some of pdla,by hand,ScaLAPACK",
    "network.py --shapes 8x8": "'8x8' is not a product: give m x n x k",
    "network.py --hosts 0 --sides pdla": "--hosts 0 --ranks-per-host 1",
    "peers.py --ranks 2,0": "argument --ranks: '0' is not a whole number of 1 or more",
    "peers.py --dtypes float32,float16": "--dtypes float16: give some of float64,float32",
    "peers.py --shapes 0": "--shapes 0: give n, or m x n x k",
    "network.py --json none/x.json": "argument --json: none/x.json: there is no folder",
    "peers.py --json none/x.json": "argument --json: none/x.json: there is no folder",
    "gpu.py --json none/x.json": "argument --json: none/x.json: there is no folder",
    "experiments.py --quick --json none/x.json": "argument --json: none/x.json: there is no folder",
    "counted.py none program.py": "there is no folder none to write to",
}


@pytest.mark.parametrize("line", NAMED)
def test_a_script_refuses_what_it_cannot_measure_before_it_measures(capsys, line):
    """An emulated network was built for a side that there is not, a machine calibrated for no hosts, jobs started of 0 ranks."""
    status, out, err = ended_here(capsys, *line.split())
    assert status and out == "" and NAMED[line] in err


@pytest.mark.parametrize("words", [(), ("--help",), ("folder",)])
def test_a_count_without_a_program_tells_how_it_is_started(capsys, words):
    status, _, err = ended_here(capsys, "counted.py", *words)
    assert status == 1 and "FOLDER (program.py | -m module)" in err
