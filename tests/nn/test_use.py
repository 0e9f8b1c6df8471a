"""Layers at work: dropout, recomputation, what is kept, how parameters begin; and what a network may be made of."""

import gc
import itertools
import tracemalloc
import warnings
import weakref
from functools import partial

import numpy as np
import pytest
from helpers.nets import FEW, SERIAL, SHARDED, SUMMA, P, X, check_close, everywhere, run, somewhere, transformer_case

import pdla
from pdla import nn
from pdla.errors import PdlaError, ShapeError
from pdla.nn.coroutines import TURN, in_turn


def test_passes_take_turns_each_one_behind_the_one_before_it():
    """And give their results in their own order, though the first ends last."""
    seen = []

    async def work(name, times):
        for i in range(times):
            seen.append(f"{name}{i}")
            await TURN
        return name

    assert in_turn([work("a", 3), work("b", 1), work("c", 0)]) == ["a", "b", "c"]
    assert seen == ["a0", "a1", "b0", "a2"]


# ---------------------------------------------------------------------------------------------- dropout

ROWS, COLS = 60, 50


def dropped(scheme, passes=1, training=True):
    """What is left of ones, pass by pass."""
    layer, x = nn.Dropout(scheme, P, seed=4), scheme.shard(np.ones((ROWS, COLS)), sequence=4)
    return [layer.forward(x, training=training).gather() for _ in range(passes)]


def test_an_activation_that_one_rank_has_and_a_scheme_that_cuts_nothing():
    """Serial cuts no tokens along "data" either."""
    x = np.arange(24.0).reshape(6, 4)

    def program(comm):
        grid = pdla.ProcessGrid((2,), axes=("data",), comm=comm)
        return nn.Serial(grid).shard(x if comm.rank == 1 else None, root=1).local

    assert all(np.array_equal(whole, x) for whole in pdla.run(2, program))


@everywhere
def test_what_is_dropped_is_the_same_everywhere(place):
    found = run(place, lambda scheme: dropped(scheme, 2))
    assert all(np.array_equal(a, b) for a, b in zip(found, run(SERIAL, lambda scheme: dropped(scheme, 2)), strict=True))


def test_dropout_drops_its_share_and_other_elements_in_every_pass():
    first, second = run(SERIAL, lambda scheme: dropped(scheme, 2))
    other_seed = run(SERIAL, lambda scheme: nn.Dropout(scheme, P, seed=5).forward(scheme.shard(np.ones((ROWS, COLS)))).gather())
    spread = np.sqrt(P * (1 - P) / first.size)
    for y in (first, second, other_seed):
        assert set(np.unique(y)) == {0, 1 / (1 - P)}
        assert abs((y == 0).mean() - P) < 4 * spread
    for a, b in itertools.combinations((first, second, other_seed), 2):
        assert abs(((a == 0) & (b == 0)).mean() - P * P) < 4 * spread, "one says nothing of the other"


def test_dropout_is_off_in_evaluation_and_without_probability():
    assert run(SERIAL, lambda scheme: dropped(scheme, training=False))[0].min() == 1
    assert run(SERIAL, lambda scheme: nn.Dropout(scheme, 0).forward(scheme.shard(np.ones((4, 4)))).gather()).min() == 1


@somewhere
def test_dropout_backward_drops_the_same(place):
    def program(scheme):
        layer = nn.Dropout(scheme, P)
        y = layer.forward(scheme.shard(np.ones((ROWS, COLS))))
        return y.gather(), layer.backward(scheme.shard(np.ones((ROWS, COLS)))).gather()

    assert np.array_equal(*run(place, program))


@everywhere
def test_dropout_behind_a_layer_that_puts_out_fewer_rows(place):
    """What is dropped is told by the rows that come there, in every shard."""
    draw = np.random.default_rng(2)
    x, dy = draw.standard_normal((24, 20)), draw.standard_normal((6, 12))

    def program(scheme):
        parts = [nn.Linear(scheme, 20, 12), nn.MeanOverSequence(scheme, sequence=4), nn.Dropout(scheme, P)]
        net = nn.Sequential(scheme, parts)
        y = net.forward(scheme.shard(x, sequence=4))
        dx = net.backward(pdla.from_global(dy, scheme.grid, y.layout))
        return {"y": y.gather(), "dx": dx.gather()}

    check_close(run(place, program), run(SERIAL, program), where=place.name)


