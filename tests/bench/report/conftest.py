"""What tests of reports share."""

import pytest
from helpers import results
from helpers.results import SECONDS


@pytest.fixture
def files(tmp_path):
    return [results.written(tmp_path / f"{p}x{q}.json", (p, q), SECONDS) for p, q in ((1, 1), (1, 2), (2, 2))]
