"""Make a virtual environment that has pip: `python3 .ci/make_venv.py FOLDER`.

Debian's python3 comes without ensurepip; there pip's own wheel, taken from the package index, installs itself.
"""

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from urllib.parse import urljoin
from urllib.request import urlopen


def newest_pip(index):
    """Address and sha256 of the newest pip wheel on the index."""
    page = f"{index.rstrip('/')}/pip/"
    text = urlopen(page, timeout=60).read().decode()
    wheels = re.findall(r'href="([^"#]*/pip-([\d.]+)-py3-none-any\.whl)#sha256=(\w+)"', text)
    link, _, digest = max(wheels, key=lambda wheel: [int(part) for part in wheel[1].split(".")])
    return urljoin(page, link), digest


def install_pip(python, index):
    """Run pip from its wheel to install that same wheel."""
    address, digest = newest_pip(index)
    content = urlopen(address, timeout=60).read()
    if hashlib.sha256(content).hexdigest() != digest:
        raise OSError(f"{address} does not match its checksum")
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(folder, address.rpartition("/")[2])
        wheel.write_bytes(content)
        subprocess.run([python, wheel / "pip", "install", "--quiet", "--no-index", wheel], check=True)


def main(folder):
    if sys.version_info < (3, 11):
        sys.exit(f"pdla needs Python 3.11 or newer, this is {sys.version.split()[0]}: choose another, make PYTHON=...")
    with_pip = importlib.util.find_spec("ensurepip") is not None
    venv.create(folder, symlinks=True, with_pip=with_pip)
    if not with_pip:
        index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple")
        try:
            install_pip(Path(folder, "bin", "python"), index)
        except (OSError, ValueError) as error:
            sys.exit(f"no pip in {folder}: this Python has no ensurepip and {index} gave none ({error}); "
                     "install your system's venv package (Debian: apt install python3-venv)")


main(sys.argv[1])
