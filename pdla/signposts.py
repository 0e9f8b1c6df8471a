"""Names that pdla does not have, and their replacements: one table for pdla, its packages, and a matrix's attributes.

A missing name is searched among pdla's other public names (`pdla.cholesky` is
`pdla.linalg.cholesky`), then in the table, then among similar names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from inspect import isfunction, signature
from types import ModuleType
from typing import Any, NoReturn

from pdla.errors import suggest

PACKAGES = ("pdla", "pdla.linalg", "pdla.nn", "pdla.scalapack")

FITS = "where the whole of A fits in a rank's memory"
SCIPY = f"scipy.linalg.{{name}}(A.gather()) {FITS}"
NUMPY = f"numpy.{{name}}(A.gather()) {FITS}"
BLOCKWISE = "pdla.from_local(numpy.{name}(A.local), A.shape, A.grid, A.layout), on every rank"
DENSE = "pdla's matrices are dense: petsc4py has sparse ones that are cut over ranks, scipy.sparse has those of one rank"
KRYLOV = "scipy.sparse.linalg.{name} of a LinearOperator whose matvec is lambda x: pdla.matvec(A, x), from one start on all ranks"
LAYOUT = "pdla.Layout('row', 'col'), for each dimension the axes that cut it; partial= names those along which there are addends"
DTENSOR = "from_dtensor of the module pdla.torch takes a DTensor as it is"
GATHERED = "A.gather() is the whole matrix as an array, A.local this rank's block"

# Names -> replacements. Remove a name when pdla gets it: a test checks that the table has none of pdla's own.
TABLE: dict[str, str] = {
    name: instead.replace("{name}", name)
    for names, instead in {
        "eig eigvals": f"{SCIPY}; for some of a larger A's {KRYLOV.replace('{name}', 'eigs')}",
        "eigs eigsh svds cg gmres bicgstab minres lsqr": KRYLOV,
        "schur hessenberg qz ldl": SCIPY,
        "fft ifft fft2 rfft": "mpi4py-fft transforms arrays that are cut over ranks; numpy.fft.{name} a rank's whole rows, A.local",
        "sparse csr_matrix csr_array csc_matrix coo_matrix coo_array todia tocsr tocoo nnz spsolve spmm": DENSE,
        "dot": "A @ B, or pdla.matvec(A, x) for a vector",
        "inner vdot": "(A.conj() * B).sum()",
        "outer": "pdla.from_function(lambda i, j: x[i] * y[j], shape, grid, layout)",
        "tensordot": "pdla.einsum('ij,jk->ik', A, B), or A @ B",
        "transpose swapaxes mT": "A.T, a view",
        "conjugate": "A.conj(), a view",
        "adjoint mH": "A.H, a view",
        "concatenate": "pdla.vstack, pdla.hstack or pdla.block",
        "empty": "pdla.zeros",
        "identity": "pdla.eye",
        "full": "value * pdla.ones(shape, grid, layout), or pdla.from_function",
        "arange linspace diag": "pdla.from_function, which calls a function of the rows' and columns' numbers",
        "toarray todense to_numpy numpy tolist asnumpy item": GATHERED,
        "reshape ravel flatten squeeze": f"A.gather().{{name}}() {FITS}: a matrix keeps its two dimensions",
        "fill": "A[:, :] = value",
        "nbytes": "A.local.nbytes, of this rank's block",
        "comm": "A.grid.comm, the communicator",
        "rank": "A.grid.comm.rank, of this process; pdla.linalg.matrix_rank(A), of the matrix",
        "owner owners draw": "A.layout.draw(A.shape, A.grid), who holds what; A.indices, this rank's rows and columns",
        "Grid Mesh DeviceMesh init_device_mesh make_mesh": "pdla.ProcessGrid((2, 3)), ranks along named axes",
        "Shard Replicate Partial PartitionSpec": f"{LAYOUT}; {DTENSOR}",
        "distribute distribute_tensor device_put": f"pdla.from_global(x, grid, layout), of an array that all ranks have; {DTENSOR}",
        "sqrt exp log sin cos tanh sign floor ceil round isnan": BLOCKWISE,
        "argmax argmin argsort sort cumsum prod median percentile quantile std var unique nonzero": NUMPY,
        "kron flip roll tile repeat": NUMPY,
    }.items()
    for name in names.split()
}


def make_error(owner: str, name: str, known: Iterable[str], called: bool = False) -> AttributeError:
    """Make the error for an attribute that the owner, in words, does not have: with its replacement, or a similar name.

    known   the owner's public names
    called  whether to show the arguments of a function that replaces it
    """
    said = f"{owner} has no attribute {name!r}"
    if not name.startswith("_"):  # NumPy and others probe for private names, and ignore advice
        places = [place for place in PACKAGES if name in getattr(sys.modules.get(place), "__all__", ())]
        found = [f"{place}.{name}{_arguments(getattr(sys.modules[place], name)) if called else ''}" for place in places]
        if name in vars(sys.modules["pdla.matrix.core"].DistMatrix):
            found.append(f"A.{name} of a DistMatrix A")
        instead = " or ".join(found) or TABLE.get(name)
        said += f": {instead}" if instead else suggest(name, known)
    return AttributeError(said, name=name)  # without obj=: Python would add its own suggestion


def _arguments(function: Any) -> str:
    """"(path, A)": the required arguments of a function; "" for anything else."""
    if not isfunction(function):
        return ""
    needed = [one for one in signature(function).parameters.values() if one.default is one.empty and one.kind < one.VAR_KEYWORD]
    return f"({', '.join(f'{one.name}=...' if one.kind is one.KEYWORD_ONLY else one.name for one in needed)})"


def put_up() -> None:
    """Give each package a `__getattr__`, which Python calls for missing attributes.

    In the packages' own files it would make type checkers accept any name.
    """
    for place in PACKAGES:
        module = sys.modules[place]
        vars(module)["__getattr__"] = partial(_refuse, module)


def _refuse(module: ModuleType, name: str) -> NoReturn:
    raise make_error(f"module {module.__name__!r}", name, module.__all__)
