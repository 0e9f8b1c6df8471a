"""Clocks whose time tests set."""

import time


class Ahead:
    """A clock that is so many seconds ahead of the machine's."""

    def __init__(self, seconds):
        self.seconds = seconds

    @property
    def time(self):
        return time.perf_counter() + self.seconds
