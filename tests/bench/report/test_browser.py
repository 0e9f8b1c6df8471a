"""The page in headless Chromium: no errors, no requests; filters, sorting, tooltips, timelines that zoom; dark mode, and print."""

import json
import os
import shutil

import pytest
from helpers import results

from pdla.bench.report import lines, page

BROWSER, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
if not (BROWSER and DRIVER):
    pytest.skip("no Chromium: apt-get install chromium chromium-driver", allow_module_level=True)
webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium: pip install 'pdla[test]'")
by, keys, wheel = (pytest.importorskip(f"selenium.webdriver.common.{name}") for name in ("by", "keys", "actions.wheel_input"))
By, Keys = by.By, keys.Keys

OPTIONS = ("--headless=new", "--window-size=1300,2600", "--disable-dev-shm-usage", "--disable-background-networking")
MEDIANS = {"gather": (0.02,), "summa": (0.1,), "cannon": (0.003,)}  # as texts they sort otherwise: 100 ms, 20 ms, 3 ms


@pytest.fixture(scope="module")
def chromium():
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for option in (*OPTIONS, *(["--no-sandbox"] if os.geteuid() == 0 else [])):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.chrome.service.Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    found = lines.read([results.written(folder / f"{p}x{q}.json", (p, q), MEDIANS) for p, q in ((1, 2), (2, 2))])
    (folder / "page.html").write_text(page.page(found, lines.lines(found)))
    return (folder / "page.html").as_uri()


@pytest.fixture
def shown(chromium, url):
    """The page, freshly loaded."""
    chromium.get_log("performance")
    chromium.get(url)
    return chromium


def all_of(shown, selector):
    return shown.find_elements(By.CSS_SELECTOR, selector)


def column(shown, heading):
    """The texts of a column."""
    headings = [button.text.rstrip(" ↑↓") for button in all_of(shown, "th button")]
    return [row.find_elements(By.TAG_NAME, "td")[headings.index(heading)].text for row in all_of(shown, "tbody tr")]


def tip(shown, element):
    """What is shown when the pointer is on an element."""
    shown.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    webdriver.ActionChains(shown, duration=0).move_to_element(element).perform()
    found = shown.find_element(By.ID, "tip")
    assert found.is_displayed()
    return found.text


