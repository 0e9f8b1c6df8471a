"""Convolution and the blocks of a U-Net in every scheme, beside PyTorch, finite differences, and the formulas of their words."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

import pdla
from pdla import nn
from pdla.errors import LayoutError, ShapeError

EXACT = 1e-10  # how far float64 may be off, relative to the largest element


def on(kind, shape, axes=None, **options):
    """A scheme on a grid: its name, ranks, and what makes it."""
    words = ["x".join(map(str, shape)), *(axes or "").split(), *(f"{name}={value}" for name, value in options.items())]

    def make(comm):
        return kind(pdla.ProcessGrid(shape, axes and tuple(axes.split()), comm), **options)

    return pytest.param(int(np.prod(shape)), make, id=" ".join([kind.__name__, *words]))


PLACES = [
    on(nn.Serial, (1,)),
    on(nn.Serial, (1,), shards=2),
    on(nn.Megatron1D, (2,)),
    on(nn.Megatron1D, (3,)),
    on(nn.Megatron1D, (2,), sequence_parallel=True),
    on(nn.Megatron1D, (2, 2), "data row", shards=2),
    on(nn.Summa2D, (2, 2)),
    on(nn.Summa2D, (2, 2), keep=True),
    on(nn.Tesseract, (2, 1, 2)),
    on(nn.Tesseract, (2, 1, 2), cut_weights=True),
    on(nn.Tesseract, (1, 2, 2), cut_weights=True, shards=2),
    on(nn.Cube3D, (2, 2, 2)),
    on(nn.Cube3D, (2, 2, 1), keep=False),
    on(nn.Tensor3D, (2, 2)),
    on(nn.Tensor3D, (3, 1)),
    on(nn.Tensor3D, (2, 2), shards=2),
    on(nn.Tensor3D, (2, 2, 2), keep=True),
    on(nn.Tensor3D, (1, 2, 3), shards=2),
    on(nn.Tensor3D, (2, 2, 1, 2), "data row col depth", shards=2),
]


@dataclass(frozen=True)
class Case:
    """A layer in any scheme, what it is in PyTorch given x (samples, channels, height, width), and what goes through it."""

    name: str
    build: Callable
    model: Callable
    samples: int
    size: tuple[int, int]
    features: int
    outputs: int
    kind: str = "first"

    def pixels(self):
        return self.size[0] * self.size[1]

    def x(self):
        return np.random.default_rng(1).standard_normal((self.samples * self.pixels(), self.features))

    def dy(self, pixels):
        return np.random.default_rng(2).standard_normal((pixels, self.outputs))

    def place(self, scheme):
        return pdla.from_global(self.x(), scheme.grid, scheme.activation(getattr(scheme, self.kind).X, self.pixels()))


@cache
def learned(case):
    """Parameters whose biases and offsets are not 0 and gains not 1, from those that the layer begins with."""
    begin = pdla.run(1, lambda comm: case.build(nn.Serial(pdla.ProcessGrid((1,), comm=comm))).state_dict())[0]
    draw = np.random.default_rng(3)
    return {name: value + 0.3 * draw.standard_normal(value.shape) for name, value in begin.items()}


def travelled(case, scheme):
    """y, dx and gradients in a scheme, as global arrays; copies are compared bit for bit on the way."""
    layer = case.build(scheme)
    layer.load_state_dict(learned(case))
    y = layer.forward(case.place(scheme))
    dx = layer.backward(pdla.from_global(case.dy(y.shape[0]), scheme.grid, y.layout))
    found = {"y": y, "dx": dx, **layer.gradients()}
    assert all(value.check_copies() for value in found.values())
    assert all(found[name].layout == value.layout for name, value in layer.parameters().items())
    return {name: value.gather() for name, value in found.items()}


def through(case, ranks, make):
    """What rank 0 of so many has in the end."""
    learned(case)
    return pdla.run(ranks, lambda comm: travelled(case, make(comm)))[0]


@cache
def by_pytorch(case):
    torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")
    p = {name: torch.tensor(value, requires_grad=True) for name, value in learned(case).items()}
    x = torch.tensor(case.x(), requires_grad=True)
    picture = case.model(p, x.reshape(case.samples, *case.size, case.features).permute(0, 3, 1, 2))
    y = picture.permute(0, 2, 3, 1).reshape(-1, case.outputs)
    y.backward(torch.tensor(case.dy(y.shape[0])))
    found = {"y": y, "dx": x.grad} | {name: value.grad for name, value in p.items()}
    return {name: value.detach().numpy() for name, value in found.items()}


def check_close(found, wanted):
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        assert found[name].shape == value.shape, name
        assert np.abs(found[name] - value).max() <= EXACT * np.abs(value).max(), name


# ---------------------------------------------------------------------------------------------- the cases


def picked(p, prefix):
    return {name.removeprefix(prefix): value for name, value in p.items() if name.startswith(prefix)}


def t_conv(p, x, kernel=3, stride=1, padding=None):
    from torch.nn import functional

    weight = p["weight"].T.reshape(p["weight"].shape[1], x.shape[1], kernel, kernel)
    bias = p["bias"].reshape(-1) if "bias" in p else None
    return functional.conv2d(x, weight, bias, stride, kernel // 2 if padding is None else padding)


def t_norm(p, x, groups):
    from torch.nn import functional

    return functional.group_norm(x, groups, p["gain"].reshape(-1), p["offset"].reshape(-1))


def t_block(p, x, groups, act):
    y = x
    for i in (0, 3):
        y = t_conv(picked(p, f"inner.layers.{i + 2}."), act(t_norm(picked(p, f"inner.layers.{i}."), y, groups)))
    return x + y


def t_unet(p, x, groups, act, levels=1):
    y = t_block(picked(p, "block."), x, groups, act)
    low = t_conv(picked(p, "down.layers.0."), y, stride=2)
    low = t_conv(picked(p, "down.layers.1."), low)
    below = picked(p, "inner.")
    low = t_unet(below, low, groups, act, levels - 1) if levels > 1 else t_block(below, low, groups, act)
    high = low.repeat_interleave(2, 2).repeat_interleave(2, 3)
    return y + t_conv(picked(p, "up.layers.2."), t_conv(picked(p, "up.layers.1."), high))


def t_relu(x):
    return x.relu()


def t_gelu(x):
    from torch.nn import functional

    return functional.gelu(x)


def conv(kind, samples, size, k, n, kernel, bias=True, **options):
    def build(scheme):
        return nn.Conv2d(scheme, k, n, kernel, height=size[0], width=size[1], kind=kind, bias=bias, seed=4, **options)

    words = [f"{kernel}x{kernel} {kind}", *(f"{name}={value}" for name, value in options.items())]
    return Case(" ".join(words), build, lambda p, x: t_conv(p, x, kernel, **options), samples, size, k, n, kind)


def norm(kind):
    def build(scheme):
        return nn.GroupNorm(scheme, 6, groups=2, pixels=6, kind=kind)

    return Case(f"norm {kind}", build, lambda p, x: t_norm(p, x, 2), 4, (2, 3), 6, 6, kind)


def two_strides():
    """From 5 x 6 to 3 x 3 to 2 x 2, which leaves sizes that are not each other's multiples."""

    def build(scheme):
        first = nn.Conv2d(scheme, 3, 5, 3, height=5, width=6, stride=2, seed=1)
        second = nn.Conv2d(scheme, 5, 4, 3, height=3, width=3, stride=2, kind="second", seed=2)
        return nn.Sequential(scheme, [first, second])

    def model(p, x):
        return t_conv(picked(p, "layers.1."), t_conv(picked(p, "layers.0."), x, stride=2), stride=2)

    return Case("two strides", build, model, 5, (5, 6), 3, 4)


