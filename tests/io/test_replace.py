"""A file that is saved to: it is replaced whole or stays as it was, whoever has it, links to it or changes it meanwhile."""

import fcntl
import os

import numpy as np
import pytest
from helpers.files import (
    ENDINGS,
    numbers,
    read,
    same,
    save_error,
    saved,
    write,
)

import pdla


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "far").mkdir()
    link, x = tmp_path / "x.npy", numbers((4, 5))
    link.symlink_to(tmp_path / "far" / "y.npy")
    saved(2, link, x)
    assert link.is_symlink() and same(np.load(tmp_path / "far" / "y.npy"), x)


@pytest.mark.parametrize("ending", ENDINGS)
def test_permissions_stay(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    for mode in (0o600, 0o640):
        write(path, np.eye(3))
        path.chmod(mode)
        saved(2, path, numbers((4, 5)))
        assert path.stat().st_mode & 0o777 == mode
        path.unlink()


@pytest.mark.parametrize("ending", ENDINGS)
def test_links_in_a_circle(tmp_path, ending):
    (tmp_path / f"x{ending}").symlink_to(tmp_path / "y")
    (tmp_path / "y").symlink_to(tmp_path / f"x{ending}")
    save_error(tmp_path / f"x{ending}")
    assert sorted(os.listdir(tmp_path)) == sorted([f"x{ending}", "y"])


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_name_too_long(tmp_path, ending):
    assert "name too long" in save_error(tmp_path / f"{'x' * (254 - len(ending))}{ending}").lower()


@pytest.mark.parametrize("check", (True, False))
@pytest.mark.parametrize(("ending", "room"), [(".npy", 0), (".h5", 0), (".h5", 100_000)])
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, ending, room, check):
    """HDF5 is never the one to find it full, by which it takes the process down: not at its headers, and not at the elements."""
    path, old = tmp_path / f"x{ending}", numbers((3, 3))
    write(path, old)

    def full(file, first, size):
        if first + size > room:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pdla.config.override(check=check):
        assert save_error(path, x=numbers((200, 100))) == f"rank 0: {path}: No space left on device"
    assert same(read(path), old) and os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_failure_at_the_end_leaves_the_old_file(tmp_path, monkeypatch, ending):
    path, old = tmp_path / f"x{ending}", numbers((3, 3))
    write(path, old)

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refused)
    assert save_error(path) == f"rank 0: {path}: Permission denied"
    assert same(read(path), old) and os.listdir(tmp_path) == [path.name]


def test_a_failure_on_one_writer_leaves_the_old_file(tmp_path, monkeypatch):
    path, old, true_put = tmp_path / "x.npy", numbers((3, 3)), pdla.array.numpy.put
    np.save(path, old)

    def put(x, rows, cols, source):
        if pdla.world().rank == 2:
            raise OSError(5, "Input/output error")
        true_put(x, rows, cols, source)

    monkeypatch.setattr(pdla.array.numpy, "put", put)
    assert save_error(path) == f"rank 2: {path}: Input/output error"
    assert same(np.load(path), old) and os.listdir(tmp_path) == ["x.npy"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_that_another_has_locked_to_write_to(tmp_path, ending):
    path, x = tmp_path / f"x{ending}", numbers((5, 4))
    write(path, x)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "open for writing elsewhere" in save_error(path)
        fcntl.flock(file, fcntl.LOCK_SH)
        saved(2, path, 2 * x)
    assert same(read(path), 2 * x)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_system_without_locks_is_written_to(tmp_path, monkeypatch, ending):
    path, x = tmp_path / f"x{ending}", numbers((5, 4))
    write(path, x)

    def flock(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    saved(2, path, 2 * x)
    assert same(read(path), 2 * x)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_that_another_replaces_while_it_is_saved_to(tmp_path, monkeypatch, ending, there):
    """As another save does, into another dataset of the same file."""
    path, new, x = tmp_path / f"x{ending}", tmp_path / f"new{ending}", numbers((5, 4))
    write(new, x)
    if there:
        write(path, 3 * x)
    form = pdla.io.find_format(path)[1]
    true_save = form.save

    def save(*rest):
        true_save(*rest)
        if pdla.world().rank == 0:
            os.replace(new, path)

    monkeypatch.setattr(form, "save", save)
    assert save_error(path) == f"rank 0: {path}: written to, or replaced, while it was saved to: save again"
    assert same(read(path), x) and os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("ending", ENDINGS)
def test_hard_links_are_not_broken(tmp_path, ending):
    path, x = tmp_path / f"x{ending}", numbers((5, 4))
    write(path, x)
    os.link(path, tmp_path / "other")
    assert f"{path}: it has 2 names (hard links), of which a save would change one" in save_error(path)
    assert same(read(path), x) and path.samefile(tmp_path / "other")
    (tmp_path / "other").unlink()
    saved(2, path, 2 * x)
    assert same(read(path), 2 * x)
