"""Parts of blocks as they travel."""

import numpy as np
import pytest

from pdla.matmul.schedules import streams


@pytest.mark.parametrize("rows", [slice(0, 3), slice(2, 6, 1), slice(0, 6, 2), slice(None), np.array([0, 1, 4])], ids=str)
@pytest.mark.parametrize("cols", [slice(0, 4), slice(1, 4), slice(0, 4, 2), slice(None), np.array([0, 1, 2, 3])], ids=str)
def test_what_has_gaps_is_known_without_strides(rows, cols):
    """A dry run foresees the memory through which messages into parts with gaps go."""
    whole = np.zeros((6, 4))
    views = isinstance(rows, slice) and isinstance(cols, slice)
    assert streams._is_gapless(whole.shape, rows, cols) == (views and whole[rows, cols].flags.c_contiguous)
