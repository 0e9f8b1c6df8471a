"""Check the lines of a Matrix Market file; read the numbers of a dense one, and pass the lines of others to scipy.

scipy ignores the rest of a line that it does not understand, and takes missing elements of a
symmetric array for zeros. Dense files are read without scipy, whose import takes as long as 4 MB.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property
from io import BufferedIOBase, BytesIO
from typing import Any

import numpy as np

CHUNK = 1 << 20  # bytes that are checked at a time
# Only single characters are repeated possessively: Python 3.11.2 fails for a possessive group.
WHOLE = r"[+-]?+\d++"
REAL = r"[+-]?+(?:(?:\d++\.?+\d*+|\.\d++)(?:[ed][+-]?+\d++)?|nan|inf(?:inity)?)"
PLACE = ("a row", WHOLE), ("a column", WHOLE)
WHOLES, REALS = (("an integer", WHOLE),), (("a real number", REAL),)
NATURALS = (("an integer of at least 0", r"\+?+\d++"),)
VALUES: dict[str, tuple[tuple[str, str], ...]] = {
    "pattern": (), "integer": WHOLES, "unsigned-integer": NATURALS, "real": REALS, "double": REALS, "complex": REALS * 2,
}
EXPONENTS = bytes.maketrans(b"dD", b"ee")  # Fortran writes exponents of double precision after a D
BANNER = re.compile(rb"%%MatrixMarket matrix array (real|double|integer|unsigned-integer|complex) ([a-z-]+)[ \t\r]*")
SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")
SIZES = re.compile(rb"[ \t]*(\d{1,18})[ \t]+(\d{1,18})[ \t\r]*")
BLANK = re.compile(rb"\n[ \t\r]*+(?=\n|\Z)")
PLUS = re.compile(rb"(?<![^ \t])\+(?=\d)")  # before a number: scipy refuses it


class Lines:
    """A file of one entry a line, for scipy to read.

    ValueError for a line that is no entry, and for more or fewer entries than announced. A D before
    an exponent becomes an e, and a + is removed.
    """

    rows: int
    cols: int
    entries: int
    form: str
    field: str
    symmetry: str

    def __init__(self, file: BufferedIOBase) -> None:
        self.file = file
        self.head: bytes = self._head()
        self.number: int = self.head.count(b"\n")  # how many lines have been read
        self.count: int = 0  # how many entries have been read
        self.rows, self.cols, self.entries, self.form, self.field, self.symmetry = _read_head(self.head)
        if self.symmetry != "general" and self.rows != self.cols:  # scipy would mirror elements to places outside its array
            raise ValueError(f"{self.symmetry}, but {self.rows} x {self.cols}: it must be square")
        if self.symmetry == "skew-symmetric" and self.field == "unsigned-integer":
            raise ValueError("skew-symmetric, but of unsigned integers, which have no negatives")
        if self.form == "array":
            self.entries = self.before(self.cols)
        self.unread: bytes = self.head

    def _head(self) -> bytes:
        """Read the header, the comments, and last the line of sizes."""
        lines = [self.file.readline()]
        while lines[-1].startswith(b"%") or lines[-1].isspace():
            lines.append(self.file.readline())
        return b"".join(lines[:-1]) + PLUS.sub(b"", lines[-1])

    def before(self, col: int) -> int:
        """Count the entries of a dense file before this column.

        A symmetric file has only the lower triangle, a skew-symmetric one without the diagonal.
        """
        if self.symmetry == "general":
            return col * self.rows
        skew = self.symmetry == "skew-symmetric"
        return col * (2 * self.rows - col + 1 - 2 * skew) // 2

    def read(self, size: int) -> bytes:
        """Read some whole lines, whatever `size` is: scipy asks for few bytes."""
        text, self.unread = self.unread or self._body(), b""
        return text

    def _body(self) -> bytes:
        text = self.file.read(CHUNK) + self.file.readline()
        self._check(text)
        return text.translate(EXPONENTS, b"+")

    def numbers(self, dtype: Any) -> np.ndarray:
        """Read the entries of a dense file, in its order, in one of the dtypes of `pdla.io.mtx.DTYPES`."""
        made = np.empty(self.entries, dtype)
        parts = made.view(made.real.dtype)  # a complex number is two words
        read: type[float] | type[int] = float if parts.dtype.kind == "f" else int
        filled, first, self.unread = 0, self.number + 1, b""
        while text := self._body():
            words = text.split()
            try:
                parts[filled : filled + len(words)] = np.fromiter(map(read, words), parts.dtype, len(words))
            except (OverflowError, ValueError):  # ValueError: Python reads no more than 4300 digits
                wrong = next(i for i, word in enumerate(words) if not _fits(word, parts.dtype))
                line = _number_lines(text, first)[wrong]
                raise ValueError(f"line {line}: {words[wrong][:80].decode()}: out of the range of {parts.dtype}") from None
            filled, first = filled + len(words), self.number + 1
        return made

    def line_of(self, row: int, col: int) -> int:
        """Read the file; return the number of the last line of this element or, with a symmetry, of its mirror image."""
        places = {(row, col)} | ({(col, row)} if self.symmetry != "general" else set())
        last = 0
        for number, line in enumerate(self.file, self.number + 1):
            if (words := line.split()) and self._place(words) in places:
                last = number
            self.count += bool(words)
        return last

    def _place(self, words: list[bytes]) -> tuple[int, int]:
        """Row and column of the entry after `count` others."""
        if self.form == "coordinate":
            return int(words[0]) - 1, int(words[1]) - 1
        col = bisect_right(range(self.cols), self.count, key=self.before) - 1
        return self.rows - self.before(col + 1) + self.count, col

    @cached_property
    def words(self) -> tuple[tuple[str, str], ...]:
        """The fields of a line, each as (what it is in words, its pattern)."""
        return (*(PLACE if self.form == "coordinate" else ()), *VALUES[self.field])

    @cached_property
    def stray(self) -> re.Pattern[bytes]:
        """A pattern that matches before a line that is neither an entry nor blank: a newline is found sooner than ^."""
        entry = r"[ \t]++".join(pattern for _, pattern in self.words)
        return re.compile(rf"\n(?![ \t]*+(?:{entry})?[ \t\r]*+$)".encode(), re.IGNORECASE | re.MULTILINE)

    def _check(self, text: bytes) -> None:
        lines = b"\n" + text
        if stray := self.stray.search(lines) if text else None:
            start = stray.start()
            number, line = self.number + text.count(b"\n", 0, start) + 1, text[start:].split(b"\n")[0][:80].decode("latin-1")
            expected = ", ".join(word for word, _ in self.words)
            raise ValueError(f"line {number}: {line!r}: expected {expected}; an exponent is E or D and an integer")
        self._count(text, lines)

    def _count(self, text: bytes, lines: bytes) -> None:
        if not text and self.count < self.entries:
            raise ValueError(f"line {self.number}: truncated: the file ends here, after {self.count} of {self.entries} entries")
        found = lines.count(b"\n") - len(BLANK.findall(lines))
        if self.count + found > self.entries:
            number = _number_lines(text, self.number + 1)[self.entries - self.count]
            raise ValueError(f"line {number}: one too many: the file announces {self.entries} entries")
        self.count += found
        self.number += text.count(b"\n") + (not text.endswith(b"\n"))


def _read_head(head: bytes) -> tuple[int, int, int, str, str, str]:
    """Parse a head: rows, columns, entries, form, field, symmetry; with scipy, unless the file is plainly dense."""
    lines = head.removesuffix(b"\n").split(b"\n")
    banner, sizes = BANNER.fullmatch(lines[0]), SIZES.fullmatch(lines[-1])
    if not banner or not sizes or (symmetry := banner[2].decode()) not in SYMMETRIES:
        from scipy.io import mminfo

        return mminfo(BytesIO(head))
    rows, cols = map(int, sizes.groups())
    return rows, cols, rows * cols, "array", banner[1].decode(), symmetry


def _number_lines(text: bytes, first: int) -> list[int]:
    """List the numbers of the text's non-blank lines, of which the first line of all is number `first`."""
    return [number for number, line in enumerate(text.split(b"\n"), first) if line.strip()]


def _fits(word: bytes, dtype: np.dtype) -> bool:
    """Whether an integer is within a dtype; none of more than 20 digits is."""
    return len(word.lstrip(b"-0")) <= 20 and np.iinfo(dtype).min <= int(word) <= np.iinfo(dtype).max