def block(act, model):
    def build(scheme):
        return nn.ResidualBlock(scheme, 6, groups=2, height=3, width=4, activation=act, seed=5)

    return Case(f"block {act.__name__}", build, lambda p, x: t_block(p, x, 2, model), 4, (3, 4), 6, 6)


def unet(levels, size):
    def build(scheme):
        return nn.UNetBlock(scheme, 4, groups=2, height=size[0], width=size[1], levels=levels, activation=nn.GeLU, seed=6)

    return Case(f"unet {levels}", build, lambda p, x: t_unet(p, x, 2, t_gelu, levels), 4, size, 4, 4)


CONVS = [
    conv("first", 5, (3, 4), 5, 7, 3),
    conv("second", 3, (4, 3), 5, 7, 3),
    conv("first", 3, (2, 3), 5, 7, 1),
    conv("first", 3, (5, 4), 5, 7, 3, stride=2),
    conv("second", 5, (5, 4), 5, 1, 3, bias=False, stride=2),
    conv("first", 3, (4, 5), 3, 4, 2, stride=3, padding=2),
    conv("second", 4, (4, 4), 4, 3, 1, stride=2),
    two_strides(),
]
BLOCKS = [block(nn.ReLU, t_relu), unet(1, (4, 2)), unet(2, (4, 8))]


