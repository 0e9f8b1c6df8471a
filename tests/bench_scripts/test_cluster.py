"""The emulated cluster: the kernel counts on its links what ledgers say and little more, and nothing is left behind."""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from helpers.jobs import LONGEST

from bench import cluster

ROOT = Path(__file__).parents[2]
PROBE = "ip link add end0 type veth peer name end1 && tc qdisc add dev end0 root tbf rate 1mbit burst 128kb latency 200ms"
BROADCAST = """
import socket
import numpy as np
import pdla
comm = pdla.world()
with pdla.record() as ledger:
    comm.bcast(np.zeros(100), 1).wait()
print(f"rank {comm.rank} on {socket.gethostname()} {comm.homes} {ledger.bytes_from_far} {ledger.events[0].way}\\n", end="")
"""
GATHER = """
import pdla
from pdla.array.meta import Meta
grid = pdla.ProcessGrid((1, 3))
A, B = (pdla.random((600, 600), grid, pdla.Layout(cols="col")) for _ in range(2))
def product():
    pdla.matmul(A, B, algorithm="gather")
product()
with pdla.record() as ledger:
    product()
assert ledger.bytes_received == ledger.bytes_from_far == 2 * 600 * 200 * 8
def dry(comm):
    comm.homes = [0, 1]
    comm.recv(Meta((1000, 1000)), 1).wait()
assert pdla.dry_run(2, dry)[1].bytes_from_far == 8_000_000
"""
PRODUCT = 3 * 2 * 600 * 200 * 8  # bytes that the three ranks of GATHER receive in a product: two thirds of A, each
HANG = """
import subprocess
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("here", flush=True)
child.wait()
"""


def why_not():
    """Why there can be no cluster here; "" where there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    if not all(map(shutil.which, ("ip", "tc", "unshare", "mount", "hostname"))):
        return "no iproute2"
    if not (Path(sys.executable).parent / "mpiexec.hydra").exists():
        return "the embedded mpich is not installed"
    probe = subprocess.run(["unshare", "--net", "--pid", "--mount", "--fork", "sh", "-c", PROBE], capture_output=True, text=True)
    return f"no network namespaces with tbf: {probe.stderr.strip()}" if probe.returncode else ""


REASON = why_not()
on_hosts = pytest.mark.skipif(bool(REASON), reason=REASON)


def heed():
    """Signals end a job even where the tests run in the background, which ignores them."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Job:
    """A cluster that is asked for, and all that it starts: its processes carry a mark of their own."""

    def __init__(self, *words, before=(), **environment):
        self.mark, self.before = f"PDLA_TEST_MARK={uuid.uuid4()}", remains()
        name, _, value = self.mark.partition("=")
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [*before, sys.executable, "-m", "bench.cluster", *map(str, words)]
        env = os.environ | environment | {name: value}
        self.process = subprocess.Popen(command, cwd=ROOT, env=env, preexec_fn=heed, **pipes)

    def end(self):
        """Its exit status, what it printed, and what it said on stderr."""
        out, error = self.process.communicate(timeout=LONGEST)
        return self.process.returncode, out, error

    def processes(self):
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in path.read_bytes():
                    found.append((path.parent / "cmdline").read_bytes())
            except OSError:  # it has ended meanwhile, or is another user's
                continue
        return found

    def check_nothing_left(self):
        assert self.processes() == []
        assert remains() == self.before