def test_passes_in_evaluation_do_not_count():
    """A run that looks at its loss in between drops what a run that does not drops."""

    def program(scheme):
        layer, x = nn.Dropout(scheme, P), scheme.shard(np.ones((ROWS, COLS)))
        layer.forward(x, training=False)
        return layer.forward(x).gather(), nn.Dropout(scheme, P).forward(x).gather()

    assert np.array_equal(*run(SERIAL, program))


def trained_once(scheme, **options):
    """One pass of a transformer layer forward and backward; and the bytes kept in between."""
    case = transformer_case(3, **options)
    layer = case.build(scheme)
    x, dy = (case.place(scheme, array) for array in case.data())
    y = layer.forward(x)
    kept = layer.kept_bytes()
    return {"y": y.gather(), "dx": layer.backward(dy).gather()} | {n: g.gather() for n, g in layer.gradients().items()}, kept


@pytest.mark.parametrize("place", [*FEW, *SHARDED], ids=lambda place: place.name)
def test_a_layer_with_dropout_is_the_same_everywhere(place):
    found, _ = run(place, lambda scheme: trained_once(scheme, dropout=0.4))
    wanted, _ = run(SERIAL, lambda scheme: trained_once(scheme, dropout=0.4))
    check_close(found, wanted, where=place.name)
    assert not np.allclose(found["y"], run(SERIAL, trained_once)[0]["y"])


# ---------------------------------------------------------------------------------------------- what is kept


@pytest.mark.parametrize("place", [*FEW, *SHARDED], ids=lambda place: place.name)
def test_recomputed_passes_are_bitwise_the_same_and_keep_less(place):
    once, kept = run(place, lambda scheme: trained_once(scheme, dropout=0.4))
    again, less = run(place, lambda scheme: trained_once(scheme, dropout=0.4, recompute=True))
    assert all(np.array_equal(once[name], again[name]) for name in once)
    assert 0 < less < kept / 8


@pytest.mark.parametrize("place", SHARDED, ids=lambda place: place.name)
def test_shards_keep_whole_what_cuts_keep_whole(place):
    """Also in a layer that asks for no sequences."""
    x = np.random.default_rng(3).standard_normal((60, 20))

    def program(scheme):
        layer = nn.Linear(scheme, 20, 20)
        y = layer.forward(scheme.shard(x, sequence=4))
        return {"y": y.gather(), "dx": layer.backward(y).gather()} | {n: g.gather() for n, g in layer.gradients().items()}

    check_close(run(place, program), run(SERIAL, program))


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
        memory = weakref.ref(y.stored if y.stored.base is None else y.stored.base)
        del y
        gc.collect()
        return memory()

    assert run(place, program) is None


def test_a_loss_that_fails_leaves_none_to_go_back_from():
    """Nor does a loss keep what it has of one forward pass while it makes the next."""

    def program(scheme):
        logits, targets, loss = scheme.shard(np.full((4, 4), 1e308)), np.zeros(4, int), nn.CrossEntropy()
        loss.forward(logits, targets)
        logits.stored[:, 1] *= -1
        with np.errstate(over="raise"), pytest.raises(FloatingPointError):
            loss.forward(logits, targets)
        with pytest.raises(PdlaError, match="without a forward"):
            loss.backward()

    run(SERIAL, program)


def test_a_loss_makes_one_array_of_the_logits_size():
    def program(scheme):
        x = scheme.shard(np.ones((500, 1000)))
        tracemalloc.start()
        nn.CrossEntropy().forward(x, np.zeros(500, int))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak / x.stored.nbytes

    assert 1 <= run(SERIAL, program) < 1.5


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


def test_panels_keep_few_plans():
    def program(comm):
        scheme = nn.Summa2D(pdla.ProcessGrid((1, 2), comm=comm), panel=2)
        layer = nn.Linear(scheme, 4, 4)
        for tokens in range(1, 12):
            layer.backward(layer.forward(scheme.shard(np.ones((tokens, 4)))))
        return len(layer.panels.plans)

    assert pdla.run(2, program) == [12, 12]


# ---------------------------------------------------------------------------------------------- numbers that are none


