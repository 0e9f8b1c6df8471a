"""Files that results are left in."""

from pathlib import Path

from helpers.commands import SIZES, run


def test_a_json_that_cannot_be_written(capsys, tmp_path):
    """Told before the work where there is no folder, or no file in it; after it where the disk says no."""
    for path in (tmp_path / "none" / "out.json", tmp_path, Path("/dev/full")):
        status, out, err = run(capsys, "gemm", *SIZES, "--threads", "2", "--json", str(path))
        assert (status, err.count("\n"), "GFLOP/s" in out) == (2, 1, path == Path("/dev/full"))
        assert str(path) in err
