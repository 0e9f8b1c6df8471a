"""Each argument of every public function that is collective is agreed on: let it differ on one rank, or be wrong there alone, and
all ranks raise the same error.

What is called, and with what, follows from the signatures. So a new function is tested as soon as it is public, and a new argument
as soon as VALUES or SPECIAL has values for it; until then a test fails, and says so.
"""

import inspect
import operator
import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pdla
from pdla import Layout, nn
from pdla.errors import AgreementError, DeadlockError, PdlaError

ROWS, COLS, WHOLE = Layout("row"), Layout(None, "row"), Layout()

# ---------------------------------------------------------------------------------------------- what is public

LOCAL = {  # what is not collective, or agrees on nothing, and why: a class (all of it), one of its methods, or one of any class
    "it sends nothing": """
        Balanced Cuts Cyclic Descriptor Layout Ledger Machine algorithms balanced_shape matmul_words matvec_words
        cholesky_words eigh_words lu_words qr_words predict_matmul record syrk_words tagged tiled_order to_descriptor
        predict_cholesky predict_eigh predict_lstsq predict_lu predict_polar predict_qr predict_solve_triangular
        DistMatrix.__init__ DistMatrix.__eq__ DistMatrix.__neg__ DistMatrix.__rsub__ DistMatrix.__abs__ DistMatrix.__rpow__
        DistMatrix.__lt__ DistMatrix.__rtruediv__ DistMatrix.astype DistMatrix.conj DistMatrix.copy DistMatrix.matches_layout
        fill_diagonal tril triu
        ProcessGrid.__eq__ ProcessGrid.coords_of ProcessGrid.default ProcessGrid.everyone ProcessGrid.group ProcessGrid.holders
        ProcessGrid.rank_of ProcessGrid.with_comm
        Plan.__init__ Plan.__eq__ Plan.explain Plan.free Plan.peak_of Stack.__init__ Stack.__eq__ Stack.conj
        CrossEntropy.__init__ CrossEntropy.backward GeLU.__init__ GeLU.apply_with_bias GeLU.compute_gradient_and_sums
        Layer.__init__ ReLU.__init__
        MeanSquaredError.__init__ MeanSquaredError.backward
        Node.all_layers Node.all_parameters Node.gradients Node.named_layers Node.named_parameters Node.parameters
        Runner.kept_bytes Linear.find_layouts Conv2d.find_layouts Optimizer.step Parameter
        Scheme.activation Scheme.linear Scheme.residual Scheme.table
        TiedHead.__init__ like
    """,
    "it sends nothing, but for a matrix that lies otherwise, and for numbers that ask for an element (tests/matrix)": """
        DistMatrix.__add__ DistMatrix.__sub__ DistMatrix.__mul__ DistMatrix.__truediv__ DistMatrix.__pow__
        DistMatrix.__iadd__ DistMatrix.__isub__ DistMatrix.__imul__ DistMatrix.__itruediv__ DistMatrix.__ipow__
        DistMatrix.__getitem__ DistMatrix.__setitem__
    """,
    "it is where ranks begin": "abort_on_exception as_communicator dry_run dry_run_all run world",
    "its verbs are the messages, by which others agree": "Communicator Group",
    "it gives communicators, in the order of the calls: products ask for them again and again": """
        ProcessGrid.__getitem__ ProcessGrid.close Stack.matrices
    """,
    "a plan is called without a message": "Plan.__call__ Plan.run FactorPlan",
    "its callers, which are Layer's, have agreed": """
        MicroBatch .forward_local .backward_local .forward_async .backward_async .check_input
    """,
    "its subclasses are called": "Scheme.__init__",
}


def public():
    """Every public function, class and method, by its qualified name; of methods that are inherited the one that is."""
    found = {}
    for module in (pdla, pdla.linalg, nn, pdla.scalapack):
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) and not issubclass(thing, Exception):
                found[f"{name}.__init__"] = thing
                methods = inspect.getmembers(thing, inspect.isfunction)
                found |= {method.__qualname__: method for name, method in methods if called_by_users(name)}
            elif not inspect.ismodule(thing):
                found[name] = thing
    return found


def called_by_users(name):
    """Whether a method's name is a word or an operator's."""
    return not name.startswith("_") or not {name, name.replace("__r", "__", 1)}.isdisjoint(vars(operator))


