"""Memory that ranks of a node map."""

from helpers.jobs import run_job


def test_memory_that_one_rank_may_not_map_is_an_error_on_every_rank_and_then_the_next_product_works():
    job = run_job(
        """
import resource, pdla
grid = pdla.ProcessGrid(2)
A, B, C = (pdla.ones((2000, 2000), grid, layout) for layout in map(pdla.Layout, ("row", None, "row"), (None, "row", None)))
plan = pdla.plan_matmul(A, B, schedule="shared")
pages = int(open("/proc/self/statm").read().split()[0])
if comm.rank == 1:
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**24, -1))
try:
    plan(A, B, out=C)
except pdla.errors.PdlaError as error:
    print(error, flush=True)
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
assert plan(A, B, out=C).norm() == 2000 * 2000
""",
        ranks=2,
    )
    told = "sharing memory: MPI could not map 32000384 bytes on every rank"
    assert (job.returncode, job.stdout.count(told)) == (0, 2), job.stdout


def test_threads_of_a_rank_may_look_for_room_in_any_order():
    """One that waits holds no lock of Python's that the other, or a watchdog, needs."""
    job = run_job(
        """
import threading, time
from pdla.comm.mpi import node
theirs = [libmpi.MPI.COMM_WORLD.Dup() for _ in range(2)]
looks = [threading.Thread(target=node.find_least_free_bytes, args=[theirs[i]], daemon=True) for i in (comm.rank, 1 - comm.rank)]
for look in looks:
    look.start()
    time.sleep(0.5)
for look in looks:
    look.join()
print("both have come", flush=True)
""",
        ranks=2,
    )
    assert (job.returncode, job.stdout.count("both have come")) == (0, 2), job.stdout
