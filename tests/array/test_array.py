"""Which namespace an array belongs to."""


import numpy as np

from pdla.array import namespace
from pdla.array.meta import Meta


def test_namespaces():
    assert namespace(np.zeros(1)).name == "numpy"
    assert namespace(Meta((1, 1))).name == "meta"