local = {name: why for why, names in LOCAL.items() for name in names.split()}
CALLS = {
    **{name: call for name, call in public().items() if not {name, name.split(".")[0], f".{name.split('.')[-1]}"} & local.keys()},
    "matvec of a vector": pdla.matvec, "from_global of a root": pdla.from_global, "Layer.forward of numbers": nn.Layer.forward,
}


def arguments(name):
    return [x for x in inspect.signature(CALLS[name]).parameters if not x.startswith("_")]


# ---------------------------------------------------------------------------------------------- values of arguments


@dataclass
class Here:
    """What a rank makes the values of; all ranks make all of them."""

    comm: Any
    folder: Path

    def grid(self, shape=None, **named):
        return pdla.ProcessGrid(shape or self.comm.size, comm=self.comm, **named)

    def turned(self):
        """All ranks in an order that is not the usual one."""
        return [*range(self.comm.size)][::-1]

    def ones(self, layout=ROWS, shape=(4, 4), dtype="float64", **named):
        return pdla.ones(shape, self.grid(**named), layout, dtype=dtype)

    def matrices(self):
        """One, and others that lie otherwise: each in another respect."""
        others = [self.ones(COLS), self.ones(dtype="float32"), self.ones(COLS).T, self.ones(order=self.turned())]
        return self.ones(), *others, self.ones(shape=(4, 8))[:, :4]

    def eyes(self):
        """The same, with the elements of a unit matrix."""
        made = self.matrices()
        for X in made:
            X.local[...] = pdla.eye(X.shape[0], X.grid, X.layout).local
        return made

    def stack(self, layout=WHOLE, **named):
        return pdla.stack(np.ones((2, 4, 4)), self.grid(), layout, **named)

    def __post_init__(self):
        self.scheme = nn.Megatron1D(self.grid())

    def schemes(self):
        others = [{"keep": False}, {"shards": 2}, {"sequence_parallel": True}]
        return self.scheme, *(nn.Megatron1D(self.grid(), **options) for options in others), nn.Serial(self.grid())

    def linear(self, n=4, scheme=None, training=False):
        """A layer; training: it has gradients."""
        layer = nn.Linear(scheme or self.scheme, 4, n)
        if training:
            layer.backward(layer.forward(self.x()))
        return layer

    def x(self, layout=WHOLE, **named):
        """An activation that a linear of `scheme` takes."""
        return self.ones(layout, **named)

    def with_gaps(self):
        """An activation like x(COLS), of a block with gaps in memory."""
        width = self.x(COLS).local.shape[1]
        return pdla.from_local(np.ones((4, 8))[:, : 2 * width : 2], (4, 4), self.grid(), COLS)

    def optimizer(self, steps=0, **named):
        made = nn.SGD(self.linear(**named), 0.5, momentum=0.5)
        made.steps = steps
        return made

    def forwarded(self, scheme=None):
        """A layer between its forward and its backward pass."""
        layer = self.linear(scheme=scheme)
        layer.forward(self.x())
        return layer


def stored(here):
    """Files of two matrices each."""
    import h5py

    for name in ("a.h5", "b.h5"):
        if here.comm.rank == 0:
            with h5py.File(here.folder / name, "w") as file:
                file["matrix"] = file["other"] = np.ones((4, 4))
    here.comm.barrier()
    return here.folder / "a.h5", here.folder / "b.h5"


def stored_factors(here):
    """Files of a matrix's factors, and of another's."""
    for name, scale in (("a.npz", 1), ("b.npz", 2)):
        if here.comm.rank == 0:
            np.savez(here.folder / name, LU=scale * np.eye(4), pivots=np.arange(4))
    here.comm.barrier()
    return here.folder / "a.npz", here.folder / "b.npz"