def test_it_loads_without_errors_and_requests(shown, url):
    messages = [json.loads(entry["message"])["message"] for entry in shown.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [one for one in asked if not one.startswith("data:")] == [url]
    assert shown.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert shown.get_log("browser") == []
    assert all(len(all_of(shown, f"#{name} svg")) == 1 for name in ("split", "timeline", "roofline", "volume", "scaling"))


def test_names_are_texts(shown):
    assert results.HOSTILE in shown.find_element(By.ID, "files").text
    assert shown.title == "pdla.bench: report"


def test_the_filter_hides_rows_and_what_is_drawn_of_them(shown):
    assert len(all_of(shown, "tbody tr")) == 6
    bars = len(all_of(shown, "#split .bar"))
    shown.find_element(By.ID, "filter").send_keys("summa 2X2")
    assert (column(shown, "algorithm"), column(shown, "grid")) == (["summa"], ["2x2"])
    assert shown.find_element(By.ID, "count").text == "1 of 6 rows"
    assert len(all_of(shown, "#split .bar")) == bars // 6
    shown.find_element(By.ID, "filter").send_keys(" nonsense")
    assert all_of(shown, "tbody tr") == [] and len(all_of(shown, ".empty")) == 4
    shown.find_element(By.ID, "filter").send_keys(Keys.CONTROL, "a", Keys.DELETE)
    assert len(all_of(shown, "tbody tr")) == 6
    assert shown.get_log("browser") == []


def press(shown, heading, by):
    button = next(one for one in all_of(shown, "th button") if one.text.startswith(heading))
    by(button)
    head = next(one for one in all_of(shown, "th") if one.text.startswith(heading))
    return head.get_attribute("aria-sort")


@pytest.mark.parametrize("by", [lambda button: button.click(), lambda button: button.send_keys(Keys.ENTER)])
def test_columns_sort_by_number_both_ways(shown, by):
    assert press(shown, "median time", by) == "ascending"
    assert column(shown, "median time") == ["3 ms"] * 2 + ["20 ms"] * 2 + ["100 ms"] * 2
    assert press(shown, "median time", by) == "descending"
    assert column(shown, "algorithm") == ["summa"] * 2 + ["gather"] * 2 + ["cannon"] * 2
    assert press(shown, "algorithm", by) == "ascending"
    assert column(shown, "algorithm") == ["cannon"] * 2 + ["gather"] * 2 + ["summa"] * 2


@pytest.mark.parametrize(
    ("element", "told"),
    [
        ("#split .bar", ("gather 1x2", "in all\n10 ms", "computing\n5 ms, 50.0 %", "waiting\n2 ms, 20.0 %")),
        ("#split .bar.predicted", ("gather 1x2, 1x2.json, predicted", "in all\n8 ms", "communicating\n1.5 ms, 18.8 %")),
        ("#volume .bar", ("gather 1x2", "received\n8.19 kB", "by formula\n8.19 kB")),
        ("#roofline .point", ("rate\n", "of peak\n")),
        ("#roofline .roof", ("peak of local GEMMs\n1 GFLOP/s", "links\n20 GB/s")),
        ("#scaling .point", ("gather", "ranks\n2", "time\n20 ms", "efficiency\n100.0 %")),
        ("#timeline .span", ("gemm (fc1)", "rank\n0", "start\n0 s", "lasts\n4 ms")),
        ("#timeline .span + .span", ("bcast", "along\nrow", "start\n1 ms", "lasts\n5.5 ms", "received\n2,048 B")),
    ],
)
def test_tooltips_tell_the_numbers(shown, element, told):
    text = tip(shown, all_of(shown, element)[0])
    assert [part for part in told if part not in text] == [], text


def ruler(shown):
    return [one.text for one in all_of(shown, "#timeline text") if one.text.endswith("s")]


def test_the_timeline_zooms_and_tells_what_is_left_out(shown):
    assert "7 spans, none longer than 1e-06 s" in shown.find_element(By.CSS_SELECTOR, "#timeline .note").text
    chart, whole = shown.find_element(By.CSS_SELECTOR, "#timeline .chart"), ruler(shown)
    assert whole[0] == "0 s" and whole[-1] == "10 ms"
    shown.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    origin = wheel.ScrollOrigin.from_element(chart)
    webdriver.ActionChains(shown).scroll_from_origin(origin, 0, -600).perform()
    near = ruler(shown)
    assert near != whole and near[0] != "0 s"
    webdriver.ActionChains(shown).move_to_element(chart).click_and_hold().move_by_offset(400, 0).release().perform()
    assert ruler(shown) != near
    webdriver.ActionChains(shown).double_click(chart).perform()
    assert ruler(shown) == whole
    chart.send_keys("+", Keys.ARROW_RIGHT)
    assert ruler(shown) != whole
    chart.send_keys("0")
    assert ruler(shown) == whole


def test_a_bar_chooses_its_timeline(shown):
    run = shown.find_element(By.ID, "run")
    assert run.get_attribute("selectedIndex") == "0"
    all_of(shown, "#split .bar")[7].click()
    assert run.get_attribute("selectedIndex") == "1"
    assert len({one.text for one in all_of(shown, "#timeline text") if one.text.startswith(("rank", "predicted"))}) == 3


def media(shown, **what):
    shown.execute_cdp_cmd("Emulation.setEmulatedMedia", what)


def test_names_of_roofs_are_whole_and_stand_apart(shown):
    texts = [one for one in all_of(shown, "#roofline text") if one.text.endswith("ranks") and "," in one.text]
    assert [one.text for one in texts] == ["float64, 2 ranks", "float64, 4 ranks"]
    plot = shown.find_element(By.CSS_SELECTOR, "#roofline svg").rect
    assert texts[0].rect["y"] + 12 <= texts[1].rect["y"]
    assert all(one.rect["x"] + one.rect["width"] <= plot["x"] + plot["width"] for one in texts)


def test_on_paper_nothing_is_hidden_by_scrolling(shown):
    media(shown, media="print")
    boxes = "[...document.querySelectorAll('.chart, .scroll')]"
    hides = f"return {boxes}.filter(one => getComputedStyle(one).overflow !== 'visible').length"
    assert shown.execute_script(hides) == 0
    media(shown, media="")
    assert shown.execute_script(hides) > 0


def test_it_is_dark_where_the_system_is(shown):
    def ground(scheme):
        media(shown, features=[{"name": "prefers-color-scheme", "value": scheme}])
        return shown.execute_script("return getComputedStyle(document.body).backgroundColor")

    assert (ground("light"), ground("dark")) == ("rgb(255, 255, 255)", "rgb(23, 25, 28)")
