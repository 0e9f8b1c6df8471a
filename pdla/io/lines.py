"""Checks the lines of a Matrix Market file on their way to scipy, which reads as much of a line as it understands, and ignores the
rest."""

from __future__ import annotations

import re
from functools import cached_property
from io import BufferedIOBase

CHUNK = 1 << 20  # bytes that are checked at a time
# Only single characters are repeated possessively: Python 3.11.2 loses its place in a group that is.
WHOLE = r"[+-]?+\d++"
REAL = r"[+-]?+(?:(?:\d++\.?+\d*+|\.\d++)(?:[ed][+-]?+\d++)?|nan|inf(?:inity)?)"
PLACE = ("a row", WHOLE), ("a column", WHOLE)
WHOLES, REALS = (("an integer", WHOLE),), (("a real number", REAL),)
VALUES = {"pattern": (), "integer": WHOLES, "unsigned-integer": WHOLES, "real": REALS, "double": REALS, "complex": REALS * 2}
EXPONENTS = bytes.maketrans(b"dD", b"ee")  # Fortran writes those of double precision after a D


class Lines:
    """A file of one entry a line, for scipy to read; ValueError for a line that is none. A D before an exponent becomes an e."""

    def __init__(self, file: BufferedIOBase) -> None:
        self.file = file
        self.head = b""
        self.number = 0  # how many lines have been read

    def read(self, size: int) -> bytes:
        """Some whole lines, whatever `size` is: scipy asks for few bytes."""
        if self.head:
            text = self.file.read(CHUNK) + self.file.readline()
            if text:  # else the header may be none, and scipy says so
                self._check(text)
            text = text.translate(EXPONENTS)
        else:
            text = self.head = self._head()
        self.number += text.count(b"\n")
        return text

    def _head(self) -> bytes:
        """The header and the comments, and the line of sizes, which is the last."""
        lines = [self.file.readline()]
        while lines[-1].startswith(b"%") or lines[-1].isspace():
            lines.append(self.file.readline())
        return b"".join(lines)

    @cached_property
    def words(self) -> tuple[tuple[str, str], ...]:
        """The fields of a line, each as (what it is in words, its pattern)."""
        form, field = self.head.decode("latin-1").lower().split()[2:4]
        return (*(PLACE if form == "coordinate" else ()), *VALUES[field])

    @cached_property
    def stray(self) -> re.Pattern[bytes]:
        """A pattern that matches where a line begins that is neither an entry nor blank."""
        entry = r"[ \t]++".join(pattern for _, pattern in self.words)
        return re.compile(rf"^(?![ \t]*+(?:{entry})?[ \t\r]*+$)".encode(), re.IGNORECASE | re.MULTILINE)

    def _check(self, text: bytes) -> None:
        if stray := self.stray.search(text):
            start = stray.start()
            number, line = self.number + text.count(b"\n", 0, start) + 1, text[start:].split(b"\n")[0][:80].decode("latin-1")
            expected = ", ".join(word for word, _ in self.words)
            raise ValueError(f"line {number}: {line!r}: expected {expected}; an exponent is E or D and an integer")
