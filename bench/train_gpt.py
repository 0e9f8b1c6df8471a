"""A character-level GPT on the source text of Python's standard library, in every scheme: the loss curves coincide.

python -m bench.train_gpt [--steps 50] [--dtype float64] [--json FILE]        ranks are threads, each scheme on its own grid
mpirun -n 4 python -m bench.train_gpt --scheme tensor3d --steps 500           one scheme on the job's ranks

Prints each scheme's first and last loss, and the largest relative distance of its losses from Serial's at any step.
"""

import sysconfig
from pathlib import Path

import numpy as np

from bench.common.schemes import compare
from pdla import nn

SEQUENCE, BATCH, HIDDEN, HEADS, LAYERS = 64, 8, 64, 4, 2
VOCABULARY = 128  # ASCII
HELD_OUT = 0.05  # share of the text, at its end


def text() -> np.ndarray:
    """The standard library's modules one after the other, as ASCII codes."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    joined = "\n".join(path.read_text("utf-8", "ignore") for path in sorted(folder.glob("*.py")))
    return np.frombuffer(joined.encode("ascii", "ignore"), np.uint8).astype(np.int64)


def batch(source: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of a step, the same on every rank."""
    starts = np.random.default_rng(step).integers(0, len(source) - SEQUENCE - 1, BATCH)
    windows = source[starts[:, None] + np.arange(SEQUENCE + 1)]
    return windows[:, :-1].ravel(), windows[:, 1:].ravel()


def model(scheme: nn.Scheme, dtype: str) -> nn.Layer:
    embedding = nn.Embedding(scheme, VOCABULARY, HIDDEN, sequence=SEQUENCE, dtype=dtype)
    layers = [
        nn.TransformerLayer(scheme, HIDDEN, HEADS, sequence=SEQUENCE, dropout=0.1, seed=10 * i, dtype=dtype, name=f"layer{i}")
        for i in range(LAYERS)
    ]
    return nn.Sequential(scheme, [embedding, *layers, nn.LayerNorm(scheme, HIDDEN, dtype=dtype), nn.TiedHead(embedding)])


def train(scheme: nn.Scheme, steps: int, dtype: str) -> dict:
    """Collective: the losses step by step, and the loss on the text held out (nats a character)."""
    source = text()
    cut = int(len(source) * (1 - HELD_OUT))
    net, loss, losses = model(scheme, dtype), nn.CrossEntropy(), []
    optimizer = nn.AdamW(net, 3e-3)
    for step in range(steps):
        inputs, targets = batch(source[:cut], step)
        losses.append(loss.forward(net.forward(inputs), targets))
        net.backward(loss.backward())
        nn.clip(net, 1.0)
        optimizer.step()
    inputs, targets = batch(source[cut:], 0)
    return {"losses": losses, "loss on text held out": loss.forward(net.forward(inputs, training=False), targets)}


if __name__ == "__main__":
    compare(__doc__, train)
