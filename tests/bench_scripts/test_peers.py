"""bench/peers.py: a signal that ends it also ends the job under way; what it compares; what it refuses."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.jobs import LONGEST

from bench.common.product import Product
from bench.peers import group_rows
from bench.sides import jobs
from bench.sides.figures import Measured, Row

ROOT = Path(__file__).parents[2]
SLEEPER = "import os, pathlib, sys, time; pathlib.Path({path!r}).write_text(str(os.getpid())); time.sleep(600)"
PEERS = """
import sys
from bench import peers
from bench.sides.jobs import Job
peers.list_jobs = lambda torch: [Job("sleeper", (("ceiling", ""),), lambda ranks: [sys.executable, "-c", {sleeper!r}])]
sys.argv = ["peers.py", "--ranks", "1", "--shapes", "8"]
sys.exit(peers.main())
"""


def test_a_signal_ends_the_job_under_way(tmp_path):
    pid = tmp_path / "pid"
    program = PEERS.format(sleeper=SLEEPER.format(path=str(pid)))
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    with subprocess.Popen([sys.executable, "-c", program], env=environ, stdout=subprocess.DEVNULL) as run:
        while not (pid.exists() and pid.read_text()):
            assert run.poll() is None
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        assert run.wait(LONGEST) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_ratios_are_of_turns_that_followed_one_another_and_short_products_share_a_job():
    one, other = (Measured("", "", None, 2, seconds=times) for times in ([4.0, 1.0, 1.0], [8.0, 2.0, 4.0]))
    assert one.over(other) == 0.5  # the medians' is 1/4
    short, long, also = (Row(2, Product(n, n, n, "float64")) for n in (64, 4096, 256))
    assert group_rows([short, long, also]) == [[short, also], [long]]
    assert group_rows([long]) == [[long]]


def test_a_side_that_is_not_known_is_refused():
    told = [sys.executable, "-m", "bench.peers", "--sides", "pdla,by hand"]
    run = subprocess.run(told, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 1 and "--sides by hand: give some of NumPy,pdla,ScaLAPACK,DTensor" in run.stderr


def test_lines_by_hand_are_left_out_where_their_job_outgrows_the_memory(monkeypatch):
    """Every rank holds all of B, beside what the other sides of the job hold: 16 ranks filled 24 GB, and all sides were lost."""
    monkeypatch.setattr(jobs, "MEMORY", 24 * 2**30)
    long = Product(512, 512, 131072, "float64")
    assert "would take 24 GiB" in jobs.explain_unfit(("by_hand", ""), long, 16)
    assert not jobs.explain_unfit(("by_hand", ""), long, 4) and not jobs.explain_unfit(("ours", "native"), long, 16)
