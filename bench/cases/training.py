"""Networks trained in every scheme: the loss curves coincide."""

import sysconfig
from pathlib import Path

import numpy as np

import pdla
from bench.common.case import case
from bench.common.schemes import AXES, SHOWN, make_scheme
from pdla import nn
from pdla.bench.arguments import positive

DTYPES = ("float64", "float32", "float16", "bfloat16")
COLUMNS = "scheme:<30 | first loss:11.6f | last loss:11.6f | held out:10.4f | from Serial:12.0e"


def compare_losses(train, steps, dtype, scheme):
    """Rows of losses: of every scheme on threads, each on its own grid, or of one on the job's ranks.

    train(scheme, steps, dtype) returns the losses step by step, and a figure of the held-out data.
    The last column is the largest relative distance of the losses from Serial's at any step.
    """
    if scheme:
        instance = make_scheme(scheme, pdla.world())
        losses, figure = train(instance, steps, dtype)
        yield from [(repr(instance), losses[0], losses[-1], figure, None)] * (pdla.world().rank == 0)
        return
    serial = None
    for name, (ranks, make) in SHOWN.items():
        losses, figure = pdla.run(ranks, lambda comm, make=make: train(make(comm), steps, dtype))[0]
        serial = np.array(losses) if serial is None else serial
        yield name, losses[0], losses[-1], figure, np.max(np.abs(losses - serial) / np.abs(serial))


def learn(net, rate, batches, clip=None):
    """Collective: the loss of each batch of inputs and targets, with a step of AdamW after each."""
    loss, optimizer, losses = nn.CrossEntropy(), nn.AdamW(net, rate), []
    for inputs, targets in batches:
        losses.append(loss.forward(net.forward(inputs), targets))
        net.backward(loss.backward())
        if clip:
            nn.clip(net, clip)
        optimizer.step()
    return losses


# ---------------------------------------------------------------------------------------------- text

SEQUENCE, SEQUENCES = 64, 8
HIDDEN, HEADS, LAYERS = 64, 4, 2  # of both networks
VOCABULARY = 128  # ASCII
HELD_OUT = 0.05  # share of the text, at its end


@case(COLUMNS)
def train_gpt(*, steps: positive = 50, dtype: DTYPES = "float64", scheme: AXES = None):
    """A character-level GPT on Python's standard library, in every scheme: the losses coincide.

    python -m bench train_gpt                                  ranks are threads, a grid each scheme
    mpirun -n 4 python -m bench train_gpt --scheme tensor3d    one scheme on the job's ranks

    The held-out data is the text's end; its loss is in nats a character.
    """
    return compare_losses(learn_text, steps, dtype, scheme)


def read_text() -> np.ndarray:
    """The standard library's modules one after the other, as ASCII codes."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    joined = "\n".join(path.read_text("utf-8", "ignore") for path in sorted(folder.glob("*.py")))
    return np.frombuffer(joined.encode("ascii", "ignore"), np.uint8).astype(np.int64)


def draw_batch(source: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of a step, the same on every rank."""
    starts = np.random.default_rng(step).integers(0, len(source) - SEQUENCE - 1, SEQUENCES)
    windows = source[starts[:, None] + np.arange(SEQUENCE + 1)]
    return windows[:, :-1].ravel(), windows[:, 1:].ravel()


def make_gpt(scheme: nn.Scheme, dtype: str) -> nn.Layer:
    embedding = nn.Embedding(scheme, VOCABULARY, HIDDEN, sequence=SEQUENCE, dtype=dtype)
    layers = [
        nn.TransformerLayer(scheme, HIDDEN, HEADS, sequence=SEQUENCE, dropout=0.1, seed=10 * i, dtype=dtype, name=f"layer{i}")
        for i in range(LAYERS)
    ]
    return nn.Sequential(scheme, [embedding, *layers, nn.LayerNorm(scheme, HIDDEN, dtype=dtype), nn.TiedHead(embedding)])


def learn_text(scheme: nn.Scheme, steps: int, dtype: str) -> tuple[list[float], float]:
    """Collective: the losses step by step, and the loss on the text held out (nats a character)."""
    source = read_text()
    cut = int(len(source) * (1 - HELD_OUT))
    net = make_gpt(scheme, dtype)
    losses = learn(net, 3e-3, (draw_batch(source[:cut], step) for step in range(steps)), clip=1.0)
    inputs, targets = draw_batch(source[cut:], 0)
    return losses, nn.CrossEntropy().forward(net.forward(inputs, training=False), targets)


# ---------------------------------------------------------------------------------------------- digits

PATCHES, PIXELS, CLASSES = 16, 4, 10  # a digit's tokens, a token's features
BATCH = 32


@case(COLUMNS)
def train_digits(*, steps: positive = 50, dtype: DTYPES = "float64", scheme: AXES = None):
    """A vision transformer on scikit-learn's digits, in every scheme: losses, and accuracy.

    python -m bench train_digits                                ranks are threads, a grid each scheme
    mpirun -n 4 python -m bench train_digits --scheme cube3d    one scheme on the job's ranks

    An image of 8 x 8 pixels is 16 tokens of 2 x 2 pixels. One digit in five is held out. Needs
    scikit-learn.
    """
    return compare_losses(learn_digits, steps, dtype, scheme)


def load_digit_images() -> tuple[np.ndarray, np.ndarray]:
    """Tokens (digits, 16, 4) from -1 to 1, and the digits' classes."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = data.images.reshape(-1, 4, 2, 4, 2).transpose(0, 1, 3, 2, 4).reshape(-1, PATCHES, PIXELS)
    return images / 8 - 1, data.target.astype(np.int64)


def make_vision(scheme: nn.Scheme, dtype: str) -> nn.Layer:
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


def learn_digits(scheme: nn.Scheme, steps: int, dtype: str) -> tuple[list[float], float]:
    """Collective: the losses step by step, and the share of held-out digits read correctly."""
    images, classes = load_digit_images()
    held_out = np.arange(len(images)) % 5 == 4
    training = np.flatnonzero(~held_out)

    def activation(digits: np.ndarray):
        return scheme.shard(images[digits].reshape(-1, PIXELS).astype(dtype), sequence=PATCHES)

    net = make_vision(scheme, dtype)
    draws = (np.random.default_rng(step).choice(training, BATCH, replace=False) for step in range(steps))
    losses = learn(net, 2e-3, ((activation(chosen), classes[chosen]) for chosen in draws))
    classified = net.forward(activation(np.flatnonzero(held_out)), training=False).gather().argmax(axis=1)
    return losses, float((classified == classes[held_out]).mean())
