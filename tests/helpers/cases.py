"""Cases of `python -m bench`, as tests start them."""

import pytest

from bench.__main__ import main


def refused(capsys, *words):
    """Output and errors of `python -m bench` with words that it refuses, in this process."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 2
    return capsys.readouterr()
