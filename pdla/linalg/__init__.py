"""More of level 3 on the engine of pdla.matmul: triangles, stacks, chains, matrix times vector; and systems of equations."""

from pdla.linalg.cholesky import cho_factor, cho_solve, cholesky, plan_cholesky, predict_cholesky
from pdla.linalg.determinant import det, slogdet
from pdla.linalg.eigen.eigh import eigh, eigh_words, eigvalsh, plan_eigh, predict_eigh
from pdla.linalg.factor_files import load_factors, save_factors
from pdla.linalg.functions.exponential import expm
from pdla.linalg.functions.polar import newton_schulz, plan_polar, polar, predict_polar
from pdla.linalg.functions.roots import inverse_root, signm
from pdla.linalg.functions.singular import matrix_rank, null_space, pinv, svd, svdvals
from pdla.linalg.functions.spectral import funm, logm, sqrtm
from pdla.linalg.inverse import inv, matrix_power
from pdla.linalg.lu import lu, lu_factor, lu_solve, plan_lu, predict_lu
from pdla.linalg.norms import cond, norm
from pdla.linalg.orthogonal.least_squares import lstsq, plan_lstsq, predict_lstsq
from pdla.linalg.orthogonal.qr import orth, plan_qr, predict_qr, qr, qr_multiply
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.products.chain import einsum, multi_dot
from pdla.linalg.products.difference_cover import syrk_words
from pdla.linalg.products.rank_2k import her2k, syr2k
from pdla.linalg.products.rank_k import herk, syrk
from pdla.linalg.products.stacks import Stack, batched_matmul, stack
from pdla.linalg.products.symmetric import hemm, symm
from pdla.linalg.products.triangle import trmm
from pdla.linalg.products.vector import matvec, matvec_words
from pdla.linalg.routines.cholesky import cholesky_words
from pdla.linalg.routines.lu import lu_words
from pdla.linalg.routines.qr import qr_words
from pdla.linalg.solve import plan_solve, solve
from pdla.linalg.triangular import plan_solve_triangular, predict_solve_triangular, solve_triangular, trsm

__all__ = [
    "FactorPlan", "Stack", "batched_matmul", "cho_factor", "cho_solve", "cholesky", "cholesky_words", "cond", "det", "eigh",
    "eigh_words", "eigvalsh", "einsum", "expm", "funm", "hemm", "her2k", "herk", "inv", "inverse_root", "load_factors", "logm",
    "lstsq", "lu", "lu_factor", "lu_solve", "lu_words", "matrix_power", "matrix_rank", "matvec", "matvec_words", "multi_dot",
    "newton_schulz", "norm", "null_space", "orth", "pinv", "plan_cholesky", "plan_eigh", "plan_lstsq", "plan_lu", "plan_polar",
    "plan_qr", "plan_solve", "plan_solve_triangular", "polar", "predict_cholesky", "predict_eigh", "predict_lstsq", "predict_lu",
    "predict_polar", "predict_qr", "predict_solve_triangular", "qr", "qr_multiply", "qr_words", "save_factors", "signm",
    "slogdet", "solve", "solve_triangular", "sqrtm", "stack", "svd", "svdvals", "symm", "syr2k", "syrk", "syrk_words", "trmm",
    "trsm",
]