def test_words_of_group_norm():
    """64 samples, 8 groups, 64 channels over 4 ranks, samples over 2: 2 R_f(b g / t) forward and backward, 2 R_t(h / f)."""

    def program(comm):
        scheme = nn.Tensor3D(pdla.ProcessGrid((2, 4, 2), comm=comm))
        layer = nn.GroupNorm(scheme, 64, groups=8, pixels=16)
        x = scheme.shard(np.broadcast_to(0.0, (64 * 16, 64)), sequence=16)
        with pdla.record() as ledger:
            layer.backward(layer.forward(x))
        return {tag: size / 8 for tag, size in ledger.by_tag().items()}

    words, _ = pdla.dry_run(16, program)
    assert words == {"norm sums": 4 * 2 * (3 / 4) * 64 * 8 / 2, "norm gradients": 2 * 2 * (1 / 2) * 64 / 4}


@somewhere
def test_what_is_no_number_stays_in_its_samples_group(place):
    """As in PyTorch: of 3 samples of 4 pixels, and 5 groups of 4 channels, which ranks share."""
    x = np.arange(240.0).reshape(12, 20)
    x[5, 9] = np.nan

    def program(scheme):
        layer = nn.GroupNorm(scheme, 20, groups=5, pixels=4, kind="second")
        y = layer.forward(pdla.from_global(x, scheme.grid, scheme.activation(scheme.second.X, 4)))
        return y.gather(), layer.backward(y).gather()

    spoilt = np.zeros(x.shape, bool)
    spoilt[4:8, 8:12] = True
    for found in run(place, program):
        assert np.array_equal(np.isnan(found), spoilt)


def test_relu_of_what_is_no_number_and_of_what_is_infinite():
    """As in PyTorch: nothing passes back where x is at most 0, whatever comes; all does where x is no number."""
    inf, nan = np.inf, np.nan

    def program(scheme):
        layer = nn.ReLU(scheme)
        y = layer.forward(scheme.shard(np.array([[nan, nan, inf, inf, -inf, -inf, 0, -0.0, 1, 1, -1, -1]])))
        dy = scheme.shard(np.array([[2, nan, 2, -inf, 2, nan, inf, nan, inf, nan, -inf, nan]]))
        return y.gather(), layer.backward(dy).gather()

    y, dx = run(SERIAL, program)
    np.testing.assert_array_equal(y, [[nan, nan, inf, inf, 0, 0, 0, 0, 1, 1, 0, 0]])
    np.testing.assert_array_equal(dx, [[2, nan, 2, -inf, 0, 0, 0, 0, inf, nan, 0, 0]])


def test_logits_that_do_not_count_may_be_anything():
    logits = np.random.default_rng(0).standard_normal((6, 5))
    targets = np.array([0, -1, 3, 4, -1, 2])

    def program(comm, spoilt):
        scheme = nn.Tensor3D(pdla.ProcessGrid((2, 1), comm=comm))
        given = logits.copy()
        given[targets < 0] = np.nan if spoilt else 0
        loss = nn.CrossEntropy()
        with np.errstate(invalid="ignore"):
            value = loss.forward(pdla.from_global(given, scheme.grid, scheme.activation(scheme.first.Y)), targets)
        return value, loss.backward().gather()

    (value, slope), (spoilt, spoilt_slope) = (pdla.run(2, program, spoilt)[0] for spoilt in (False, True))
    assert value == spoilt and np.array_equal(slope, spoilt_slope) and not slope[1].any()


@pytest.mark.parametrize(("ignore", "dtype"), [(-100, np.int64), (-100, np.int8), (-1, np.int32), (3, np.uint8), (255, np.uint8)])
@somewhere
def test_tokens_of_any_number_may_not_count(place, ignore, dtype):
    """One of the vocabulary, too; gradients of the others are those of a loss without them."""
    logits, targets = np.random.default_rng(0).standard_normal((15, 7)), (np.arange(15) % 7).astype(dtype)
    targets[::4] = ignore
    counted = targets != ignore

    def program(scheme, criterion, given):
        spec = scheme.first.Y
        loss = criterion.forward(pdla.from_global(logits, scheme.grid, scheme.activation(spec)), given)
        return {"loss": loss, "slope": criterion.backward().gather()}

    odds = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    slope = np.where(counted[:, None], odds - np.eye(7)[np.where(counted, targets, 0)], 0) / counted.sum()
    loss = -np.log(odds[counted, targets[counted]]).mean()
    found = run(place, lambda scheme: program(scheme, nn.CrossEntropy(ignore=ignore), targets))
    check_close(found, {"loss": loss, "slope": slope}, 1e-13)
    assert not found["slope"][~counted].any()


