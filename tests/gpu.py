"""Everything that needs a GPU, in one go, its results in one file: python tests/gpu.py (or make test-gpu)

The machine has CuPy, PyTorch and mpi4py, and perhaps no package index. What else is needed, an MPI among it, is brought along:

    python tests/gpu.py --fetch wheels      where there is an index: download it for this Python, or --for 3.12
    python tests/gpu.py --wheels wheels     on the GPU machine: an environment on top of its own, from these files alone

Steps: compile (nvcc), kernels (against their twins, on the device), memcheck and racecheck (the same under compute-sanitizer),
suite (the MPI tests on 1, 2, 4 and 8 ranks, which may share a GPU), staged (those of messages through pinned memory), nccl (the MPI
tests by NCCL, a rank on each of several GPUs), bench, measure. A step that cannot run here says why. Without a GPU all are skipped.
"""

import argparse
import json
import os
import platform
import shutil
import site
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDED = [
    "mpich", "mpi4py>=4.1", "pytest>=8.4", "pytest-mpi", "hypothesis", "jsonschema", "ml_dtypes", "h5py", "opt_einsum", "rich",
    "scipy", "threadpoolctl", "setuptools>=77",
]  # fmt: skip
RANKS = (1, 2, 4, 8)
LONGEST = 3600  # seconds of a step
TAIL = 4000  # characters kept of what a step says


def environment(folder, wheels):
    """A Python that sees this machine's packages and the wheels; its path."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = Path(folder, "bin", "python")
    (own,) = Path(folder, "lib").glob("python*/site-packages")
    (own / "machine.pth").write_text("\n".join([*site.getsitepackages(), site.getusersitepackages()]))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    source = ["--no-index", "--find-links", str(wheels)] if wheels else []
    subprocess.run([*pip, *source, *NEEDED], check=True)
    own_mpi = ["--ignore-installed", "--no-deps", *NEEDED[:2]]  # side by side, and with the mpirun that is used
    subprocess.run([*pip, *source, *own_mpi], check=True)
    subprocess.run([*pip, "--no-index", "--no-build-isolation", "--no-deps", "--editable", str(ROOT)], check=True)
    return str(python)


def facts(python):
    """The machine, as far as it says."""
    asked = "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"
    gpus = subprocess.run(["nvidia-smi", *asked], capture_output=True, text=True).stdout.splitlines()
    program = "import cupy, numpy, mpi4py.MPI as M; print(cupy.__version__, numpy.__version__, M.Get_library_version().split()[:3])"
    found = subprocess.run([python, "-c", program], capture_output=True, text=True)
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    told = (found.stdout or found.stderr).strip().splitlines()[-1:]
    return {"host": platform.node(), "gpus": gpus, "versions": told, "commit": commit, "cores": os.cpu_count()}


def steps(python, out):
    """Name, why it cannot run here ("": it can), and the command of each step."""
    pytest = [python, "-m", "pytest", "-q"]
    mpirun = str(Path(python).with_name("mpirun"))
    mpirun = mpirun if Path(mpirun).exists() else "mpirun"
    kernels = [*pytest, "tests/unit/test_cupy.py", "-k", "not gemm and not benchmark and not probe"]
    sanitizer = ["compute-sanitizer", "--error-exitcode=9", "--target-processes=all"]
    bench = [python, "-m", "pdla.bench", "--array", "cupy", "--json", str(out.with_suffix(".bench.json"))]
    yield "compile", lacking("nvcc"), [python, ".ci/kernels.py"]
    yield "kernels", "", [*pytest, "tests/unit/test_cupy.py", "tests/unit/test_device.py"]
    yield "memcheck", lacking("compute-sanitizer"), [*sanitizer, "--tool=memcheck", *kernels]
    yield "racecheck", lacking("compute-sanitizer"), [*sanitizer, "--tool=racecheck", *kernels]
    for ranks in RANKS:
        yield f"suite on {ranks}", lacking(mpirun), [mpirun, "-n", str(ranks), *pytest, "--with-mpi", "tests/mpi"]
    messages = ["-n", "4", *pytest, "--with-mpi", "tests/mpi/test_comm.py", "tests/mpi/test_device.py"]
    yield "staged", lacking(mpirun), ["env", "PDLA_GPU_MPI=off", mpirun, *messages]
    gpus = len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.splitlines())
    by_nccl = ["env", "PDLA_GPU_MPI=nccl", mpirun, "-n", str(min(gpus, 8)), *pytest, "--with-mpi", "tests/mpi"]
    yield "nccl", lacking(mpirun) or no_nccl(python, gpus), by_nccl
    yield "bench", lacking(mpirun), [mpirun, "-n", "4", *bench]
    yield "measure", "", [python, "bench/gpu.py", "--json", str(out.with_suffix(".measured.json"))]


def lacking(program):
    return "" if shutil.which(program) else f"no {program} here"


def no_nccl(python, gpus):
    """Why NCCL cannot run."""
    if gpus < 2:
        return "NCCL wants a GPU for each rank, and there is one GPU"
    program = "from nccl import core; assert core.get_version().libnccl"
    found = subprocess.run([python, "-c", program], capture_output=True, text=True)
    return f"no NCCL: {(found.stderr.splitlines() or [''])[-1]}" if found.returncode else ""


def run(command, lack):
    """How a step ended."""
    if lack:
        return {"skipped": lack}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    known = os.environ | {"PDLA_ARRAY": "cupy", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    start = time.monotonic()
    try:
        done = subprocess.run(command, cwd=ROOT, env=known, timeout=LONGEST, capture_output=True, text=True)
        status, said = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        status, said = None, str(error)
    return {"status": status, "seconds": round(time.monotonic() - start, 1), "said": said[-TAIL:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fetch", metavar="FOLDER", help="download what a machine without a package index needs, and end")
    parser.add_argument("--for", metavar="VERSION", dest="version", help="with --fetch: the Python there, such as 3.12")
    parser.add_argument("--wheels", metavar="FOLDER", help="install from these files alone")
    parser.add_argument("--python", metavar="PATH", help="this Python has all that is needed: make no environment")
    parser.add_argument("--only", metavar="WORD", default="", help="steps that have this word in their name")
    parser.add_argument("--out", metavar="FILE", default="build/gpu.json", help="the result (default build/gpu.json)")
    arguments = parser.parse_args()
    if arguments.fetch:
        other = ["--python-version", arguments.version, "--only-binary=:all:"] if arguments.version else []
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", arguments.fetch, *other, *NEEDED]
        return subprocess.run(fetch).returncode
    if shutil.which("nvidia-smi") is None:
        print("test-gpu: skipped, no nvidia-smi on PATH: there is no GPU here")
        return 0
    out = Path(arguments.out).resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        python = arguments.python or environment(folder, arguments.wheels)
        result = {"machine": facts(python), "steps": {}}
        for name, lack, command in steps(python, out):
            if arguments.only in name:
                result["steps"][name] = ended = run(command, lack)
                print(f"{name:14}{ended.get('skipped') or ended}"[:300], flush=True)
                out.write_text(json.dumps(result, indent=1))
    for kind in ("bench", "measured"):
        if (path := out.with_suffix(f".{kind}.json")).exists():
            result[kind] = json.loads(path.read_text())
    out.write_text(json.dumps(result, indent=1))
    return any(ended.get("status", 0) != 0 for ended in result["steps"].values())


if __name__ == "__main__":
    sys.exit(main())
