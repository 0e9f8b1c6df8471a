"""Pending: a verb of the communicator that has started and has not ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from pdla.comm.clock import now
from pdla.comm.ledger import Event, Ledger, current, tag


class Pending:
    """A verb that has started: `wait()` ends it and returns its result, once.

    Iterating yields the ranks whose pieces have come, in order of arrival, until the verb has ended
    on this rank. The verbs of a `Communicator` return it.

    Parameters
    ----------
    arrivals : iterator of int
        The ranks whose pieces have come.
    result : object
        The array, or arrays, that the verb fills.
    event : tuple, optional
        The event for the open ledger.
    finish : callable, optional
        `wait` calls it before it returns the result, for instance to add up addends.
    """

    def __init__(
        self, arrivals: Iterator[int], result: Any, event: tuple[str, str, int, int, str, int] | None = None,
        finish: Callable[[], None] | None = None,
    ) -> None:
        ledger = None if event is None else current()
        self._arrivals = arrivals if ledger is None else _record(arrivals, ledger, event, tag(), now())  # type: ignore[arg-type]
        self._result, self._finish = result, finish

    def __iter__(self) -> Iterator[int]:
        return chain(self._arrivals)  # else leaving a `yield from` over this early would end the verb

    def wait(self) -> Any:
        """End the verb on this rank.

        Returns
        -------
        array or list of arrays
            The filled ones.
        """
        for _ in self._arrivals:
            pass
        if self._finish is not None:
            self._finish()
        return self._result


def _record(
    arrivals: Iterator[int], ledger: Ledger, event: tuple[str, str, int, int, str, int], tag: str, start: float
) -> Iterator[int]:
    """Yield the same arrivals; at their end record the event, which started at `start`."""
    yield from arrivals
    what, axis, size, messages, way, far = event
    ledger.events.append(Event(what, axis, size, messages, start=start, end=now(), way=way, tag=tag, far=far))


def to_pending(result: Any) -> Pending:
    """Make a Pending that has ended."""
    return Pending(iter(()), result)
