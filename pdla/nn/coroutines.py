"""Coroutines: a pass through a layer is written once, and stops where it would wait while another micro-batch could compute.

A pass is an `async def`. One micro-batch never stops: its pass runs to the end at once. Of several
each stops, at `TURN`, wherever messages of its own are under way, and the next one computes
meanwhile (overdecomposition, arXiv 2305.13525). Every rank drives the same passes in the same
order, so the verbs match.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterable
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


class Turn:
    """Awaited by a pass that lets the others have their turn."""

    def __await__(self) -> Generator[None, None, None]:
        yield


TURN = Turn()


def run_in_turn(passes: Iterable[Coroutine[Any, None, T]]) -> list[T]:
    """Drive passes in turn, each until it stops; gives their results.

    Each begins one turn after the one before it, so that they do not all wait at the same time.
    Each has context variables of its own, so that the name under which one records its messages is
    not that of another.
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
