"""A cluster on one machine: runs a command under mpirun on network namespaces as hosts, joined by links of a given rate.

python -m bench.cluster --hosts 16 --ranks-per-host 4 --rate 200mbit -- python -m pdla.bench gemm -n 1024

Needs Linux, root, iproute2 and the embedded mpich; `python` in the command is the Python that runs this. Ranks of one host share
memory. Hosts communicate over TCP, each over its own link, whose rate `tbf` limits in both directions. At the end the script prints
for each host the bytes that the kernel counted on its link, headers and acknowledgements included. For a Python program it also
prints the bytes from other hosts that the ledgers of its ranks counted.

The cluster depends on one process, the first of its own PID namespace, with its own mounts. When that process ends, the kernel ends
all other processes of the namespace, and removes network namespaces, links and files.
"""

import argparse
import ctypes
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path

BIN = Path(sys.executable).parent
COUNTED = Path(__file__).with_name("counted.py")
TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "mount": "util-linux", "hostname": "hostname"}
MOST = 250  # hosts: as many as 10.77.7.0/24 has addresses for
FOLDER = Path("/dev/shm/cluster")  # in memory, and seen by the cluster alone
SWITCH = "switch"
RATE = re.compile(r"(\d+(?:\.\d+)?)([kmg]?)bit")  # as tc writes it, in bits a second
UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}
CONGESTION = "reno"  # of TCP: bbr, which probes for the rate, leaves a fifth of the links unused where both directions are full
QUEUE = "30ms"  # of data that may wait at either end of a link, about as in a switch: with more, hosts share links unevenly
NEW_MOUNTS, NEW_PIDS, DIE_WITH_PARENT = 0x00020000, 0x20000000, 1  # of Linux' unshare and prctl
REFUSED, TOO_LONG, KILLED = 2, 124, 128  # exit statuses; the last is added to a signal's number
# Hydra calls this as it would call ssh: options, host, command. By its own hostname MPI takes each namespace for a host.
LAUNCHER = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=h${1##*.}; shift
exec ip netns exec $host unshare --uts sh -c "hostname $host; $*"
"""


class Refused(Exception):
    """The reason why there can be no cluster, in one line."""


class Ended(Exception):
    """A signal has come; its argument is the signal's number."""


# ---------------------------------------------------------------------------------------------- what is asked for


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Refused(message)


def parse(words):
    """Parse the options before "--", and the command after it."""
    parser = Parser(prog="cluster.py", description=__doc__.partition("\n")[0], usage="%(prog)s [options] -- command ...")
    parser.add_argument("--hosts", type=int, default=2, help="number of hosts, h1, h2, ... (default 2)")
    ranks = "number of ranks on each host, which share memory (default 1)"
    parser.add_argument("--ranks-per-host", type=int, default=1, metavar="RANKS", dest="ranks", help=ranks)
    parser.add_argument("--rate", default="1gbit", help="rate of each host's link, each way, as tc writes it (default 1gbit)")
    parser.add_argument("--limit", type=float, default=0, metavar="SECONDS", help="end the job after this time (default: never)")
    end = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:end])
    arguments.command = words[end + 1 :]
    return arguments


def check(arguments):
    """Raise Refused if the arguments or this machine do not allow a cluster."""
    rate = RATE.fullmatch(arguments.rate)
    if not rate or float(rate[1]) == 0:
        raise Refused(f"--rate {arguments.rate} is no rate of a link: write 200mbit, 1gbit or 64kbit")
    if not 1 <= arguments.hosts <= MOST or arguments.ranks < 1 or not 0 <= arguments.limit < float("inf"):
        options = f"--hosts {arguments.hosts} --ranks-per-host {arguments.ranks} --limit {arguments.limit:g}"
        raise Refused(f"{options}: 1 to {MOST} hosts, 1 rank or more on each, 0 seconds (no limit) or more")
    if not arguments.command:
        raise Refused("no command: write it after --, such as -- python -m pdla.bench")
    if arguments.command[0] != "python" and not shutil.which(arguments.command[0]):
        raise Refused(f"there is no command {arguments.command[0]!r}")
    if is_program(arguments.command) and arguments.command[1] != "-m" and not Path(arguments.command[1]).exists():
        raise Refused(f"there is no program {arguments.command[1]!r}")
    if os.geteuid() != 0:
        raise Refused("network namespaces need root")
    for tool, package in TOOLS.items():
        if not shutil.which(tool):
            raise Refused(f"{tool!r} is not on PATH: Debian's package {package} brings it")
    if not (BIN / "mpiexec.hydra").exists():
        raise Refused(f"no mpich in {BIN}: `pip install pdla[mpich]` brings it")


