"""The options of the functions of this package, which have one meaning in all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pdla.checks import flags, limit
from pdla.linalg import checks
from pdla.matmul.images import Part
from pdla.matmul.verify import check_option


@dataclass(frozen=True)
class Options:
    """The options of a call. An option that a function lacks has its default.

    p  of `cond`;  mode, pivoting: of `qr`;  rcond: of `lstsq`;  condition: of `polar`
    subset_by_index, subset_by_value: of `eigh`
    """

    assume_a: str = "gen"
    lower: bool = True
    unit_diagonal: bool = False
    side: Any = "left"
    alpha: Any = 1
    overwrite_a: bool = False
    overwrite_b: bool = False
    check_finite: bool = False
    layout: Any = None
    refine: Any = None
    p: Any = 1
    mode: Any = "reduced"
    pivoting: Any = False
    rcond: Any = None
    condition: Any = None
    subset_by_index: Any = None
    subset_by_value: Any = None
    memory_limit: Any = None
    verify: Any = None

    def check(self, name: str, keywords: dict[str, Any]) -> None:
        """Local: raise ShapeError or PlanError for an invalid option. keywords: the options that the function has."""
        check_option(self.verify)
        limit(self.memory_limit)
        checks.check_assumption(name, self.assume_a)
        flags(**{flag: keywords[flag] for flag in FLAGS if flag in keywords})

    @property
    def part(self) -> Part | None:
        """The part of A that is read; None: all of A."""
        return checks.find_part(self.assume_a, self.lower)


FLAGS = ("lower", "unit_diagonal", "overwrite_a", "overwrite_b", "check_finite")
