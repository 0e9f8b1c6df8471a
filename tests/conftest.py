"""The harness of all tests: no test hangs, and under `mpirun ... pytest --with-mpi` all ranks pass or fail together.

After each phase of a test (setup, call, teardown) the ranks exchange their outcomes. If one of them failed, all fail and
name it. If the others do not come to the exchange, they are waiting for messages that will never be sent, and the failed
rank ends the job. Any other hang is ended by a watchdog, which prints the stacks of every rank.

Without mpirun the watchdog fails the test that hangs, ends the processes that it has started, and lets the others run.
"""

import hashlib
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import hypothesis
import pytest

TIMEOUT = float(os.environ.get("PDLA_TEST_TIMEOUT", "300"))  # seconds that one test may take: no measure of speed
PATIENCE = float(os.environ.get("PDLA_TEST_PATIENCE", "10"))  # seconds that a failed rank waits for the others
GRACE = 3.0  # seconds for other ranks, which may be late, to say what they have to before the job ends
STAGGER = 0.2  # seconds between the prints of one rank's stacks and the next one's, so that they do not mix
RECORD = 256  # bytes of an outcome as ranks exchange it
QUICK_POLLS = 200  # polls before a waiting rank begins to sleep between them

# Where one process reads another's memory, Open MPI 4 copies all of a message, even beyond the end of a receiver's buffer that is
# too short (docs/launch.md); tests send such messages.
os.environ.setdefault("OMPI_MCA_btl_vader_single_copy_mechanism", "none")