both = (True, False)
VALUES = {  # by name of the argument, what all ranks give, and then what one rank gives instead
    "A": Here.matrices, "B": Here.matrices, "C": Here.matrices, "other": Here.matrices, "out": Here.matrices,
    "DistMatrix": Here.matrices,  # as self, by its class
    "Stack": lambda here: (here.stack(), here.stack(ROWS), here.stack().T, here.stack(axis="row")),
    "Layer": lambda here: (here.linear(), here.linear(8), nn.ReLU(here.scheme), here.linear(scheme=here.schemes()[1])),
    "Node": lambda here: VALUES["Layer"](here), "Runner": lambda here: VALUES["Layer"](here),  # what a layer is besides
    "Optimizer": lambda here: (here.optimizer(), here.optimizer(n=8)),
    "Scheme": Here.schemes,
    "grid": lambda here: (here.grid(), here.grid(order=here.turned())),
    "scheme": Here.schemes,
    "layer": lambda here: (here.linear(training=True), here.linear(8, training=True)),
    "shape": lambda here: ((4, 4), (4, 6)),
    "dtype": lambda here: ("float64", "float32"),
    "layout": lambda here: (ROWS, COLS),
    "algorithm": lambda here: ("auto", "gather"),
    "box": lambda here: (None, (1, 1, 2)),
    "schedule": lambda here: (None, "gather"),
    "panel": lambda here: (None, 2),
    "memory_limit": lambda here: (None, 10**9), "verify": lambda here: (True, False, "keep", None),
    "refine": lambda here: (None, "float32"), "p": lambda here: (1, np.inf), "ord": lambda here: (None, "fro", 1, np.inf),
    "assume_a": lambda here: ("gen", "pos"),
    "mode": lambda here: ("reduced", "r"), "pivoting": lambda here: both, "conjugate": lambda here: both,
    "subset_by_index": lambda here: (None, (0, 1)), "subset_by_value": lambda here: (None, (0.0, 2.0)),
    "condition": lambda here: (None, 1e3),
    "rcond": lambda here: (None, 0.5), "tol": lambda here: (None, 0.5), "rtol": lambda here: (None, 0.5),
    "coefficients": lambda here: ("jordan", "polar_express"), "steps": lambda here: (None, 2),
    "unit_diagonal": lambda here: (False, True), "check_finite": lambda here: both,
    "overwrite_a": lambda here: (False, True), "overwrite_b": lambda here: (False, True),
    "c_and_lower": lambda here: [(X, True) for X in here.eyes()] + [(here.eyes()[0], False)],
    "lu_and_piv": lambda here: [(X, np.arange(4)) for X in here.eyes()] + [(here.eyes()[0], np.array([1, 1, 2, 3]))],
    "alpha": lambda here: (1, 2),
    "beta": lambda here: (1, 2),
    "side": lambda here: ("left", "right"),
    "lower": lambda here: both, "mirror": lambda here: both,
    "root": lambda here: (None, 0, 1), "blocks": lambda here: VALUES["matrices"](here)[:-1],
    "seed": lambda here: (0, 1),
    "distribution": lambda here: ("uniform", "normal"),
    "low": lambda here: (0, 0.5),
    "high": lambda here: (1, 2),
    "array": lambda here: (np.ones((4, 4)), np.zeros((4, 4)), np.ones((4, 2)), np.ones((4, 4), "float32")),
    "axis": lambda here: (None, "row"),
    "axes": lambda here: (None, "x"),
    "order": lambda here: (None, [1, 0]),
    "subscripts": lambda here: ("ij,jk->ik", "ij,kj->ik"),
    "matrices": lambda here: ((one := here.ones(), one), *((one, other) for other in here.matrices()[1:]), (one, one, one)),
    "dataset": lambda here: ("matrix", "other"),
    "m": lambda here: (8, 16), "n": lambda here: (8, 16), "k": lambda here: (8, 16),
    # ------------------------------------------------------------------ of layers
    "keep": lambda here: (False, True),
    "shards": lambda here: (1, 2),
    "sequence_parallel": lambda here: (False, True), "cut_weights": lambda here: both,
    "bias": lambda here: both, "causal": lambda here: both, "offset": lambda here: both, "recompute": lambda here: both,
    "hidden": lambda here: (4, 8), "inner": lambda here: (None, 8), "features": lambda here: (4, 8),
    "inputs": lambda here: (4, 8), "outputs": lambda here: (4, 8), "channels": lambda here: (4, 8),
    "vocabulary": lambda here: (4, 8),
    "heads": lambda here: (4, 2), "groups": lambda here: (4, 2),
    "sequence": lambda here: (2, 4), "pixels": lambda here: (2, 4),
    "height": lambda here: (4, 8), "width": lambda here: (4, 8),
    "kernel": lambda here: (1, 3), "stride": lambda here: (1, 2), "padding": lambda here: (None, 1),
    "factor": lambda here: (2, 3), "levels": lambda here: (1, 2),
    "kind": lambda here: ("first", "second"),
    "units": lambda here: ((1, 1), (2, 1), (1, 2)),
    "cut": lambda here: ("| row", "|"), "unit": lambda here: (1, 2), "fill": lambda here: (0, 1),
    "scale": lambda here: (0.5, 0.25),
    "eps": lambda here: (1e-5, 1e-3),
    "name": lambda here: ("one", "other"),
    "probability": lambda here: (0.5, 0.25), "dropout": lambda here: (0.5, 0.25),
    "activation": lambda here: (nn.ReLU, nn.GeLU),
    "layers": lambda here: [[kind(here.scheme)] for kind in (nn.ReLU, nn.GeLU)],
    "branches": lambda here: [[layers] for layers in VALUES["layers"](here)],
    "training": lambda here: both,
    "x": lambda here: (here.x(), here.x(shape=(8, 4))),
    "dy": lambda here: (here.x(COLS), here.x(), here.with_gaps()),
    "state": lambda here: [{"weight": x, "bias": x[:1]} for x in (np.ones((4, 4)), np.zeros((4, 4)), np.ones((4, 4), "float32"))],
    "rate": lambda here: (0.5, 0.25), "momentum": lambda here: (0.5, 0.25), "decay": lambda here: (0.5, 0.25),
    "betas": lambda here: ((0.5, 0.5), (0.25, 0.5), (0.5, 0.25)),
    "largest": lambda here: (1, 2),
    "logits": Here.matrices,
    "y": Here.matrices,
}


