"""A plan: what was chosen for one product, how it is run, what that costs; builder.py and planner.py make one.

description  what was chosen, a frozen value (description.py)
run          A and B are brought where they are multiplied, C is brought back (running.py, with what run_state.py keeps)
cost         what a run costs (costs.py), and the plan in words (explanation.py)

`Plan`, which users are given, is a description with all of these (plan.py).
"""

from pdla.matmul.plan.costs import ghost
from pdla.matmul.plan.plan import Plan

__all__ = ["Plan", "ghost"]
