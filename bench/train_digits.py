"""A vision transformer on scikit-learn's handwritten digits, in every scheme: loss curves, and accuracy on digits held out.

python -m bench.train_digits [--steps 50] [--dtype float64] [--json FILE]     ranks are threads, each scheme on its own grid
mpirun -n 4 python -m bench.train_digits --scheme cube3d --steps 300          one scheme on the job's ranks

An image of 8 x 8 pixels is 16 tokens of 2 x 2 pixels. One digit in five is held out. Needs scikit-learn.
"""

import numpy as np
from sklearn.datasets import load_digits

from bench.common.schemes import compare
from pdla import nn

PATCHES, PIXELS, CLASSES = 16, 4, 10  # a digit's tokens, a token's features
BATCH, HIDDEN, HEADS, LAYERS = 32, 64, 4, 2


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Tokens (digits, 16, 4) from -1 to 1, and the digits' classes."""
    data = load_digits()
    images = data.images.reshape(-1, 4, 2, 4, 2).transpose(0, 1, 3, 2, 4).reshape(-1, PATCHES, PIXELS)
    return images / 8 - 1, data.target.astype(np.int64)


def model(scheme: nn.Scheme, dtype: str) -> nn.Layer:
    stem = [
        nn.Linear(scheme, PIXELS, HIDDEN, kind="first", seed=1, dtype=dtype, name="stem first"),
        nn.GeLU(scheme),
        nn.Linear(scheme, HIDDEN, HIDDEN, kind="second", seed=2, dtype=dtype, name="stem second"),
        nn.Positions(scheme, HIDDEN, sequence=PATCHES, scale=0.1, seed=3, dtype=dtype),
    ]
    layers = [
        nn.TransformerLayer(scheme, HIDDEN, HEADS, sequence=PATCHES, causal=False, seed=10 * i, dtype=dtype, name=f"layer{i}")
        for i in range(1, LAYERS + 1)
    ]
    head = [
        nn.LayerNorm(scheme, HIDDEN, dtype=dtype),
        nn.Linear(scheme, HIDDEN, CLASSES, kind="first", seed=4, dtype=dtype, name="head"),
        nn.MeanOverSequence(scheme, sequence=PATCHES),
    ]
    return nn.Sequential(scheme, [*stem, *layers, *head])


def train(scheme: nn.Scheme, steps: int, dtype: str) -> dict:
    """Collective: the losses step by step, and the share of held-out digits that is classified right."""
    images, classes = digits()
    held_out = np.arange(len(images)) % 5 == 4
    mine = np.flatnonzero(~held_out)

    def activation(which: np.ndarray):
        return scheme.shard(images[which].reshape(-1, PIXELS).astype(dtype), sequence=PATCHES)

    net, loss, losses = model(scheme, dtype), nn.CrossEntropy(), []
    optimizer = nn.AdamW(net, 2e-3)
    for step in range(steps):
        chosen = np.random.default_rng(step).choice(mine, BATCH, replace=False)
        losses.append(loss.forward(net.forward(activation(chosen)), classes[chosen]))
        net.backward(loss.backward())
        optimizer.step()
    told = net.forward(activation(np.flatnonzero(held_out)), training=False).gather().argmax(axis=1)
    return {"losses": losses, "accuracy on digits held out": float((told == classes[held_out]).mean())}


if __name__ == "__main__":
    compare(__doc__, train)
