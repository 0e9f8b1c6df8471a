"""Public docstrings are numpydoc, as CONTRIBUTING.md says: they fit their signatures, and their examples run."""

import doctest
import inspect
import re
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import numpy as np
import pytest

import pdla
from pdla import config, errors
from pdla.comm.ledger import Event
from pdla.comm.pending import Pending
from pdla.indices import IndexSet
from pdla.linalg.plan.predict import FactorPrediction
from pdla.matmul.native_layouts import Native
from pdla.matmul.predict import Prediction
from pdla.model import bounds
from pdla.model.cost import Cost
from pdla.show import Drawing
from pdla.simulate.all_ranks import AllRanks
from pdla.simulate.critical_path import Path, Step

GIVEN = (  # not in an __all__, but what a user is given, or finds in the reference
    AllRanks, Cost, Drawing, Event, IndexSet, Native, Path, Pending, Prediction, Step,
    FactorPrediction, config.Settings, config.override, bounds.received_lower_bound, bounds.scaling_ends,
)
FACES = [pdla, pdla.linalg, pdla.nn, pdla.scalapack, pdla.simulate]
if find_spec("torch"):  # pdla.torch is for who has PyTorch
    FACES.append(import_module("pdla.torch"))
CALLED = ("__call__", "__getitem__", "__setitem__")  # special methods that are described on their own

SECTIONS = ("Parameters", "Returns", "Yields", "Attributes", "Raises", "See Also", "Notes", "Examples")
LISTS = {"Parameters", "Returns", "Yields", "Attributes", "Raises"}  # sections of entries with a text each
HEADING = re.compile(r"^(\w[\w ]*)\n(-+)$", re.MULTILINE)
ENTRY = re.compile(r"^(?=\S)(.+?)(?: : (.+))?$", re.MULTILINE)


class Docstring:
    """A docstring in numpydoc's form: its summary, and the text of each section."""

    def __init__(self, text):
        parts = HEADING.split(inspect.cleandoc(text))
        self.summary, *self.more = parts[0].strip("\n").split("\n", 1)
        self.rules = dict(zip(parts[1::3], parts[2::3], strict=True))
        self.sections = dict(zip(parts[1::3], parts[3::3], strict=True))

    def entries(self, section):
        """The entries of a section, as (names, type, description)."""
        text = self.sections.get(section, "")
        found = [*ENTRY.finditer(text)]
        ends = [entry.start() for entry in found[1:]] + [len(text)]
        return [(entry[1].split(", "), entry[2], text[entry.end() : end].strip()) for entry, end in zip(found, ends, strict=False)]

    @property
    def parameters(self):
        return [name.lstrip("*") for names, _, _ in self.entries("Parameters") for name in names]


def described(thing):
    """What has the docstring and the signature: of a property and the like the function within."""
    for kind, name in ((property, "fget"), (cached_property, "func"), ((classmethod, staticmethod), "__func__")):
        if isinstance(thing, kind):
            return getattr(thing, name)
    return thing


def members(cls):
    """A class's own and inherited public methods and properties, by name."""
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("pdla."):
            for name, thing in vars(base).items():
                if (name in CALLED or not name.startswith("_")) and inspect.isfunction(described(thing)):
                    yield name, thing


def public():
    """Every public function, class, method and property: its name, and the thing as its class has it."""
    found = {}
    exported = [getattr(face, name) for face in FACES for name in face.__all__]
    raised = [thing for thing in vars(errors).values() if inspect.isclass(thing)]
    for thing in (*exported, *GIVEN, *raised):
        if isinstance(thing, (ModuleType, tuple)):
            continue
        found[f"{thing.__module__}.{thing.__qualname__}"] = thing
        for _, member in members(thing) if inspect.isclass(thing) else ():
            inside = described(member)
            found[f"{inside.__module__}.{inside.__qualname__}"] = member
    return found


PUBLIC = public()
EVERY = pytest.mark.parametrize("name", PUBLIC)


def signature(thing):
    """The parameters of a call, without self and cls, and what it returns; nothing of a property."""
    if isinstance(thing, (property, cached_property)):
        return [], None
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return [], None
    inside = described(thing)
    told = inspect.signature(inside)
    given = [*told.parameters.values()]
    if inspect.isclass(thing) and issubclass(thing, tuple):  # a NamedTuple's __new__ shows no types
        given = [field.replace(annotation=thing.__annotations__[field.name]) for field in given]
    bound = not inspect.isclass(thing) and not isinstance(thing, staticmethod) and "." in inside.__qualname__
    return given[1:] if bound else given, None if inspect.isclass(thing) else told.return_annotation


def formed(doc):
    """What is not numpydoc's in the form of a docstring, in words."""
    if not doc.summary.endswith(".") or (doc.more and doc.more[0] and doc.more[0][0] != "\n"):
        yield f"the summary is not one sentence on one line: {doc.summary}"
    if [*doc.sections] != [section for section in SECTIONS if section in doc.sections]:
        yield f"sections {[*doc.sections]}: of {SECTIONS}, in this order"
    for section, rule in doc.rules.items():
        if len(rule) != len(section):
            yield f"the rule below {section} is longer or shorter"
    for section in doc.sections.keys() & LISTS:
        if not doc.entries(section):
            yield f"{section} has no entry: a line that is not indented"
        for names, told, text in doc.entries(section):
            if not text or (section == "Parameters" and not told and not names[0].startswith("*")):
                yield f"{section}: {names} without a type or a text"


def fitting(doc, given, returned):
    """What a docstring does not say of a signature as it is, in words."""
    names = [parameter.name for parameter in given]
    if doc.parameters != names:
        yield f"Parameters are {doc.parameters}, those of the signature {names}"
    if len(doc.sections.keys() & {"Returns", "Yields"}) != (returned not in (None, "None")):
        yield f"it returns {returned}, of which Returns or Yields must tell"
    if untyped := [parameter.name for parameter in given if parameter.annotation is parameter.empty]:
        yield f"help() shows no types of {untyped}"
    if returned is inspect.Signature.empty:
        yield "help() shows no type of what it returns"


def too_long(inside):
    """Lines that are longer than 100 columns where they stand, and examples of more than 88."""
    indent = 4 * (inside.__qualname__.count(".") + 1)
    lines = inspect.cleandoc(inside.__doc__ or "").splitlines()
    return [line for line in lines if indent + len(line) > 100 or (line.startswith((">>>", "...")) and len(line) > 88)]


@EVERY
def test_a_docstring_is_numpydoc_and_fits_the_signature(name):
    inside = described(PUBLIC[name])
    doc = Docstring(inside.__doc__ or "")
    assert [*formed(doc), *fitting(doc, *signature(PUBLIC[name])), *too_long(inside)] == []


@EVERY
def test_the_examples_run(name):
    thing = described(PUBLIC[name])
    [test] = doctest.DocTestFinder(recurse=False).find(thing, name, globs={"pdla": pdla, "np": np}) or [None]
    if test is not None and test.examples:
        said = []
        doctest.DocTestRunner(verbose=False).run(test, out=said.append)
        assert not said, "".join(said)


def test_everything_that_is_exported_has_an_example():
    exported = [getattr(face, name) for face in FACES for name in face.__all__]
    ours = [thing for thing in exported if callable(thing)]
    assert [thing.__qualname__ for thing in ours if "Examples" not in Docstring(thing.__doc__).sections] == []
