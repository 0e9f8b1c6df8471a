"""Coroutines: a pass stops where it would wait, so that another micro-batch computes meanwhile.

A pass through a layer is an `async def`, written once. The pass of a single micro-batch runs to its
end without a stop. With several micro-batches, each pass stops at `TURN` while its messages are
under way, and the next pass computes (overdecomposition, arXiv 2305.13525). Every rank drives the
same passes in the same order, so that all ranks call the communicator in the same order.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterable
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


class Turn:
    """Stops the pass that awaits it, so that others have their turn."""

    def __await__(self) -> Generator[None, None, None]:
        yield


TURN = Turn()


def run_in_turn(passes: Iterable[Coroutine[Any, None, T]]) -> list[T]:
    """Drive passes in turn, each until it stops, and return their results.

    Each pass starts one turn after the one before it, so that they do not all wait at the same
    time. Each has its own context variables, so that the ledger records its messages under its own
    name.
    """
    under_way = dict(enumerate([(copy_context(), coroutine) for coroutine in passes]))
    results: dict[int, T] = {}
    turn = 0
    try:
        while under_way:
            for number, (context, coroutine) in list(under_way.items()):
                if number > turn:
                    break
                try:
                    context.run(coroutine.send, None)
                except StopIteration as end:
                    results[number] = end.value
                    del under_way[number]
            turn += 1
    finally:
        for context, coroutine in under_way.values():  # after an error
            context.run(coroutine.close)
    return [results[number] for number in sorted(results)]
