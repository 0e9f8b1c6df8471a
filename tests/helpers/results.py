"""Result files of the benchmark with figures that tests know."""

from dataclasses import replace
from math import prod

from pdla.bench.measure import facts
from pdla.bench.measure.case import Case
from pdla.bench.measure.product import Results, predict
from pdla.bench.report import content
from pdla.comm.dry import DryComm
from pdla.model.machine import Machine
from pdla.simulate.split import Span, Split, Timeline

HOSTILE = 'a </script><script>document.title = "spoilt"</script> & machine'
SPANS = (
    Span(0, "gemm", "fc1", "", 0.0, 0.004, 0),
    Span(0, "bcast", "", "row", 0.001, 0.0065, 2048),
    Span(1, "gemm", "", "", 0.002, 0.008, 0),
    Span(1, "bcast", "", "col", 0.0, 0.002, 4096),
)
RUN = Split(0.01, 0.005, 0.003, 0.002, 0.006, Timeline(SPANS, ("7 spans, none longer than 1e-06 s",)))
FORETOLD = Split(0.008, 0.006, 0.0015, 0.0005, 0.006, Timeline(SPANS[:2]))


def rows(ranks, seconds):
    """A row for each algorithm of `seconds`, dry but for its times."""
    for algorithm, some in seconds.items():
        case = Case(64, 48, 32, algorithm=algorithm, grid=ranks)
        yield replace(predict(case, prod(ranks)), checks=("exact (NumPy)",), seconds=some, split=RUN, predicted=FORETOLD)


def written(path, grid, seconds):
    """A result file of these rows; gives its path as text."""
    ranks = prod(grid)
    known = facts.facts(DryComm(0, ranks), "dry")
    results = Results(list(rows(grid, seconds)))
    content.write(path, content.report(known, "mpi", ranks, ["gemm"], results, {"float64": 1e9}, Machine(name=HOSTILE)))
    return str(path)


SECONDS = {"gather": (0.02, 0.01, 0.03), "summa": (0.005,), "3d": ()}