hypothesis.settings.register_profile(
    "pdla",
    deadline=None,
    derandomize="CI" in os.environ,
    max_examples=int(os.environ.get("PDLA_TEST_EXAMPLES", "60")),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("pdla")


class Hang(BaseException):
    """A test has taken more than TIMEOUT seconds. No Exception, which a test might catch, and hypothesis would try again."""


class Alone:
    """The ranks of a run without mpirun: one, which agrees with itself, and can go on after a test that hangs."""

    rank, size = 0, 1
    grace = GRACE + TIMEOUT / 10  # to end what the test has begun

    def __init__(self):
        self.nodeid = ""  # of the test of which a phase runs: elsewhere pytest would not stand an exception
        signal.signal(signal.SIGUSR1, self.interrupted)

    def exchange(self, outcome, patience):
        return [outcome]

    @contextmanager
    def running(self, nodeid):
        self.nodeid = nodeid
        try:
            yield
        finally:
            self.nodeid = ""

    def interrupted(self, number, frame):
        __tracebackhide__ = True
        if self.nodeid:
            raise Hang(f"{self.nodeid} takes more than {TIMEOUT:g} s (PDLA_TEST_TIMEOUT); its stacks are on stderr")

    def end_test(self, nodeid, since):
        """Called by the watchdog: raise Hang in the main thread, wherever that is, and end the processes begun since then."""
        if self.nodeid == nodeid:
            processes = begun(since)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
            time.sleep(STAGGER)  # so that who waits for one of them raises Hang, rather than go on as that ends
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


def clock_ticks():
    """The time since the system's start, as /proc tells a process's."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def begun(since):
    """This process's descendants that began at that time or later, in clock_ticks."""
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append((int(stat.parent.name), int(fields[19])))
    found, parents = [], [os.getpid()]
    for parent in parents:  # which grows
        parents += [child for child, _ in children.get(parent, [])]
        found += [child for child, began in children.get(parent, []) if began >= since]
    return found


class Ranks:
    """The ranks of this job, on a communicator that no test uses. All of it ends with a test that hangs."""

    grace = GRACE

    def __init__(self):
        from mpi4py import MPI

        self.mpi, self.comm = MPI, MPI.COMM_WORLD.Dup()
        self.rank, self.size = self.comm.rank, self.comm.size

    def exchange(self, outcome, patience):
        """Every rank's outcome, or None where some rank did not come within `patience` seconds."""
        mine = bytearray(outcome.encode()[:RECORD].ljust(RECORD, b"\0"))
        everyone = bytearray(RECORD * self.size)
        request = self.comm.Iallgather([mine, self.mpi.BYTE], [everyone, self.mpi.BYTE])
        polls, give_up = 0, time.monotonic() + patience
        while not request.Test():
            if time.monotonic() > give_up:
                return None
            polls += 1
            time.sleep(0 if polls < QUICK_POLLS else 0.001)
        records = (everyone[i : i + RECORD] for i in range(0, len(everyone), RECORD))
        return [bytes(record).rstrip(b"\0").decode(errors="ignore") for record in records]

    def running(self, nodeid):
        return nullcontext()

    def end_test(self, nodeid, since):
        """The alarm will, once the other ranks have said where they are."""


class Harness:
    """pytest's hooks; `stderr` is a file descriptor that pytest does not capture."""

    def __init__(self, ranks, stderr):
        self.ranks, self.stderr = ranks, stderr
        self.collection_errors = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        with self.watchdog(item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item):
        return (yield from self.together(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item):
        return (yield from self.together(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item):
        return (yield from self.together(item))

    def pytest_collectreport(self, report):
        if report.failed:
            self.collection_errors.append(report.longreprtext)

    def pytest_collection_finish(self, session):
        """End the job where ranks have collected different tests: they would hang in the first that differs."""
        names = " ".join([*(item.nodeid for item in session.items), str(len(self.collection_errors))])
        digests = self.ranks.exchange(hashlib.sha256(names.encode()).hexdigest(), TIMEOUT)
        if digests is None or len(set(digests)) > 1:
            self.say("\n".join([f"collected {len(session.items)} tests, other ranks differ", *self.collection_errors]))
            self.end_job()

    @contextmanager
    def watchdog(self, nodeid):
        """After TIMEOUT seconds print this rank's stacks, and end the test if that can be; later an alarm ends the process,
        whatever it is doing."""
        began = clock_ticks()
        stacks = threading.Timer(TIMEOUT + STAGGER * self.ranks.rank, self.give_up, [nodeid, began])
        stacks.daemon = True
        stacks.start()
        signal.setitimer(signal.ITIMER_REAL, TIMEOUT + STAGGER * self.ranks.size + self.ranks.grace)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            stacks.cancel()

    def give_up(self, nodeid, began):
        self.print_stacks(nodeid)
        self.ranks.end_test(nodeid, began)

    def print_stacks(self, nodeid):
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        frames = sys._current_frames()
        del frames[threading.get_ident()]
        stacks = (f"{names.get(ident, ident)}:\n{own_frames(frame)}" for ident, frame in frames.items())
        self.say("\n".join([f"{nodeid} takes more than {TIMEOUT:g} s; the stacks of this rank:", *stacks]))

    def together(self, item):
        """Around one phase of a test: its own result, unless that of some other rank is worse."""
        try:
            with self.ranks.running(item.nodeid):
                result, error = (yield), None
        except (Exception, Hang, pytest.fail.Exception, pytest.skip.Exception) as raised:
            result, error = None, raised
        mine = outcome_of(error)
        everyone = self.ranks.exchange(mine, PATIENCE if mine.startswith("failed") else float("inf"))
        if everyone is None:
            self.say_error(item, "failed, and other ranks hang", error)
            self.end_job()
        elif mine.startswith("failed") and mine not in everyone[: max(self.ranks.rank, 1)]:
            self.say_error(item, "failed", error)
        if (worse := worst(mine, everyone)) is not None:
            pytest.fail(worse, pytrace=False)
        if error is not None:
            raise error
        return result

    def say(self, text):
        os.write(self.stderr, f"\n[rank {self.ranks.rank} of {self.ranks.size}] {text}\n".encode())

    def say_error(self, item, what, error):
        self.say(f"{item.nodeid} {what}:\n{item.repr_failure(pytest.ExceptionInfo.from_exception(error))}")

    def end_job(self):
        time.sleep(GRACE)
        self.ranks.mpi.COMM_WORLD.Abort(1)


def own_frames(frame):
    """The stack as text, outermost frame first, without the frames of pytest and of this harness."""
    foreign = (f"{os.sep}_pytest{os.sep}", f"{os.sep}pluggy{os.sep}", __file__)
    entries = [entry for entry in traceback.extract_stack(frame) if not any(part in entry.filename for part in foreign)]
    return "".join(traceback.format_list(entries))


def outcome_of(error):
    """One line: passed, skipped or failed, and why."""
    if error is None:
        return "passed"
    kind = "skipped" if isinstance(error, pytest.skip.Exception) else "failed"
    first_line = (str(error).splitlines() or [""])[0]
    return f"{kind}: {type(error).__name__}: {first_line}"


def worst(mine, everyone):
    """What this rank reports instead of its own outcome: another rank's failure, or a skip that is not everyone's."""
    if mine.startswith("failed"):
        return None
    for rank, outcome in enumerate(everyone):
        if outcome.startswith("failed"):
            return f"failed on rank {rank}: {outcome.removeprefix('failed: ')}"
    kinds = {outcome.split(":")[0] for outcome in everyone}
    return None if len(kinds) == 1 else f"skipped on some ranks only: {everyone}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One more than there are cores: some tests wait for minutes in all until something gives up."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    # Capture is suspended here, so 2 is the true stderr. Rank 0 alone reports to the terminal.
    ranks = Ranks() if config.getoption("--with-mpi") else Alone()
    if ranks.rank > 0:
        config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(Harness(ranks, os.dup(2)), "pdla-harness")


def pytest_collection_modifyitems(items):
    """If arrays are a device's, let `np` in tests and their helpers copy them to the host first; pdla itself gets no such help."""
    from pdla import config

    if config.settings.array == "numpy":
        return
    import numpy as np
    from helpers.devices import Hosted

    names = (f"helpers.{name}" for name in ("matmuls", "level3", "nets", "verbs"))
    helpers = [sys.modules[name] for name in names if name in sys.modules]
    for module in {item.module for item in items} | set(helpers):
        if hasattr(module, "np"):
            module.np = Hosted(np)


@pytest.fixture
def comm():
    """The communicator of all ranks of this job."""
    from pdla.comm import world

    return world()
