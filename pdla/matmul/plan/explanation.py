"""A plan in words: its algorithm, its cost, and the next cheapest ways."""

from __future__ import annotations

from collections.abc import Iterable

from pdla.matmul.plan.description import Description
from pdla.model.cost import Cost, in_words


def explain(plan: Description, cost: Cost, runners_up: Iterable[str]) -> str:
    """Describe the plan in a few lines; runners_up: the next cheapest ways, in words."""
    walked = f", walking {plan.walk.dimension}" if plan.how.walks else ""
    panels = f" in panels of {plan.panel}" if plan.how.walks else ""
    size = plan.dtype.itemsize
    return "\n".join([
        plan.product,
        f"  algorithm   {plan.full_name}{walked}{panels}",
        f"  roles       {str(plan.roles) or 'one rank'}",
        *(f"  {name}           {_describe_layouts(plan, i)}" for i, name in enumerate("ABC")),
        f"  a rank      receives at most {cost.bytes_received} bytes in {cost.messages} message{'s' * (cost.messages != 1)}, "
        f"workspace {cost.peak_workspace} bytes",
        f"  bound       {size * plan.bound:.0f} bytes; conversions bring {size * plan.moved:.0f} bytes",
        f"  time        {in_words(cost, plan.machine, plan.grid.comm.size)}",
        *(f"  next        {way}" for way in runners_up),
    ])


def _describe_layouts(plan: Description, i: int) -> str:
    """Describe the layouts of A, B or C (0, 1 or 2): as given, native, and for the local products."""
    given, native, needed = (plan.A, plan.B, plan.C)[i].layout, plan.native[i], plan.roles.layouts[i]
    steps = [given] if plan.stays[i] else [given, native]
    steps += [] if steps[-1] == needed else [needed]
    return " -> ".join(map(repr, steps if i < 2 else reversed(steps)))
