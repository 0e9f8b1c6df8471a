"""Agreement: the ranks of a collective call make the same call, or all of them raise the same error.

* agree(comm, call): one small reduction over a digest of the call; if calls differ, all ranks raise.
* with agreed(comm, call): each rank checks its own arguments; an error on one rank is raised on all.
* raise_everywhere(error): the same without a communicator at hand.
* note(comm, done): local; the next agreement compares this, too.
* with collective_section(comm, call): the ranks exchange messages.

With PDLA_CHECK=0 nothing is compared, and only the rank that fails raises its error.

A rank that leaves a section by an error could take its messages for those of the next call. Before
its next agreement or message it therefore asks whether all ranks failed at the same place. If not,
every further call raises an error. A place counts verbs since all ranks last met, in a verb or an
agreement: idle ranks skip other verbs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from functools import partial
from itertools import count
from typing import Any, NoReturn

import numpy as np

from pdla import config, errors
from pdla.array.dtypes import COMPLEX, is_number
from pdla.comm.communicator import Communicator
from pdla.comm.group import sections
from pdla.errors import AgreementError, PdlaError

_ERROR = "error: "
_moments = count()  # moments of this process, in ascending order
SHORT = 60  # characters of an argument that an error names first
_LONG = 2**63  # from here on an integer is written as a float if it equals one
_OTHERS = (UnicodeError, BaseExceptionGroup, StopIteration)


def agree(comm: Communicator, call: str, error: Exception | None = None) -> None:
    """Collective: raise on every rank unless all give the same `call` and no rank gives an error.

    One rank's error is raised on every rank, with the numbers of the ranks that gave it. Its class
    is the nearest base class, of pdla or of Python, whose constructor takes a text alone. Calls that
    differ raise AgreementError.
    """
    if not config.settings.check:
        comm.count_meeting()
        comm.check_in_step(call)
        if error is not None:
            raise error
        return
    call = "; then ".join([*comm.noted, call])
    text = call if error is None else f"{_ERROR}{error}"
    before = comm.enter(call)
    try:
        alike = comm.same(text)
    except BaseException as interruption:  # a signal's handler raised it: the other ranks may agree and go on with this call
        mark_failed(comm, f"the agreement on {call}", interruption)
        raise
    finally:
        comm.user = before
    if alike:
        if error is not None:
            raise _mark_known(comm, error)
        comm.noted.clear()
        return
    raise_disagreement(comm, call, error)


def note(comm: Communicator, done: str) -> None:
    """Local: let the next agreement compare this text, too, without a message of its own."""
    if config.settings.check:
        comm.noted.append(done)


def raise_disagreement(comm: Communicator, call: str, error: Exception | None = None) -> NoReturn:
    """Collective: raise the errors of all ranks or, if there are none, an AgreementError that quotes their calls.

    All ranks know already that they differ.
    """
    base, text = (None, None) if error is None else (_find_plain_base(type(error)), str(error) or type(error).__name__)
    calls, bases, texts = zip(*comm.share((call, base, text)), strict=True)
    if ranks_by_failure := group_ranks(texts):
        message = "; ".join(f"{name_ranks(ranks)}: {failure}" for failure, ranks in ranks_by_failure.items())
        raise _mark_known(comm, next(filter(None, bases))(message))
    comm.noted.clear()
    ranks_by_call = group_ranks(calls)
    message = "; ".join(f"{name_ranks(ranks)}: {other}" for other, ranks in ranks_by_call.items())
    raise _mark_known(comm, AgreementError(f"ranks disagree{_find_difference([*ranks_by_call])}: {message}"))


def _find_difference(calls: list[str]) -> str:
    """Find the one short argument in which calls differ, as " in alpha=1 and alpha=2"; "" for other differences."""
    if len({call.count("; ") for call in calls}) > 1:
        return ""
    arguments = map(set, zip(*(call.split("; ") for call in calls), strict=True))
    differing = [values for values in arguments if len(values) > 1]
    if len(differing) != 1 or max(map(len, differing[0])) > SHORT:
        return ""
    if all(text.startswith("digest ") for text in differing[0]):
        return " in the elements of an array"
    values = [text.removesuffix(")") if text.count("(") < text.count(")") else text for text in sorted(differing[0])]
    are_named = all("=" in word and word.partition("=")[0].isidentifier() for word in values)  # no other part of a call
    return f" in {' and '.join(values)}" if are_named and len(values) == 2 else ""


def _mark_known(comm: Communicator, error: Exception) -> Exception:
    """Mark an error that all ranks of the communicator raise now: an outer `agreed` then does not share it again."""
    error.known_to = comm.identity, next(_moments)  # type: ignore[attr-defined]
    return error


def to_text(given: Any) -> str:
    """Write an argument as the text that ranks compare.

    The text is the repr, except that equal numbers have one text, alone and in sequences. One rank
    may give an int, another a float or a NumPy number.
    """
    cls = type(given)
    if given is None or (cls in (int, float) and abs(given) < _LONG):  # most arguments
        return repr(int(given) if cls is float and given.is_integer() else given)
    if cls in (tuple, list):
        elements = ", ".join(map(to_text, given)) + "," * (cls is tuple and len(given) == 1)
        return f"({elements})" if cls is tuple else f"[{elements}]"
    return _number_to_text(given) if is_number(given) else repr(given)


def _number_to_text(given: Any) -> str:
    number = given.item() if isinstance(given, np.generic) else given
    if isinstance(number, COMPLEX) and number.imag == 0:
        number = number.real
    for cls in (complex,) if isinstance(number, COMPLEX) else (int, float):
        with suppress(TypeError, ValueError, OverflowError):
            if cls(number) == number and (cls is not int or abs(number) < _LONG):
                return repr(cls(number))
    try:
        return repr(number)
    except ValueError:  # more digits than Python writes
        return hex(number)


def group_ranks(texts: Sequence[str | None]) -> dict[str, list[int]]:
    """Group ranks by text, in the order of each text's first rank. texts: by rank, None for no text."""
    ranks: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        if text is not None:
            ranks.setdefault(text, []).append(rank)
    return ranks