def scheme_on(shape):
    return {"grid": lambda here: (here.grid(shape), here.grid(shape, order=here.turned()))}


def layered(here):
    """Stacks whose layers are of one rank, which agrees with itself on what a product asks of its layer alone."""
    return here.stack(axis="row"), here.stack(axis="row").T, here.stack()


FACTORED = (
    "cholesky", "cho_factor", "lu_factor", "solve", "solve_triangular", "trsm", "inv", "det", "slogdet", "cond", "lu",
    "plan_cholesky", "plan_lu", "plan_solve", "plan_solve_triangular", "signm", "sqrtm", "inverse_root",
)
out = {"layout": lambda here: (ROWS, None)}  # another one than out's is an error by itself
SPECIAL: dict[str, dict[str, Any]] = {  # by function, values of arguments that need others there
    **dict.fromkeys(("matmul", "plan_matmul", "symm", "hemm", "syrk", "herk", "syr2k", "her2k"), out),
    **{name: {"A": Here.eyes} for name in FACTORED},
    **{name: {"A": Here.eyes, **out} for name in ("solve", "solve_triangular")}, **dict.fromkeys(("cho_solve", "lu_solve"), out),
    "inverse_root": {"A": Here.eyes, "p": lambda here: (1, 2)}, "logm": {"A": Here.eyes},
    "funm": {"func": lambda here: (np.exp, np.sin)},
    **{name: {"A": Here.eyes, "b": lambda here: (None, *here.eyes())} for name in ("eigh", "eigvalsh")},
    "plan_eigh": {"A": Here.eyes},
    "qr_multiply": {"mode": lambda here: ("right", "left")},
    "matrix_power": {"n": lambda here: (3, 2, -1)},
    **dict.fromkeys(("Summa2D.__init__", "Tensor3D.__init__"), scheme_on((1, 2))),
    **dict.fromkeys(("Tesseract.__init__", "Cube3D.__init__"), scheme_on((1, 2, 1))),
    **{f"DistMatrix.{name}": {"axis": lambda here: (0, 1, None)} for name in ("sum", "mean", "max", "min")},
    "DistMatrix.__rmatmul__": {"other": lambda here: (None, 1, "x")},
    "ProcessGrid.__init__": {"shape": lambda here: (2, 1)},
    "DistMatrix.redistribute": {"grid": lambda here: (None, here.grid(order=here.turned()))},
    "Stack.__matmul__": {"other": VALUES["Stack"]},
    "Stack.redistribute": {"layout": lambda here: (WHOLE, ROWS)},
    "batched_matmul": {"A": layered, "B": layered, "layout": lambda here: (None, WHOLE)},
    "stack": {
        "array": lambda here: (np.ones((2, 4, 4)), np.zeros((2, 4, 4)), np.ones((2, 4, 8))), "layout": lambda here: (WHOLE, ROWS)
    },
    "matvec": {
        "x": lambda here: (*(here.ones(layout, (4, 1)) for layout in (ROWS, WHOLE)), here.ones(shape=(4, 1), dtype="float32")),
    },
    "matvec of a vector": {"x": lambda here: (np.ones(4), np.zeros(4), np.ones(4, "float32"))},
    "Layer.forward of numbers": {
        "self": lambda here: [nn.Embedding(here.scheme, n, 4) for n in (4, 8)],
        "x": lambda here: (np.arange(4), np.arange(4)[::-1], np.arange(4, dtype="int32")),
    },
    "from_global of a root": {"root": lambda here: (0, 1, None)},
    "native_layouts": {"algorithm": lambda here: ("auto", "3d")},
    "load": {"path": stored},
    "load_factors": {"path": stored_factors},
    "save_factors": {
        "path": lambda here: (here.folder / "a.npz", here.folder / "b.npz"), "factors": lambda here: VALUES["lu_and_piv"](here)
    },
    "save": {"path": lambda here: (here.folder / "a.npy", here.folder / "b.npy")},
    "from_descriptor": {
        "desc": lambda here: ([1, 0, 4, 4, 2, 2, 0, 0, 4], [1, 0, 4, 4, 4, 2, 0, 0, 4]),
        "grid": lambda here: (here.grid((1, 2)), here.grid((2, 1)), here.grid((1, 2), order=[1, 0])),
    },
    "Scheme.shard": {
        "self": lambda here: here.schemes()[::3],
        "x": lambda here: (np.ones((4, 4)), np.zeros((4, 4)), np.ones((8, 4))),
    },
    "Node.load_state_dict": {"self": lambda here: [here.linear(scheme=scheme) for scheme in here.schemes()[:2]]},
    "Runner.backward": {"self": lambda here: [here.forwarded(scheme) for scheme in here.schemes()[:2]]},
    "Optimizer.state_dict": {"self": lambda here: (here.optimizer(), here.optimizer(n=8), here.optimizer(1))},
    "Optimizer.load_state_dict": {
        "state": lambda here: [{"steps": 1, "weight.0": x, "bias.0": x[:1]} for x in (np.ones((4, 4)), np.zeros((4, 4)))]
    },
    "CrossEntropy.forward": {"targets": lambda here: (np.arange(4), np.arange(4)[::-1], np.arange(4, dtype="int32"))},
    "MeanSquaredError.forward": {"targets": lambda here: (np.ones((4, 4)), np.zeros((4, 4)), np.ones((4, 4), "float32"))},
}

