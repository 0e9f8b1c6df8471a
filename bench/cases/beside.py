"""Factorizations beside other programs, in jobs: HPL, and ScaLAPACK on an emulated network."""

import json
import os
import re
import subprocess
import sys
import tempfile
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from bench import cluster
from bench.common import core
from bench.common.case import case
from bench.common.launch import AS_ROOT, ROOT, find_mpirun, find_scalapack_fault, make_thread_limits
from bench.common.turns import take_turns
from bench.network import run_open_mpi, write_machine
from pdla.bench.arguments import positive

# ---------------------------------------------------------------------------------------------- HPL

GRIDS = {2: ((1, 2),), 4: ((1, 4), (2, 2))}
BLOCKS = (64, 128, 192)
INPUT = """HPLinpack benchmark input file
pdla
HPL.out      output file name (if any)
8            device out (6=stdout,7=stderr,file)
1            # of problems sizes (N)
{n}          Ns
{count}      # of NBs
{blocks}     NBs
0            PMAP process mapping (0=Row-,1=Column-major)
1            # of process grids (P x Q)
{p}          Ps
{q}          Qs
16.0         threshold
1            # of panel fact
2            PFACTs (0=left, 1=Crout, 2=Right)
1            # of recursive stopping criterium
4            NBMINs (>= 1)
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs (0=left, 1=Crout, 2=Right)
1            # of broadcast
1            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
1            # of lookahead depth
1            DEPTHs (>=0)
2            SWAP (0=bin-exch,1=long,2=mix)
64           swapping threshold
0            L1 in (0=transposed,1=no-transposed) form
0            U  in (0=transposed,1=no-transposed) form
1            Equilibration (0=no,1=yes)
8            memory alignment in double (> 0)
##### This line (no. 32) is ignored (it serves as a separator). ######
0            Number of additional problem sizes for PTRANS
1200         values of N
0            number of additional blocking sizes for PTRANS
40           values of NB
"""
RATE = re.compile(r"^(?:pdla|W[RC]).* (\d\.\d+e[+-]\d+) *$", re.MULTILINE)  # the last number of a row of either table


@case("ranks:6 | n:7 | pdla:10.1f | hpcc:10.1f | ratio:8.2f")
def hpl(n: positive = 4096, repeats: positive = 3):
    """HPL's rate by pdla and by Debian's hpcc, in turns, on 2 and 4 ranks: GFLOP/s.

    hpcc (apt-get install hpcc libopenblas0-pthread) runs HPL on each grid with blocks of 64, 128
    and 192. pdla runs as often with its own grid and blocks. The best run of each counts. hpcc runs
    its other tests, too, which take longer. Prints medians, and the ratio of pdla's to hpcc's.
    """
    for ranks in GRIDS:
        own, other = map(median, take_turns(repeats, {side: partial(side, ranks, n) for side in (run_pdla, run_hpcc)}).values())
        yield ranks, n, own, other, own / other


def run_pdla(ranks, n):
    command = [find_mpirun(), "-n", str(ranks), sys.executable, "-m", "pdla.bench", "hpl", "-n", str(n)]
    command += ["--repeats", str(len(BLOCKS))]
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=_environment()).stdout
    return max(map(float, RATE.findall(output)))


def run_hpcc(ranks, n):
    """The best of all grids and blocks."""
    rates = []
    for p, q in GRIDS[ranks]:
        with tempfile.TemporaryDirectory() as folder:
            input_text = INPUT.format(n=n, count=len(BLOCKS), blocks=" ".join(map(str, BLOCKS)), p=p, q=q)
            Path(folder, "hpccinf.txt").write_text(input_text)
            command = ["mpirun.openmpi", "--oversubscribe", "-n", str(ranks), "hpcc"]
            environment = _environment() | AS_ROOT | make_thread_limits(1)
            subprocess.run(command, cwd=folder, check=True, capture_output=True, env=environment)
            output = Path(folder, "hpccoutf.txt").read_text()
            rates += map(float, RATE.findall(output))
    return max(rates)


def _environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}


# ---------------------------------------------------------------------------------------------- ScaLAPACK on a network

HOSTS, LIMIT = 16, 900  # seconds on a cluster
NAMES = "Cholesky;LU;QR;eigh"
SIDES = {"pdla": ("factored", cluster.mpirun), "ScaLAPACK": ("pdfactor", run_open_mpi)}


@case("rate:8 | :10 | pdla, s:10.3f | MB:8.1f | ScaLAPACK, s:14.3f | MB:8.1f | times:8.2f | MB over:9.2f | pdla's grid, block:<18")
def factor_network(n: positive = 4096, rates: str = "200mbit,1gbit"):
    """Factorizations and eigenvectors on an emulated network of 16 hosts of one rank, beside ScaLAPACK's.

    pdla chooses its layouts by a description of the cluster (bench/network.py). ScaLAPACK uses the
    best of blocks of 32, 64 and 128 on 4 x 4 and 2 x 8. Times are the least of three turns; MB are
    the mean bytes that a host's link received, as the kernel counted them.
    """
    if why := find_scalapack_fault():
        sys.exit(f"factor_network: {why}")
    os.environ |= make_thread_limits(1) | {"PYTHONPATH": str(ROOT)}
    core_machine = core.calibrate_core()
    for rate in rates.split(","):
        with tempfile.TemporaryDirectory() as folder:
            work = partial(run_on_cluster, n, rate, core_machine, Path(folder))
            job = get_context("fork").Process(target=lambda work=work: sys.exit(cluster.run_contained(work, LIMIT)))
            job.start()
            job.join()
            own, peer = (json.loads(Path(folder, side).read_text()) for side in SIDES)
        for name, (own_ms, own_bytes, blocking) in own.items():
            peer_ms, peer_bytes = peer[name]
            figures = own_ms / 1e3, own_bytes / 1e6, peer_ms / 1e3, peer_bytes / 1e6
            yield rate, name, *figures, peer_ms / own_ms, own_bytes / peer_bytes, blocking


def run_on_cluster(n, rate, core_machine, folder):
    """Run both sides on a cluster, which ends with this process."""
    cluster.hide()
    cluster.FOLDER.mkdir(parents=True)
    cluster.build(HOSTS, rate)
    os.environ["PDLA_MACHINE"] = write_machine(core_machine, HOSTS, 1, rate)
    for side, (module, start) in SIDES.items():
        start(HOSTS, 1, [sys.executable, "-m", f"bench.sides.{module}", str(n), str(n), NAMES, str(folder / side)])
    return 0
