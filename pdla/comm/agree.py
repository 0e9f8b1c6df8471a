"""Agreement: the ranks of a collective call say the same thing, or all of them raise the same error.

with agreed(comm, "matmul"): checks of one rank's own arguments; what fails on one rank fails on all.
agree(comm, call): one small reduction over a digest of the call; where ranks differ, all raise, quoting each.

PDLA_CHECK=0 turns both into nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pdla import config, errors
from pdla.comm.base import Communicator
from pdla.errors import AgreementError

_ERROR = "error: "


def agree(comm: Communicator, call: str, error: Exception | None = None) -> None:
    """Collective: raise on every rank unless all give the same `call` and none brings an error.

    A rank's own error is raised again everywhere as the nearest class of pdla's or Python's that is made from one text,
    with the ranks it came from; differing calls raise AgreementError.
    """
    if not config.settings.check:
        if error is not None:
            raise error
        return
    text = call if error is None else f"{_ERROR}{error}"
    if comm.same(text):
        if error is not None:
            raise error
        return
    said = comm.share((call, None if error is None else (_plain(type(error)), str(error))))
    failures: dict[str, list[int]] = {}
    for rank, (_, failure) in enumerate(said):
        if failure is not None:
            failures.setdefault(failure[1], []).append(rank)
    if failures:
        kind = next(failure[0] for _, failure in said if failure is not None)
        raise kind("; ".join(f"{name(ranks)}: {failure}" for failure, ranks in failures.items()))
    calls = who_said([other for other, _ in said])
    raise AgreementError("ranks disagree: " + "; ".join(f"{name(ranks)}: {other}" for other, ranks in calls.items()))


def who_said(words: Sequence[str]) -> dict[str, list[int]]:
    """The ranks that said each, in the order of the first of them."""
    ranks: dict[str, list[int]] = {}
    for rank, word in enumerate(words):
        ranks.setdefault(word, []).append(rank)
    return ranks


def _plain(kind: type[Exception]) -> type[Exception]:
    """The nearest base class that travels, and is made from a text alone: NumPy's and users' errors need not be."""
    return next(
        base
        for base in kind.__mro__
        if base.__module__ == errors.__name__ or (base.__module__ == "builtins" and not issubclass(base, UnicodeError))
    )


def name(ranks: list[int]) -> str:
    """A few ranks, in words."""
    some = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {some}" if len(ranks) == 1 else f"ranks {some}"


@contextmanager
def agreed(comm: Communicator, call: str) -> Iterator[None]:
    """Collective: run one rank's checks or local work; an error in it on some rank is an error on every rank."""
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    agree(comm, call, error)
