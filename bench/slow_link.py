"""A cluster on one machine: network namespaces as hosts, joined by links of a given rate, and a program under mpirun on them.

python bench/slow_link.py [--hosts 2] [--ranks 1] [--rate 1gbit] [--] program.py [arguments]

Linux, root, iproute2 and the embedded mpich. Ranks of one host share memory; hosts talk over TCP, each over its own link,
whose rate `tbf` limits in both directions. Afterwards: the bytes that each host received on the wire, acknowledgements and
headers among them. Namespaces, links and limits are gone when it ends, however it ends.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

BIN = Path(sys.executable).parent
ADDRESS = "10.77.7.{}"
# Hydra calls it as it would call ssh: options, host, command. Its own hostname makes MPI take a namespace for a host.
LAUNCHER = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host={name}h${{1##*.}}; shift
exec ip netns exec $host unshare --uts sh -c "hostname $host; $*"
"""


def ip(*words):
    subprocess.run(["ip", *map(str, words)], check=True)


def within(namespace, *words):
    """Run a command in a namespace; gives what it prints."""
    command = ["ip", "netns", "exec", namespace, *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


@contextmanager
def namespace(name):
    ip("netns", "add", name)
    try:
        within(name, "ip", "link", "set", "lo", "up")
        yield name
    finally:
        ip("netns", "del", name)  # and with it its interfaces and their queues


@contextmanager
def cluster(hosts, rate):
    """Namespaces of so many hosts, each with eth0 on a bridge; gives the common part of their names."""
    name = f"pdla{os.getpid()}"
    with ExitStack() as stack:
        bridge = stack.enter_context(namespace(f"{name}b"))
        within(bridge, "ip", "link", "add", "name", "bridge0", "type", "bridge")
        within(bridge, "ip", "link", "set", "bridge0", "up")
        for i in range(hosts):
            attach(stack.enter_context(namespace(f"{name}h{i}")), bridge, i, rate)
        yield name


def attach(host, bridge, i, rate):
    ip("link", "add", "eth0", "netns", host, "type", "veth", "peer", "name", f"port{i}", "netns", bridge)
    within(bridge, "ip", "link", "set", f"port{i}", "master", "bridge0", "up")
    within(host, "ip", "address", "add", f"{ADDRESS.format(i)}/24", "dev", "eth0")
    within(host, "ip", "link", "set", "eth0", "up")
    for end, device in ((host, "eth0"), (bridge, f"port{i}")):
        within(end, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "128kb", "latency", "200ms")


def mpirun(name, hosts, ranks, program):
    """Run the program on so many ranks a host; gives mpirun's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        launcher, machines = Path(folder, "launcher"), Path(folder, "hosts")
        launcher.write_text(LAUNCHER.format(name=name))
        launcher.chmod(0o755)
        machines.write_text("".join(f"{ADDRESS.format(i)}:{ranks}\n" for i in range(hosts)))
        command = [BIN / "mpirun", "-launcher", "ssh", "-launcher-exec", launcher, "-f", machines, "-iface", "eth0"]
        command += ["-n", hosts * ranks, *program]
        inside = f"hostname {name}h0; exec {shlex.join(map(str, command))}"
        environment = {"UCX_TLS": "tcp,self", "OMP_NUM_THREADS": "1", **os.environ, "UCX_NET_DEVICES": "eth0"}
        job = subprocess.Popen(
            ["ip", "netns", "exec", f"{name}h0", "unshare", "--uts", "sh", "-c", inside], env=environment
        )
        try:
            return job.wait()
        finally:
            job.terminate()
            job.wait()


def received(name, host):
    return int(within(f"{name}h{host}", "cat", "/sys/class/net/eth0/statistics/rx_bytes"))


def stop(*_):
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=1, help="on each host")
    parser.add_argument("--rate", default="1gbit", help="of each host's link, as tc writes it")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="a Python program and its arguments")
    given = parser.parse_args()
    program = [sys.executable, *(word for word in given.program if word != "--")]
    if os.geteuid() != 0 or len(program) < 2:
        parser.error("name a program" if os.geteuid() == 0 else "network namespaces need root")
    signal.signal(signal.SIGTERM, stop)
    with cluster(given.hosts, given.rate) as name:
        status = mpirun(name, given.hosts, given.ranks, program)
        wire = ", ".join(f"{received(name, i) / 1e6:.1f}" for i in range(given.hosts))
    print(f"{given.hosts} hosts x {given.ranks} ranks, links of {given.rate}; MB received on the wire by host: {wire}")
    return status


if __name__ == "__main__":
    sys.exit(main())
