"""Scaling: which ranks, what grows, efficiency where it is known, where schemes end, and what is left in files."""

import json
import sys

import pytest
from helpers.commands import command
from helpers.machines import FREE

from pdla.bench.commands import scale
from pdla.model.machine import Machine
from pdla.simulate.networks import SCHEMES

LARGE = ["--hidden", "16", "--heads", "4", "--sequence", "4", "--batch", "4", "--layers", "1"]
LINKED = Machine(flops=1e9, call=0.0, memory=1e30, bandwidth=1e7, latency=0.0, far_latency=0.0)


@pytest.fixture
def written(capsys, tmp_path):
    """Runs the command on a machine; gives what it printed and its rows."""

    def run(machine, *words):
        (tmp_path / "here.toml").write_text(machine.text())
        files = ["--machine", str(tmp_path / "here.toml"), "--json", str(tmp_path / "out.json")]
        status, out, err = command(capsys, *files, *words, module=scale)
        assert status == 0, err
        return out, json.loads((tmp_path / "out.json").read_text())["rows"]

    return run


@pytest.mark.parametrize(
    ("words", "counts"),
    [
        (["--from", "1", "--to", "16"], [1, 4, 16]),
        (["--from", "2", "--to", "9", "--factor", "2"], [2, 4, 8, 9]),
        (["--from", "5", "--to", "5"], [5]),
    ],
)
def test_numbers_of_ranks(written, words, counts):
    _, rows = written(FREE, *words, "--product", "8x8x8")
    assert [row["ranks"] for row in rows] == counts


def test_without_a_network_products_scale_perfectly(written):
    """2 x 16 x 16 x 16 flops at 1e9 a second."""
    _, rows = written(FREE, "--to", "16", "--product", "16x16x16")
    assert [row["best"]["seconds"] for row in rows] == pytest.approx([2 * 16**3 / 1e9 / ranks for ranks in (1, 4, 16)])
    assert [row["best"]["efficiency"] for row in rows] == pytest.approx([1, 1, 1])
    _, rows = written(FREE, "--to", "64", "--factor", "8", "--product", "16x16x16", "--weak")
    assert [row["best"]["seconds"] for row in rows] == pytest.approx(3 * [2 * 16**3 / 1e9])
    assert [row["problem"]["k"] for row in rows] == [16, 32, 64]
    assert [row["best"]["efficiency"] for row in rows] == pytest.approx([1, 1, 1])


def test_each_scheme_goes_on_with_the_ranks_that_it_can_use(written):
    """4 sequences and 4 heads are Megatron's 16 ranks; Tensor3D cuts features, too."""
    _, rows = written(FREE, *LARGE, "--to", "256")
    used = {name: [row["schemes"][name]["ranks_used"] for row in rows] for name in ("Megatron1D", "Tensor3D")}
    assert used["Megatron1D"] == [1, 4, 16, 16, 16] and used["Tensor3D"] == [1, 4, 16, 64, 256]
    assert all(row["best"]["seconds"] == min(way["seconds"] for way in row["schemes"].values() if way) for row in rows)


def test_more_ranks_than_pay_stay_idle(written):
    """By 10 megabytes a second a layer takes longer on 4 ranks than on one; and so it does on more."""
    out, rows = written(LINKED, *LARGE, "--to", "16")
    assert [row["best"]["ranks_used"] for row in rows] == [1, 1, 1] and ", 15 idle" in out
    assert len({row["best"]["seconds"] for row in rows}) == 1


def test_ranks_that_cannot_be_used_are_told(written):
    few = ["--hidden", "4", "--heads", "2", "--sequence", "4", "--batch", "3", "--layers", "1"]
    out, rows = written(FREE, *few, "--from", "23", "--to", "23")
    assert ", 5 idle" in out and rows[0]["best"]["ranks_used"] == 18
    assert max(way["ranks_used"] for way in rows[0]["schemes"].values() if way) == 18


def test_memory(written):
    _, rows = written(FREE, *LARGE, "--to", "4")
    most = rows[0]["best"]["bytes_needed"] - 1
    out, rows = written(FREE, *LARGE, "--to", "4", "--memory", str(most / 1e9))
    assert rows[0]["best"] is None and "none that fits" in out
    assert rows[1]["best"]["bytes_needed"] <= most and rows[1]["best"]["efficiency"] == 1


def test_plots(capsys, tmp_path, written, monkeypatch):
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.svg"
    small = ["--hidden", "4", "--heads", "2", "--sequence", "4", "--batch", "2", "--layers", "1"]
    written(FREE, *small, "--from", "4", "--to", "8", "--factor", "2", "--plot", str(path))
    first = path.read_text()
    assert first.startswith("<?xml") and first.count("<use") > 2 * len(SCHEMES)
    written(FREE, *small, "--from", "4", "--to", "8", "--factor", "2", "--plot", str(path))
    assert path.read_text() == first
    status, _, err = command(capsys, "--plot", str(tmp_path / "out.what"), module=scale)
    assert status == 2 and "out.what" in err
    status, _, err = command(capsys, "--plot", "", module=scale)
    assert status == 2 and "a file's ending" in err
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, _, err = command(capsys, "--plot", str(path), module=scale)
    assert status == 2 and "pip install 'pdla[plot]'" in err


def test_a_plot_of_nothing_has_no_legend_and_no_warning(tmp_path, written, recwarn):
    pytest.importorskip("matplotlib")
    written(FREE, "--product", "8x8x8", "--to", "4", "--memory", "1e-9", "--plot", str(tmp_path / "out.svg"))
    assert (tmp_path / "out.svg").exists() and not recwarn.list


@pytest.mark.parametrize(
    ("words", "quoted"),
    [
        (["--from", "8", "--to", "4"], "--from 8 --to 4"),
        (["--factor", "1"], "--factor 1"),
        (["--grow", "hidden"], "--weak"),
        (["--grow", "hidden", "--weak", "--product", "4x4x4"], "a transformer"),
        (["--grow", "depth"], "'depth'"),
        (["--product", "4x4"], "'4x4'"),
        (["--product", f"4x{2**62}x4", "--weak"], "m n k = 10 11620720580245084160 10, on 16 times the ranks"),
    ],
)
def test_refusals_quote_what_was_given(capsys, words, quoted):
    status, out, err = command(capsys, *words, module=scale)
    assert (status, out) == (2, "") and quoted in err
