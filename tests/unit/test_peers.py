"""bench/peers.py: a signal that ends it ends the job under way."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
SLEEPER = "import os, pathlib, sys, time; pathlib.Path({path!r}).write_text(str(os.getpid())); time.sleep(30)"
PEERS = """
import sys
import peers
from sides.launch import Job
peers.jobs = lambda torch: [Job("sleeper", (("ceiling", ""),), lambda ranks: [sys.executable, "-c", {sleeper!r}])]
sys.argv = ["peers.py", "--ranks", "1", "--shapes", "8"]
sys.exit(peers.main())
"""


def test_a_signal_ends_the_job_under_way(tmp_path):
    pid = tmp_path / "pid"
    program = PEERS.format(sleeper=SLEEPER.format(path=str(pid)))
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(BENCH), *sys.path])}
    with subprocess.Popen([sys.executable, "-c", program], env=environ, stdout=subprocess.DEVNULL) as run:
        while not (pid.exists() and pid.read_text()):
            assert run.poll() is None
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        assert run.wait(20) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
