"""docs/_static/report.png, the page of a few products on 2 and on 4 ranks of this machine: `python docs/screenshot.py`.

Needs an mpirun, Chromium, and Pillow, which comes with matplotlib.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

PICTURE = Path(__file__).parent / "_static" / "report.png"
BENCH = [sys.executable, "-m", "pdla.bench"]
SIZES = ["-m", "768", "-n", "768", "-k", "768", "--repeats", "3", "--panel", "128"]
CHROMIUM = ["chromium", "--headless", "--hide-scrollbars", "--disable-gpu", "--window-size=1240,1330"]
COLOURS = 192  # flat ones, in half the bytes


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
        subprocess.run([*BENCH, "report", *results(), "--html", "page.html"], check=True)
        as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
        subprocess.run([*CHROMIUM, *as_root, "--screenshot=page.png", Path("page.html").absolute().as_uri()], check=True)
        Image.open("page.png").convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
