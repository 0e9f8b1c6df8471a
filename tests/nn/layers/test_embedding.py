"""Embeddings and heads."""

import numpy as np
from helpers.nets import SUMMA, X, run

from pdla import nn


def test_a_head_alone_in_evaluation():
    """Without gradients an embedding and its head may be used apart."""

    def program(scheme):
        head = nn.TiedHead(nn.Embedding(scheme, 9, 20))
        return head.forward(scheme.shard(X), training=False).gather() - X @ head.weight.value.gather()

    assert np.max(np.abs(run(SUMMA, program))) < 1e-14
