"""Passes of several micro-batches take turns."""

from pdla.nn.coroutines import TURN, run_in_turn


def test_passes_take_turns_each_one_behind_the_one_before_it():
    """And give their results in their own order, though the first ends last."""
    seen = []

    async def work(name, times):
        for i in range(times):
            seen.append(f"{name}{i}")
            await TURN
        return name

    assert run_in_turn([work("a", 3), work("b", 1), work("c", 0)]) == ["a", "b", "c"]
    assert seen == ["a0", "a1", "b0", "a2"]
