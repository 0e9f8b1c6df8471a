"""pdla: distributed dense linear algebra over MPI, over threads of one process, and dry.

import pdla
A = pdla.random((1000, 800))
C = A @ A.T

`import pdla` sends no message and does not start MPI: the first grid, or the first matrix, does.
"""

from pdla import errors, linalg, nn, scalapack, simulate
from pdla.comm import Communicator, abort_on_exception, as_communicator, world
from pdla.comm.dry import dry_run
from pdla.comm.ledger import Ledger, record, tagged
from pdla.comm.threads import run
from pdla.cuts import Balanced, Cuts, Cyclic
from pdla.grid import ProcessGrid, balanced_shape, tiled_order
from pdla.io import load, save
from pdla.layout import Layout
from pdla.linalg import (
    Stack,
    batched_matmul,
    einsum,
    hemm,
    herk,
    matvec,
    matvec_words,
    multi_dot,
    stack,
    symm,
    syrk,
    syrk_words,
)
from pdla.matmul import Plan, algorithms, gemm, matmul, matmul_words, native_layouts, plan_matmul, predict_matmul
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import eye, from_function, from_global, from_local, ones, random, zeros
from pdla.matrix.diagonals import fill_diagonal
from pdla.matrix.stacking import block, hstack, vstack
from pdla.matrix.triangles import tril, triu
from pdla.model.machine import Machine
from pdla.simulate.all_ranks import dry_run_all

__all__ = [
    "Balanced", "Communicator", "Cuts", "Cyclic", "DistMatrix", "Layout", "Ledger", "Machine", "Plan", "ProcessGrid", "Stack",
    "abort_on_exception", "algorithms", "as_communicator", "balanced_shape", "batched_matmul", "block", "dry_run",
    "dry_run_all", "einsum", "errors", "eye", "fill_diagonal", "from_function", "from_global", "from_local", "gemm", "hemm",
    "herk", "hstack", "linalg", "load", "matmul", "matmul_words", "matvec", "matvec_words", "multi_dot", "native_layouts", "nn",
    "ones", "plan_matmul", "predict_matmul", "random", "record", "run", "save", "scalapack", "simulate", "stack", "symm",
    "syrk", "syrk_words", "tagged", "tiled_order", "tril", "triu", "vstack", "world", "zeros",
]

__version__ = "0.1.0"

import pdla.called
import pdla.signposts

pdla.signposts.put_up()  # all packages are there now


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
