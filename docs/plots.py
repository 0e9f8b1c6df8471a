"""docs/_static/report.svg: where the time of a few products goes on 2 and on 4 ranks of this machine: `python docs/plots.py`.

Needs an mpirun, and matplotlib.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).parent / "_static" / "report.svg"
BENCH = [sys.executable, "-m", "pdla.bench"]
SIZES = ["-m", "768", "-n", "768", "-k", "768", "--repeats", "3", "--panel", "128"]


def job(ranks, *words):
    subprocess.run(["mpirun", "-n", str(ranks), *BENCH, *words], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def results():
    """Result files: each algorithm on each number of ranks, predicted on the machine as these ranks find it."""
    for ranks in (2, 4):
        job(ranks, "calibrate", "--out", "here.toml")
        for algorithm in ("gather", "summa", "cannon", "2.5d"):
            name = f"{algorithm}-{ranks}.json"
            job(ranks, "gemm", *SIZES, "--algorithm", algorithm, "--machine", "here.toml", "--json", name)
            yield name


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        subprocess.run([*BENCH, "report", *results(), "--plots", "."], check=True)
        PICTURE.write_text(Path("split.svg").read_text())


if __name__ == "__main__":
    main()
