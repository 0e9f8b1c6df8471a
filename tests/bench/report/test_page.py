"""The page: all that it needs is in it, and data cannot end their script."""

import json

from pdla.bench.report import lines, page


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
