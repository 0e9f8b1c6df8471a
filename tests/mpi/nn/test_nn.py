"""Layers over MPI: every scheme that fits the ranks, against the plain model; bytes as a dry run predicts them."""

import numpy as np
import pytest
from helpers.nets import Model, check_close, expected, model_expected, model_travelled, on, transformer_case, travelled

import pdla
from pdla import nn
from pdla.errors import AgreementError

pytestmark = pytest.mark.mpi


def places(ranks):
    """Every scheme on the squarest grids of so many ranks, and on longer ones."""
    flat, deep = pdla.balanced_shape(ranks), pdla.balanced_shape(ranks, 3)
    front = (*pdla.balanced_shape(ranks // 2), 2) if ranks % 2 == 0 else (1, 1, ranks)
    return [
        on(nn.Serial, (ranks,)),
        on(nn.Megatron1D, (ranks,)),
        on(nn.Megatron1D, (ranks,), shards=2),
        on(nn.Megatron1D, (ranks,), sequence_parallel=True),
        on(nn.Summa2D, flat),
        on(nn.Summa2D, (1, ranks), keep=True),
        on(nn.Tesseract, front),
        on(nn.Tesseract, front, cut_weights=True, shards=2),
        on(nn.Cube3D, deep),
        on(nn.Cube3D, deep[::-1], keep=False),
        on(nn.Tensor3D, flat, shards=2),
        on(nn.Tensor3D, front, keep=True),
        on(nn.Tensor3D, (ranks, 1, 1), "data row col"),
    ]


def rank_0_has(comm, found, wanted, where):
    if comm.rank == 0:
        check_close(found, wanted, where=where)


@pytest.mark.parametrize("number", range(len(places(1))))
def test_transformer_layer(comm, number):
    place = places(comm.size)[number]
    for case in (transformer_case(3), transformer_case(1, recompute=True)):
        rank_0_has(comm, travelled(case, place.make(comm)), expected(case), place.name)


@pytest.mark.parametrize("number", range(len(places(1))))
def test_model(comm, number):
    place, model = places(comm.size)[number], Model(3)
    rank_0_has(comm, model_travelled(model, place.make(comm)), model_expected(model), place.name)


def test_rates_that_differ_are_told_of_in_the_next_pass(comm):
    scheme = nn.Megatron1D(pdla.ProcessGrid(comm.size, comm=comm))
    layer, x = nn.MLP(scheme, 8), scheme.shard(np.ones((4, 8)))
    optimizer = nn.AdamW(layer, 1e-2)
    optimizer.rate = 1e-2 / (1 + (comm.rank == comm.size - 1 > 0))
    layer.backward(layer.forward(x))
    optimizer.step()
    if comm.size == 1:
        layer.forward(x)
        return
    with pytest.raises(AgreementError, match=rf"AdamW\(rate=0.01, .*; rank {comm.size - 1}: step 1 of AdamW\(rate=0.005, "):
        layer.forward(x)


@pytest.mark.parametrize("number", range(len(places(1))))
def test_bytes_equal_the_dry_run(comm, number):
    place, case = places(comm.size)[number], transformer_case(3)

    def program(world):
        scheme = place.make(world)
        layer, x = case.build(scheme), scheme.shard(np.zeros((case.tokens, case.features)), sequence=case.sequence)
        with pdla.record() as ledger:
            layer.backward(layer.forward(x))
        return ledger.bytes_received, ledger.messages, ledger.flops, ledger.by_tag(), layer.kept_bytes()

    assert program(comm) == pdla.dry_run(comm.size, program, rank=comm.rank)[0]
