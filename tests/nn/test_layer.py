"""Layers of users' own, by public names alone: what they may override, declare and ask."""

import doctest
import gc
import weakref
from copy import deepcopy

import numpy as np
import pytest
from helpers.nets import (
    FEW,
    SERIAL,
    SUMMA,
    Model,
    X,
    check_close,
    everywhere,
    learned,
    linear_case,
    on,
    refusal,
    run,
    somewhere,
    transformer_case,
)

import pdla
from pdla import nn
from pdla.errors import AgreementError, PdlaError, ShapeError

HIDDEN, HEADS, GROUPS, SEQUENCE = 24, 6, 3, 4
SIZE, SHARED = HIDDEN // HEADS, HEADS // GROUPS
U, DY = np.random.default_rng(0).standard_normal((2, 24, HIDDEN))


class Grouped(nn.Layer):
    """Attention of several queries of a group to one key and one value; columns by group: its queries, its key, its value."""

    units = (SHARED + 2) * SIZE, SHARED * SIZE
    sequence = SEQUENCE

    def __init__(self, scheme):
        super().__init__(scheme)
        self.takes = self.gives = scheme.first.Y
        self.widths = GROUPS * self.units[0], HIDDEN

    def parts(self, block):
        """Views: queries (sequences, groups, queries of a group, tokens, features), keys and values with one in the third place."""
        rows, columns = block.shape
        each = block.reshape(rows // SEQUENCE, SEQUENCE, columns // self.units[0], SHARED + 2, SIZE).transpose(0, 2, 3, 1, 4)
        return each[:, :, :SHARED], each[:, :, SHARED : SHARED + 1], each[:, :, SHARED + 1 :]

    def forward_local(self, x, batch):
        q, k, v = self.parts(x.local)
        scores = q @ k.swapaxes(3, 4) * SIZE**-0.5 + np.triu(np.full((SEQUENCE, SEQUENCE), -np.inf), 1)
        weights = np.exp(scores - scores.max(axis=4, keepdims=True))
        weights /= weights.sum(axis=4, keepdims=True)
        batch.save(self, x.local, weights)
        mixed = (weights @ v).transpose(0, 3, 1, 2, 4)
        return nn.like(x, mixed.reshape(x.local.shape[0], -1 if mixed.size else 0), features=HIDDEN, unit=self.units[1])

    def backward_local(self, dy, batch):
        block, weights = batch.saved(self)
        q, k, v = self.parts(block)
        d = dy.local.reshape(len(q), SEQUENCE, q.shape[1], SHARED, SIZE).transpose(0, 2, 3, 1, 4)
        slope = d @ v.swapaxes(3, 4)
        slope = weights * (slope - (slope * weights).sum(axis=4, keepdims=True)) * SIZE**-0.5
        dx = dy.xp.empty(block.shape, block.dtype)
        dq, dk, dv = self.parts(dx)
        dq[...] = slope @ k
        dk[...] = (slope.swapaxes(3, 4) @ q).sum(axis=2, keepdims=True)
        dv[...] = (weights.swapaxes(3, 4) @ d).sum(axis=2, keepdims=True)
        return nn.like(dy, dx, features=self.widths[0], unit=self.units[0])


def grouped_query_attention(scheme):
    taken, given = Grouped.units
    to = nn.Linear(scheme, HIDDEN, GROUPS * taken, units=(1, taken))
    back = nn.Linear(scheme, HIDDEN, HIDDEN, kind="second", units=(given, 1))
    return nn.Sequential(scheme, [to, Grouped(scheme), back])


class Marked(nn.Layer):
    """Each feature times a number that is learned, plus the element's own place in the whole."""

    def __init__(self, scheme):
        super().__init__(scheme)
        self.takes = self.gives = scheme.first.X
        self.widths = HIDDEN, HIDDEN
        self.gain = nn.feature_vector(scheme, HIDDEN, self.takes, fill=2)

    def forward_local(self, x, batch):
        assert batch.training
        batch.save(self, x.local)
        places = np.add.outer(100 * batch.rows(x), x.indices[1].indices())
        return nn.like(x, x.local * self.gain.value.local + places)

    def backward_local(self, dy, batch):
        (x,) = batch.saved(self)
        batch.add_gradient(self.gain, dy, (x * dy.local).sum(axis=0, keepdims=True))
        return nn.like(dy, dy.local * self.gain.value.local)


class Residual(nn.Layer):
    """x + attention(marked(x)): a layer that awaits others."""

    def __init__(self, scheme):
        super().__init__(scheme)
        self.parts, self.sequence = [Marked(scheme), grouped_query_attention(scheme)], SEQUENCE
        self.takes = self.gives = scheme.first.X
        self.widths = HIDDEN, HIDDEN

    async def forward_async(self, x, batch):
        y = x
        for part in self.parts:
            y = await part.forward_async(y, batch)
        return nn.like(x, x.local + y.local)

    async def backward_async(self, dy, batch):
        dx = dy
        for part in reversed(self.parts):
            dx = await part.backward_async(dx, batch)
        return nn.like(dy, dx.local + dy.local)


def passed(scheme, make):
    layer = make(scheme)
    y = layer.forward(scheme.shard(U, sequence=SEQUENCE))
    dx = layer.backward(scheme.shard(DY, sequence=SEQUENCE))
    return {"y": y.gather(), "dx": dx.gather()} | {name: value.gather() for name, value in layer.gradients().items()}


@pytest.mark.parametrize("make", [grouped_query_attention, Marked, Residual], ids=lambda make: make.__name__)
@everywhere
def test_layers_of_ones_own_are_the_same_everywhere(place, make):
    check_close(run(place, lambda scheme: passed(scheme, make)), run(SERIAL, lambda scheme: passed(scheme, make)), where=place.name)


def test_their_gradients_are_those_of_finite_differences():
    def program(scheme):
        layer, (e,) = Residual(scheme), np.random.default_rng(1).standard_normal((1, *U.shape))
        up, down = (layer.forward(scheme.shard(U + h * e, sequence=SEQUENCE)).gather() for h in (1e-6, -1e-6))
        layer.forward(scheme.shard(U, sequence=SEQUENCE))
        return ((up - down) * DY).sum() / 2e-6, (layer.backward(scheme.shard(DY, sequence=SEQUENCE)).gather() * e).sum()

    numeric, exact = run(SERIAL, program)
    assert abs(numeric - exact) < 1e-6 * abs(exact)


def test_rows_and_columns_are_those_of_the_whole():
    found = run(on(nn.Tensor3D, (2, 2, 2), shards=2), lambda scheme: passed(scheme, Marked))
    assert np.array_equal(found["y"], 2 * U + np.add.outer(100 * np.arange(24), np.arange(HIDDEN)))
    assert np.allclose(found["gain"], (U * DY).sum(axis=0))


@pytest.mark.parametrize("thing", [nn.Layer, nn.MicroBatch, nn.like, nn.feature_vector], ids=lambda thing: thing.__name__)
def test_examples_of_docstrings(thing):
    (found,) = doctest.DocTestFinder(recurse=False).find(thing, globs={"pdla": pdla, "np": np})
    assert found.examples and doctest.DocTestRunner().run(found).failed == 0


def test_the_wrong_method_is_refused_when_the_class_is_made():
    with pytest.raises(PdlaError, match=r"Mine.forward begins a pass on all ranks: override forward_local\(x, batch\), or async"):
        type("Mine", (nn.Layer,), {"forward": lambda self, x: x})
    with pytest.raises(PdlaError, match=r"Mine.backward begins .* override backward_local\(dy, batch\)"):
        type("Mine", (nn.GeLU,), {"backward": lambda self, dy: dy})
    with pytest.raises(PdlaError, match=r"Mine.forward_async is no async def: override"):
        type("Mine", (nn.Layer,), {"forward_async": lambda self, x, batch: x})

    async def backward_local(self, dy, batch):
        return dy

    with pytest.raises(PdlaError, match=r"Mine.backward_local is an async def: override"):
        type("Mine", (nn.Layer,), {"backward_local": backward_local})


class Neither(nn.Layer):
    def __init__(self, scheme, number=1):
        super().__init__(scheme)


class OneWay(nn.Layer):
    def forward_local(self, x, batch):
        return x


class Unmade(nn.Layer):
    def __init__(self, scheme):
        self.number = 1


REFUSED = {
    "no pass": (lambda s: Neither(s).forward(s.shard(U)), PdlaError, "Neither on .* has no pass forward: override forward_local"),
    "no pass back": (
        lambda s: (layer := OneWay(s)).backward(layer.forward(s.shard(U))), PdlaError, "OneWay on .* has no pass backward: override"
    ),
    "not made": (lambda s: Unmade(s), PdlaError, r"Unmade.__init__ does not call super\(\).__init__\(scheme\)"),
    "other features": (lambda s: Marked(s).forward(s.shard(U[:, :9])), ShapeError, r"Marked on .* takes \(tokens, 24\) of float64"),
    "another dtype": (lambda s: Marked(s).forward(s.shard(U.astype("f"))), ShapeError, "of float64, not .* of float32"),
    "another unit": (
        lambda s: nn.Sequential(s, [nn.Linear(s, 24, 48, units=(1, 8)), Grouped(s)]), ShapeError, "takes features in units of 16"
    ),
    "cut of axes that are not there": (
        lambda s: nn.feature_vector(s, 8, "depth | row"), pdla.errors.LayoutError, "cut='depth | row': 'axes that cut rows"
    ),
    "half a feature": (lambda s: nn.feature_vector(s, 1.5, s.first.X), ShapeError, "features=1.5: a whole number"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_says_what_would_work(what):
    program, kind, words = REFUSED[what]
    with pytest.raises(kind, match=words):
        pdla.run(4, lambda comm: program(nn.Summa2D(pdla.ProcessGrid((2, 2), comm=comm))))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shards", [1, 3])
def test_an_error_in_a_micro_batch_ends_the_others(shards):
    """None is left that was never awaited, and the next pass runs."""

    class Failing(nn.Layer):
        fails = True

        def forward_local(self, x, batch):
            if self.fails:
                raise ValueError("as asked")
            return x

        def backward_local(self, dy, batch):
            return dy

    def program(scheme):
        net = nn.Sequential(scheme, [nn.Linear(scheme, HIDDEN, 8), failing := Failing(scheme)])
        x = scheme.shard(U)
        with pytest.raises(ValueError, match="as asked"):
            net.forward(x)
        failing.fails = False
        y = net.forward(x)
        return net.backward(y).shape

    assert run(on(nn.Serial, (1,), shards=shards), program) == U.shape


def test_an_activation_that_one_rank_has_and_a_scheme_that_cuts_nothing():
    """Serial cuts no tokens along "data" either."""
    x = np.arange(24.0).reshape(6, 4)

    def program(comm):
        grid = pdla.ProcessGrid((2,), axes=("data",), comm=comm)
        return nn.Serial(grid).shard(x if comm.rank == 1 else None, root=1).local

    assert all(np.array_equal(whole, x) for whole in pdla.run(2, program))


def trained_once(scheme, **options):
    """One pass of a transformer layer forward and backward; and the bytes kept in between."""
    case = transformer_case(3, **options)
    layer = case.build(scheme)
    x, dy = (case.place(scheme, array) for array in case.data())
    y = layer.forward(x)
    kept = layer.kept_bytes()
    return {"y": y.gather(), "dx": layer.backward(dy).gather()} | {n: g.gather() for n, g in layer.gradients().items()}, kept


@somewhere
def test_a_pass_in_evaluation_keeps_nothing(place):
    def program(scheme):
        case = transformer_case(3)
        layer, x = case.build(scheme), case.place(scheme, case.data()[0])
        trained, y = layer.forward(x), layer.forward(x, training=False)
        assert layer.kept_bytes() == 0
        return trained.gather(), y.gather()

    assert np.array_equal(*run(place, program))


@somewhere
def test_a_layer_does_not_hold_what_it_has_put_out(place):
    """Logits are often the largest activation of all."""

    def program(scheme):
        layer = nn.Linear(scheme, 20, 23)
        y = layer.forward(scheme.shard(X))
        return layer, weakref.ref(y.stored if y.stored.base is None else y.stored.base)

    layer, memory = run(place, program)
    gc.collect()
    assert memory() is None, layer


@somewhere
def test_each_pass_leaves_its_own_gradients(place):
    """A second forward pass takes the first one's place; a second backward pass does not add to the first one's gradients."""
    case = transformer_case(3)

    def program(scheme):
        layer = case.build(scheme)
        x, dy = (case.place(scheme, array) for array in case.data())
        layer.forward(2 * x)
        found = []
        for _ in range(2):
            layer.forward(x)
            found.append({"dx": layer.backward(dy).gather()} | {n: g.gather() for n, g in layer.gradients().items()})
            assert layer.kept_bytes() == 0
        return found

    first, second = run(place, program)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    wanted, _ = run(SERIAL, trained_once)
    check_close(first, {name: value for name, value in wanted.items() if name != "y"}, where=place.name)


def test_copies_that_lie_by_columns_on_some_ranks_pass_as_the_others_do():
    """Sums over tokens and features, and so the loss and the gradients, were rounded otherwise there."""
    x, dy = np.random.default_rng(0).standard_normal((2, 32, 300))

    def program(comm):
        scheme = nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
        blocks = (np.array(whole, order="CF"[comm.rank]) for whole in (x, dy))
        X, dY = (pdla.from_local(block, (32, 300), scheme.grid, scheme.residual()) for block in blocks)
        layer, criterion = nn.LayerNorm(scheme, 300), nn.CrossEntropy()
        loss = criterion.forward(X, np.arange(32))
        found = [layer.forward(X), layer.backward(dY), *layer.gradients().values(), criterion.backward()]
        return [loss, *(matrix.local for matrix in found)]

    assert all(np.array_equal(here, there) for here, there in zip(*pdla.run(2, program), strict=True))


MODEL = Model(3)


def dropping(layer):
    layer.layers[2].probability = 0.5


def seeding(layer):
    layer.layers[2].seed = 1


def evening(layer):
    layer.layers[0].eps = 1e-3


def passing(layer):
    layer.passes = 7


@pytest.mark.parametrize("change", [dropping, seeding, evening, passing])
def test_numbers_of_layers_that_are_set_on_one_rank_are_told_of(change):
    def program(comm):
        scheme = SUMMA.make(comm)
        net = nn.Sequential(scheme, [nn.LayerNorm(scheme, 20), nn.Linear(scheme, 20, 20), nn.Dropout(scheme, 0.25)])
        net.forward(scheme.shard(X))
        if comm.rank == 1:
            change(net)
        net.forward(scheme.shard(X))

    kind, text = refusal(4, program)
    assert kind is AgreementError and "ranks 0, 2, 3: forward of Sequential" in text and "rank 1: forward of Sequential" in text


def test_weights_that_one_rank_has_drawn_before_they_came_to_their_place_are_told_of():
    def program(comm):
        scheme = SUMMA.make(comm)
        parts = [nn.LayerNorm(scheme, 20), nn.Linear(scheme, 20, 20)]
        if comm.rank == 1:
            parts[1].parameters()
        nn.Sequential(scheme, parts).forward(scheme.shard(X))

    assert refusal(4, program)[0] is AgreementError


@pytest.mark.parametrize("other", FEW, ids=lambda place: place.name)
@somewhere
def test_a_state_goes_from_scheme_to_scheme(place, other):
    def saved(scheme):
        layer = MODEL.build(scheme)
        layer.load_state_dict(learned(MODEL))
        return layer.state_dict()

    def loaded(scheme):
        layer = MODEL.build(scheme)
        layer.load_state_dict(state)
        assert all(value.check_copies() for value in layer.parameters().values())
        return layer.state_dict(root=0)

    state = run(place, saved)
    found = run(other, loaded)
    assert set(found) == set(learned(MODEL))
    assert all(np.array_equal(found[name], value) for name, value in learned(MODEL).items())


def test_a_state_is_on_the_root_alone():
    states = pdla.run(2, lambda comm: linear_case("first", 1).build(FEW[1].make(comm)).state_dict(root=1))
    assert states[0] == {"weight": None, "bias": None} and states[1]["weight"].shape == (20, 23)


def test_a_state_that_is_refused_changes_nothing():
    """Where ranks give another last array, behind others that fit."""

    def program(comm):
        layer = nn.Linear(SUMMA.make(comm), 20, 20)
        optimizer = nn.AdamW(layer)
        layer.backward(layer.forward(layer.scheme.shard(X)))
        optimizer.step()
        for holder in (layer, optimizer):
            before = holder.state_dict()
            other = {name: value + (1 if comm.rank or not name.startswith("bias") else 2) for name, value in before.items()}
            with pytest.raises(AgreementError):
                holder.load_state_dict(other)
            assert all(np.array_equal(value, before[name]) for name, value in holder.state_dict().items())
            holder.load_state_dict({name: value + 1 for name, value in before.items()})
            assert all(np.array_equal(value, before[name] + 1) for name, value in holder.state_dict().items())

    pdla.run(4, program)


def test_names_and_numbers_of_parameters():
    def program(scheme):
        layer = MODEL.build(scheme)
        assert list(layer.parameters()) == list(layer.state_dict())
        layer.parameters()["layers.0.weight"].stored[...] = 7  # the layer's own, which embedding and head share
        assert layer.layers[-1].parameters()["weight"].gather().min() == 7
        return sum(value.shape[0] * value.shape[1] for value in layer.parameters().values())

    hidden, inner = 20, 80
    transformer = 4 * hidden * hidden + 2 * hidden * inner + 4 * hidden + (3 + 1 + 1) * hidden + inner
    assert run(FEW[2], program) == 23 * hidden + 5 * hidden + transformer + 2 * hidden


def saved_16_bits(tmp_path, **state):
    """A state of bfloat16 as np.load gives it: two raw bytes."""
    np.savez(tmp_path / "state.npz", **state)
    return np.load(tmp_path / "state.npz")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_state_of_bfloat16_from_a_file_of_numpys_is_loaded(tmp_path, dtype):
    """An optimizer's, too: parameters and moments."""
    weight = (np.arange(20).reshape(5, 4) % 3).astype("bfloat16")
    state = saved_16_bits(tmp_path, **{"weight": weight, "steps": 1, "weight.0": weight + weight})
    assert state["weight"].dtype == "V2"

    def program(scheme):
        layer = nn.Linear(scheme, 5, 4, bias=False, dtype=dtype)
        layer.load_state_dict({"weight": state["weight"]})
        optimizer = nn.SGD(layer, 0.1, momentum=0.5)
        optimizer.load_state_dict({name: state[name] for name in ("steps", "weight.0")})
        return layer.state_dict()["weight"], optimizer.state_dict()["weight.0"]

    found, moment = run(on(nn.Summa2D, (2, 2)), program)
    assert found.dtype == dtype and np.array_equal(found.astype(float), weight.astype(float))
    assert np.array_equal(moment.astype(float), 2 * weight.astype(float))


@pytest.mark.parametrize("given", [np.zeros((5, 4), "V3"), np.zeros((5, 4), [("a", "u1"), ("b", "u1")])], ids=["V3", "fields"])
def test_other_raw_bytes_are_no_state(given):
    def program(comm):
        nn.Linear(SUMMA.make(comm), 5, 4, bias=False).load_state_dict({"weight": given})

    kind, text = refusal(4, program)
    assert kind.__name__ == "ShapeError" and "weight in the state is of real floats" in text


@somewhere
def test_a_deep_copy_of_a_network_is_one_of_its_own(place):
    """As for averages of its weights: it passes as the original does, and neither changes the other; also amid a pass."""

    def program(scheme):
        net, (ids, targets), criterion = MODEL.build(scheme), MODEL.data(), nn.CrossEntropy()
        loss = criterion.forward(net.forward(ids), targets)
        twin, plain = deepcopy(net), net.state_dict()
        net.backward(criterion.backward())
        nn.SGD(net, 0.5).step()
        assert twin.scheme is scheme and twin.kept_bytes() == 0 and not twin.gradients() and twin.passes == net.passes
        assert all(np.array_equal(value, plain[name]) for name, value in twin.state_dict().items())
        assert not any(np.array_equal(value, plain[name]) for name, value in net.state_dict().items() if np.ptp(value))
        again = criterion.forward(twin.forward(ids), targets)
        twin.backward(criterion.backward())
        after = {name: value.gather() for name, value in net.gradients().items()}
        assert again == loss and all(np.array_equal(value.gather(), after[name]) for name, value in twin.gradients().items())
        for average, value in zip(twin.parameters().values(), net.parameters().values(), strict=True):
            average.local[...] = 0.75 * average.local + 0.25 * value.local
        return {name: value - 0.75 * plain[name] for name, value in twin.state_dict().items()}, net.state_dict()

    shares, now = run(place, program)
    check_close(shares, {name: 0.25 * value for name, value in now.items()}, 1e-14)


@pytest.mark.parametrize("given", ["float64", "float32", "float16", "bfloat16", "int64", "uint8", "bool"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_state_of_any_real_numbers_is_loaded(dtype, given):
    """To NumPy bfloat16 and float16 are of different kinds: it casts one to the other only if told to."""
    state = {"weight": (np.arange(20).reshape(5, 4) % 3).astype(given)}

    def program(scheme):
        layer = nn.Linear(scheme, 5, 4, bias=False, dtype=dtype)
        layer.load_state_dict(state)
        return layer.state_dict()["weight"]

    found = run(on(nn.Summa2D, (2, 2)), program)
    assert found.dtype == dtype and np.array_equal(found.astype(float), state["weight"].astype(float))