OWN = {  # what may differ from rank to rank, with the value of all ranks; why
    "from_local(local)": lambda here: here.ones().local,  # a rank's own block
    "from_descriptor(local)": lambda here: np.ones((4, 4)),
    "from_global of a root(array)": lambda here: np.ones((4, 4)),  # only the root's is looked at
    "matvec of a vector(layout)": lambda here: None,  # no other is allowed
    "from_function(f)": lambda here: np.add,  # a function, of which nothing can be compared
    "ProcessGrid.__init__(comm)": lambda here: here.comm,  # by it ranks reach each other
    "native_layouts(comm)": lambda here: here.comm,
    "DistMatrix.__rmatmul__(self)": lambda here: here.ones(),  # in any case nothing is computed
    "CrossEntropy.forward(self)": lambda here: nn.CrossEntropy(),  # it has nothing but what forward leaves
    "MeanSquaredError.forward(self)": lambda here: nn.MeanSquaredError(),
    "Cube3D.__init__(shards)": lambda here: 1,  # no other number is allowed
    **{f"{kind}.__init__(name)": lambda here: "one" for kind in ("LayerNorm", "RMSNorm", "GroupNorm")},  # only the ledger's
}


TOLD = {  # arguments of which any other value contradicts what the rank gives besides
    "Sequential.__init__(scheme)", "Block.__init__(scheme)", "Optimizer.load_state_dict(self)", "from_local(shape)",
    "from_local(layout)",
}