@pytest.mark.parametrize("cols", [pdla.Cyclic("row", 1), pdla.Cyclic("row", 2), ("row", "col")], ids=repr)
def test_a_loss_of_logits_wherever_they_lie(cols):
    logits, targets = np.random.default_rng(0).standard_normal((6, 7)), np.array([0, 6, -1, 3, 4, 2])

    def program(scheme, cols):
        criterion = nn.CrossEntropy()
        loss = criterion.forward(pdla.from_global(logits, scheme.grid, pdla.Layout(cols=cols)), targets)
        return {"loss": loss, "slope": criterion.backward().gather()}

    check_close(run(SUMMA, lambda scheme: program(scheme, cols)), run(SERIAL, lambda scheme: program(scheme, None)))


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


# ---------------------------------------------------------------------------------------------- how parameters begin


def test_parameters_begin_normal_with_the_deviation_and_the_seed_that_are_given():
    """Weights and positions; gains begin as 1, biases and offsets as 0."""

    def program(scheme, seed):
        embedding, norm = nn.Embedding(scheme, 64, 64, sequence=64, seed=seed), nn.LayerNorm(scheme, 64)
        linear, wide = nn.Linear(scheme, 64, 64, seed=seed), nn.Linear(scheme, 64, 64, scale=3, seed=seed)
        drawn = {0.02: [embedding.weight, embedding.positions.table], 1 / 8: [linear.weight], 3: [wide.weight]}
        fixed = [(linear.bias, 0), (norm.gain, 1), (norm.offset, 0)]
        assert all((parameter.value.local == fill).all() for parameter, fill in fixed)
        return [parameter.value.local / scale for scale, parameters in drawn.items() for parameter in parameters]

    for one, other in zip(*(run(SERIAL, partial(program, seed=seed)) for seed in (0, 1)), strict=True):
        assert abs(one.std() - 1) < 0.05 and abs(one.mean()) < 0.05
        assert abs((abs(one) > 2).mean() - 0.0455) < 0.01, "normal"
        assert abs((one * other).mean()) < 0.05, "one says nothing of the other"


def test_a_layer_of_a_seed_and_a_name_begins_and_drops_alike_in_every_release():
    def program(scheme):
        linear, dropout = nn.Linear(scheme, 3, 2, scale=1, seed=3), nn.Dropout(scheme, 0.5, seed=3)
        return linear.weight.value.local.round(8).tolist(), dropout.forward(scheme.shard(np.ones((2, 6)))).local.tolist()

    weights, left = run(SERIAL, program)
    assert weights == [[-0.38207436, -0.96126781], [-1.52069045, 0.96319839], [1.37916608, 1.00726403]]
    assert left == [[0, 0, 0, 0, 2, 2], [2, 0, 2, 0, 2, 0]]


def test_layers_of_one_seed_are_not_alike():
    """Neither their weights nor what they drop, where their names differ."""

    def program(comm):
        scheme = nn.Serial(pdla.ProcessGrid((1,), comm=comm))
        one, other = (nn.TransformerLayer(scheme, 16, 2, sequence=4, name=name) for name in ("one", "other"))
        embedding = nn.Embedding(scheme, 16, 16, sequence=4)
        blocks = [X.local for layer in (one, other, embedding) for X in layer.parameters().values() if X.local.std() > 0]
        x = scheme.shard(np.ones((64, 64)))
        masks = [nn.Dropout(scheme, 0.5, seed=seed, name=name).forward(x).local for seed in (0, 1) for name in ("one", "other")]
        return blocks, masks

    blocks, masks = pdla.run(1, program)[0]
    for a, b in itertools.combinations(blocks, 2):
        rows, cols = min(a.shape[0], b.shape[0]), min(a.shape[1], b.shape[1])
        assert abs(np.corrcoef(a[:rows, :cols].ravel(), b[:rows, :cols].ravel())[0, 1]) < 0.5
    for a, b in itertools.combinations(masks, 2):
        assert abs(((a == 0) == (b == 0)).mean() - 0.5) < 0.05


# ---------------------------------------------------------------------------------------------- places


class Held(nn.Layer):
    """A layer of a user's, which holds layers in attributes and in a list that grows."""

    def __init__(self, scheme, make):
        super().__init__(scheme)
        self.one, self.other, self.more = make(scheme), make(scheme), []
        for _ in range(2):
            self.more.append(make(scheme))


class Scaled(nn.Layer):
    """One that looks at its layers' weights while it is made."""

    def __init__(self, scheme, make):
        super().__init__(scheme)
        self.one, self.other = make(scheme), make(scheme)
        for layer in (self.one, self.other):
            for value in layer.parameters().values():
                value.local[...] *= 2


