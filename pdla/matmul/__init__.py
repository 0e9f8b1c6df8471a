"""Distributed multiplication: one rule (roles), its schedules (gather, summa, cannon), plans, and the public functions."""

from pdla.matmul.api import gemm, matmul, plan_matmul
from pdla.matmul.plan import ALGORITHMS as algorithms
from pdla.matmul.plan import Plan
from pdla.matmul.plan import words as matmul_words

__all__ = ["Plan", "algorithms", "gemm", "matmul", "matmul_words", "plan_matmul"]
