"""Memory that ranks share, in turns: what a rank that failed leaves, and what could not grow."""

import numpy as np
import pytest

from pdla.comm.shared_buffer import HALF, Turns
from pdla.errors import PdlaError


class Counted(Turns):
    def __init__(self):
        super().__init__()
        self.come = self.waits = 0

    def _grow(self, size):
        return np.zeros(size, np.uint8)

    def _arrive(self):
        self.come += 1

    def _await(self):
        self.waits += 1

    def publish(self, pieces, lane=0):
        raise NotImplementedError

    def count_published(self, rank, lane=0):
        raise NotImplementedError

    def may_have_left(self, lane=0):
        raise NotImplementedError

    def wait_until(self, call, ready):
        raise NotImplementedError

    def trim(self, most):
        raise NotImplementedError


def test_a_rank_that_failed_while_it_wrote_uses_the_board_no_more():
    """Others wait for what it would have written: what it wrote now they would take for that."""
    shared_buffer = Counted()
    shared_buffer.open(100)
    with pytest.raises(PdlaError, match="this rank failed in a product while others waited for its blocks"):
        shared_buffer.open(100)


def test_a_board_that_could_not_grow_says_why_again():
    """Ranks fail alike there, and nobody waits for what this one would write."""

    class Full(Counted):
        def _grow(self, size):
            raise PdlaError(f"no room for {size} bytes")

    shared_buffer = Full()
    for _ in range(2):
        with pytest.raises(PdlaError, match=f"no room for {2 * HALF} bytes"):
            shared_buffer.open(100)


def test_a_board_that_could_not_grow_gives_the_memory_from_before_no_more():
    """It may be freed by then."""

    class Full(Counted):
        def _grow(self, size):
            if self.grown:
                raise PdlaError("no room")
            return super()._grow(size)

    shared_buffer = Full()
    shared_buffer.open(100)
    shared_buffer.leave()
    for size in (3 * HALF, 100):
        with pytest.raises(PdlaError, match="no room"):
            shared_buffer.open(size)


def test_a_turn_that_is_left_unsealed_has_ended():
    shared_buffer = Counted()
    for size in (100, 2 * HALF, 100):
        shared_buffer.open(size)
        shared_buffer.leave()


def test_a_place_is_the_same_where_the_memory_is():
    shared_buffer, turns = Counted(), []
    for size in (100, 200, HALF, 2 * HALF, 10, 10, 4 * HALF, 10, 10, 3 * HALF):
        turns.append((shared_buffer.open(size), shared_buffer.place))
        shared_buffer.seal()
        shared_buffer.leave()
    begins = {(place, memory.ctypes.data) for memory, place in turns}
    assert len(begins) == len({place for place, _ in begins}) == len({begin for _, begin in begins}) == 4


def test_small_turns_alternate_and_large_ones_wait_for_the_readers():
    shared_buffer = Counted()

    def turn(size):
        before = shared_buffer.waits
        memory = shared_buffer.open(size)
        waited = shared_buffer.waits - before
        shared_buffer.seal()
        shared_buffer.leave()
        return memory, waited

    (one, waited_one), (two, waited_two), (three, waited_three) = turn(100), turn(200), turn(HALF)
    assert (waited_one, waited_two, waited_three) == (0, 0, 0)
    assert not np.shares_memory(one, two) and not np.shares_memory(two, three) and np.shares_memory(one, three)
    large, waited = turn(2 * HALF)
    assert waited == 1 and len(large) == 2 * HALF
    assert turn(10)[1] == 1 and turn(10)[1] == 0
    assert len(turn(4 * HALF)[0]) == 4 * HALF and turn(3 * HALF)[1] == 1
    # the end of writing; of reading large turns; and of small ones, where a large one follows
    assert shared_buffer.come == 8 + 3 + 1
