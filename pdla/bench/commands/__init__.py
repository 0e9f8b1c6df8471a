"""The sub-commands of `python -m pdla.bench`: files with a COMMAND (command.py).

A new sub-command is a file here, and a line below.
"""

from importlib import import_module

from pdla.bench.commands.command import Command

FILES = (  # in the order of --help
    "gemm",
    "hpl",
    "info",
    "calibrate",
    "predict",
    "scale",
    "compare",
    "report",
)
COMMANDS: dict[str, Command] = {name: import_module(f"{__name__}.{name}").COMMAND for name in FILES}
COMMANDS |= {command.name: command for command in import_module(f"{__name__}.factor").ALL}
