"""Reports: what a result file holds, what is read back, the table and the plots."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from helpers import results
from rich.console import Console

from pdla.bench.arguments import Parser
from pdla.bench.commands import report
from pdla.bench.measure.case import Case
from pdla.bench.measure.product import predict
from pdla.bench.report import content, lines, page, plots
from pdla.bench.report.table import tables
from pdla.bench.stop import Stop
from pdla.model.machine import Machine

SECONDS = {"gather": (0.02, 0.01, 0.03), "summa": (0.005,), "3d": ()}


@pytest.fixture
def files(tmp_path):
    return [results.written(tmp_path / f"{p}x{q}.json", (p, q), SECONDS) for p, q in ((1, 1), (1, 2), (2, 2))]


def run(*words):
    parser = Parser("report")
    report.add(parser)
    return report.run(parser.parse_args(words))


def test_files_obey_the_schema(files):
    schema = json.loads(content.SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    for file in files:
        found = json.loads(Path(file).read_text())
        jsonschema.validate(found, schema)
    found["rows"][0]["split"]["timeline"]["spans"][0][0] = "rank 0"
    with pytest.raises(jsonschema.ValidationError, match="rank 0"):
        jsonschema.validate(found, schema)
    found["predicted_on"]["flops"] = "many"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, schema)


def test_rows_are_read_back(tmp_path):
    (made,) = results.rows((2, 2), {"cannon": (0.5, 0.25)})
    there_and_back = content.row(json.loads(json.dumps(content.entry(made))))
    assert there_and_back == replace(made, explained="")


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
    assert run(*files) == 0
    out = capsys.readouterr().out
    for word in ("gather", "50%/30%/20%", "predicted ms"):
        assert word in out
    ends = [out.index(words) for words in ("1x1.json; 1 rank", "1x2.json; 2 ranks", "2x2.json; 4 ranks")]
    assert ends[0] < out.index(" 1x2 ") < ends[1] < out.index(" 2x2 ") < ends[2]  # each file's rows above what is said of it


def test_splits_and_predictions_have_columns_where_there_are_any():
    (row,) = results.rows((1, 2), {"gather": (0.5,)})
    headings = [[column.header for column in tables([one])[0].columns] for one in (row, replace(row, predicted=None))]
    assert "predicted ms" in headings[0] and "predicted ms" not in headings[1]
    assert "comp/comm/wait" in headings[1]


@pytest.mark.parametrize("room", [40, 80, 120, 220])
def test_a_narrow_terminal_gets_all_columns_in_tables_that_fit(room):
    row = replace(predict(Case(30, 20, 25, transa="T", grid=(2, 2)), 4), checks=("exact (NumPy)", "bound (Freivalds)"))
    made, (whole,) = tables([row, row], room), tables([row, row], 1000)
    columns = [column.header for one in made for column in one.columns]
    for column in whole.columns:
        assert columns.count(column.header) == (len(made) if column.header in ("algorithm", "grid") else 1)
    assert len(made) == 1 or all(Console(width=1000).measure(one).maximum <= max(room, 60) for one in made)
    assert [one.title is None for one in made] == [False, *[True] * (len(made) - 1)]


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


def test_lines_of_one_product_stand_together(files):
    found = lines.lines(lines.read([*files, files[0]]))
    assert [line.label for line in found[:2]] == ["gather 1x1, 1x1.json", "summa 1x1, 1x1.json"]
    assert (found[0].seconds, found[2].seconds, found[0].ranks) == (0.02, None, 1)
    assert [line.product for line in found] == sorted(line.product for line in found)


def test_a_line_knows_its_roof(files):
    line = lines.lines(lines.read(files))[3]
    assert (line.ranks, line.peak, line.link) == (2, 1e9, 2 * Machine().bandwidth)
    assert line.intensity == 2 * 64 * 48 * 32 / 2 / line.received
    assert lines._rate(Machine(), "complex64") == pytest.approx(2 * Machine().flops, rel=1e-2)


# ---------------------------------------------------------------------------------------------- plots


@pytest.mark.parametrize("form", ["svg", "png"])
def test_plots_are_written(files, tmp_path, capsys, form):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "plots"
    assert run(*files, "--plots", str(folder), "--format", form) == 0
    assert {path.name for path in folder.iterdir()} == {f"{name}.{form}" for name in ("split", "roofline", "scaling", "volume")}
    assert capsys.readouterr().out.count("written: ") == 4


def test_figures_show_the_numbers(files):
    pytest.importorskip("matplotlib")
    made = lines.lines(lines.read(files))
    bars = plots.split(made).axes[0].patches
    assert sum(bar.get_width() for bar in bars[:3]) == pytest.approx(results.RUN.seconds)
    assert sum(bar.get_width() for bar in bars[3:6]) == pytest.approx(results.FORETOLD.seconds)
    volumes = [bar.get_width() for bar in plots.volume(made).axes[0].patches]
    assert volumes == [line.multiple for line in made if line.multiple is not None] and len(volumes) == 6
    curve = plots.scaling(made).axes[0].lines[0]
    assert [*zip(*curve.get_data(), strict=True)] == [(1, 0.02), (2, 0.02), (4, 0.02)]
    points = {tuple(map(float, one.get_xydata()[0])) for one in plots.roofline(made).axes[0].lines if len(one.get_xydata()) == 1}
    assert (made[3].intensity, made[3].flops / 0.02) in points


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


@pytest.mark.parametrize("option", ["--plots", "--html"])
def test_what_cannot_be_written_is_one_line(files, tmp_path, option):
    if option == "--plots":
        pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    with pytest.raises(Stop, match=option):
        run(*files, option, str(tmp_path / "file" / "here"))


def test_a_page_without_a_folder_is_told_before_the_work(tmp_path):
    with pytest.raises(Stop, match=r"--html .*: there is no folder"):
        run("none.json", "--html", str(tmp_path / "none" / "page.html"))


# ---------------------------------------------------------------------------------------------- the page's text


def test_data_cannot_end_their_script():
    text = page.safe({"name": "</script><!-- & \u2028"})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"name": "</script><!-- & \u2028"}


def test_the_page_needs_nothing_else(files):
    found = lines.read(files)
    text = page.page(found, lines.lines(found))
    assert text.count("<script") == text.count("</script>") == 2
    assert "/* data */" not in text and "/* page" not in text
    for word in ("http://", "https://", "src=", "@import", "url("):
        assert word not in text.replace("http://www.w3.org/2000/svg", "")
