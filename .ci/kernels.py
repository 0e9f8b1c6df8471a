"""Compile every source in cuda/ with nvcc and say what its kernels use; fails where one spills registers or warns.

For all ARCHITECTURES, or for those that are named: `python .ci/kernels.py sm_80`.
The report goes to build/cuda/resources.txt, too. Without an nvcc on PATH it says so, and that is all.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")  # those of them that nvcc knows
FLAGS = ("-std=c++17", "-fmad=false", "-cubin", "-Xptxas=-v", "-Werror=all-warnings", "-o", "/dev/null")
PROPERTIES = re.compile(
    r"Function properties for (\w+)\n\s*(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n"
    r".*?Used (\d+) registers(?:.*?(\d+) bytes smem)?"
)
SPILLS = re.compile(r"(\d+) bytes spill")  # of functions that are called, too
HEADING = f"{'':8}{'kernel':32}{'registers':>10}{'shared':>8}{'stack':>8}{'spilled':>9}"


def compiled(source, architecture):
    """Lines of the report, and whether nothing spills."""
    done = subprocess.run(["nvcc", f"-arch={architecture}", *FLAGS, source], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    lines, spilled = [], any(int(size) for size in SPILLS.findall(done.stderr))
    for name, stack, stores, loads, registers, shared in PROPERTIES.findall(done.stderr):
        lines.append(f"{architecture:8}{name:32}{registers:>10}{shared or 0:>8}{stack:>8}{int(stores) + int(loads):>9}")
    kernels = len(re.findall("Compiling entry function", done.stderr))
    if len(lines) != kernels or not kernels:
        sys.exit(f"{source.name}, {architecture}: {len(lines)} of {kernels} kernels found in what nvcc says:\n{done.stderr}")
    return sorted(lines), not spilled


def main():
    if shutil.which("nvcc") is None:
        sys.stdout.write("make cuda: no nvcc on PATH; the kernels were not compiled\n")
        return 0
    lines, right = [HEADING], True
    known = subprocess.run(["nvcc", "--list-gpu-code"], capture_output=True, text=True, check=True).stdout.split()
    for architecture in filter(known.__contains__, sys.argv[1:] or ARCHITECTURES):
        for source in sorted((ROOT / "cuda").glob("*.cu")):
            more, fits = compiled(source, architecture)
            lines, right = lines + more, right and fits
    report = ROOT / "build" / "cuda" / "resources.txt"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text("\n".join(lines) + "\n")
    sys.stdout.write(report.read_text())
    return 0 if right else "kernels spill registers"


if __name__ == "__main__":
    sys.exit(main())