def values(here, name, argument):
    """What all ranks give, and then what one rank gives instead."""
    if (own := f"{name}({argument})") in OWN:
        return (OWN[own](here),)
    by_name = VALUES.get(name.split(".")[0] if argument == "self" else argument)
    return tuple(SPECIAL.get(name, {}).get(argument, by_name)(here))


def known(name, argument):
    key = name.split(".")[0] if argument == "self" else argument
    return f"{name}({argument})" in OWN or argument in SPECIAL.get(name, {}) or key in VALUES


def call(name, given):
    bound = inspect.signature(CALLS[name]).bind_partial()
    bound.arguments = {argument: given[argument] for argument in arguments(name)}
    return CALLS[name](*bound.args, **bound.kwargs)


def outcome(name, given):
    """The kind and the text of the error that a call raises; None: none."""
    try:
        call(name, given)
    except Exception as error:
        return type(error), str(error)
    return None


SHAPED = {name for name, special in SPECIAL.items() if "grid" in special and name != "DistMatrix.redistribute"}  # for two ranks


# ---------------------------------------------------------------------------------------------- the tests

ALL = [(name, argument) for name in CALLS for argument in arguments(name)]
each = pytest.mark.parametrize(("name", "argument"), ALL, ids=lambda word: word)


def test_all_arguments_have_values():
    missing = [f"{name}({argument})" for name, argument in ALL if not known(name, argument)]
    assert not missing, f"give VALUES or SPECIAL two values of {', '.join(missing)}; or give OWN one, and why ranks may differ"


def test_nothing_is_listed_that_is_not_there():
    classes = {part for name in public() for part in (name.split(".")[0], f".{name.split('.')[-1]}")}
    assert set(local) <= public().keys() | classes
    assert {f"{name}({argument})" for name, argument in ALL} >= {*OWN, *(f"{n}({x})" for n, some in SPECIAL.items() for x in some)}


def rounds(name, argument, folder, given, check):
    """check(here, usual arguments, value, rank) on two ranks, for each value that one of them gives instead, and each rank."""
    tried = []

    def program(comm):
        here = Here(comm, folder)
        usual = {x: values(here, name, x)[0] for x in arguments(name)}
        for value in given(here, usual):
            for rank in range(comm.size):
                tried.append(f"rank {rank} alone gave {argument}={value!r}")
                check(here, usual, value, rank)
        comm.barrier()  # the ranks still go together
        call(name, usual)

    try:
        pdla.run(2, program)
    except Exception as error:
        error.add_note("\n".join(tried[-2:]))
        raise


def told(here, name, usual, argument, value, rank):
    """What all ranks raise where one of them gives another value."""
    given = usual | {argument: value} if here.comm.rank == rank else usual
    mine, other = here.comm.share(outcome(name, given))
    assert mine == other
    return mine


@each
def test_an_argument_that_differs_on_one_rank(name, argument, tmp_path):
    """A value may also contradict what the rank gives besides, and so be an error of another kind; but not all of them."""
    kinds = set()

    def check(here, usual, value, rank):
        error = told(here, name, usual, argument, value, rank)
        assert error is not None, "no error"
        kind, text = error
        assert re.match("ranks disagree.*: rank 0: .*; rank 1: " if kind is AgreementError else r"rank [01]: ", text), error
        kinds.add(kind)

    rounds(name, argument, tmp_path, lambda here, usual: values(here, name, argument)[1:], check)
    assert AgreementError in kinds or f"{name}({argument})" in {*OWN, *TOLD}, kinds


# ---------------------------------------------------------------------------------------------- wrong on one rank alone


class Wrong:
    """What no argument takes."""

    def __repr__(self):
        return "wrong"


REACH = (pdla.Communicator, pdla.ProcessGrid, pdla.DistMatrix, pdla.Stack, nn.Layer, nn.Scheme, nn.SGD)


def several(value):
    """Whether a value is a sequence of matrices or layers."""
    return isinstance(value, (list, tuple)) and isinstance(value[0], REACH)


def default(name, argument):
    return inspect.signature(CALLS[name]).parameters[argument].default