@pytest.mark.parametrize("case", [*CONVS, *BLOCKS, norm("first"), norm("second")], ids=lambda case: case.name)
@pytest.mark.parametrize(("ranks", "make"), PLACES)
def test_beside_pytorch(ranks, make, case):
    wanted = by_pytorch(case)  # before the threads: without PyTorch this skips
    check_close(through(case, ranks, make), wanted)


@cache
def alone(case):
    return through(case, 1, lambda comm: nn.Serial(pdla.ProcessGrid((1,), comm=comm)))


@pytest.mark.parametrize("case", [two_strides(), unet(1, (4, 2))], ids=lambda case: case.name)
@pytest.mark.parametrize(("ranks", "make"), PLACES)
def test_beside_serial(ranks, make, case):
    check_close(through(case, ranks, make), alone(case))


@pytest.mark.parametrize("case", [conv("first", 2, (3, 2), 2, 3, 3, stride=2), block(nn.GeLU, t_gelu)], ids=lambda case: case.name)
def test_beside_finite_differences(case):
    """Slopes of the sum of y dy along random directions: of x and of each parameter."""

    def program(comm):
        scheme = nn.Tensor3D(pdla.ProcessGrid((2, 2), comm=comm))
        layer, step, draw = case.build(scheme), 1e-5, np.random.default_rng(7)

        def total(x, state):
            layer.load_state_dict(state)
            y = layer.forward(scheme.shard(x, sequence=case.pixels()), training=False).gather()
            return (y * case.dy(len(y))).sum()

        found, x, state = travelled(case, scheme), case.x(), learned(case)
        along = draw.standard_normal(x.shape)
        pairs = [((found["dx"] * along).sum(), total(x + step * along, state) - total(x - step * along, state))]
        for name, value in state.items():
            along = draw.standard_normal(value.shape)
            ends = [total(x, state | {name: value + sign * step * along}) for sign in (1, -1)]
            pairs.append(((found[name] * along).sum(), ends[0] - ends[1]))
        return [(slope, difference / (2 * step)) for slope, difference in pairs]

    learned(case)
    for slope, difference in pdla.run(4, program)[0]:
        assert difference == pytest.approx(slope, rel=1e-6, abs=1e-6)


# ---------------------------------------------------------------------------------------------- words

SAMPLES, SIZE, OUT = 8, 6 * 4, 3 * 2  # pixels of a sample that comes in, and of one that goes out with stride 2
INPUTS, OUTPUTS, KERNEL = 16, 32, 9 * 16 * 32  # which every grid here divides


def recorded(make, samples=SAMPLES, **options):
    """What rank 0 receives, in words, by tag and axis."""

    def program(comm):
        scheme = make(comm)
        layer = nn.Conv2d(scheme, INPUTS, OUTPUTS, 3, height=6, width=4, stride=2, bias=False, **options)
        x = pdla.from_global(np.zeros((samples * SIZE, INPUTS)), scheme.grid, scheme.activation(layer.table.X, SIZE))
        with pdla.record() as ledger:
            layer.backward(layer.forward(x))
        words = {}
        for event in ledger.events:
            if event.bytes:
                words[event.tag, event.axis] = words.get((event.tag, event.axis), 0) + event.bytes / 8
        return words

    return program


