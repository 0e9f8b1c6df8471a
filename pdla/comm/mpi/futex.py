"""Sleeping until a word of shared memory changes, by Linux's futex; on other systems short naps, after which the caller looks."""

from __future__ import annotations

import ctypes
import os
import sys
import time

_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}  # of the system call futex
_NUMBER = _NUMBERS.get(os.uname().machine) if sys.platform == "linux" else None
_WAIT, _WAKE, _ALL = 0, 1, 2**31 - 1
_NAP = 2e-4  # seconds


class _Seconds(ctypes.Structure):
    _fields_ = (("whole", ctypes.c_long), ("nano", ctypes.c_long))


_call = ctypes.CDLL(None).syscall


def sleep(address: int, value: int, seconds: float) -> bool:
    """Sleep until `wake` is called for this address, at most so many seconds; gives whether it was called.

    Returns at once if the 32 bits at the address are no longer `value`. Without a futex: sleeps for
    a nap, and gives False.
    """
    if _NUMBER is None:
        time.sleep(min(_NAP, seconds))
        return False
    whole = int(seconds)
    limit = _Seconds(whole, int((seconds - whole) * 1e9))
    return not _call(_NUMBER, ctypes.c_void_p(address), _WAIT, ctypes.c_uint32(value), ctypes.byref(limit), None, 0)


def wake(address: int) -> None:
    """Wake all that sleep on the word at this address, in any process."""
    if _NUMBER is not None:
        _call(_NUMBER, ctypes.c_void_p(address), _WAKE, _ALL, None, None, 0)
