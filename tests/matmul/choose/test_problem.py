"""What a choice depends on."""

from copy import copy
from dataclasses import fields

import pytest

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
        assert (other == one) is ((kind, field.name) == (Place, "order")), field.name  # for which `placing` stands
