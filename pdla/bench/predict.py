"""`predict`: the fastest schemes and grids for a transformer on a described machine."""

from __future__ import annotations

import argparse
from dataclasses import fields

from pdla.bench import networks
from pdla.bench.arguments import Parser, machine, positive
from pdla.bench.stop import refuse
from pdla.model.machine import Machine


def add(to: Parser) -> None:
    """Its arguments."""
    to.add_argument("-P", dest="ranks", type=positive, metavar="RANKS", required=True)
    to.add_argument("--machine", metavar="NAME", default="", help=f"a TOML file, or {', '.join(Machine.known())}")
    sizes = (("hidden", 3072, "features"), ("heads", 64, "of attention"), ("sequence", 512, "tokens of one"))
    for name, default, what in (*sizes, ("batch", 64, "sequences of a step"), ("layers", 24, "of the transformer")):
        to.add_argument(f"--{name}", type=positive, default=default, help=f"{what} (default {default})")
    to.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    to.add_argument("--best", type=positive, default=10, help="how many are shown (default 10)")


def run(arguments: argparse.Namespace) -> int:
    """Print them; gives the exit status."""
    net = networks.Net(*(getattr(arguments, one.name) for one in fields(networks.Net)))
    if net.hidden % net.heads:
        raise refuse(f"--hidden {net.hidden} is not --heads {net.heads} equal heads")
    on = machine(arguments.machine)
    print(networks.table(networks.best(arguments.ranks, net, on, arguments.best), net, on, arguments.ranks))
    return 0
