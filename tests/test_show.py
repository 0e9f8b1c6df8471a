"""Pictures: well-formed, of what is asked of layouts, local, and legible; and long arrays in short."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

import pdla
from pdla import Balanced, Cuts, Cyclic, Layout, nn, show
from pdla.errors import LayoutError
from pdla.indices import IndexSet

SVG = "{http://www.w3.org/2000/svg}"
TITLE = re.compile(r"rows? (\d+)(?: to (\d+))?, columns? (\d+)(?: to (\d+))?: ranks? ([\d+ ]+)")
PLACES = {"row": 2, "col": 3, "depth": 2}
LAYOUTS = [
    Layout("row", "col"), Layout(), Layout("row"), Layout(("depth", "row"), "col"), Layout(Cyclic("row", 1), Cyclic("col", 2, 1)),
    Layout(Cuts("row", (0, 1, 14)), Balanced("col", 4)), Layout((Cyclic("row", 4), Cyclic("depth", 2))),
    Layout("row", partial="col"), Layout(("row", Cyclic("depth", 3)), Cyclic("col", 5)),
]  # fmt: skip


def parsed(html):
    return ET.fromstring(f"<div>{html}</div>")


def areas(svg):
    """How many elements each rank has in a picture."""
    found = {}
    for title in parsed(svg).iter(f"{SVG}title"):
        if at := TITLE.fullmatch(title.text):
            rows, cols = (int(hi or lo) - int(lo) + 1 for lo, hi in (at.group(1, 2), at.group(3, 4)))
            for rank in map(int, re.split(r"[ +]", at[5])):
                found[rank] = found.get(rank, 0) + rows * cols
    return found


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
@pytest.mark.parametrize("shape", [(14, 12), (14, 97), (14, 0), (14, 1)])
def test_each_rank_has_in_the_picture_what_it_holds(layout, shape):
    """On a grid of other than the usual order, too: ranks are asked of the grid."""
    if shape[1] == 97 and any(isinstance(cut, Cyclic) for cut in layout.cols):
        shape = (14, 40)  # so that all blocks are drawn

    def program(comm, order):
        grid = pdla.ProcessGrid((2, 3, 2), comm=comm, order=order)
        rows, cols = layout.local_shape(shape, grid.sizes, grid.coords)
        return rows * cols, layout.draw(shape, grid)

    for order in (None, "F"):
        found = pdla.run(12, program, order)
        held = {rank: size for rank, (size, _) in enumerate(found) if size}
        assert areas(found[0][1].svg) == held
        if order is None:
            assert areas(layout.draw(shape, PLACES).svg) == held


def test_a_picture_in_characters():
    assert str(Layout("row", Cyclic("col", 1)).draw((3, 4), {"row": 2, "col": 2})).split() == list("010101012323")
    assert repr(Layout("row", partial="col").draw((2, 1), {"row": 2, "col": 2})) == "0+1\n2+3"
    assert repr(Layout("row").draw((20, 30), {"row": 2, "col": 9})) == "          30\n10   0 ... 8\n10  9 ... 17"


@pytest.mark.parametrize("layout", [Layout(Cyclic("row", 1)), Layout((Cyclic("row", 4), Cyclic("depth", 2)))], ids=repr)
def test_of_many_blocks_the_first_are_drawn(layout):
    """2^40 of them would not fit any memory."""
    drawn = layout.draw((2**40, 3), PLACES)
    assert drawn.svg.count(": ranks ") == 24 * 3 and drawn.text.endswith("at the top left of 1099511627776 x 3)")
    first = areas(layout.draw((24 * max(1, layout.rows[-1].block), 3), PLACES).svg)
    assert areas(drawn.svg) == first


def test_too_many_blocks_that_do_not_only_alternate():
    layout = Layout(("row", Cyclic("col", 1)))
    with pytest.raises(LayoutError, match="cuts 1000000 indices into 1000000 blocks: too many to draw"):
        layout.draw((10**6, 3), PLACES)

    def program(comm):
        return pdla.zeros((10**6, 3), pdla.ProcessGrid((2, 3), comm=comm), layout)._repr_html_()

    html = pdla.dry_run(6, program)[0]
    assert "1000000 x 3" in html and "<svg" not in html
    with pytest.raises(LayoutError, match="names the axis 'row'; the grid has col"):
        layout.draw((4, 4), {"col": 2})


def test_a_file_is_an_svg(tmp_path):
    Layout("row").draw((3, 3), PLACES).save(tmp_path / "x.svg")
    root = ET.parse(tmp_path / "x.svg").getroot()
    assert root.tag == f"{SVG}svg" and root[0].tag == f"{SVG}style" and len(root.findall(f"{SVG}rect")) == 9


@pytest.mark.parametrize("layout", [*LAYOUTS, Layout(Cyclic("row", 64, 2), Balanced(("col", "depth"), 3))], ids=repr)
def test_a_layout_alone_is_drawn_on_a_grid_that_fits_it(layout):
    html = layout._repr_html_()
    assert parsed(html).findtext(".//code").startswith(repr(layout)) and areas(html)


# ---------------------------------------------------------------------------------------------- of the rest


def everything(comm):
    """What a notebook shows on this rank, by name; what was sent meanwhile; and the plan."""
    grid, tall = pdla.ProcessGrid((2, 2), comm=comm), pdla.ProcessGrid(3, comm=comm)
    A = pdla.ones((6, 8), grid, Layout("row", "col"))
    B = pdla.ones((8, 100), grid, Layout(Cyclic("row", 1), Cyclic("col", 1)))
    idle, square = pdla.ones((3, 3), tall, Layout("row")), 4 * pdla.eye(8, grid, Layout("row", "col"))
    scheme = nn.Megatron1D(pdla.ProcessGrid(5, comm=comm))
    first, second = nn.Linear(scheme, 6, 10, units=(1, 2)), nn.Linear(scheme, 10, 6, kind="second", units=(2, 1))
    net = nn.Sequential(scheme, [first, nn.GeLU(scheme), second])
    plan, factors, own = pdla.plan_matmul(A, B), pdla.linalg.plan_cholesky(square), {}
    with pdla.record() as done, pdla.tagged("<phase>"):
        A @ B
    with pdla.record() as ledger:
        if comm.rank in (0, 4):  # a cell of a notebook may run on one rank alone
            own = {
                "grid": grid, "box": pdla.ProcessGrid.trust((1, 2, 2), comm, None), "A": A, "A.T": A.T, "part": A[:1, 3:],
                "idle": idle, "plan": plan, "plan_cholesky": factors, "ledger": done, "net": net,
                "linear": net.layers[0], "machine": pdla.Machine(), "a100x4": pdla.Machine.load("a100x4"),
            }  # fmt: skip
            own = {name: thing._repr_html_() for name, thing in own.items()}
    return own, len(ledger.events), plan.words


def test_pictures_are_well_formed_and_send_nothing():
    found = pdla.run(5, everything)
    for html, events, _ in found:
        assert events == 0
        for name, text in html.items():
            assert parsed(text).findtext(".//code"), name
    assert set(found[0][0]) == set(found[4][0]) and not found[1][0]


def test_pictures_of_a_dry_run_are_those_of_a_run():
    (wet, _, _), (dry, _, _) = pdla.run(5, everything)[0], pdla.dry_run(5, everything)[0]
    assert {name for name in wet if wet[name] != dry[name]} <= {"ledger"}


def test_what_pictures_show():
    html, _, words = pdla.run(5, everything)[0]
    assert areas(html["A"]) == {0: 12, 1: 12, 2: 12, 3: 12} and areas(html["A.T"]) == areas(html["A"])
    assert areas(html["part"]) == {0: 1, 1: 4} and areas(html["idle"]) == {0: 3, 1: 3, 2: 3}
    assert [areas(html[name]) for name in ("grid", "box")] == [dict.fromkeys(range(4), 1)] * 2
    assert "1 idle" in html["grid"] and "depth 1" in html["box"]
    assert f"{show.with_unit(8 * words, 'B')} for the product" in html["plan"] and html["plan"].count("<svg") == 3
    assert areas(html["plan_cholesky"]) and "cholesky of 8 x 8" in html["plan_cholesky"]
    assert "&lt;phase&gt;" in html["ledger"] and "100%" in html["ledger"]
    texts = [cell.text for cell in parsed(html["net"]).iter("td")]
    assert texts[texts.index("layers.2.weight") + 2 :][:3] == ["10 x 6", "rows=Balanced('row', unit=2)", "2 x 6"]
    assert "136 numbers in 4 parameters" in html["net"] and "whole on every rank" in html["net"]
    assert "19.5 Tflop/s" in html["a100x4"] and "20 µs" in html["machine"]


def test_this_rank_has_a_frame():
    """An idle rank has none."""
    html = pdla.run(5, everything)
    boxes = [parsed(html[rank][0]["grid"]).iter(f"{SVG}rect") for rank in (0, 4)]
    assert [[box.get("x") for box in found if box.get("fill") == "none"] for found in boxes] == [["2"], []]


def test_text_is_legible_on_light_and_on_dark_pages():
    """It has the page's own colour, or is dark on a pale ground."""
    for name, html in pdla.run(5, everything)[0][0].items():
        for text in parsed(html).iter(f"{SVG}text"):
            assert text.get("fill") == show.DARK, name
        assert not re.search(r"[^-]color:", html), name
    for colour in (*show.COLOURS, show.COMING):
        assert min(int(colour[i : i + 2], 16) for i in (1, 3, 5)) > 90, colour


