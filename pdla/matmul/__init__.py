"""Distributed multiplication.

roles     the one rule: what each axis of a grid carries, and so how A, B and C must lie (roles.py)
plan      all choices for one product, how it is run, and what that costs (plan/; builder.py and planner.py make one)
schedule  when what must travel does (schedules/)

choose/ has the search for the cheapest way, algorithms/ the named algorithms, api.py the functions
that a user calls.
"""

from pdla.matmul.api import gemm, matmul, plan_matmul
from pdla.matmul.choose.candidates import ALGORITHMS as algorithms
from pdla.matmul.native_layouts import native_layouts
from pdla.matmul.plan import Plan
from pdla.matmul.predict import predict_matmul
from pdla.matmul.predict import words as matmul_words

__all__ = ["Plan", "algorithms", "gemm", "matmul", "matmul_words", "native_layouts", "plan_matmul", "predict_matmul"]
