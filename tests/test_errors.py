"""Every error is one of pdla's."""

import numpy as np
import pytest

import pdla
from pdla import Layout, errors
from pdla.errors import ArgumentError, PdlaError, list_choices, plural, suggest


def test_every_error_is_one_of_pdlas():
    kinds = [kind for kind in vars(pdla.errors).values() if isinstance(kind, type)]
    assert all(issubclass(kind, PdlaError) for kind in kinds) and len(kinds) > 5


@pytest.mark.parametrize(
    ("count", "words", "expected"),
    [(0, ("rank",), "ranks"), (1, ("rank",), "rank"), (2, ("rank",), "ranks"), (1, ("is", "are"), "is"), (2, ("is", "are"), "are")],
)
def test_a_word_agrees_with_its_count(count, words, expected):
    assert plural(count, *words) == expected


@pytest.mark.parametrize(
    ("given", "meant"),
    [("suma", "summa"), ("Gather", "gather"), ("gat", "gather"), ("gather first", "gather"), ("x", ""), ("", ""), (3, "")],
)
def test_the_name_that_was_meant(given, meant):
    assert suggest(given, ["gather", None, 1, "summa"]) == (f"; did you mean {meant!r}?" if meant else "")


def test_choices_are_listed_as_they_are_given():
    assert list_choices("for", (None, 1, "fro")) == "one of None, 1, 'fro'; did you mean 'fro'?"


CHOICES = [
    (lambda A: pdla.matmul(A, A, algorithm="canon"), errors.PlanError, "'cannon'"),
    (lambda A: pdla.matmul(A, A, schedule="suma"), errors.PlanError, "'summa'"),
    (lambda A: pdla.matmul(A, A, layout="nativ"), errors.LayoutError, "'native'"),
    (lambda A: pdla.matmul(A, A, verify="kep"), errors.PlanError, "'keep'"),
    (lambda A: pdla.predict_matmul(4, 4, 4, 2, algorithm="tesserac"), errors.PlanError, "'tesseract'"),
    (lambda A: pdla.matmul_words("suma", 4, 4, 4, (2, 2)), errors.PlanError, "'summa'"),
    (lambda A: pdla.native_layouts(4, 4, 4, algorithm="tesserac"), errors.PlanError, "'tesseract'"),
    (lambda A: pdla.linalg.solve(A, A, assume_a="positive definite"), errors.PlanError, "'pos'"),
    (lambda A: pdla.linalg.solve(A, A, refine="flota32"), errors.PlanError, "'float32'"),
    (lambda A: pdla.linalg.norm(A, "Fro"), errors.PlanError, "'fro'"),
    (lambda A: pdla.linalg.trsm(A, A, lower=True, side="rihgt"), errors.PlanError, "'right'"),
    (lambda A: pdla.linalg.trmm(A, A, lower=True, side="rihgt"), errors.PlanError, "'right'"),
    (lambda A: pdla.symm(A, A, side="lef"), errors.PlanError, "'left'"),
    (lambda A: pdla.linalg.qr(A, mode="reducde"), errors.PlanError, "'reduced'"),
    (lambda A: pdla.linalg.polar(A, side="rihgt"), errors.PlanError, "'right'"),
    (lambda A: A.redistribute(Layout("rwo")), errors.LayoutError, "'row'"),
    (lambda A: A.grid["column"], errors.GridError, "'col'"),
    (lambda A: pdla.ProcessGrid((1, 1), order="f"), errors.GridError, "'F'"),
    (lambda A: pdla.stack(np.ones((1, 2, 2)), A.grid, Layout(), "rows"), errors.GridError, "'row'"),
    (lambda A: pdla.random((2, 2), A.grid, Layout(), distribution="norml"), ValueError, "'normal'"),
    (lambda A: pdla.save("A.nyp", A), errors.FileError, "'.npy'"),
    (lambda A: pdla.nn.Megatron1D(pdla.ProcessGrid(1, axes="rows")), errors.GridError, "'row'"),
    (lambda A: pdla.nn.Serial(A.grid).table("frist"), errors.ShapeError, "'first'"),
    (lambda A: pdla.Machine.of("laptpo"), ValueError, "'laptop'"),
]


@pytest.mark.parametrize(("call", "kind", "meant"), CHOICES)
def test_a_choice_that_is_misspelt_says_which_was_meant(call, kind, meant):
    def program(comm):
        with pytest.raises(kind, match=f"; did you mean {meant}"):
            call(pdla.eye(2, pdla.ProcessGrid((1, 1)), Layout("row", "col")))

    pdla.run(1, program)


TYPES = [
    lambda A: pdla.linalg.cholesky(A, lower=3), lambda A: pdla.linalg.cholesky(A, lower="yes"), lambda A: pdla.syrk(A, mirror=1),
    lambda A: pdla.zeros((4.0, 4), A.grid, A.layout), lambda A: pdla.eye("4", A.grid, A.layout),
    lambda A: pdla.ProcessGrid((1.0, 1)),
    lambda A: pdla.matmul(A, A, panel=2.0), lambda A: pdla.linalg.matrix_power(A, 2.0), lambda A: pdla.predict_matmul(4.0, 4, 4, 2),
    lambda A: pdla.linalg.predict_cholesky(4.0, 3), lambda A: A.diagonal(1.0), lambda A: A.gather(0.0), lambda A: A.sum(axis="0"),
    lambda A: pdla.tril(A, k=0.5), lambda A: pdla.Cyclic("row", 2.0), lambda A: pdla.random((2, 2), A.grid, A.layout, seed=0.5),
    lambda A: pdla.nn.Linear(pdla.nn.Serial(A.grid), 4.0, 4), lambda A: pdla.run(2.0, print), lambda A: pdla.run(2, 3),
]


@pytest.mark.parametrize("call", TYPES)
def test_a_wrong_type_is_a_type_error_of_pdlas(call):
    def program(comm):
        with pytest.raises(ArgumentError) as caught:
            call(pdla.eye(2, pdla.ProcessGrid((1, 1)), Layout("row", "col")))
        return isinstance(caught.value, TypeError) and not isinstance(caught.value, ValueError)

    assert pdla.run(1, program) == [True]
