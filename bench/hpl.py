"""HPL's rate by pdla and by Debian's hpcc (apt-get install hpcc libopenblas0-pthread), in turns: billions of operations a second.

python -m bench.hpl [n] [repeats]        4096 equations, 3 repeats, on 2 and 4 ranks

hpcc's HPL on each grid with blocks of 64, 128 and 192, of which the best counts; pdla's with its own grid and blocks, as often, of
which the best counts. hpcc is run as a whole, with the other tests that it has, which take longer. Prints medians, and the ratio of
pdla's to hpcc's.
"""

import os
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

from bench.common.given import started
from bench.common.launch import AS_ROOT, mpirun, threads
from bench.common.turns import in_turns
from pdla.bench.arguments import positive

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


def ours(ranks, n):
    command = [mpirun(), "-n", str(ranks), sys.executable, "-m", "pdla.bench", "hpl", "-n", str(n), "--repeats", str(len(BLOCKS))]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=_environment()).stdout
    return max(map(float, RATE.findall(said)))


def theirs(ranks, n):
    """The best of all grids and blocks."""
    found = []
    for p, q in GRIDS[ranks]:
        with tempfile.TemporaryDirectory() as folder:
            told = INPUT.format(n=n, count=len(BLOCKS), blocks=" ".join(map(str, BLOCKS)), p=p, q=q)
            Path(folder, "hpccinf.txt").write_text(told)
            command = ["mpirun.openmpi", "--oversubscribe", "-n", str(ranks), "hpcc"]
            environment = _environment() | AS_ROOT | threads(1)
            subprocess.run(command, cwd=folder, check=True, capture_output=True, env=environment)
            said = Path(folder, "hpccoutf.txt").read_text()
            found += map(float, RATE.findall(said))
    return max(found)


def _environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}


def main(n=4096, repeats=3):
    print(f"{'ranks':>6}{'n':>7}{'pdla':>10}{'hpcc':>10}{'ratio':>8}   GFLOP/s")
    for ranks in GRIDS:
        rates = in_turns(repeats, {side: partial(side, ranks, n) for side in (ours, theirs)})
        own, other = map(median, rates.values())
        print(f"{ranks:6}{n:7}{own:10.1f}{other:10.1f}{own / other:8.2f}", flush=True)


if __name__ == "__main__":
    started(main, positive, __doc__)
