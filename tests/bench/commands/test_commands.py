"""The registry of sub-commands."""

from pathlib import Path

import pytest

from pdla.bench import commands


@pytest.mark.parametrize("name", commands.FILES)
def test_a_command_has_the_name_of_its_file(name):
    assert commands.COMMANDS[name].name == name


def test_every_file_that_has_a_command_is_in_the_registry():
    """But the suite, which runs without a name."""
    found = {path.stem for path in Path(commands.__file__).parent.glob("*.py") if "\nCOMMAND = " in path.read_text()}
    assert found == {*commands.FILES, "suite"}
