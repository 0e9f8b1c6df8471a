"""`python -m pdla.bench predict`: transformers, products, what is left out, and what is refused."""

import csv
import json

import pytest
from helpers.commands import command, on_a_screen

from pdla.bench.commands import predict, scale
from pdla.bench.screen import Screen
from pdla.bench.table import Table
from pdla.matmul.search.products import Product
from pdla.model.machine import Machine

OPTIONS = ["--hidden", "64", "--heads", "8", "--sequence", "8", "--batch", "16", "--layers", "2"]


# ---------------------------------------------------------------------------------------------- the search


def test_one_rank_is_no_ranks(capsys):
    for words, module in ((("-P", "1"), predict), (("--to", "1"), scale)):
        _, out, _ = command(capsys, *words, "--product", "8x8x8", module=module)
        assert "on 1 rank\n" in out


# ---------------------------------------------------------------------------------------------- the command


def test_transformers(capsys, tmp_path):
    files = ["--csv", str(tmp_path / "out.csv"), "--json", str(tmp_path / "out.json")]
    large = ["--hidden", "2048", "--heads", "8", "--sequence", "256", "--batch", "16", "--layers", "2"]
    status, out, _ = command(capsys, "-P", "4", *large, "--machine", "a100x4", "--best", "3", *files)
    assert status == 0 and out.startswith("2 layers of 2048 features, 8 heads, 16 sequences of 256")
    content = json.loads((tmp_path / "out.json").read_text())
    assert (content["command"], content["ranks"], content["problem"]["kind"]) == ("predict", 4, "transformer")
    assert Machine(**content["machine"]) == Machine.load("a100x4")
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["choice"] for row in rows] == [row["choice"] for row in content["rows"]] and len(rows) == 3
    assert all(row["choice"] in out for row in rows) and all(row["ranks_used"] == "4" for row in rows)


def test_products(capsys, tmp_path):
    path = tmp_path / "out.json"
    status, out, _ = command(capsys, "-P", "8", "--product", "640x320x160", "--dtype", "complex64", "--json", str(path))
    (first, *_) = json.loads(path.read_text())["rows"]
    assert status == 0 and out.startswith("C = A B, m n k = 640 320 160, complex64, on 8 ranks") and first["choice"] in out
    bound = Product(640, 320, 160, "complex64").lower_bound(first["ranks_used"])
    assert first["multiple_of_bound"] == pytest.approx(first["bytes_received"] / bound)


def test_what_needs_more_memory_is_left_out(capsys, tmp_path):
    """4 ranks, 64 features: all parameters, 4 times, in 32 bits, and what is kept of 128 tokens."""
    path = tmp_path / "out.json"
    command(capsys, "-P", "4", *OPTIONS, "--best", "1000", "--json", str(path))
    sizes = sorted(row["bytes_needed"] for row in json.loads(path.read_text())["rows"])
    assert sizes[0] < sizes[-1]
    _, out, _ = command(capsys, "-P", "4", *OPTIONS, "--memory", str(sizes[1] / 1e9), "--best", "1000", "--json", str(path))
    assert all(row["bytes_needed"] <= sizes[1] for row in json.loads(path.read_text())["rows"]) and "more memory" in out
    status, _, err = command(capsys, "-P", "4", *OPTIONS, "--memory", "1e-6")
    assert status == 2 and "need more memory" in err and "at least" in err


def test_idle_ranks_are_told(capsys):
    few = ["--hidden", "4", "--heads", "2", "--sequence", "4", "--batch", "3"]
    _, out, _ = command(capsys, "-P", "23", *few, "--best", "100")
    assert out.splitlines()[3].endswith(", 22 idle")  # so little is fastest on one rank
    assert ", 5 idle" in out
    _, out, _ = command(capsys, "-P", "24", *few, "--best", "100")
    assert ", 6 idle" not in out and " 23 idle" in out


@pytest.mark.parametrize(
    ("words", "quoted"),
    [
        (["--product", "4x4"], "'4x4'"),
        (["--product", "4x0x4"], "'4x0x4'"),
        (["--product", "4x4x4", "--heads", "2"], "--heads"),
        (["--dtype", "complex64"], "float32 or float64"),
        (["--hidden", "10", "--heads", "3"], "equal heads"),
        (["--memory", "none"], "'none'"),
        (["--memory", "-1"], "-1"),
        (["--machine", "nowhere"], "a100x4"),
        (["--machine", ""], "no machine ''"),
        ([*OPTIONS, "--json", "/nowhere/out.json"], "/nowhere/out.json"),
    ],
)
def test_refusals_quote_what_was_given(capsys, words, quoted):
    status, out, err = command(capsys, "-P", "4", *words)
    assert (status, out) == (2, "") and quoted in err


@pytest.mark.parametrize("ranks", [1, 5, 12, 64])
def test_no_product_is_below_the_bound_of_the_ranks_that_it_uses(capsys, tmp_path, ranks):
    """Tesseract with B in every layer would be: 0.88 on 12 ranks seemed to be a mistake."""
    path = tmp_path / "out.json"
    command(capsys, "-P", str(ranks), "--product", "1000x2000x300", "--machine", "a100x4", "--json", str(path))
    rows = json.loads(path.read_text())["rows"]
    assert rows and all(row["multiple_of_bound"] is None or row["multiple_of_bound"] >= 0.99 for row in rows)
    assert [row["multiple_of_bound"] is None for row in rows] == [row["ranks_used"] == 1 for row in rows]


def test_columns_stay_apart_whatever_the_figures(capsys):
    row = {"choice": "summa", "ranks_used": 4, "seconds": 1.0, "computing": 1.0, "bytes_received": 10**30, "messages": 10**20}
    row |= {"multiple_of_bound": 1e12, "bytes_of_matrices": 10**30, "bytes_of_workspace": 10**30}
    row |= {"bytes_needed": 10**30}
    with on_a_screen():
        Table(Screen(), predict._columns("product"), wide=True).add(predict._cells(row, "product", 4))
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split() == ["1", "100%", "1e+21", f"{10**20}", f"{10**12}.00", *3 * ["1e+21"], "summa"]
