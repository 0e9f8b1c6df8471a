"""HDF5 datasets with elements in other files: HDF5 silently reads fill values if such a file is missing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any


def check_sources(x: Any) -> None:
    """ValueError if elements of a dataset are in a missing file or dataset, or in a raw file that is too short."""
    if x.is_virtual:
        for names in sorted({(source.file_name, source.dset_name) for source in x.virtual_sources()}):
            _check_virtual(x, *(re.sub("%([%b])", lambda found: found[1].replace("b", "0"), name) for name in names))
    left = x.size * x.id.get_type().get_size() if x.external else 0  # bytes
    for file, offset, size in x.external or ():
        needed, left = offset + min(size, left), max(0, left - size)
        if (raw := _raw(x, file)).exists() and raw.stat().st_size < needed:
            raise ValueError(f"dataset {x.name!r}: truncated: {raw} has {raw.stat().st_size} bytes of the {needed} that it takes")


def _check_virtual(x: Any, file: str, name: str) -> None:
    import h5py

    found = next((place for place in _places(x, file) if place.exists()), None)
    if file != "." and found is None:
        raise ValueError(f"dataset {x.name!r} is virtual, and needs the file {file}, which is missing")
    with nullcontext(x.file) if file == "." else h5py.File(found, "r") as opened:
        if name not in opened:
            raise ValueError(f"dataset {x.name!r} is virtual, and needs the dataset {name!r} of {file}, which is missing")
        if isinstance(opened[name], h5py.Dataset):
            check_sources(opened[name])


def _places(x: Any, file: str) -> Iterator[Path]:
    """Yield the places at which HDF5 looks for the source of a virtual dataset, in order (H5F_prefix_open_file)."""
    home = Path(x.file.filename).absolute().parent
    yield from [Path(file)] if os.path.isabs(file) else []
    name = os.path.basename(file) if os.path.isabs(file) else file
    for prefix in filter(None, os.environ.get("HDF5_VDS_PREFIX", "").split(":")):
        yield Path(prefix.replace("${ORIGIN}", str(home))) / name
    yield from (home / name, Path(name), Path(x.file.filename).resolve().parent / name)


def _raw(x: Any, file: str) -> Path:
    """The raw file of this name: relative to HDF5_EXTFILE_PREFIX, else to the current folder."""
    home = str(Path(x.file.filename).absolute().parent)
    return Path(os.environ.get("HDF5_EXTFILE_PREFIX", "").replace("${ORIGIN}", home)) / file
