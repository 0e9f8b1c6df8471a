"""Stops."""

import pytest

from pdla.bench.cli import parse
from pdla.bench.stop import Stop


def test_stops_carry_their_status():
    with pytest.raises(Stop) as stopped:
        parse(["--dry-run"])
    assert stopped.value.status == 2
