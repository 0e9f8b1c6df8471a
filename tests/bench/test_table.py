"""Tables as they are printed: row by row, and in parts where the screen is narrow."""

import pytest
from helpers.commands import on_a_screen

from pdla.bench.screen import Screen
from pdla.bench.table import Column, Table

COLUMNS = [
    Column("n", 3, left=True, name=True), Column("one", 6), Column("two", 6, more=True), Column("three", 6),
    Column("way", text=True),
]


def printed(capsys, width, rows, wide=False, columns=COLUMNS):
    """The lines after each row, and after the end."""
    with on_a_screen(width):
        table, found = Table(Screen(), columns, wide), []
        for title, number, way in rows:
            table.add({"n": number, "one": "1", "two": "2", "three": "3", "way": way}, title)
            found.append(capsys.readouterr().out.splitlines())
        table.end()
    return [*found, capsys.readouterr().out.splitlines()]


def test_each_row_is_there_at_once_and_headings_are_where_the_title_changes(capsys):
    head = "n       one   three  way"
    rows = [("", "7", "a"), ("", "8", "b"), ("cubes", "9", "c")]
    assert printed(capsys, 80, rows) == [
        [head, "7         1       3  a"], ["8         1       3  b"], ["", "cubes", head, "9         1       3  c"], [],
    ]


def test_wide_shows_what_is_more(capsys):
    (first, _) = printed(capsys, 80, [("", "7", "a")], wide=True)
    assert first == ["n       one     two   three  way", "7         1       2       3  a"]


def test_a_long_text_takes_several_lines(capsys):
    way = "Tesseract data=2 row=2 col=2 depth=2, cut_weights=True"
    (first, _) = printed(capsys, 50, [("", "7", way)])
    assert first[1:] == [
        "7         1       3  Tesseract data=2 row=2 col=2", " " * 21 + "depth=2, cut_weights=True",
    ]


@pytest.mark.parametrize("wide", [False, True])
def test_what_does_not_fit_follows(capsys, wide):
    rows = [("", "7", "a"), ("", "8", "b")]
    first, second, end = printed(capsys, 40, rows, wide)
    assert first[0].split() == ["n", "one", "way"] and second == ["8         1  b"]
    assert end == (["", "n       two   three", "7         2       3", "8         2       3"] if wide else [
        "", "n     three", "7         3", "8         3",
    ])


def test_long_numbers_make_columns_wider_and_push_others_later(capsys):
    columns = [Column("n", 2), Column("one", 3)]
    first, second, _ = printed(capsys, 80, [("", "1234", ""), ("", "12345678", "")], columns=columns)
    assert first == ["   n  one", "1234    1"] and second == ["12345678    1"]
