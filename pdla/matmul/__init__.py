"""Distributed multiplication: one rule (roles), named algorithms as tables, schedules, a planner, and the public functions."""

from pdla.matmul.api import gemm, matmul, plan_matmul
from pdla.matmul.choose.candidates import ALGORITHMS as algorithms
from pdla.matmul.native import native_layouts
from pdla.matmul.plan import Plan
from pdla.matmul.predict import predict_matmul
from pdla.matmul.predict import words as matmul_words

__all__ = ["Plan", "algorithms", "gemm", "matmul", "matmul_words", "native_layouts", "plan_matmul", "predict_matmul"]
