"""Sleeping on a word of memory, whoever changes it."""

import threading

import numpy as np
import pytest

from pdla.comm.mpi import futex


def address(word):
    return word.ctypes.data


def test_nobody_sleeps_on_a_word_that_has_changed():
    word = np.array([7], np.uint32)
    assert not futex.sleep(address(word), 6, 60.0)


def test_a_sleep_ends_by_itself():
    word = np.array([2**32 - 1], np.uint32)
    assert not futex.sleep(address(word), 2**32 - 1, 1e-3)


@pytest.mark.skipif(futex._NUMBER is None, reason="no futex on this system: sleeps are naps")
def test_who_sleeps_is_woken():
    word, woken = np.zeros(1, np.uint32), []
    sleepers = [threading.Thread(target=lambda: woken.append(futex.sleep(address(word), 0, 60.0))) for _ in range(3)]
    for sleeper in sleepers:
        sleeper.start()
    while any(sleeper.is_alive() for sleeper in sleepers):
        futex.wake(address(word))
        sleepers[0].join(1e-3)
    assert woken == [True] * 3