def remains():
    """Named namespaces, mounts, links and files in shared memory of this machine."""
    namespaces = set(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else set()
    mounts = {line for line in Path("/proc/mounts").read_text().splitlines() if "netns" in line or "/dev/shm" in line}
    return namespaces, mounts, set(os.listdir("/sys/class/net")), os.path.exists("/dev/shm/cluster")


def written(folder, text):
    program = folder / "program.py"
    program.write_text(text)
    return program


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rate", "fast", "--", "python", "-V"], "--rate fast is no rate of a link: write 200mbit, 1gbit or 64kbit"),
        (["--rate", "0mbit", "--", "python", "-V"], "--rate 0mbit is no rate"),
        (["--hosts", "0", "--", "python", "-V"], "--hosts 0 --ranks-per-host 1 --limit 0: 1 to 250 hosts"),
        (["--hosts", "two", "--", "python", "-V"], "argument --hosts: invalid int value: 'two'"),
        (["--hosts", "2"], "no command: write it after --"),
        (["--", "nosuchcommand"], "there is no command 'nosuchcommand'"),
        (["--", "python", "nosuch.py"], "there is no program 'nosuch.py'"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(words, said):
    status, out, error = Job(*words).end()
    assert (status, out) == (2, "")
    assert error.startswith(f"cluster: {said}") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("user", "found", "said"),
    [(1000, "/bin/ip", "network namespaces need root"), (0, None, "'ip' is not on PATH: Debian's package iproute2 brings it")],
)
def test_without_root_or_tools_one_line_says_so(user, found, said, monkeypatch, capsys):
    monkeypatch.setattr(cluster.os, "geteuid", lambda: user)
    monkeypatch.setattr(cluster.shutil, "which", lambda name: found)
    assert cluster.main(["--", "python", "-V"]) == 2
    assert capsys.readouterr() == ("", f"cluster: {said}\n")


@on_hosts
def test_a_kernel_that_gives_no_namespaces_is_quoted_in_one_line():
    job = Job("--", "true", before=["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-all"])
    assert job.end() == (2, "", "cluster: the kernel refuses unshare: Operation not permitted\n")


@on_hosts
def test_each_host_is_a_node_with_a_name_of_its_own(tmp_path):
    job = Job("--hosts", 3, "--", "python", written(tmp_path, BROADCAST))
    status, out, error = job.end()
    assert (status, error) == (0, "")
    lines = sorted(line for line in out.splitlines() if line.startswith("rank"))
    assert lines == [f"rank {rank} on h{rank + 1} [0, 1, 2] {far} mpi" for rank, far in enumerate((800, 0, 800))]
    assert [line.split()[0] for line in out.splitlines() if line.split()[-1] in ("800", "0", "1,600")] == ["h1", "h2", "h3", "all"]
    job.check_nothing_left()


@on_hosts
def test_the_kernel_counts_what_ledgers_count_and_headers(tmp_path):
    """Within 10%: headers of TCP, IP and Ethernet, acknowledgements, and what MPI says to start, to meet and to agree."""
    job = Job("--hosts", 3, "--rate", "200mbit", "--", "python", written(tmp_path, GATHER))
    status, out, error = job.end()
    assert (status, error) == (0, "")
    rows = {name: [int(word.replace(",", "")) for word in words] for name, *words in map(str.split, out.splitlines()[2:6])}
    assert [rows[host][2] for host in ("h1", "h2", "h3", "all")] == [2 * PRODUCT // 3] * 3 + [2 * PRODUCT]
    for received, sent, counted in rows.values():
        assert counted < received < 1.1 * counted
        assert counted < sent < 1.1 * counted
    assert f"received / by ledgers = {rows['all'][0] / (2 * PRODUCT):.3f}" in out
    job.check_nothing_left()


@on_hosts
def test_a_failing_command_gives_its_status_and_leaves_nothing():
    job = Job("--", "sh", "-c", "sleep 0.2; exit 3")  # mpirun dies of SIGPIPE if a rank ends before it can forward its input
    status, out, _ = job.end()
    assert status == 3 and "all" in out and "by ledgers" not in out
    job.check_nothing_left()


@on_hosts
def test_an_error_while_building_is_quoted_and_leaves_nothing(tmp_path):
    broken = tmp_path / "tc"
    broken.write_text("#!/bin/sh\necho 'Error: no such queue' >&2\nexit 2\n")
    broken.chmod(0o755)
    job = Job("--", "true", PATH=f"{tmp_path}:{os.environ['PATH']}")
    status, out, error = job.end()
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert error.startswith("cluster: `tc -n h1 qdisc add") and error.endswith("fails here: Error: no such queue\n")
    job.check_nothing_left()


@on_hosts
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_ends_everything(number, tmp_path):
    job = Job("--ranks-per-host", 2, "--", "python", written(tmp_path, HANG))
    assert job.process.stdout.readline().startswith("here")  # ranks may print into one line
    assert len(job.processes()) > 4  # a rank and what it started, mpirun and its proxies
    job.process.send_signal(number)
    status, _, error = job.end()
    if number == signal.SIGKILL:  # it could not wait for the kernel
        deadline = time.monotonic() + 60
        while job.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
    else:
        assert (status, error) == (128 + number, f"cluster: ended by signal {number.value}\n")
    job.check_nothing_left()


@on_hosts
def test_a_limit_ends_everything():
    job = Job("--limit", 1, "--", "sleep", 1000)
    assert job.end() == (124, "", "cluster: ended after 1 s\n")
    job.check_nothing_left()