# ---------------------------------------------------------------------------------------------- in short


@pytest.mark.parametrize("runs", [[(0, 10)], [(i, i + 1) for i in range(0, 96, 2)], [(i, i + 2) for i in range(20, 300, 3)], []])
def test_densities_cover_what_is_held(runs):
    starts, stops = (np.array([run[i] for run in runs], np.int64) for i in (0, 1))
    spans = show.densities(starts, stops, 320)
    covered = sum((span.stop - span.start) * span.key for span in spans)
    assert len(spans) <= 32 and covered == pytest.approx((stops - starts).sum(), 0.01)


def test_long_arrays_are_printed_in_short():
    assert show.abbreviate(np.arange(8)) == "[0, 1, 2, 3, 4, 5, 6, 7]" and show.abbreviate(range(9)) == "[0, 1, 2, ..., 6, 7, 8]"
    held = Layout(Cyclic("row", 1)).indices((1000, 1), {"row": 2}, {"row": 1})[0]
    assert repr(held) == "IndexSet(starts=[1, 3, 5, ..., 995, 997, 999], stops=[2, 4, 6, ..., 996, 998, 1000])"
    assert repr(IndexSet.interval(2, 5)) == "IndexSet(starts=[2], stops=[5])"
    one, other = Cuts("row", range(600)), Cuts("row", [*range(300), *range(299, 599), 599])
    assert repr(one).startswith("Cuts('row', (0, 1, 2, ..., 597, 598, 599), digest ") and len({repr(one), repr(other)}) == 2


