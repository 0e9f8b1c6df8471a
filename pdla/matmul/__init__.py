"""Distributed multiplication.

roles     the one rule: the dimension that each axis of a grid carries, which determines layouts of A, B and C (roles.py)
plan      all choices for one product, its run and its cost (plan/; builder.py and planner.py make one)
schedule  the order of messages and local products (schedules/)

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
