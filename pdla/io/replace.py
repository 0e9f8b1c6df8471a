"""Replace an old file by a new one, unless other programs would lose what they write, or keep the old file."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO
from uuid import uuid4

from pdla.comm.agreement import collective_section
from pdla.comm.communicator import Communicator
from pdla.io.files import check_regular, share_errors

Version = tuple[int, int, int]


def version(path: Path) -> Version:
    """Numbers that differ between a file and its replacement, or the file after a write.

    The file is opened: only then NFS asks the server again.
    """
    check_regular(path)
    with path.open("rb") as file:
        return _version(file)


def _version(file: IO[bytes]) -> Version:
    found = os.fstat(file.fileno())
    return found.st_ino, found.st_size, found.st_mtime_ns


@contextmanager
def replace_file(comm: Communicator, path: Path) -> Iterator[Path]:
    """Collective: a with-block with the name of a new file, which replaces `path` at its end, or is removed after an error."""
    with ExitStack() as kept:
        with share_errors(comm, path):
            target = path.resolve()
            _check_replaceable(target)
            before = kept.enter_context(_lock(target)) if comm.rank == 0 else None
        part = target.with_name(f".{path.name}.{comm.share(uuid4().hex[:8])[0]}.part")
        try:
            with collective_section(comm, "save"):
                yield part
                with share_errors(comm, path):
                    if comm.rank == 0:
                        _replace(target, part, before)
        finally:
            if comm.rank == 0:
                with suppress(OSError):  # `part` may not exist: its name may be too long
                    part.unlink()


def _check_replaceable(target: Path) -> None:
    """ValueError for something other than a file, and for a file with other names: they would keep the old file."""
    check_regular(target)
    if target.exists() and (names := target.stat().st_nlink) > 1:
        raise ValueError(f"it has {names} names (hard links), of which a save would change one: remove it first, or give another")


@contextmanager
def _lock(target: Path) -> Iterator[Version | None]:
    """A with-block with a reader's lock on a file, if it exists, against writers' locks; yields its version.

    ValueError if a writer has locked it, as HDF5 does. File systems and programs without locks are
    not noticed.
    """
    try:
        file = target.open("rb")
    except OSError:  # it is not there, or may not be read
        yield None
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            where = "elsewhere, in this program or another"
            raise ValueError(f"open for writing {where}: close it there first, or give another name") from None
        except OSError:
            pass
        yield _version(file)


def _replace(target: Path, part: Path, before: Version | None) -> None:
    """Move the new file to its name, with the permissions of the old one; ValueError if the old one has changed."""
    found = None
    with suppress(OSError):
        found = version(target)
    if found != before:
        raise ValueError("written to, or replaced, while it was saved to: save again")
    if target.exists():
        shutil.copymode(target, part)
    os.replace(part, target)
