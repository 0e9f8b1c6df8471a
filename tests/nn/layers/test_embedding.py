"""Embeddings and heads."""

import numpy as np
from helpers.nets import SUMMA, X, run

import pdla
from pdla import nn


def test_a_head_alone_in_evaluation():
    """Without gradients an embedding and its head may be used apart."""

    def program(scheme):
        head = nn.TiedHead(nn.Embedding(scheme, 9, 20))
        return head.forward(scheme.shard(X), training=False).gather() - X @ head.weight.value.gather()

    assert np.max(np.abs(run(SUMMA, program))) < 1e-14


def test_a_head_has_its_weight_gathered_for_the_backward_pass_while_what_follows_it_goes_back():
    """As every layer has; that of an embedding alone is not gathered then."""

    def program(comm):
        scheme = nn.Tensor3D(pdla.ProcessGrid((1, 1, 2), ("row", "col", "depth"), comm))
        embedding = nn.Embedding(scheme, 12, 8)
        model = nn.Sequential(scheme, [embedding, nn.TiedHead(embedding), nn.Linear(scheme, 12, 8, kind="second")])
        y = model.forward(np.arange(4))
        with pdla.record() as ledger:
            model.backward(y)
        began = {event.tag: event.start for event in ledger.events if event.what == "allgather"}
        return began["embedding backward"] < min(event.start for event in ledger.events if event.what == "gemm")

    assert pdla.run(2, program) == [True, True]
