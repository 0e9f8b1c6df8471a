"""Exceptions, which a collective call raises on every rank, with the same text.

Unless the call's documentation says otherwise, or one rank has given no valid grid or matrix, by
which alone it could reach the others.
"""

from __future__ import annotations

import numbers
import sys
import warnings
from collections import abc

import numpy as np


class PdlaError(Exception):
    """Base of pdla's own exceptions.

    Some wrong arguments raise Python's ValueError or TypeError instead.
    """


class GridError(PdlaError, ValueError):
    """A process grid that does not fit its communicator, or two grids that do not go together."""


class LayoutError(PdlaError, ValueError):
    """A layout that does not fit its grid or its matrix, or layouts that do not go together."""


class ShapeError(PdlaError, ValueError):
    """Shapes or dtypes that do not go together."""


class PlanError(PdlaError, ValueError):
    """A word that is no choice, an algorithm that cannot run here, a memory limit no plan keeps.

    Or matrices of another plan.
    """


class ArgumentError(PdlaError, TypeError):
    """An argument of a type that is not taken: a text for a flag, a float for a number of rows.

    Any function may raise it, also where its documentation lists other errors only.
    """


class AgreementError(PdlaError, ValueError):
    """Ranks made different calls, or one call with different arguments.

    Or a message is longer than the array that it is written to.
    """


class RemoteError(PdlaError, RuntimeError):
    """Another rank failed; the text quotes its error."""


class DeadlockError(PdlaError, RuntimeError):
    """Every rank waits for another one; the text names each rank's call."""


class VerificationError(PdlaError, ArithmeticError):
    """A product, factor or solution that was computed wrongly.

    The text names the ranks, and where in the matrix.
    """


class LinAlgError(PdlaError, np.linalg.LinAlgError):
    """A matrix that is singular, or not positive definite.

    Or NaN or infinity where numbers are needed. Also NumPy's and SciPy's LinAlgError.
    """


class FileError(PdlaError, OSError):
    """A file that is missing, damaged, truncated or of the wrong shape."""


class NoMPIError(PdlaError, RuntimeError):
    """No MPI where one is needed.

    mpi4py or an MPI library is missing; MPI is not initialised yet, or finalised; or this process
    was forked from a rank.
    """


class DeviceError(PdlaError, RuntimeError):
    """A GPU or a library that is missing, or an array in the wrong memory.

    CuPy or a GPU is missing where PDLA_ARRAY asks for it; the library that PDLA_BLAS names is
    missing or does not fit; or an array lies elsewhere than this rank's matrices do, on the host or
    on a GPU.
    """


class HandleError(PdlaError, LookupError):
    """A handle, given to one of pdla.h's functions, of no grid or no matrix, as is needed."""


AN = ("a", "e", "i", "o", "nd")  # how types begin that have "an" before them: an int, an ndarray


def kind_of(thing: object) -> str:
    """The type of what a caller gave, in words: "a list", "an ndarray"."""
    name = type(thing).__name__
    return f"{'an' if name.lower().startswith(AN) else 'a'} {name}"


def misfit(otherwise: type[PdlaError], *given: object) -> type[PdlaError]:
    """What to raise for whole numbers that do not fit: ArgumentError where one given is no integer, else `otherwise`."""
    return otherwise if all(isinstance(number, numbers.Integral) for number in given) else ArgumentError


def find_closest(given: object, known: abc.Iterable[object], alike: float = 0.65) -> str:
    """The known name that is most like the given one; "" where none is like it.

    alike: from 0 to 1, how much. Letters of another case count as the same; a name with the same letters comes first.
    """
    if not isinstance(given, str):
        return ""
    from difflib import get_close_matches

    text, names = given.lower(), {name.lower(): name for name in known if isinstance(name, str)}
    turned = [name for name in names if name and sorted(name) == sorted(text)]
    meant = turned or get_close_matches(text, names, 1, alike)
    return names[meant[0]] if meant else ""


def suggest(given: object, known: abc.Iterable[object]) -> str:
    """"; did you mean 'summa'?": the known name that was probably meant; "" where there is none.

    It is the closest, or one of which the given word is the beginning, or which is its beginning.
    """
    names = [name for name in known if isinstance(name, str)]
    meant = find_closest(given, names)
    if not meant and isinstance(given, str):
        begun = (name for name in names if min(len(name), len(given)) >= 3 and (name.startswith(given) or given.startswith(name)))
        meant = next(begun, "")
    return f"; did you mean {meant!r}?" if meant else ""


def list_choices(given: object, known: abc.Iterable[object]) -> str:
    """"one of 'gather', 'summa'; did you mean 'summa'?": what may be given, and which of it is most like what was given."""
    choices = [*known]
    return f"one of {', '.join(map(repr, choices))}{suggest(given, choices)}"


def shorten(text: str, most: int) -> str:
    """The text; of one that has more than so many characters, its beginning and its end."""
    half = (most - 5) // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


def warn_user(said: str, kind: type[Warning]) -> None:
    """Local: warn at the line of the first caller that is not pdla's, as of NumPy's functions."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("pdla."):
        level, frame = level + 1, frame.f_back
    warnings.warn(said, kind, stacklevel=level)


def plural(count: int, one: str, several: str = "") -> str:
    """The word after a count: `one` where the count is 1, else `several`, or `one` with an s."""
    return one if count == 1 else several or f"{one}s"
