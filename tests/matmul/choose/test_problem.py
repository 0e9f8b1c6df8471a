"""What a choice depends on."""

from copy import copy
from dataclasses import fields, replace

import pytest
from helpers.problems import from_blocks

from pdla.matmul.choose.mapping import Place
from pdla.matmul.choose.problem import Operand, PlacedOperand, Problem, Sizes
from pdla.matmul.options import Options
from pdla.model.machine import Machine


@pytest.mark.parametrize("kind", [Operand, PlacedOperand, Place, Sizes, Problem, Options, Machine])
def test_what_plans_and_choices_are_kept_for_is_compared_in_every_field(kind):
    one = object.__new__(kind)
    for field in fields(kind):
        object.__setattr__(one, field.name, 0)
    for field in fields(kind):
        other = copy(one)
        object.__setattr__(other, field.name, 1)
        assert (other == one) is ((kind, field.name) == (Place, "order")), field.name  # for which `order_digest` stands


@pytest.mark.parametrize(("a", "b", "words"), [(False, False, 42 + 35), (True, False, 35), (False, True, 42), (True, True, 0)])
def test_what_not_all_ranks_see_already_fits_into_memory_to_the_byte(a, b, words):
    q = from_blocks(4, 6, 5, 7)
    q = replace(q, A=replace(q.A, shared=a), B=replace(q.B, shared=b), shared=8 * words)
    assert q.fits and replace(q, shared=8 * words - 1).fits is (words == 0)
    assert replace(q, shared=2**30, nodes=(0, 0, 2, 2)).fits is (words == 0)
