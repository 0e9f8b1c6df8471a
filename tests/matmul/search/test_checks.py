"""What is predicted of numbers that cannot be is an error, where a search would find nothing, or never end."""

import pytest

from pdla.errors import ArgumentError, PlanError, ShapeError
from pdla.simulate import Product, Transformer, scaling

SMALL = {"hidden": 8, "heads": 2, "sequence": 4, "batch": 4, "layers": 1}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("number", [0, -8, 2.5, "8", 2**63, 10**5000], ids=["zero", "below", "half", "text", "2^63", "digits"])
def test_numbers_of_a_transformer(name, number):
    kind = ShapeError if isinstance(number, int) else ArgumentError
    with pytest.raises(kind, match=rf"a transformer of {name}=.*: a whole number from 1 to 9223372036854775807"):
        Transformer(**{**SMALL, name: number})


def test_heads_are_equal():
    with pytest.raises(ShapeError, match=r"hidden=8: not heads=3 equal heads"):
        Transformer(**{**SMALL, "heads": 3})


@pytest.mark.parametrize("sizes", [(-1, 2, 2), (2, 2.5, 2), (2, 2, 2**63), ("2", 2, 2)], ids=str)
def test_sizes_of_a_product(sizes):
    kind = ShapeError if all(isinstance(number, int) for number in sizes) else ArgumentError
    with pytest.raises(kind, match=r"a product of .*: a whole number from 0 to 9223372036854775807"):
        Product(*sizes)


@pytest.mark.parametrize("of", [Transformer(**SMALL), Product(8, 8, 8)], ids=lambda of: of.kind)
def test_what_is_searched(of):
    for ranks in (0, -1, 1.5, "4", None, 10**7 + 1):
        kind = PlanError if isinstance(ranks, int) else ArgumentError
        with pytest.raises(kind, match=r"ranks=.*: a whole number from 1 to 10000000"):
            of.fastest(ranks, "laptop")
        with pytest.raises(kind, match=r"ranks=.*: a whole number from 1 to 10000000"):
            scaling(of, [1, ranks], "laptop")
    for count in (0, 1.5):
        with pytest.raises(ArgumentError if count else PlanError, match=r"count=.*: a whole number of at least 1"):
            of.fastest(4, "laptop", count)
    with pytest.raises(PlanError, match=f"grow 'depth': one of {', '.join(map(repr, of.grows))}"):
        scaling(of, [1, 4], "laptop", "depth")


def test_schemes_that_there_are():
    with pytest.raises(PlanError, match=r"scheme 'Cube': one of 'Megatron1D', .*; did you mean 'Cube3D'"):
        Transformer(**SMALL).fastest(4, "laptop", schemes=["Cube"])


def test_as_many_as_there_are_are_found():
    assert len(Product(8, 8, 8).fastest(4, "laptop", 10**30).best) > 5