def share(g):
    return (g - 1) / g


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("kind", ["first", "second"])
def test_words_in_tensor3d(kind, shards):
    """Y over the axis that cuts inputs, dX over the one that cuts outputs, both by the channel; weights over depth."""
    gr, gc, depth = 4, 2, 2
    gi, go, over_i, over_o = (gc, gr, "col", "row") if kind == "first" else (gr, gc, "row", "col")

    def make(comm):
        return nn.Tensor3D(pdla.ProcessGrid((gr, gc, depth), comm=comm), shards=shards)

    words, _ = pdla.dry_run(16, recorded(make, kind=kind))
    weights = share(depth) * KERNEL / (gr * gc)
    assert words == {
        ("conv forward", over_i): 2 * share(gi) * SAMPLES / depth * OUT * OUTPUTS / go,
        ("conv forward", "depth"): weights,
        ("conv backward", over_o): 2 * share(go) * SAMPLES / depth * SIZE * INPUTS / gi,
        ("conv backward", "depth"): 2 * weights,
    }


def test_words_in_a_cube():
    """Operands are gathered by the channel, before they are unfolded; kept for the way back."""
    q = 2

    def make(comm):
        return nn.Cube3D(pdla.ProcessGrid((q, q, q), comm=comm))

    x, w, y = (n / q**3 * (q - 1) for n in (SAMPLES * SIZE * INPUTS, KERNEL, SAMPLES * OUT * OUTPUTS))
    assert pdla.run(8, recorded(make))[0] == {
        ("conv forward", "row"): x,
        ("conv forward", "col"): w,
        ("conv forward", "depth"): y,
        ("conv backward", "depth"): y,
        ("conv backward", "row"): x,
        ("conv backward", "col"): w,
    }


@pytest.mark.parametrize(("ranks", "make"), PLACES)
def test_a_kernel_of_one_is_a_linear(ranks, make):
    """The same words under the same tags, the same numbers."""

    def program(comm):
        scheme, found = make(comm), []
        for layer in (
            nn.Linear(scheme, 5, 7, seed=1, name="same"),
            nn.Conv2d(scheme, 5, 7, 1, height=2, width=3, seed=1, name="same"),
        ):
            x = scheme.shard(np.random.default_rng(1).standard_normal((30, 5)), sequence=6)
            with pdla.record() as ledger:
                y = layer.forward(x)
                dx = layer.backward(y)
            found.append((ledger.by_tag(), y.gather(), dx.gather()))
        return found

    (words, *linear), (same_words, *convolution) = pdla.run(ranks, program)[0]
    assert same_words == words
    for one, other in zip(linear, convolution, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-13)


