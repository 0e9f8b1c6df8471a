"""Every knob of pdla: read from PDLA_* environment variables once, here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Settings:
    """What the environment asks for.

    check    PDLA_CHECK: agree on the arguments of collective calls (1) or trust them (0).
    timeout  PDLA_TIMEOUT: seconds a rank waits for others before it prints its stack and ends the job; 0: for ever.
    threads  PDLA_THREADS: BLAS threads a rank; 0: the cores of the node shared out among its ranks.
    panel    PDLA_PANEL: width of a SUMMA panel, in indices; 0: chosen by the plan.
    subcomms PDLA_SUBCOMMS: sub-communicator families kept for reuse on one communicator.
    """

    check: bool = True
    timeout: float = 300.0
    threads: int = 0
    panel: int = 0
    subcomms: int = 128


def read(environ: Mapping[str, str]) -> Settings:
    """Settings from PDLA_* variables; a value that cannot be read raises ValueError with the variable's name."""
    default = Settings()

    def number(name: str, cast: type, otherwise: float) -> float:
        text = environ.get(f"PDLA_{name}", "")
        try:
            value = cast(text) if text else otherwise
        except ValueError:
            raise ValueError(f"PDLA_{name}={text!r} is not a number") from None
        if value < 0:
            raise ValueError(f"PDLA_{name}={text!r} is negative")
        return value

    return Settings(
        check=bool(number("CHECK", int, default.check)),
        timeout=float(number("TIMEOUT", float, default.timeout)),
        threads=int(number("THREADS", int, default.threads)),
        panel=int(number("PANEL", int, default.panel)),
        subcomms=max(8, int(number("SUBCOMMS", int, default.subcomms))),
    )


settings = read(os.environ)


@contextmanager
def override(**changes) -> Iterator[None]:
    """Change settings for the length of a with-block, in this process: `with override(check=False): ...`."""
    global settings
    before = settings
    settings = replace(before, **changes)
    try:
        yield
    finally:
        settings = before