def reaching(name, usual):
    """The arguments by which a rank reaches the others: grids, matrices, layers, and what has them. A layer's is its scheme."""
    found = [x for x, value in usual.items() if isinstance(value, REACH) or several(value)]
    return found[:1] if name.endswith("__init__") else found


def wrongs(here):
    """Values that hardly any argument takes, and what is over a communicator of this rank's own."""
    alone = Here(here.comm.split([here.comm.rank], "alone"), here.folder)
    foreign = [alone.grid(), alone.ones(), alone.stack(), alone.scheme, alone.linear()]
    return [Wrong(), None, "?", float("nan"), -1, [1], {}, np.ones((2, 2)), np.empty(0), Layout("nowhere"), *foreign]


@each
def test_an_argument_that_is_wrong_on_one_rank(name, argument, tmp_path):
    """The others do not wait. Left out is that by which alone a rank reaches them, here where it knows several communicators."""

    def check(here, usual, value, rank):
        error = told(here, name, usual, argument, value, rank)
        assert error is not None or value is usual[argument] or value is default(name, argument) or f"{name}({argument})" in OWN

    def given(here, usual):
        first, *rest = reaching(name, usual)
        whole = usual[argument]
        if several(whole):
            last = len(whole) - 1
            places = {0, last} if rest or isinstance(whole[last], REACH) else {last}  # else whole[0] alone reaches the others
            return [type(whole)([*whole[:at], wrong, *whole[at + 1 :]]) for wrong in wrongs(here) for at in places]
        if argument == "self" or (argument == first and not rest):
            return []
        return wrongs(here)

    rounds(name, argument, tmp_path, given, check)


@pytest.mark.parametrize("name", CALLS)
def test_what_alone_reaches_the_others_and_is_wrong_ends_the_rank(name, tmp_path):
    """It cannot tell the others where it knows several communicators, and so does not wait for them."""

    def program(comm, wrong):
        here = Here(comm, tmp_path)
        Here(comm.split([comm.rank], "alone"), tmp_path).grid()
        usual = {x: values(here, name, x)[0] for x in arguments(name)}
        first, *rest = reaching(name, usual)
        if wrong:
            call(name, usual | {first: Wrong()} if comm.rank == 1 else usual)
        return not rest and first != "self" and not several(usual[first])

    if pdla.run(2, program, False)[0]:
        with pytest.raises((PdlaError, TypeError)) as error:
            pdla.run(2, program, True)
        assert not isinstance(error.value, (DeadlockError, AgreementError))


@pytest.mark.parametrize("name", CALLS)
def test_nothing_that_reaches_the_others_is_an_error_on_every_rank_of_the_only_communicator(name, tmp_path):
    """In their place are things that have no communicator, of one kind on the first rank, in the middle, or on the last."""
    wrongs = [None, np.ones((2, 2)), 3, [], [None]] if name != "einsum" else [[], [None], [None, np.ones((2, 2))]]

    def program(comm):
        here = Here(comm, tmp_path)
        usual = {x: values(here, name, x)[0] for x in arguments(name)}
        reach = [x for x in reaching(name, usual) if not isinstance(usual[x], pdla.Communicator)]
        if "self" in reach or name == "from_descriptor":  # of the latter None is the world
            return
        some = [wrong for wrong in wrongs for x in reach[:1] if wrong is not None or default(name, x) is not None]  # a default
        for wrong, odd in product(some, range(comm.size)):
            given = usual | dict.fromkeys(reach, wrong) if comm.rank == odd else usual
            said = comm.share(outcome(name, given))
            assert said == said[:1] * comm.size and said[0] is not None, (wrong, odd, said)
            assert said[0][1].startswith(f"rank {odd}: "), (wrong, odd, said)
        call(name, usual)  # the ranks still go together

    pdla.run(3 if name not in SHAPED else 2, program)


# ---------------------------------------------------------------------------------------------- what is local


def assigned(A, x):
    A[:, 1:3] = x
    return A