def test_a_dry_run_of_64_ranks_records_what_8_threads_do():
    """Eight copies of a grid, each with its own samples: what travels inside a copy is the same, and gradients between them."""

    def make(comm):
        shape = (comm.size // 8, 2, 2, 2)
        return nn.Tensor3D(pdla.ProcessGrid(shape, ("data", "row", "col", "depth"), comm))

    few = pdla.run(8, recorded(make))[0]
    dry, _ = pdla.dry_run(8, recorded(make))
    many, _ = pdla.dry_run(64, recorded(make, 8 * SAMPLES))
    assert dry == few
    assert many == few | {("conv backward", "data"): 2 * share(8) * KERNEL / 8}


def test_a_dry_unet():
    def program(comm):
        scheme = nn.Tensor3D(pdla.ProcessGrid((4, 4, 4), comm=comm), shards=2)
        layer = nn.UNetBlock(scheme, 64, groups=8, height=16, width=16, levels=2, dtype="float32")
        x = scheme.shard(np.zeros((16 * 256, 64), "float32"), sequence=256)
        with pdla.record() as ledger:
            y = layer.forward(x)
            dx = layer.backward(y)
        return y.shape, dx.shape, dx.stored.shape, ledger.bytes_received > 0

    assert pdla.dry_run(64, program)[0] == ((4096, 64), (4096, 64), (1024, 16), True)


# ---------------------------------------------------------------------------------------------- wrong use


def cube(comm):
    return nn.Cube3D(pdla.ProcessGrid((2, 2, 2), comm=comm))


def tensor(comm):
    return nn.Tensor3D(pdla.ProcessGrid((2, 1, 2), comm=comm))


def a_conv(scheme, **options):
    return nn.Conv2d(scheme, 4, 4, 3, height=2, width=3, **options)


@pytest.mark.parametrize("make", [a_conv, lambda scheme: nn.Upsample(scheme, height=2, width=3)], ids=["conv", "up"])
def test_what_an_input_keeps_whole_stays_whole(make):
    """Of three pairs of samples one rank has two, and what comes of them, there and back."""

    def program(comm):
        scheme, x, found = tensor(comm), np.arange(144.0).reshape(36, 4), []
        for pixels in (6, 12):
            layer = make(scheme)
            y = layer.forward(scheme.shard(x, sequence=pixels))
            dx = layer.backward(y)
            found.append((y.gather(), dx.gather()))
        for samples, pairs in zip(*found, strict=True):  # products of other sizes round otherwise
            np.testing.assert_allclose(pairs, samples, rtol=1e-12, atol=1e-9)
        return dx.local.shape[0]

    assert sorted(pdla.run(4, program)) == [12] * 2 + [24] * 2


@pytest.mark.parametrize(
    ("make", "use", "error", "words"),
    [
        (tensor, lambda s: a_conv(s).forward(np.zeros((12, 4))), ShapeError, "takes a DistMatrix"),
        (tensor, lambda s: a_conv(s).forward(s.shard(np.zeros((12, 5)), sequence=6)), ShapeError, r"\(tokens, 4\)"),
        (tensor, lambda s: a_conv(s).forward(s.shard(np.zeros((12, 4)))), LayoutError, "sequence=6"),
        (tensor, lambda s: a_conv(s).forward(s.shard(np.zeros((12, 4)), sequence=9)), LayoutError, "whole sequences of 6 tokens"),
        (tensor, lambda s: a_conv(s).forward(s.shard(np.zeros((13, 4)), sequence=6)), ShapeError, "13 tokens"),
        (tensor, lambda s: a_conv(s, stride=0), ShapeError, "stride 0"),
        (tensor, lambda s: a_conv(s, padding=-1), ShapeError, "padding -1"),
        (tensor, lambda s: nn.Conv2d(s, 4, 4, 3, height=2, width=2, padding=0), ShapeError, "kernel of 3 x 3.*2 x 2"),
        (tensor, lambda s: nn.UNetBlock(s, 4, groups=2, height=5, width=4), ShapeError, "5 x 4"),
        (tensor, lambda s: nn.UNetBlock(s, 4, groups=2, height=4, width=4, levels=0), ShapeError, "0 levels"),
        (tensor, lambda s: nn.ResidualBlock(s, 5, groups=2, height=5, width=4), ShapeError, "5 channels"),
        (tensor, lambda s: nn.ResidualBlock(s, 4, groups=2, height=4, width=4, kernel=2), ShapeError, "kernel=2"),
        (
            cube,
            lambda s: nn.ResidualBlock(s, 4, groups=2, height=2, width=3).forward(s.shard(np.zeros((18, 4)), sequence=6)),
            LayoutError,
            "whole sequences of 6 tokens",
        ),
        (
            cube,
            lambda s: nn.Upsample(s, height=2, width=3).forward(s.shard(np.zeros((6, 4)), sequence=6)),
            LayoutError,
            "whole sequences of 6 tokens",
        ),
        (tensor, lambda s: nn.Upsample(s, height=2, width=3).forward(np.zeros((6, 4))), ShapeError, "takes a DistMatrix"),
        (
            tensor,
            lambda s: nn.Upsample(s, height=2, width=3).forward(s.shard(np.zeros((36, 4)), sequence=9)),
            LayoutError,
            "whole sequences of 6 tokens",
        ),
    ],
)
def test_wrong_use_is_an_error_on_every_rank(make, use, error, words):
    def program(comm):
        with pytest.raises(error, match=words):
            use(make(comm))
        return True

    assert all(pdla.run(8 if make is cube else 4, program))