UNNAMED = {
    "Linear": lambda s: nn.Linear(s, 8, 8),
    "MLP": lambda s: nn.MLP(s, 8),
    "SelfAttention": lambda s: nn.SelfAttention(s, 8, 2, sequence=4),
    "TransformerLayer": lambda s: nn.TransformerLayer(s, 8, 2, sequence=4, recompute=True),
    "Embedding": lambda s: nn.Embedding(s, 8, 8, sequence=4),
    "Positions": lambda s: nn.Positions(s, 8, sequence=8),
    "Conv2d": lambda s: nn.Conv2d(s, 8, 8, 3, height=2, width=2),
    "ResidualBlock": lambda s: nn.ResidualBlock(s, 8, groups=2, height=2, width=2),
    "UNetBlock": lambda s: nn.UNetBlock(s, 4, groups=2, height=2, width=2),
    "Sequential": lambda s: nn.Sequential(s, [nn.MLP(s, 8), nn.MLP(s, 8)]),
}
HOLDERS = {
    "attributes and lists": Held, "looked at": Scaled, "a holder of holders": lambda s, make: Held(s, lambda s: Held(s, make)),
}


def all_differ(layer):
    """Whether no weights of a layer begin like others of their shape."""
    drawn = [value for value in layer.state_dict().values() if value.std() > 0]
    return len(drawn) > 1 and all(
        abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.6 for a, b in itertools.combinations(drawn, 2) if a.shape == b.shape
    )


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
@pytest.mark.parametrize("make", UNNAMED.values(), ids=UNNAMED)
def test_layers_without_names_of_their_own_begin_by_their_places(make, holder):
    assert run(SERIAL, lambda scheme: all_differ(holder(scheme, make)))


@pytest.mark.parametrize("kind", [name for name in UNNAMED if name not in ("Embedding", "Conv2d", "Linear")])
def test_layers_without_names_of_their_own_begin_by_their_places_in_a_sequential(kind):
    """Of two levels, too."""

    def program(scheme):
        inner = [nn.Sequential(scheme, [UNNAMED[kind](scheme) for _ in range(2)]) for _ in range(2)]
        return all_differ(nn.Sequential(scheme, inner))

    assert run(SERIAL, program)


def unnamed_net(scheme):
    """Layers of one kind and name after each other, which drop, too."""
    pair = [nn.Linear(scheme, 20, 20), nn.Dropout(scheme, P), nn.Linear(scheme, 20, 20, kind="second"), nn.Dropout(scheme, P)]
    layers = [nn.TransformerLayer(scheme, 20, 5, sequence=5, dropout=P) for _ in range(2)]
    return nn.Sequential(scheme, [nn.Sequential(scheme, pair), *layers])


@everywhere
def test_layers_in_their_places_begin_and_drop_alike_everywhere(place):
    x = np.random.default_rng(5).standard_normal((15, 20))

    def program(scheme):
        net = unnamed_net(scheme)
        begun = net.state_dict()
        y = net.forward(scheme.shard(x, sequence=5))
        return begun, {"y": y.gather(), "dx": net.backward(y).gather()}

    (begun, found), (wanted_begun, wanted) = run(place, program), run(SERIAL, program)
    assert list(begun) == list(wanted_begun) and all(np.array_equal(begun[name], wanted_begun[name]) for name in begun)
    check_close(found, wanted, where=place.name)


def test_dropouts_in_a_sequential_drop_by_their_places():
    def program(scheme):
        net = nn.Sequential(scheme, [nn.Dropout(scheme, 0.5) for _ in range(3)])
        return (net.forward(scheme.shard(np.ones((200, 50)))).gather() > 0).mean()

    assert abs(run(SUMMA, program) - 1 / 8) < 0.02


def test_places_are_the_names_of_a_state():
    """So it does not matter who looks first, once a network is made."""

    def program(scheme):
        net, other = unnamed_net(scheme), unnamed_net(scheme)
        inner = {name: value.gather() for name, value in other.layers[1].parameters().items()}
        whole = net.state_dict()
        assert all(np.array_equal(value, whole[f"layers.1.{name}"]) for name, value in inner.items())
        assert all(layer.place == prefix for layer, prefix in net.all_layers().items())

    run(SERIAL, program)