def parse_rate(rate):
    """Convert a rate, written as tc writes it, to bytes a second."""
    number, unit = RATE.fullmatch(rate).groups()
    return float(number) * UNITS[unit] / 8


def is_program(command):
    """Whether a command is a Python program or module: then its ledgers are counted."""
    return command[0] == "python" and len(command) > 1 and (command[1] == "-m" or not command[1].startswith("-"))


def make_rank_command(command):
    """Make the command that each rank runs: a Python program with its ledgers counted, anything else unchanged."""
    if command[0] != "python":
        return command
    return [sys.executable, *([COUNTED, FOLDER / "counts"] if is_program(command) else []), *command[1:]]


# ---------------------------------------------------------------------------------------------- a process on which all depend


def call_c(call, *arguments):
    """Call a C library function that Python does not offer; raises Refused where it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, call)(*arguments) != 0:
        raise Refused(f"the kernel refuses {call}: {os.strerror(ctypes.get_errno())}")


def run_contained(work, limit):
    """Run work() as the first process of a PID namespace; return its exit status once no process of the namespace is left."""
    call_c("unshare", NEW_PIDS)
    signals = {signal.SIGALRM, signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signals = {number for number in signals if signal.getsignal(number) != signal.SIG_IGN}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    child = os.fork()
    if child == 0:
        run_first(work, signals)

    def end(number, _):
        for number_of_signal in signals:
            signal.signal(number_of_signal, signal.SIG_IGN)
        raise Ended(number)

    try:
        for number in signals:
            signal.signal(number, end)
        signal.setitimer(signal.ITIMER_REAL, limit)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return status if status >= 0 else KILLED - status
    except Ended as signalled:
        with suppress(ProcessLookupError, ChildProcessError):  # it may just have ended
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        (number,) = signalled.args
        print(f"cluster: ended {f'after {limit:g} s' if number == signal.SIGALRM else f'by signal {number}'}", file=sys.stderr)
        return TOO_LONG if number == signal.SIGALRM else KILLED + number


def run_first(work, signals):
    """Do the work as the first process of a PID namespace, and end it. Signals are left to its parent."""
    status = 1
    try:
        for number in signals:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        call_c("prctl", DIE_WITH_PARENT, signal.SIGKILL)
        status = work()
    except Refused as reason:
        status = refuse(reason)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


# ---------------------------------------------------------------------------------------------- the cluster


def run(*words):
    """Run a command; return its output."""
    done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        message = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise Refused(f"`{shlex.join(map(str, words))}` fails here: {message}")
    return done.stdout


def hide():
    """Make mounts that only this process and its children see, and that end with them."""
    call_c("unshare", NEW_MOUNTS)
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "proc", "proc", "/proc")
    Path("/run/netns").mkdir(exist_ok=True)
    for folder in ("/run/netns", "/dev/shm"):
        run("mount", "-t", "tmpfs", "tmpfs", folder)


def build(hosts, rate):
    """Build namespaces h1, h2, ..., each with a link eth0 to one bridge."""
    run("ip", "netns", "add", SWITCH)
    run("ip", "-n", SWITCH, "link", "add", "name", "bridge0", "type", "bridge")
    run("ip", "-n", SWITCH, "link", "set", "bridge0", "up")
    for i in range(1, hosts + 1):
        attach(f"h{i}", f"port{i}", address(i), rate)


def address(i):
    return f"10.77.7.{i}"


def attach(host, port, ip, rate):
    run("ip", "netns", "add", host)
    run("ip", "-n", host, "link", "set", "lo", "up")
    run("ip", "netns", "exec", host, "sh", "-c", f"echo {CONGESTION} > /proc/sys/net/ipv4/tcp_congestion_control")
    run("ip", "link", "add", "eth0", "netns", host, "type", "veth", "peer", "name", port, "netns", SWITCH)
    run("ip", "-n", SWITCH, "link", "set", port, "master", "bridge0", "up")
    run("ip", "-n", host, "address", "add", f"{ip}/24", "dev", "eth0")
    run("ip", "-n", host, "link", "set", "eth0", "up")
    for end, device in ((host, "eth0"), (SWITCH, port)):
        run("tc", "-n", end, "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "128kb", "latency", QUEUE)


def mpirun(hosts, ranks, command):
    """Run the command on `ranks` ranks a host; return mpirun's exit status."""
    machines = FOLDER / "hosts"
    machines.write_text("".join(f"{address(i)}:{ranks}\n" for i in range(1, hosts + 1)))
    words = [BIN / "mpirun", "-launcher", "ssh", "-launcher-exec", write_launcher(), "-f", machines, "-iface", "eth0"]
    crowded = hosts * ranks / len(os.sched_getaffinity(0))  # all hosts are on the same cores
    shares = {"UCX_TLS": "tcp,self", "OMP_NUM_THREADS": "1", "PDLA_CROWDED": f"{crowded:g}"}
    environment = {**shares, **os.environ, "UCX_NET_DEVICES": "eth0"}
    return run_on_first_host([*words, "-n", hosts * ranks, *command], environment)


