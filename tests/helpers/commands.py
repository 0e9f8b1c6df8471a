"""Commands of the benchmark as tests give them."""

from pdla.bench.arguments import Parser
from pdla.bench.commands import predict
from pdla.bench.stop import Stop
from pdla.model.machine import Machine

FREE = Machine(flops=1e9, call=0.0, memory=1e30, bandwidth=1e30, network=1e30, latency=0.0, far_latency=0.0)


def command(capsys, *words, module=predict):
    """Exit status and what was printed."""
    parser = Parser("pdla.bench")
    parser.set_defaults(machine=None, json=None)  # as the parser of which this is a command: the options may stand before it
    try:
        module.add(parser)
        status = module.run(parser.parse_args(words))
    except Stop as stop:
        return stop.status, "", str(stop)
    return status, capsys.readouterr().out, ""
