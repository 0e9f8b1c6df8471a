"""A verb of the communicator that has been started, and is ended later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from pdla.comm.clock import now
from pdla.comm.ledger import Event, current, tag


class Pending:
    """A verb that has been started: `wait()` ends it and gives its result, once.

    Iterating gives, in order of arrival, the ranks whose pieces have come, and ends when the verb
    has ended on this rank. Verbs of a `Communicator` make it.

    Parameters
    ----------
    arrivals : iterator of int
        The ranks whose pieces have come.
    result : callable
        Gives what the verb has filled.
    event : tuple, optional
        What the open ledger is to record.
    """

    def __init__(
        self, arrivals: Iterator[int], result: Callable[[], Any], event: tuple[str, str, int, int, str, int] | None = None
    ) -> None:
        self._arrivals = arrivals
        self._result = result
        self._event = event
        self._ledger = current() if event else None
        self._tag = tag() if event else ""
        self._start = now() if self._ledger is not None else 0.0

    def __iter__(self) -> Iterator[int]:
        kept = chain(self._arrivals)  # else a loop over this by `yield from` that is left early would end the verb
        return kept if self._ledger is None else self._recorded(kept)

    def _recorded(self, arrivals: Iterator[int]) -> Iterator[int]:
        yield from arrivals
        if self._ledger is not None and self._event is not None:
            what, axis, size, messages, way, far = self._event
            event = Event(what, axis, size, messages, start=self._start, end=now(), way=way, tag=self._tag, far=far)
            self._ledger.events.append(event)
            self._ledger = None

    def wait(self) -> Any:
        """End the verb on this rank.

        Returns
        -------
        array or list of arrays
            What the verb has filled.
        """
        for _ in self:
            pass
        return self._result()


def done(result: Any) -> Pending:
    """A Pending with nothing left to do."""
    return Pending(iter(()), lambda: result)
