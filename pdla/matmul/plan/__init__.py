"""A plan: the choices for one product, its run and its cost; builder.py and planner.py make one.

description  the choices, a frozen value (description.py)
run          conversions of A and B, the product, and C's conversion (running.py, with the state in run_state.py)
cost         the cost of a run (costs.py), and the plan in words (explanation.py)

Users get a `Plan`: a description with all of these (plan.py).
"""

from pdla.matmul.plan.costs import make_ghost
from pdla.matmul.plan.plan import Plan

__all__ = ["Plan", "make_ghost"]
