"""What pdla does not have says what to do instead, and a misspelt name which one was meant."""

import importlib
import pickle
import re

import numpy as np
import pytest

import pdla
from pdla import Layout, signposts

MATRIX = {name for name in (*vars(pdla.DistMatrix), *pdla.DistMatrix.__annotations__) if not name.startswith("_")}


def on_a_rank(call):
    return pdla.run(1, lambda comm: call(pdla.eye(3, pdla.ProcessGrid((1, 1)), Layout("row", "col"))))[0]


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda A: pdla.linalg.eig, "module 'pdla.linalg' has no attribute 'eig': scipy.linalg.eig(A.gather()) where"),
        (lambda A: A.schur, "a DistMatrix has no attribute 'schur': scipy.linalg.schur(A.gather()) where"),
        (lambda A: pdla.fft, "module 'pdla' has no attribute 'fft': mpi4py-fft"),
        (lambda A: pdla.sparse, "pdla's matrices are dense: petsc4py"),
        (lambda A: pdla.cholesky, "module 'pdla' has no attribute 'cholesky': pdla.linalg.cholesky"),
        (lambda A: pdla.Linear, "pdla.nn.Linear"),
        (lambda A: A.inv(), "a DistMatrix has no attribute 'inv': pdla.linalg.inv(A)"),
        (lambda A: pdla.gather, "A.gather of a DistMatrix A"),
        (lambda A: A.transpose(), "A.T, a view"),
        (lambda A: pdla.zeross, "module 'pdla' has no attribute 'zeross'; did you mean 'zeros'?"),
        (lambda A: pdla.linalg.eig, "; for some of a larger A's scipy.sparse.linalg.eigs of a LinearOperator whose matvec is"),
        (lambda A: A.save("x.npy"), "a DistMatrix has no attribute 'save': pdla.save(path, A)"),
        (lambda A: A.solve_triangular, "pdla.linalg.solve_triangular(A, B, lower=...)"),
        (lambda A: A.Linear, "pdla.nn.Linear"),
        (lambda A: A.draw(), "A.layout.draw(A.shape, A.grid)"),
        (lambda A: A.owner, "A.indices, this rank's rows and columns"),
        (lambda A: A.rank, "A.grid.comm.rank, of this process; pdla.linalg.matrix_rank(A), of the matrix"),
        (lambda A: pdla.Grid, "pdla.ProcessGrid((2, 3))"),
        (lambda A: pdla.Mesh, "pdla.ProcessGrid((2, 3))"),
        (lambda A: pdla.DeviceMesh, "pdla.ProcessGrid((2, 3))"),
        (lambda A: pdla.Shard, "pdla.Layout('row', 'col')"),
        (lambda A: pdla.Replicate, "from_dtensor"),
        (lambda A: pdla.Partial, "partial="),
        (lambda A: pdla.distribute_tensor, "pdla.from_global(x, grid, layout)"),
        (lambda A: pdla.linalg.chol, "did you mean 'cholesky'?"),
        (lambda A: pdla.nn.Relu, "did you mean 'ReLU'?"),
        (lambda A: A.gathr(), "a DistMatrix has no attribute 'gathr'; did you mean 'gather'?"),
        (lambda A: A.shap, "did you mean 'shape'?"),
        (lambda A: A.qwertz, "a DistMatrix has no attribute 'qwertz'"),
    ],
)
def test_a_name_that_there_is_not_says_what_to_do(ask, told):
    def caught(A):
        with pytest.raises(AttributeError) as caught:
            ask(A)
        return str(caught.value)

    said = on_a_rank(caught)
    assert told in said and (said.endswith(told) or "did you mean" not in said), said


def test_the_table_has_none_of_pdlas_own_names():
    """A name that pdla has got since is to be taken out."""
    public = {name for place in signposts.PACKAGES for name in importlib.import_module(place).__all__}
    assert sorted(signposts.TABLE.keys() & (public | MATRIX)) == []


def test_what_the_table_names_is_there():
    named = {found for text in signposts.TABLE.values() for found in re.findall(r"(?:scipy|numpy|pdla)(?:\.\w+)+", text)}
    for found in sorted(named - {"scipy.sparse", "pdla.torch"}):
        module, _, name = found.rpartition(".")
        assert hasattr(importlib.import_module(module), name), found


def test_protocols_are_asked_as_ever():
    def program(A):
        for name in ("__array_interface__", "__array_struct__", "__array_priority__", "__dataframe__", "_repr_mimebundle_"):
            with pytest.raises(AttributeError, match=f"has no attribute '{name}'$"):
                getattr(A, name)
        assert not hasattr(A, "eig") and getattr(A, "dot", 3) == 3 and not hasattr(pdla, "qwertz")
        with pytest.raises(TypeError, match="gather"):
            np.asarray(A)
        with pytest.raises(TypeError, match="gather"):
            pickle.dumps(A)
        return (np.float64(2) * A).trace()

    assert on_a_rank(program) == 6


def test_an_error_inside_a_property_is_its_own(monkeypatch):
    monkeypatch.setattr(pdla.DistMatrix, "first", property(lambda self: self.grid.qwertz))

    def program(A):
        with pytest.raises(AttributeError, match="'ProcessGrid' object has no attribute 'qwertz'"):
            A.first  # noqa: B018

    on_a_rank(program)


def test_an_iteration_of_scipy_takes_matvec():
    from scipy.sparse.linalg import LinearOperator, cg

    def program(comm):
        A = pdla.from_global(np.diag([1.0, 2.0, 4.0]), pdla.ProcessGrid(comm.size), Layout("row"))
        return cg(LinearOperator((3, 3), matvec=lambda x: pdla.matvec(A, x), dtype=A.dtype), np.ones(3))[0]

    assert np.allclose(pdla.run(2, program), [1, 0.5, 0.25])
