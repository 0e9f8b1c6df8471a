"""Cholesky and LU of 16 hosts on an emulated network, beside ScaLAPACK's, one rank and one BLAS thread a host.

python -m bench.factor_network [n] [rate ...]        4096, links of 200mbit and 1gbit

Each side in its best layouts: pdla in those that it finds cheapest by a description of the cluster (bench/network.py), ScaLAPACK in
the best of blocks of 32, 64 and 128 on 4 x 4 and 2 x 8. Least of three turns; MB that a host's link brought in the mean, as the
kernel counted them.
"""

import json
import os
import sys
import tempfile
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from bench import cluster
from bench.common import core
from bench.common.launch import ROOT, no_scalapack, threads
from bench.network import described, under_open_mpi

HOSTS, LIMIT = 16, 900  # seconds on a cluster
SIDES = {"pdla": ("factored", cluster.mpirun), "ScaLAPACK": ("pdfactor", under_open_mpi)}


def on_cluster(n, rate, one, folder):
    """Run both sides on a cluster, which ends with this process."""
    cluster.hide()
    cluster.FOLDER.mkdir(parents=True)
    cluster.build(HOSTS, rate)
    os.environ["PDLA_MACHINE"] = described(one, HOSTS, 1, rate)
    for side, (module, start) in SIDES.items():
        start(HOSTS, 1, [sys.executable, "-m", f"bench.sides.{module}", str(n), str(folder / side)])
    return 0


def main(n=4096, *rates):
    if why := no_scalapack():
        sys.exit(f"factor_network: {why}")
    os.environ |= threads(1) | {"PYTHONPATH": str(ROOT)}
    one = core.calibrated()
    heads = f"{'pdla, s':>10}{'MB':>8}{'ScaLAPACK, s':>14}{'MB':>8}{'times':>8}{'MB over':>9}"
    print(f"{'rate':>8}{'':>10}{heads}   pdla's grid, block")
    for rate in rates or ("200mbit", "1gbit"):
        with tempfile.TemporaryDirectory() as folder:
            work = partial(on_cluster, n, rate, one, Path(folder))
            job = get_context("fork").Process(target=lambda work=work: sys.exit(cluster.contained(work, LIMIT)))
            job.start()
            job.join()
            ours, theirs = (json.loads(Path(folder, side).read_text()) for side in SIDES)
        for name, (took, came, blocking) in ours.items():
            other, brought = theirs[name]
            sides = f"{took / 1e3:10.3f}{came / 1e6:8.1f}{other / 1e3:14.3f}{brought / 1e6:8.1f}"
            print(f"{rate:>8}{name:>10}{sides}{other / took:8.2f}{came / brought:9.2f}   {blocking}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(__doc__)
    else:
        main(*map(int, sys.argv[1:2]), *sys.argv[2:])