def test_a_layer_that_has_numbers_keeps_them_wherever_it_is_put():
    """Whether they were looked at, loaded, or learned."""

    def program(scheme):
        looked, loaded = nn.Linear(scheme, 20, 20), nn.Linear(scheme, 20, 20, kind="second")
        before = looked.state_dict(), {name: value + 1 for name, value in looked.state_dict().items()}
        loaded.load_state_dict(before[1])
        net = nn.Sequential(scheme, [looked, loaded])
        for layer, state in zip(net.layers, before, strict=True):
            assert all(np.array_equal(value, state[name]) for name, value in layer.state_dict().items())

    run(SUMMA, program)


# ---------------------------------------------------------------------------------------------- what a network may be made of


def test_a_layer_may_have_two_names():
    """An attribute that names what is in a Sequential, too, is not another use of it."""

    class Net(nn.Sequential):
        def __init__(self, scheme):
            self.head = nn.Linear(scheme, 20, 9)
            super().__init__(scheme, [nn.LayerNorm(scheme, 20), self.head])

    def program(scheme):
        net = nn.Sequential(scheme, [Net(scheme)])
        net.backward(net.forward(scheme.shard(X)))
        return list(net.gradients())

    assert len(run(SUMMA, program)) == 4


def test_layers_between_which_there_are_no_features():
    """What comes out of the last is its bias."""

    def program(scheme):
        sizes = [("first", 4, 3), ("second", 3, 0), ("first", 0, 5)]
        net = nn.Sequential(scheme, [nn.Linear(scheme, k, n, kind=kind) for kind, k, n in sizes])
        net.load_state_dict({name: np.full(value.shape, 2.0) for name, value in net.parameters().items()})
        y = net.forward(scheme.shard(np.ones((6, 4))))
        return {"y": y.gather(), "dx": net.backward(y).gather()}

    check_close(run(SUMMA, program), {"y": np.full((6, 5), 2.0), "dx": np.zeros((6, 4))}, 0)


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm, partial(nn.GroupNorm, groups=2, pixels=2)])
def test_norms_of_no_features(kind):
    def program(scheme):
        norm = kind(scheme, 0)
        return norm.backward(norm.forward(scheme.shard(np.ones((6, 0)), sequence=2))).shape

    with warnings.catch_warnings(action="error"):  # nothing is divided by 0
        assert run(SUMMA, program) == (6, 0)


def test_a_head_alone_in_evaluation():
    """Without gradients an embedding and its head may be used apart."""

    def program(scheme):
        head = nn.TiedHead(nn.Embedding(scheme, 9, 20))
        return head.forward(scheme.shard(X), training=False).gather() - X @ head.weight.value.gather()

    assert np.max(np.abs(run(SUMMA, program))) < 1e-14


def test_sequences_of_sequences():
    """Means over parts of a sequence are a sequence again."""

    def program(scheme):
        parts = [nn.Linear(scheme, 20, 8), nn.MeanOverSequence(scheme, sequence=3), nn.Linear(scheme, 8, 8, kind="second")]
        net = nn.Sequential(scheme, [*parts, nn.TransformerLayer(scheme, 8, 2, sequence=5)])
        assert net.sequence == 15
        return net.forward(scheme.shard(X, sequence=15)).gather()

    check_close({"y": run(SUMMA, program)}, {"y": run(SERIAL, program)})


@pytest.mark.parametrize("nested", [slice(0, 4), slice(1, 4), slice(1, 6), slice(2, 6)], ids=str)
@pytest.mark.parametrize("sequence", [4, 12], ids="sequences of {}".format)
def test_a_sequential_within_another_compares_sequences_as_its_layers_do(sequence, nested):
    """Means over 4 tokens are sequences of 3. The inner one's layers want 12 tokens of x, whatever their sequences are."""

    def program(scheme):
        first = nn.TransformerLayer(scheme, 8, 2, sequence=sequence, name="first")
        last = nn.TransformerLayer(scheme, 8, 2, sequence=3, name="last")
        parts = [first, nn.RMSNorm(scheme, 8), nn.Sequential(scheme, [nn.MLP(scheme, 8), nn.Linear(scheme, 8, 8)])]
        parts += [nn.MeanOverSequence(scheme, sequence=4), nn.Linear(scheme, 8, 8, kind="second"), last]
        parts[nested] = [nn.Sequential(scheme, parts[nested])]
        return nn.Sequential(scheme, parts).sequence

    if sequence == 4:
        assert run(SERIAL, program) == 12
    else:
        with pytest.raises(ShapeError, match=r"MeanOverSequence.* takes sequences of 4 tokens; .* sequences of 12 tokens"):
            run(SERIAL, program)
