"""Comparing two results: what is slower, what moves more, what is noise; the results are written by the report itself."""

import json
from dataclasses import replace

import pytest
from helpers.commands import command

from pdla.bench.commands import compare
from pdla.bench.measure.case import Case
from pdla.bench.measure.product import Results, predict
from pdla.bench.report import content

FACTS = {
    "machine": {"hosts": 1, "processor": "one", "cores": 4},
    "mpi": None,
    "blas": [{"internal_api": "openblas", "version": "0.3", "num_threads": 1, "architecture": "Zen"}],
    "versions": {"pdla": "0.1", "commit": None, "python": "3.11", "numpy": "2.0", "scipy": "1.15"},
}
STEADY = (1.00e-3, 1.01e-3, 0.99e-3, 1.00e-3, 1.02e-3, 0.98e-3, 1.00e-3)


def row(seconds=STEADY, algorithm="summa", grid=(2, 2), **other):
    """A row as a run on 4 ranks leaves it."""
    foreseen = predict(Case(64, 48, 32, algorithm=algorithm, grid=grid), 4)
    return replace(foreseen, seconds=tuple(seconds), **{"checks": ("bound (NumPy)",), **other})


@pytest.fixture
def compared(capsys, tmp_path):
    """Status and output of a comparison of two lists of rows."""

    def run(old, new, *words, facts=FACTS, world="threads", ranks=4):
        paths = [str(tmp_path / name) for name in ("before.json", "after.json")]
        content.write(paths[0], content.report(FACTS, "threads", 4, [], Results(list(old)), {}))
        content.write(paths[1], content.report(facts, world, ranks, [], Results(list(new)), {}))
        status, out, err = command(capsys, *paths, *words, module=compare)
        return status, out + err

    return run


def scaled(factor):
    return [factor * second for second in STEADY]


def test_the_same_is_as_before(compared):
    status, out = compared([row(), row(algorithm="gather")], [row(), row(algorithm="gather")])
    assert status == 0 and "2 in both: 2 as before, 0 with more bytes" in out and "differs" not in out and "only in" not in out


@pytest.mark.parametrize(
    ("factor", "threshold", "verdict", "status"),
    [(1.2, "5%", "slower", 1), (1.2, "25%", "as before", 0), (0.8, "5%", "faster", 0), (1.03, "5%", "as before", 0)],
)
def test_ratios_and_the_threshold(compared, factor, threshold, verdict, status):
    found, out = compared([row()], [row(scaled(factor))], "--threshold", threshold)
    assert found == status and f"1 {verdict}" in out and f"{factor:.2f}" in out


def test_what_the_noise_hides_is_no_error(compared):
    """The medians differ by a fifth, the repeats of each by a factor of three."""
    old = [1.0, 0.5, 1.6, 1.0, 0.6, 1.5, 0.9]
    status, out = compared([row(old)], [row([1.2 * second for second in old])])
    assert status == 0 and "1 noise" in out


def test_the_spread_of_a_ratio():
    ratio = compare.bootstrap([1.0] * 5, [2.0] * 5)
    assert ratio == (2.0, 2.0, 2.0)
    ratio = compare.bootstrap([1.0, 2.0, 3.0], [4.0])
    assert ratio.value == 2.0 and (ratio.low, ratio.high) == pytest.approx((4 / 3, 4.0))
    assert compare.bootstrap([1.0, 2.0, 3.0], [4.0]) == ratio


def test_a_single_repeat_says_nothing_of_noise(compared):
    status, out = compared([row([1.0])], [row([2.0])])
    assert status == 0 and "1 noise" in out and "hardly known" in out


def test_more_bytes_are_an_error_fewer_are_not(compared):
    one = row()
    more = replace(one, bytes_received=one.bytes_received + 8)
    status, out = compared([one], [more])
    assert status == 1 and "+8 B" in out and "1 with more bytes" in out
    status, out = compared([more], [one])
    assert status == 0 and "-8 B" in out


def test_what_is_no_longer_right_is_an_error(compared):
    status, out = compared([row()], [row((), checks=("WRONG, bound (NumPy): off by 1",))])
    assert status == 1 and "1 WRONG" in out
    assert compared([row((), checks=("WRONG, bound (NumPy): off by 1",))], [row()])[0] == 0


def test_rows_of_one_file_only(compared):
    status, out = compared([row(), row(algorithm="gather")], [row(), row(grid=(1, 4))])
    assert status == 0 and "1 in both" in out
    assert "before.json: 64 x 48 x 32 float64, gather on 2x2" in out and "after.json: 64 x 48 x 32 float64, summa on 1x4" in out
    status, out = compared([row(algorithm="gather")], [row()])
    assert status == 2 and "in common" in out


def test_rows_of_the_same_name_meet_in_their_order(compared):
    status, out = compared([row(), row(scaled(2))], [row(), row(scaled(3))])
    assert status == 1 and "2 in both: 1 slower, 1 as before" in out and "summa on 2x2 (2)" in out


def test_what_else_differs_is_told(compared):
    facts = json.loads(json.dumps(FACTS))
    facts["machine"]["processor"], facts["blas"][0]["num_threads"], facts["versions"]["numpy"] = "two", 8, "2.1"
    _, out = compared([row()], [row()], facts=facts, ranks=8)
    for line in ("machine.processor: one before, two", "blas.0.num_threads: 1 before, 8", "versions.numpy: 2.0", "ranks: 4 before"):
        assert f"differs: {line}" in out


def test_a_dry_run_beside_a_measured_one(compared):
    dry = predict(Case(64, 48, 32, algorithm="summa", grid=(2, 2)), 4)
    status, out = compared([dry], [row()])
    assert status == 0 and "–" in out and "= " in out
    status, out = compared([replace(dry, bytes_received=1)], [row()], world="mpi")
    assert status == 1 and "differs: world: threads before, mpi after" in out


@pytest.mark.parametrize(
    ("text", "quoted"),
    [(None, "none.json"), ("no json", "it.json"), ("[" * 9**5, "it.json"), ("[]", "it.json"), ('{"rows": [{"m": 1}]}', "it.json")],
)
def test_files_that_are_no_results(capsys, tmp_path, text, quoted):
    path = tmp_path / quoted
    if text is not None:
        path.write_text(text)
    status, _, err = command(capsys, str(path), str(path), module=compare)
    assert status == 2 and quoted in err and "\n" not in err


@pytest.mark.parametrize(
    ("key", "value"),
    [("seconds", 3), ("seconds", [0.0]), ("seconds", ["fast"]), ("seconds", [1e308, 1e308]), ("bytes_received", 10**400),
     ("grid", None), ("bytes_received", "7"), ("m", [1])],
)
def test_rows_in_which_something_was_changed(capsys, tmp_path, key, value):
    found = content.report(FACTS, "threads", 4, [], Results([row()]), {})
    found["rows"][0][key] = value
    path = tmp_path / "it.json"
    path.write_text(json.dumps(found))
    status, _, err = command(capsys, str(path), str(path), module=compare)
    assert status == 2 and f"it.json: rows[0].{key}" in err and "\n" not in err


@pytest.mark.parametrize("threshold", ["5", "-1%", "some%", "0.05", "nan%"])
def test_thresholds_are_in_per_cent(capsys, threshold):
    status, _, err = command(capsys, "a.json", "b.json", f"--threshold={threshold}", module=compare)
    assert status == 2 and threshold in err