def test_factors_are_printed_in_short():
    def program(comm):
        A = pdla.random((600, 600), pdla.ProcessGrid((2, 2), comm=comm), Layout("row", "col"), seed=1)
        return repr(pdla.linalg.lu_factor(A)), repr(pdla.linalg.lu(A))

    factors, parts = pdla.run(4, program)[0]
    assert re.fullmatch(r"LUFactors\(LU=DistMatrix\(600 x 600, .*\), pivots=\[(\d+, ){3}\.\.\., \d+, \d+, 599\]\)", factors)
    assert re.fullmatch(r"PLU\(p=\[(\d+, ){3}\.\.\.(, \d+){3}\], L=DistMatrix.*, U=DistMatrix.*\)", parts)


@pytest.mark.parametrize("thing", [
    Layout("row", Cyclic("col", 4)), Layout((Cyclic("row", 4, 1), "depth"), Cuts("col", (0, 3, 5)), "m"),
    Layout(Balanced("row", 3)), Cyclic("row", 4, first=3), Balanced(("row", "col"), 2), pdla.Machine(),
    replace(pdla.Machine.load("h200x8"), flops=1 / 3 * 1e13, reached=((10, 0.5),)),
    pdla.Machine.load("h200x8"),
], ids=lambda thing: type(thing).__name__)  # fmt: skip
def test_a_value_prints_as_it_is_written(thing):
    assert eval(repr(thing), vars(pdla)) == thing
    assert "source=0" not in repr(thing)


@pytest.mark.parametrize(("value", "unit", "text"), [
    (1440000, "B", "1.44 MB"), (1e9, "B/s", "1 GB/s"), (999, "B", "999 B"), (0, "B", "0 B"), (2e-5, "s", "20 µs"),
    (1e-12, "s", "0.001 ns"), (0.5, "", "0.5"), (4, "ranks", "4 ranks"), (1000, "flop", "1 kflop"),
])  # fmt: skip
def test_units(value, unit, text):
    assert show.with_unit(value, unit) == text