def _find_plain_base(cls: type[Exception]) -> type[Exception]:
    """Find the nearest base class that can be pickled and whose constructor takes a text alone, unlike some of NumPy and users.

    The class is never StopIteration, which would end the generator `agreed`.
    """
    return next(
        base
        for base in cls.__mro__
        if base.__module__ == errors.__name__ or (base.__module__ == "builtins" and not issubclass(base, _OTHERS))
    )


def name_ranks(ranks: list[int]) -> str:
    """Name ranks, at most eight of them by number."""
    numbers = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"


@contextmanager
def agreed(comm: Communicator, call: str) -> Iterator[None]:
    """Collective: raise an error of any rank in this with-block, of local work, on every rank."""
    error, entered = None, next(_moments)
    try:
        yield
    except Exception as raised:
        ranks, when = getattr(raised, "known_to", ("", -1))
        if ranks == comm.identity and when > entered:
            raise  # a collective call within this block has raised the error on all its ranks
        error = raised
    agree(comm, call, error)


known_ranks: ContextVar[tuple[Communicator, ...]] = ContextVar("pdla_known_ranks", default=())  # two at most: see know


def remember_ranks(comm: Communicator) -> None:
    """Local: remember that this rank makes a grid over these ranks."""
    known = known_ranks.get()
    if len(known) < 2 and comm not in known:
        known_ranks.set((*known, comm))


def raise_everywhere(error: Exception) -> NoReturn:
    """Raise an error of a call whose arguments on this rank name no communicator.

    Collective over the only communicator over which this rank has made grids: the other ranks meet
    the error in their next call, whichever it is. Local if there is no such communicator, or several.
    """
    if len(known := known_ranks.get()) == 1:
        agree(known[0], "a call without a grid", error)
    raise error


# ---------------------------------------------------------------------------------------------- errors between messages


class collective_section:
    """Collective: a with-block in which ranks exchange messages. what: the call in words, the same on every rank.

    meetings  the number of verbs and agreements of all ranks of the communicator in this block
    verbs     the number of verbs started since the last meeting; some have no idle ranks
    """

    before: tuple[int, str] | None
    comm: Communicator
    meetings: int
    token: Token[tuple[Any, ...]]
    verbs: int
    what: str

    __slots__ = ("before", "comm", "meetings", "token", "verbs", "what")

    def __init__(self, comm: Communicator, what: str) -> None:
        self.comm, self.what = comm, what

    def __enter__(self) -> None:
        self.comm.check_in_step(self.what)
        self.before = self.comm.enter(self.what)
        self.meetings = self.verbs = 0
        self.token = sections.set((*sections.get(), self))

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        sections.reset(self.token)
        self.comm.user = self.before
        if error is not None:
            mark_failed(self.comm, self.what, error, self.verbs, self.meetings)


def mark_failed(comm: Communicator, what: str, error: BaseException, verb: int = 0, meeting: int = 0) -> None:
    """Local: mark the communicator, as this rank failed in this verb after this meeting of the call.

    `collective_section` calls it, and so do blocks too short for a section.
    """
    if comm.failed is None:
        failure = PdlaError(
            f"went on after an error in {what} that not all ranks had at the same place "
            f"({type(error).__name__}: {error}): the messages since then are lost, so let an exception end the job"
        )
        place = f"going on after an error in {what}, in verb {verb} after {meeting} of all ranks"
        comm.failed = partial(_check_all_failed, comm, place, failure)


def _check_all_failed(comm: Communicator, place: str, error: PdlaError) -> None:
    """Collective: raise `error` unless all ranks failed at the same place of the same call.

    A rank that failed calls it. Ranks that are in another call get an error, too.
    """
    if not comm.same(place):
        raise_disagreement(comm, place, error)


def raise_out_of_step(comm: Communicator, fault: str) -> NoReturn:
    """Local: raise this error now and at every further call, as ranks have left different calls half done."""
    mark_out_of_step(comm, fault)()


def mark_out_of_step(comm: Communicator, fault: str) -> Callable[[], NoReturn]:
    """Local: let every further call raise this error. Return the function that raises it."""
    comm.failed = raise_fault = partial(_raise, f"{fault}; they stay out of step, so let an exception end the job")
    return raise_fault


def _raise(fault: str) -> NoReturn:
    raise AgreementError(fault)
