"""The screen: how wide it is, whether it takes colours, and that something is said while a command is silent."""

import io
import os
import pty
import sys
import termios

import pytest
from helpers.commands import on_a_screen

from pdla.bench import screen
from pdla.bench.screen import Screen


@pytest.fixture
def environ(monkeypatch):
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def terminal(environ, columns=0):
    """A terminal for this process: what /dev/tty is."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    opened = os.open
    environ.setattr(os, "open", lambda path, *how: os.dup(theirs) if path == "/dev/tty" else opened(path, *how))
    return ours, theirs


def no_terminal(environ):
    def refused(path, *how):
        raise OSError(6, "No such device or address")

    environ.setattr(os, "open", refused)


@pytest.mark.parametrize(
    ("given", "has", "width"), [("70", 90, 70), ("", 90, 90), ("0", 90, 90), ("wide", 90, 90), ("9", 90, 40), ("", 0, 80)]
)
def test_width_is_that_of_columns_or_of_the_terminal(environ, given, has, width):
    ours, theirs = terminal(environ, has)
    environ.setenv("COLUMNS", given)
    assert screen.width() == width
    os.close(ours)
    os.close(theirs)


def test_without_a_terminal_lines_have_80_columns(environ):
    no_terminal(environ)
    assert screen.width() == 80


@pytest.mark.parametrize(
    ("is_terminal", "names", "colours"),
    [
        (False, {}, False), (True, {}, True), (False, {"FORCE_COLOR": "1"}, True), (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False), (True, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False), (True, {"NO_COLOR": ""}, True),
    ],
)
def test_colours(environ, is_terminal, names, colours):
    out = io.StringIO()
    out.isatty = lambda: is_terminal
    environ.setattr(sys, "stdout", out)
    environ.setattr(sys, "stderr", io.StringIO())
    for name, value in names.items():
        environ.setenv(name, value)
    Screen().print("row", style="wrong")
    assert ("\x1b[1;31mrow\x1b[0m\n" in out.getvalue()) == colours and out.getvalue().endswith("row\n") != colours


def test_lines_are_for_the_first_rank_and_prose_is_wrapped(capsys):
    with on_a_screen(40):
        Screen(first=False).print("nothing")
        Screen(first=False).show_progress("nothing")
        Screen().print_text("  some words that take more than one line of forty columns", "some")
        Screen().print()
    assert capsys.readouterr() == ("  some words that take more than one\n    line of forty columns\nsome\n", "")


def test_a_silent_command_says_where_it_is(capsys, monkeypatch):
    """Once for each time that it has been silent for so long."""
    now = [0.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: now[0])
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    one = Screen()
    for seconds, what in (1.9, "too soon"), (2.1, "timing"), (4.0, "too soon"):
        now[0] = seconds
        one.show_progress(what, 1, 3)
    assert capsys.readouterr() == ("", "... 1/3 timing\n")
    one.print("row")
    now[0] = 6.0
    one.show_progress("too soon")
    now[0] = 6.1
    one.show_progress("checking")
    assert capsys.readouterr() == ("row\n", "... 1/3 checking\n")


def test_a_terminal_has_a_bar_that_lines_take_away(environ, capsys):
    err = io.StringIO()
    err.isatty = lambda: True
    environ.setattr(sys, "stderr", err)
    environ.setenv("COLUMNS", "44")
    one = Screen()
    one.show_progress("summa: timing and so on and on and on and on", 1, 2)
    one.print("row")
    assert err.getvalue() == f"\r\x1b[K{'━' * 10}{'╌' * 10} 1/2 summa: timing and \r\x1b[K"
    assert capsys.readouterr().out == "row\n"


def test_a_launchers_terminal_has_it_among_the_lines(environ, capsys):
    environ.setenv("FORCE_COLOR", "1")
    one = Screen()
    one.show_progress("timing")
    one.print("row")
    assert capsys.readouterr() == ("\r\x1b[Ktiming\r\x1b[Krow\n", "")
