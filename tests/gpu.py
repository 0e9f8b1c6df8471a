"""Runs everything that needs a GPU, with all results in one file: python tests/gpu.py (or make test-gpu)

The machine is taken to have CuPy, PyTorch and mpi4py, but perhaps no package index. What else is needed, an MPI too, is brought:

    python tests/gpu.py --fetch wheels      with an index: download packages, for this Python or --for 3.12; --lean: only those
                                            that a machine with PyTorch seldom has, 18 MB
    python tests/gpu.py --wheels wheels     on the GPU machine: run, with these files installed on top of its own

Steps: compile (nvcc), kernels (against their twins, on the device), memcheck and racecheck (the same under compute-sanitizer),
suite (the MPI tests on 1, 2, 4 and 8 ranks, which may share a GPU), staged (the tests of messages through pinned memory), nccl
(the MPI tests by NCCL, a rank on each of several GPUs), bench, measure. A step that cannot run here says why. Without a GPU all
are skipped. A step's output goes to a file beside the result at once. Where time is short, run some steps, --only kernels,measure
--longest 400, and others later: the result keeps those that it has.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import site
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["bench"]]
NEEDED = ["mpich", "setuptools>=77", "pytest>=8.4", "pytest-mpi", "hypothesis", "ml_dtypes", "h5py", *PACKAGES]
LEAN = [
    "mpich", "mpi4py>=4.1", "setuptools>=77", "pytest>=8.4", "pluggy", "iniconfig", "pygments", "packaging", "pytest-mpi",
    "threadpoolctl>=3.8", "jsonschema", "jsonschema-specifications", "referencing", "rpds-py", "attrs", "typing-extensions",
]
KERNELS = [f"tests/array/cupy/test_{name}.py" for name in ("cupy", "cusolver", "fused", "launch", "pack", "philox")]
SANITIZED = {  # a case of each kernel: under compute-sanitizer, all would take an hour
    "pack": [
        "test_copy[shape6-float32]", "test_many_copies_in_a_launch[32]", "test_take_and_put[float64-gaps]",
        "test_combine[-2-float64]",
    ],
    "fused": [
        "test_gelu_where_nothing_is_aligned", "test_gelu_with_a_bias[shape1-float32-odd]",
        "test_sums_over_rows[shape1-float32-odd]", "test_moments[shape1-float32-odd]",
        "test_normalise_and_back[shape1-float32-odd]", "test_cross_entropy[shape1-float32-odd]",
        "test_uniform_is_numpys_bit_by_bit[70-70]",
    ],
    "philox": ["test_philox_reads_and_writes_nothing_past_its_block[float32-5]"],
}
RANKS = (1, 2, 4, 8)
LONGEST = 3600  # seconds of a step
TAIL = 4000  # characters kept of what a step says


def environment(folder, wheels):
    """A Python that sees this machine's packages and the wheels; its path."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = Path(folder, "bin", "python")
    (own,) = Path(folder, "lib").glob("python*/site-packages")
    theirs = [*site.getsitepackages(), site.getusersitepackages()]
    # CuPy looks for CUDA's wheels in the site's folders, not on the path.
    known = f"import site; site.getsitepackages = lambda prefixes=None, own=site.getsitepackages: [*own(prefixes), *{theirs!r}]"
    (own / "machine.pth").write_text("\n".join([*theirs, known]) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    source = ["--no-index", "--find-links", str(wheels)] if wheels else []
    subprocess.run([*pip, *source, *NEEDED], check=True)
    own_mpi = ["--ignore-installed", "--no-deps", *LEAN[:2]]  # side by side, and with the mpirun that is used
    subprocess.run([*pip, *source, *own_mpi], check=True)
    subprocess.run([*pip, "--no-index", "--no-build-isolation", "--no-deps", "--editable", str(ROOT)], check=True)
    return str(python)


def facts(python):
    """The machine, as far as it says."""
    asked = "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"
    gpus = subprocess.run(["nvidia-smi", *asked], capture_output=True, text=True).stdout.splitlines()
    program = "import cupy, numpy, mpi4py.MPI as M; print(cupy.__version__, numpy.__version__, M.Get_library_version().split()[:3])"
    found = subprocess.run([python, "-c", program], capture_output=True, text=True)
    describe = ["git", "-C", ROOT, "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, capture_output=True, text=True).stdout.strip() if shutil.which("git") else ""
    told = (found.stdout or found.stderr).strip().splitlines()[-1:]
    return {"host": platform.node(), "gpus": gpus, "versions": told, "commit": commit, "cores": os.cpu_count()}


def steps(python, out):
    """Name, why it cannot run here ("": it can), and the command of each step."""
    on_gpus = ["env", "PDLA_ARRAY=cupy"]
    pytest = [python, "-m", "pytest", "-q"]
    mpirun = str(Path(python).with_name("mpirun"))
    mpirun = mpirun if Path(mpirun).exists() else "mpirun"
    kernels = [*pytest, *(f"tests/array/cupy/test_{name}.py::{case}" for name, cases in SANITIZED.items() for case in cases)]
    sanitizer = ["compute-sanitizer", "--error-exitcode=9", "--target-processes=all"]
    bench = [python, "-m", "pdla.bench", "--array", "cupy", "--json", str(out.with_suffix(".bench.json"))]
    yield "compile", lacking("nvcc"), [python, ".ci/kernels.py"]
    yield "kernels", "", [*pytest, *KERNELS, "tests/comm/mpi_world/test_transport.py"]
    yield "memcheck", lacking("compute-sanitizer"), [*sanitizer, "--tool=memcheck", *kernels]
    yield "racecheck", lacking("compute-sanitizer"), [*sanitizer, "--tool=racecheck", *kernels]
    for ranks in RANKS:
        yield f"suite on {ranks}", lacking(mpirun), [*on_gpus, mpirun, "-n", str(ranks), *pytest, "--with-mpi", "tests/mpi"]
    messages = ["-n", "4", *pytest, "--with-mpi", "tests/mpi/comm/test_communicator.py", "tests/mpi/comm/mpi/test_staging.py"]
    yield "staged", lacking(mpirun), [*on_gpus, "PDLA_GPU_MPI=off", mpirun, *messages]
    gpus = len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.splitlines())
    by_nccl = [*on_gpus, "PDLA_GPU_MPI=nccl", mpirun, "-n", str(min(gpus, 8)), *pytest, "--with-mpi", "tests/mpi"]
    yield "nccl", lacking(mpirun) or no_nccl(python, gpus), by_nccl
    yield "bench", lacking(mpirun), [mpirun, "-n", "4", *bench]
    yield "measure", "", [python, "-m", "bench.gpu", "--json", str(out.with_suffix(".measured.json"))]


def lacking(program):
    return "" if shutil.which(program) else f"no {program} here"


def no_nccl(python, gpus):
    """Why NCCL cannot run."""
    if gpus < 2:
        return "NCCL wants a GPU for each rank, and there is one GPU"
    program = "from nccl import core; assert core.get_version().libnccl"
    found = subprocess.run([python, "-c", program], capture_output=True, text=True)
    return f"no NCCL: {(found.stderr.splitlines() or [''])[-1]}" if found.returncode else ""


def run(command, lack, log, longest):
    """How a step ended; the first use of a kernel compiles it, so that a test may take minutes."""
    if lack:
        return {"skipped": lack}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "PYTHONPATH": os.pathsep.join(paths)}
    known = {"PDLA_TEST_TIMEOUT": "400"} | os.environ | ours
    start, status = time.monotonic(), None
    with log.open("w") as file, contextlib.suppress(subprocess.TimeoutExpired):
        status = subprocess.run(command, cwd=ROOT, env=known, timeout=longest, stdout=file, stderr=subprocess.STDOUT).returncode
    return {"status": status, "seconds": round(time.monotonic() - start, 1), "said": log.read_text(errors="replace")[-TAIL:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fetch", metavar="FOLDER", help="download what a machine without a package index needs, and end")
    parser.add_argument("--for", metavar="VERSION", dest="version", help="with --fetch: the Python there, such as 3.12")
    parser.add_argument("--wheels", metavar="FOLDER", help="install from these files alone")
    parser.add_argument("--python", metavar="PATH", help="this Python has all that is needed: make no environment")
    parser.add_argument("--lean", action="store_true", help="with --fetch: not what a machine with PyTorch and CuPy has")
    parser.add_argument("--only", metavar="WORDS", default="", help="steps with one of these in their name: suite on 4,measure")
    parser.add_argument("--longest", metavar="SECONDS", type=float, default=LONGEST, help=f"of a step (default {LONGEST})")
    parser.add_argument("--out", metavar="FILE", default="build/gpu.json", help="the result (default build/gpu.json)")
    arguments = parser.parse_args()
    if arguments.fetch:
        other = ["--python-version", arguments.version, "--only-binary=:all:"] if arguments.version else []
        what = ["--no-deps", *LEAN] if arguments.lean else NEEDED
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", arguments.fetch]
        return subprocess.run([*download, *other, *what]).returncode
    if shutil.which("nvidia-smi") is None:
        print("test-gpu: skipped, no nvidia-smi on PATH: there is no GPU here")
        return 0
    out = Path(arguments.out).resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        python = arguments.python or environment(folder, arguments.wheels)
        before = json.loads(out.read_text())["steps"] if out.exists() and arguments.only else {}
        result = {"machine": facts(python), "steps": before}
        for name, lack, command in steps(python, out):
            if any(word in name for word in arguments.only.split(",")):
                log = out.with_suffix(f".{name.replace(' ', '_')}.log")
                result["steps"][name] = ended = run(command, lack, log, arguments.longest)
                print(f"{name:14}{ended.get('skipped') or ended}"[:300], flush=True)
                out.write_text(json.dumps(result, indent=1))
    for kind in ("bench", "measured"):
        if (path := out.with_suffix(f".{kind}.json")).exists():
            result[kind] = json.loads(path.read_text())
    out.write_text(json.dumps(result, indent=1))
    return any(ended.get("status", 0) != 0 for ended in result["steps"].values())


if __name__ == "__main__":
    sys.exit(main())
