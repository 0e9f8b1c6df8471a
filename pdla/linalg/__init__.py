"""More of level 3 on the engine of pdla.matmul: triangles, stacks, chains, matrix times vector; and systems of equations."""

from pdla.linalg.condition import cond, norm
from pdla.linalg.determinant import det, slogdet
from pdla.linalg.factorizations.cholesky import cho_factor, cho_solve, cholesky, cholesky_words
from pdla.linalg.factorizations.lu import lu_factor, lu_solve, lu_words
from pdla.linalg.factorizations.lu_split import lu
from pdla.linalg.factorizations.triangular import solve_triangular, trsm
from pdla.linalg.inverse import inv, matrix_power
from pdla.linalg.plans import FactorPlan, plan_cholesky, plan_lu, plan_solve, plan_solve_triangular
from pdla.linalg.predict import predict_cholesky, predict_lu, predict_solve_triangular
from pdla.linalg.products.chain import einsum, multi_dot
from pdla.linalg.products.difference_cover import syrk_words
from pdla.linalg.products.rank_2k import her2k, syr2k
from pdla.linalg.products.rank_k import herk, syrk
from pdla.linalg.products.stacks import Stack, batched_matmul, stack
from pdla.linalg.products.symmetric import hemm, symm
from pdla.linalg.products.triangle import trmm
from pdla.linalg.products.vector import matvec, matvec_words
from pdla.linalg.solve import solve

__all__ = [
    "FactorPlan", "Stack", "batched_matmul", "cho_factor", "cho_solve", "cholesky", "cholesky_words", "cond",
    "det", "einsum", "hemm", "her2k", "herk", "inv", "lu", "lu_factor", "lu_solve", "lu_words", "matrix_power", "matvec",
    "matvec_words", "multi_dot", "norm", "plan_cholesky", "plan_lu", "plan_solve", "plan_solve_triangular", "predict_cholesky",
    "predict_lu", "predict_solve_triangular", "slogdet", "solve", "solve_triangular", "stack", "symm", "syr2k", "syrk",
    "syrk_words", "trmm", "trsm",
]
