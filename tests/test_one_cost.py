"""The same seconds for the same work, whoever tells them; and more ranks never promise more time."""

import json
from itertools import pairwise
from random import Random

import pytest
from helpers.commands import command

import pdla
from pdla import config
from pdla.bench.commands import predict, scale
from pdla.bench.measure import product
from pdla.bench.measure.case import Case
from pdla.linalg import (
    plan_cholesky,
    plan_lu,
    plan_qr,
    predict_cholesky,
    predict_lu,
    predict_qr,
    predict_solve_triangular,
)
from pdla.linalg.panels.blocks import cut_in_blocks
from pdla.model.machine import Machine
from pdla.simulate import Product, Transformer, scaling

MACHINES = ("a100x4", "h200x8", "laptop", "v100x4")


def drawn(seed, least=100, most=3000):
    random = Random(seed)
    return [random.randint(least, most) for _ in "mnk"], random.choice([1, 2, 5, 8, 12, 30, 64]), MACHINES[seed % 4]


def in_words(text):
    """The seconds in a plan's words, with the digits that they have."""
    (line,) = [line for line in text.splitlines() if line.startswith("  time ")]
    return float(line.split()[1])


def shown(seconds):
    return float(f"{seconds:.3g}")


@pytest.mark.parametrize("seed", range(16))
def test_of_a_product(seed, capsys, tmp_path):
    (m, n, k), ranks, machine = drawn(seed)
    seconds = pdla.predict_matmul(m, n, k, ranks, machine=machine).seconds
    way = Product(m, n, k).fastest(ranks, machine, count=3).best[0]
    assert (way.seconds, way.plan.predicted.seconds, in_words(way.plan.explain())) == (seconds, seconds, shown(seconds))
    [point] = scaling(Product(m, n, k), [ranks], machine)
    words, path = ["--product", f"{m}x{n}x{k}", "--machine", machine], tmp_path / "out.json"
    command(capsys, "-P", str(ranks), *words, "--json", str(path), module=predict)
    told = json.loads(path.read_text())["rows"][0]["seconds"]
    command(capsys, "--from", str(ranks), "--to", str(ranks), *words, "--json", str(path), module=scale)
    assert seconds == point.best.seconds == told == json.loads(path.read_text())["rows"][0]["best"]["seconds"]


@pytest.mark.parametrize("seed", range(16))
def test_of_a_product_of_matrices_in_blocks(seed):
    """A plan's words, its cost, and what the benchmark tells in its table and its JSON, of ranks as on the machine."""
    (m, n, k), ranks, name = drawn(seed)
    machine, shape = Machine.load(name), pdla.balanced_shape(ranks)
    row = product.predict(Case(m=m, n=n, k=k, grid=shape, algorithm="auto"), ranks, machine)

    def planned(comm):
        grid = pdla.ProcessGrid(shape, comm=comm)
        A, B = (pdla.zeros(size, grid, pdla.Layout("row", "col")) for size in ((m, k), (k, n)))
        return pdla.plan_matmul(A, B, layout=pdla.Layout("row", "col"))

    with config.override(machine=name):
        plan = pdla.dry_run(ranks, planned, machine=machine)[0]
    assert row.predicted.seconds == plan.predicted.seconds
    assert in_words(row.explained) == in_words(plan.explain()) == shown(plan.predicted.seconds)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("kind", "foretell", "plan"), [
    ("cholesky", predict_cholesky, plan_cholesky), ("lu", predict_lu, plan_lu), ("qr", predict_qr, plan_qr),
])
def test_of_a_factorization(kind, foretell, plan, seed):
    """From sizes, and from a matrix in the blocks that are best."""
    (n, *_), ranks, name = drawn(seed)
    sizes = (n,) if kind == "cholesky" else (n, n)
    told = foretell(*sizes, ranks, machine=name)

    def planned(comm):
        A = pdla.zeros((n, n), pdla.ProcessGrid(told.grid, comm=comm), cut_in_blocks(told.grid, told.block))
        found = plan(A, overwrite_a=True)
        return found.predicted.seconds, found.explain(), found.blocking

    with config.override(machine=name):
        seconds, words, blocking = pdla.dry_run(told.ranks_used, planned, machine=Machine.load(name))[0]
    if blocking == (told.grid, told.block):  # the matrix stays
        assert seconds == told.seconds and in_words(words) == shown(seconds)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("n", [300, 2500])
def test_more_ranks_never_take_longer(machine, n):
    ladder = Machine.load(machine).ladder(48)
    for foretold in (
        lambda ranks: pdla.predict_matmul(n, n, n, ranks, machine=machine),
        lambda ranks: predict_cholesky(n, ranks, machine=machine),
        lambda ranks: predict_lu(n, n, ranks, machine=machine),
        lambda ranks: predict_solve_triangular(n, n, ranks, machine=machine),
    ):
        seconds = [foretold(ranks).seconds for ranks in ladder]
        assert all(after <= before for before, after in pairwise(seconds))
        assert all(foretold(ranks).seconds <= 1.05 * foretold(ranks - 1).seconds for ranks in (8, 17, 41))


def test_of_257_ranks_the_scheme_of_256_has_its_own_figures():
    net = Transformer(hidden=1024, heads=16, sequence=128, batch=16, layers=2)
    [some], [more] = (net.fastest(ranks, "a100x4", 1, most=20, schemes=("Megatron1D",)).best for ranks in (256, 257))
    assert (more.choice.ranks, more.seconds, more.cost) == (some.choice.ranks, some.seconds, some.cost)
    [point] = scaling(net, [257], "a100x4")
    assert point.best.choice.ranks <= 256 and point.best.seconds == min(way.seconds for way in point.schemes.values() if way)
