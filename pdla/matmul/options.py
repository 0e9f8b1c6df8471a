"""The options of a product."""

from __future__ import annotations

from dataclasses import dataclass

from pdla.comm.agreement import to_text
from pdla.model.bounds import exact


@dataclass(frozen=True, repr=False)
class Options:
    """The caller's options: arguments of matmul, described there."""

    algorithm: str = "auto"
    box: tuple[int, int, int] | None = None
    schedule: str | None = None
    panel: int | None = None
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        for name in ("box", "panel", "memory_limit"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, exact(*given) if isinstance(given, tuple) else exact(given)[0])

    def __repr__(self) -> str:
        return ", ".join([f"{name}={to_text(value)}" for name, value in vars(self).items() if value is not None])
