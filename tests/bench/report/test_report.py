"""`python -m pdla.bench report`: what is read, refused, printed and drawn."""

import json
import sys
from pathlib import Path

import pytest
from helpers import results
from helpers.commands import on_a_screen
from helpers.results import SECONDS

from pdla.bench.arguments import Parser
from pdla.bench.commands import report
from pdla.bench.measure.case import Case
from pdla.bench.measure.product import predict
from pdla.bench.report import plots
from pdla.bench.stop import Stop
from pdla.model.machine import Machine


def run(*words):
    parser = Parser("report")
    parser.set_defaults(wide=False)
    report.add(parser)
    return report.run(parser.parse_args(words))


def test_a_machine_foretells_a_row():
    row = predict(Case(64, 64, 64, algorithm="summa", grid=(2, 2)), 4, Machine())
    assert row.seconds == () and row.split is None
    assert row.predicted.seconds > row.predicted.computing == pytest.approx(2 * Machine().gemm(32, 32, 32, "float64"))


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("{", "Expecting"),
        ("[" * 9**5, "recursion"),
        ("[]", "no schema"),
        ('{"command": "scale", "rows": []}', "a result of 'scale'; a report is made of files of schema 2, as"),
        ('{"schema": 1}', "schema 1"),
        ('{"schema": 2, "rows": [{}]}', "lacks"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, text, quoted):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(Stop, match=quoted) as stopped:
        run(str(path))
    assert "other.json" in str(stopped.value) and "\n" not in str(stopped.value)


def test_without_options_the_table_is_printed(files, capsys):
    with on_a_screen():
        assert run(*files, "--wide") == 0
    out = capsys.readouterr().out
    for word in ("gather", "50%/30%/20%", "predicted ms"):
        assert word in out
    ends = [out.index(words) for words in ("1x1.json; 1 rank", "1x2.json; 2 ranks", "2x2.json; 4 ranks")]
    assert ends[0] < out.index(" 1x2 ") < ends[1] < out.index(" 2x2 ") < ends[2]  # each file's rows above what is said of it


@pytest.mark.parametrize("lost", ["ranks", "machine", "versions", "rows", "peak_flops_per_second"])
def test_a_file_that_lacks_something_is_one_line(files, tmp_path, lost):
    found = json.loads(Path(files[0]).read_text())
    del found[lost]
    (tmp_path / "less.json").write_text(json.dumps(found))
    with pytest.raises(Stop, match=f"less.json: .*{lost}"):
        run(str(tmp_path / "less.json"))


@pytest.mark.parametrize(
    ("place", "value", "quoted"),
    [
        ("ranks", "four", r"ranks is 'four'"),
        ("machine", {}, r"lacks 'hosts'"),
        ("arguments", [3], r"arguments\[0\] is 3"),
        ("rows.0.m", None, r"rows\[0\].m is None"),
        ("rows.0.seconds", [0.5, 0.0], r"rows\[0\].seconds\[1\] is 0.0"),
        ("rows.0.seconds", [1e308, 1e308], r"rows\[0\].seconds\[0\] is 1e\+308, neither 0 nor of a magnitude from 1e-50 to 1e\+50"),
        ("rows.0.seconds", [float("nan")], r"rows\[0\].seconds\[0\] is nan"),
        ("rows.0.split.waiting", float("-inf"), r"rows\[0\].split.waiting is -inf"),
        ("rows.0.m", 10**400, r"rows\[0\].m is 10{59}, neither"),
        ("rows.0.bytes_received", 10**400, r"rows\[0\].bytes_received is 10{59}, neither"),
        ("ranks", 10**400, r"ranks is 10{59}, neither"),
        ("rows.0.transa", "X", r"rows\[0\].transa is 'X'"),
        ("rows.0.panel", True, r"rows\[0\].panel is True"),
        ("rows.0.dtype", "float63", r"a row lacks or has .*float63"),
        ("rows.0.split.timeline.spans.0.0", "rank 0", r"spans\[0\]\[0\] is 'rank 0'"),
    ],
)
def test_a_file_in_which_something_was_changed_is_one_line(files, tmp_path, place, value, quoted):
    inner = found = json.loads(Path(files[1]).read_text())
    *way, last = (int(word) if word.isdecimal() else word for word in place.split("."))
    for step in way:
        inner = inner[step]
    inner[last] = value
    (tmp_path / "changed.json").write_text(json.dumps(found))
    with pytest.raises(Stop, match=rf"changed.json: .*{quoted}"):
        run(str(tmp_path / "changed.json"))


def test_a_machine_of_another_version_is_one_line(files, tmp_path):
    found = json.loads(Path(files[1]).read_text())
    found["predicted_on"]["warp"] = 1.0
    (tmp_path / "later.json").write_text(json.dumps(found))
    with pytest.raises(Stop, match=r"later.json: predicted_on is no machine of this version: .*warp"):
        run(str(tmp_path / "later.json"))


@pytest.mark.parametrize("form", ["svg", "png"])
def test_plots_are_written(files, tmp_path, capsys, form):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "plots"
    assert run(*files, "--plots", str(folder), "--format", form) == 0
    assert {path.name for path in folder.iterdir()} == {f"{name}.{form}" for name in ("split", "roofline", "scaling", "volume")}
    assert capsys.readouterr().out.count("written: ") == 4


def test_what_has_no_figure_is_told(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    file = results.written(tmp_path / "one.json", (1, 1), SECONDS)
    assert run(file, "--plots", str(tmp_path)) == 0
    out = capsys.readouterr().out
    assert "left out: scaling, which needs one product on two or more numbers of ranks" in out
    assert "left out: volume" in out and "left out: roofline" in out


def test_without_matplotlib_one_line_names_the_command(files, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    with pytest.raises(Stop, match=r"pip install 'pdla\[plot\]'"):
        run(*files, "--plots", str(tmp_path))


def test_without_jsonschema_one_line_names_the_extra(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(Stop, match=r"needs jsonschema: pip install 'pdla\[bench\]'"):
        run(*files)


def test_what_cannot_be_written_is_one_line(files, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    with pytest.raises(Stop, match="--plots"):
        run(*files, "--plots", str(tmp_path / "file" / "here"))