OPERATORS = {  # DistMatrix's local methods: what is called, with what on all ranks, and with what on one alone; None: nothing
    "__add__": (operator.add, 2, 3), "__sub__": (operator.sub, 2, 3), "__rsub__": (lambda A, x: x - A, 2, 3),
    "__mul__": (operator.mul, 2, 3), "__truediv__": (operator.truediv, 2, 4),
    "__iadd__": (operator.iadd, 2, 3), "__isub__": (operator.isub, 2, 3),
    "__imul__": (operator.imul, 2, 3), "__itruediv__": (operator.itruediv, 2, 4),
    "__pow__": (lambda A, x: (A + A) ** x, 2, 0), "__ipow__": (lambda A, x: operator.ipow(A + A, x), 2, 0),
    "__rpow__": (lambda A, x: x**A, 2, 3), "__rtruediv__": (lambda A, x: x / A, 2, 3), "__abs__": (abs, None, None),
    "__neg__": (operator.neg, None, None), "copy": (pdla.DistMatrix.copy, None, None), "conj": (pdla.DistMatrix.conj, None, None),
    "__getitem__": (operator.getitem, np.s_[:2, :], np.s_[:3, :]), "__setitem__": (assigned, 2, 3),
    "astype": (pdla.DistMatrix.astype, "float64", "float32"),
    "matches_layout": (pdla.DistMatrix.matches_layout, WHOLE, ROWS),
}


def test_every_local_method_of_a_matrix_is_tested():
    others = {"__init__", "__eq__", "__lt__"}
    assert OPERATORS.keys() | others == {name.split(".")[1] for name in local if name.startswith("DistMatrix.")}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_send_nothing(name):
    """On one rank alone they neither wait nor leave the others behind, whether they are given something right or wrong."""
    apply, usual, _ = OPERATORS[name]

    def program(comm):
        here = Here(comm, Path())
        A = here.ones(WHOLE)
        for rank, wrong in product(range(comm.size), [] if usual is None else wrongs(here)):
            if comm.rank == rank:
                apply(A, usual)
                number = name == "__getitem__" and isinstance(wrong, int)  # by which all ranks get a row
                with suppress(PdlaError, TypeError, AttributeError, KeyError):
                    apply(A, usual if number else wrong)
            A.norm()
        if comm.rank == 0:
            apply(A, *([] if usual is None else [usual]))

    pdla.run(2, program)


@pytest.mark.parametrize("name", [name for name, given in OPERATORS.items() if given[-1] is not None and name != "matches_layout"])
@pytest.mark.parametrize("odd", [0, 1])
def test_what_an_operator_was_given_on_one_rank_alone_is_noticed_later(name, odd):
    """By the next collective call where the matrix is another one, by check_copies where only its elements are others."""
    apply, usual, other = OPERATORS[name]

    def program(comm):
        made = apply(Here(comm, Path()).ones(WHOLE), other if comm.rank == odd else usual)
        if len(set(comm.share(made.description))) == 1:
            assert not made.check_copies()
            return
        with pytest.raises(AgreementError, match=r"ranks disagree: rank 0: norm of .*; rank 1: norm of"):
            made.norm()

    pdla.run(2, program)


# ---------------------------------------------------------------------------------------------- what is set after it was made

NUMBERS = [
    (kind, name) for kind in (nn.SGD, nn.AdamW, nn.Dropout) for name in inspect.signature(kind).parameters
    if name not in ("layer", "scheme")
]


@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=lambda x: getattr(x, "__name__", x))
def test_a_number_of_a_training_step_that_is_set_on_one_rank(kind, name):
    def program(comm):
        here = Here(comm, Path())
        key = kind.__name__ + ".__init__"
        usual = {x: values(here, key, x) for x in arguments(key) if x not in ("layer", "scheme")}
        made = {x: value for x, (value, *_) in usual.items()}
        dropout = nn.Dropout(here.scheme, **made) if kind is nn.Dropout else nn.Dropout(here.scheme, 0.5)
        net = nn.Sequential(here.scheme, [here.linear(), dropout])
        optimizer = kind(net, **made) if kind is not nn.Dropout else nn.SGD(net, 0.5)
        if comm.rank == 1:
            setattr(dropout if kind is nn.Dropout else optimizer, name, usual[name][1])
        raised = None
        for _ in range(2):
            try:
                net.backward(net.forward(here.x()))
                optimizer.step()
            except AgreementError as error:
                raised = str(error)
                break
        first, other = comm.share(raised)
        assert first is not None and first == other

    pdla.run(2, program)
