"""Every error is one of pdla's."""

import pdla
from pdla.errors import PdlaError


def test_every_error_is_one_of_pdlas():
    kinds = [kind for kind in vars(pdla.errors).values() if isinstance(kind, type)]
    assert all(issubclass(kind, PdlaError) for kind in kinds) and len(kinds) > 5