def write_launcher():
    """Write the script by which mpirun enters a host; return its path."""
    script = FOLDER / "launcher"
    script.write_text(LAUNCHER)
    script.chmod(0o755)
    return script


def run_on_first_host(words, environment):
    """Run a command on h1; return its exit status."""
    inside = f"hostname h1; exec {shlex.join(map(str, words))}"
    status = subprocess.run(["ip", "netns", "exec", "h1", "unshare", "--uts", "sh", "-c", inside], env=environment).returncode
    return status if status >= 0 else KILLED - status


# ---------------------------------------------------------------------------------------------- what went over the links


def count_on_link(host):
    """Bytes that a host has received and sent over its link, as the kernel counts them."""
    (link,) = json.loads(run("ip", "-n", host, "-s", "-j", "link", "show", "eth0"))
    return link["stats64"]["rx"]["bytes"], link["stats64"]["tx"]["bytes"]


def count_by_ledgers():
    """For each host, the bytes from other hosts that its ranks' ledgers counted; and how many ranks have left a count."""
    counts, lines = Counter(), [file.read_text().split() for file in (FOLDER / "counts").iterdir()]
    for host, size in lines:
        counts[host] += int(size)
    return counts, len(lines)


def report(arguments):
    """Print, for each host and in total, what the kernel counted and what the ledgers counted."""
    (ledgers, counted_ranks), ranks = count_by_ledgers(), arguments.hosts * arguments.ranks
    links = {f"h{i}": count_on_link(f"h{i}") for i in range(1, arguments.hosts + 1)}
    print(f"{arguments.hosts} hosts, ranks on each: {arguments.ranks}, links of {arguments.rate}; bytes on each host's link")
    print(f"{'host':>5}{'received':>15}{'sent':>15}" + (f"{'by ledgers':>15}" if counted_ranks else ""))
    received, sent = (sum(column) for column in zip(*links.values(), strict=True))
    for host, (rx, tx) in [*links.items(), ("all", (received, sent))]:
        counted = ledgers.total() if host == "all" else ledgers[host]
        print(f"{host:>5}{rx:15,}{tx:15,}" + (f"{counted:15,}" if counted_ranks else ""))
    if ledgers.total():
        print(f"received / by ledgers = {received / ledgers.total():.3f}")
    if 0 < counted_ranks < ranks:
        print(f"{ranks - counted_ranks} of {ranks} ranks ended without a count of their ledgers")


def run_on_cluster(arguments):
    """Build the cluster, run the command on it, and report; return mpirun's exit status. The cluster ends with this process."""
    hide()
    (FOLDER / "counts").mkdir(parents=True)
    build(arguments.hosts, arguments.rate)
    status = mpirun(arguments.hosts, arguments.ranks, make_rank_command(arguments.command))
    report(arguments)
    return status


def refuse(reason):
    print(f"cluster: {reason}", file=sys.stderr)
    return REFUSED


def main(words):
    try:
        arguments = parse(words)
        check(arguments)
        return run_contained(lambda: run_on_cluster(arguments), arguments.limit)
    except Refused as reason:
        return refuse(reason)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
