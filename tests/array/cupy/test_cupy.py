"""CuPy's namespace against NumPy's, function by function: on a GPU, or here on a stand-in that runs the kernels themselves."""

import threading
from itertools import product
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from helpers.arrays import SIZES
from helpers.device_arrays import KNOWN, LIE, random, same, there, xp
from helpers.devices import GPU
from helpers.matmuls import numbers

import pdla
from pdla import Layout, config, nn
from pdla.array import choose, composed, namespace
from pdla.array import numpy as host
from pdla.bench.cli import main
from pdla.bench.measure import peak
from pdla.errors import AgreementError, DeviceError, ShapeError
from pdla.simulate import split

# ---------------------------------------------------------------------------------------------- sums


@pytest.mark.parametrize("name", ["add", "maximum"])
def test_sums_of_ranks(name):
    target, source = numbers((5, 6), seed=1), numbers((5, 6), seed=2)
    found = there(target, "steps")
    getattr(xp, name)(found, there(source))
    getattr(host, name)(target, source)
    same(found, target)


@pytest.mark.parametrize("beta", [0, 1, 3])
def test_scale(beta):
    x = numbers((5, 6))
    found = there(x, "steps")
    xp.scale(found, beta)
    same(found, beta * x)


# ---------------------------------------------------------------------------------------------- products

STRIDED = "gemmStridedBatchedEx"


@pytest.mark.parametrize("dtype", KNOWN)
@pytest.mark.parametrize(("m", "n", "k"), [*SIZES, (4, 5, 0), (0, 3, 2)])
@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (-2, 3), (0, 2)])
def test_gemm_wherever_its_operands_lie(dtype, m, n, k, alpha, beta):
    a, b, c = numbers((m, k), dtype, 1), numbers((k, n), dtype, 2), numbers((m, n), dtype, 3)
    wanted = c.copy()
    host.gemm(a, b, wanted, alpha, beta)
    for how_a, how_b, how_c in product(LIE, LIE, LIE):
        found = there(c, how_c)
        if beta == 0 and np.dtype(dtype).kind in "fc":
            found.fill(np.nan)
        xp.gemm(there(a, how_a), there(b, how_b), found, alpha, beta)
        same(found, wanted, f"{how_a} {how_b} {how_c}")


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_scalars(dtype):
    a, b, c = numbers((3, 4), dtype, 1), numbers((4, 2), dtype, 2), numbers((3, 2), dtype, 3)
    found, wanted = there(c), c.copy()
    xp.gemm(there(a), there(b), found, 2 - 1j, 3j)
    host.gemm(a, b, wanted, 2 - 1j, 3j)
    same(found, wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_summed_in_singles(dtype):
    pytest.importorskip("ml_dtypes")
    a, b = (numbers(shape, "float32", seed).astype(dtype) for seed, shape in enumerate([(6, 300), (300, 5)]))
    for sums in ("float32", dtype):
        found = xp.empty((6, 5), sums)
        xp.gemm(there(a), there(b, "F"), found)
        same(found, (a.astype(float) @ b.astype(float)).astype(sums))


@pytest.mark.parametrize(("multiply", "routine", "shape"), [("gemm", "gemmEx", (3, 3)), ("gemm_stacks", STRIDED, (1, 1, 3, 3))])
def test_parts_of_sums_are_not_rounded_to_16_bits(multiply, routine, shape, monkeypatch):
    from cupy_backends.cuda.libs import cublas

    modes, right = [], getattr(cublas, routine)
    monkeypatch.setattr(cublas, routine, lambda *args: (modes.append(cublas.getMathMode(args[0])), right(*args)))
    half = xp.asarray(np.ones(shape, "float16"))
    for sums in ("float16", "float32", "float16"):
        getattr(xp, multiply)(half, half, xp.empty(shape, sums))
    assert [mode & 16 for mode in modes] == [16, 0, 16]


STACKS = {  # how p x q matrices m x n lie
    "without gaps": lambda p, q, m, n, dtype: xp.empty((p, q, m, n), dtype),
    "turned": lambda p, q, m, n, dtype: xp.empty((p, q, n, m), dtype).transpose(0, 1, 3, 2),
    "heads": lambda p, q, m, n, dtype: xp.empty((p, m, q, 3, n), dtype).transpose(3, 0, 2, 1, 4)[1],
    "rows of heads": lambda p, q, m, n, dtype: xp.empty((m, p, q, n), dtype).transpose(1, 2, 0, 3),
    "steps": lambda p, q, m, n, dtype: xp.empty((p, q, m, 2 * n), dtype)[:, :, :, ::2],
}
HALVES = [(half, sums) for half in ("float16", "bfloat16") for sums in (half, "float32")]


@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (-2, 1)])
@pytest.mark.parametrize("sizes", [(2, 3, 4, 2, 5), (1, 3, 4, 2, 5), (2, 1, 4, 2, 5), (1, 1, 1, 1, 1), (2, 2, 3, 1, 0)])
@pytest.mark.parametrize(("dtype", "sums"), [("float32", "float32"), ("float64", "float64"), *HALVES])
def test_stacks_wherever_they_lie(dtype, sums, sizes, alpha, beta):
    p, q, m, n, k = sizes
    draw = np.random.default_rng(1)
    a, b, c = (draw.integers(-3, 4, (p, q, *shape)) for shape in ((m, k), (k, n), (m, n)))

    def lay(x, how, dtype):
        made = STACKS[how](*x.shape, dtype)
        made[...] = xp.asarray(x.astype(dtype))
        return made

    for how_a, how_b, how_c in product(STACKS, STACKS, STACKS):
        found = lay(c if beta else np.full(c.shape, np.nan), how_c, sums)
        factors = xp.prepare_stacks(lay(a, how_a, dtype)), lay(b, how_b, dtype)
        xp.gemm_stacks(*factors, found, alpha, beta)
        same(found, (alpha * a @ b + beta * c).astype(sums), f"{how_a} {how_b} {how_c}")


def test_a_device_that_failed_is_not_waited_for(monkeypatch):
    import cupy

    mark = xp.mark()
    xp.finish()
    assert mark.done
    monkeypatch.setattr(cupy.cuda.runtime, "eventQuery", lambda ptr: 700)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
        assert mark.done


def test_the_stream_that_a_program_uses_stays_its_own():
    """Of a stream that is used, not entered, CuPy's with-block knows nothing when it ends: what follows would be out of order."""
    import cupy

    before, own = cupy.cuda.get_current_stream(), cupy.cuda.Stream(non_blocking=True)
    x, box = xp.empty((3, 4), "float32"), xp.empty_pinned((3, 4), np.float32)
    box[...] = 5
    own.use()
    try:
        xp.land(x, box)
        assert cupy.cuda.get_current_stream() == own
        with pytest.raises(ZeroDivisionError), xp.use_stream("landing", xp.mark()) as stream:
            assert cupy.cuda.get_current_stream() == stream != own
            raise ZeroDivisionError
        assert cupy.cuda.get_current_stream() == own
    finally:
        own.synchronize()
        before.use()
    same(x, np.full((3, 4), 5, np.float32))


WAYS = {"algorithm": "gather"}, {"algorithm": "summa", "panel": 7}, {"algorithm": "cannon"}, {"schedule": "shared"}


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_ranks_that_are_threads_may_each_use_a_stream_of_their_own(how):
    import cupy

    def program(comm):
        cupy.cuda.Stream(non_blocking=True).use()
        grid, layout = pdla.ProcessGrid((2, 2)), Layout("row", "col")
        A, B = (pdla.random((60, n), grid, layout, seed=n, distribution="integers", high=9) for n in (50, 70))
        C = pdla.matmul(A.T, B, **how)
        return [X.gather().get() for X in (A, B, C)]

    with config.override(array="cupy"):
        for a, b, c in pdla.run(4, program):
            np.testing.assert_array_equal(c, a.T @ b)


def test_a_message_that_has_been_sent_may_be_overwritten_on_another_stream():
    import cupy

    def program(comm):
        cupy.cuda.Stream(non_blocking=True).use()
        x, out = there(np.full((40, 50), float(comm.rank))), xp.empty((40, 50), "float64")
        comm.shift(x, out).wait()
        xp.copy(x, xp.asarray(np.full((40, 50), 99.0)))
        return out.get()

    with config.override(array="cupy"):
        for rank, found in enumerate(pdla.run(4, program)):
            np.testing.assert_array_equal(found, np.full((40, 50), float((rank - 1) % 4)))


@pytest.mark.parametrize(("multiply", "routine", "shape"), [("gemm", "gemmEx", (3, 3)), ("gemm_stacks", STRIDED, (1, 1, 3, 3))])
def test_tf32_is_asked_for_by_name(multiply, routine, shape, monkeypatch):
    from cupy_backends.cuda.libs import cublas

    asked, right = [], getattr(cublas, routine)
    monkeypatch.setattr(cublas, routine, lambda *args: (asked.append(args[-2]), right(*args)))
    for tf32, dtype in product((False, True), ("float32", "float64")):
        with config.override(tf32=tf32):
            ones = xp.asarray(np.ones(shape, dtype))
            getattr(xp, multiply)(ones, ones, xp.empty(shape, dtype))
    single, double, fast = (getattr(cublas, f"CUBLAS_COMPUTE_{name}") for name in ("32F", "64F", "32F_FAST_TF32"))
    assert asked == [single, double, fast, double]


# ---------------------------------------------------------------------------------------------- the layers' work

def test_memory_is_given_back_when_the_last_view_is_gone():
    from pdla.comm.workspace import Workspace

    workspace = Workspace()
    view = workspace.take(xp, (4, 5), np.float64)[1:].T
    at = view.data.ptr
    assert workspace.take(xp, (4, 5), np.float64).data.ptr + 40 != at
    del view
    again = [workspace.take(xp, (4, 5), np.float64) for _ in range(2)]
    assert at - 40 in [x.data.ptr for x in again] and workspace.held == 2 * 192


def test_look_and_filled():
    memory = xp.memory(64)
    x = xp.view_at(memory, 16, (2, 2), np.float64)
    x.fill(3)
    np.testing.assert_array_equal(memory.get()[16:48].view(np.float64), [3, 3, 3, 3])
    same(xp.create((2, 3), np.float32, lambda x: x.fill(4)), np.full((2, 3), 4, np.float32))
    assert xp.is_contiguous(x) and not xp.is_contiguous(x[:, :1])


def test_the_same_functions_as_numpys():
    homes = host.__name__, composed.__name__
    public = [name for name, x in vars(host).items() if callable(x) and x.__module__ in homes and name[0] != "_"]
    hosts_alone = {"mix_key", "has_no_overlap", "view_address", "to_bytes", "give_back"}
    assert {name for name in public if not hasattr(xp, name)} == hosts_alone
    assert all(getattr(xp, name).__module__ != composed.__name__ for name in public if hasattr(xp, name))


def test_namespaces(monkeypatch):
    assert namespace(xp.empty((1, 1), float)) is xp
    assert choose() is host
    with config.override(array="cupy"):
        assert choose() is xp


@pytest.mark.skipif(GPU, reason="what is played here is a machine with two GPUs")
def test_the_thread_that_lets_mpi_work_uses_its_ranks_device(monkeypatch):
    import cupy

    from pdla.comm.mpi import messages

    monkeypatch.setattr(cupy, "DEVICES", 2)
    seen, looked = [], threading.Event()

    def look():
        seen.append(cupy.cuda.runtime.getDevice())
        looked.set()

    xp.use(1)
    progress = messages.Progress(SimpleNamespace(crowding=1), xp)
    progress.begin(SimpleNamespace(advance=look))
    assert looked.wait(60)
    progress.end()
    xp.use(0)
    assert set(seen) == {1}


@pytest.mark.skipif(GPU, reason="there is a GPU")
def test_without_a_gpu(monkeypatch, capsys):
    import cupy

    monkeypatch.setattr(cupy, "DEVICES", 0)
    with config.override(array="cupy"), pytest.raises(DeviceError, match="no GPU here"):
        choose()
    assert main(["gemm", "--threads", "2", "--array", "cupy"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_benchmark_in_threads(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for algorithm in ("auto", "summa", "cannon"):
        words = ["-m", "40", "-n", "30", "-k", "50", "--repeats", "1", "--wide", "--algorithm", algorithm]
        assert main(["gemm", *words, "--threads", "4", "--array", "cupy"]) == 0
        assert "exact, bound (NumPy)" in capsys.readouterr().out


@pytest.mark.parametrize("flat", [True, False])
def test_a_code_s_own_blocks_by_their_descriptor(flat):
    import cupy

    from pdla.scalapack import from_descriptor, to_descriptor

    whole = np.arange(64.0).reshape(8, 8)

    def program(comm):
        grid = pdla.ProcessGrid((2, 2))
        rows, cols = ([i for i in range(8) if i // 2 % 2 == place] for place in divmod(comm.rank, 2))
        mine = [cupy.asarray(np.asfortranarray(x[np.ix_(rows, cols)])) for x in (whole, 0 * whole)]
        desc = (1, 0, 8, 8, 2, 2, 0, 0, 4)
        A, C = (from_descriptor(desc, x.T.reshape(-1) if flat else x, grid) for x in mine)
        pdla.gemm(1, A[:, 2:], A[2:, :], 0, C)
        assert tuple(to_descriptor(C)) == desc and C.xp is xp
        return C.gather().get()

    with config.override(array="cupy"):
        for came in pdla.run(4, program):
            np.testing.assert_array_equal(came, whole[:, 2:] @ whole[2:])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention_of_16_bit_floats(dtype):
    kind = getattr(pytest.importorskip("ml_dtypes"), dtype, np.float16)
    x = random((10, 8), "float32").astype(kind)

    def program(comm):
        scheme = nn.Serial(pdla.ProcessGrid((1,), comm=comm))
        layer = nn.SelfAttention(scheme, 8, 2, sequence=5, dtype=kind)
        y = layer.forward(scheme.shard(x, sequence=5))
        found = [y, layer.backward(y), *layer.gradients().values()]
        assert all(value.dtype == kind for value in found)
        return [value.xp.host(value.gather()).astype(np.float32) for value in found]

    with config.override(array="cupy"):
        made = pdla.run(1, program)[0]
    for found, wanted in zip(made, pdla.run(1, program)[0], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=0.05 * np.abs(wanted).max())


def test_parts_of_one_array_overlap_where_they_have_elements_in_common():
    x = xp.empty((6, 8), "float64")
    for one, two in [(x[:, :5], x[:, 4:]), (x[::-2], x[1]), (x[2:4], x[:, 3:4]), (x, x[5:, 7:].T)]:
        assert xp.overlap(one, two) and xp.overlap(two, one)
    for one, two in [(x[:, :4], x[:, 4:]), (x[::-2], x[::2]), (x[2:4], x[4:]), (x[:0], x), (x, xp.empty((6, 8), "float64"))]:
        assert not xp.overlap(one, two) and not xp.overlap(two, one)


def test_parts_of_one_matrix_multiply_into_another():
    def program(comm):
        A = pdla.random((8, 8), pdla.ProcessGrid((2, 2)), Layout("row", "col"), distribution="integers", high=9)
        whole = A.gather().get()
        pdla.gemm(-1, A[4:, :4], A[:4, 4:], 1, A[4:, 4:])
        return whole, A.gather().get()

    with config.override(array="cupy"):
        for whole, found in pdla.run(4, program):
            whole[4:, 4:] -= whole[4:, :4] @ whole[:4, 4:]
            np.testing.assert_array_equal(found, whole)


def test_arrays_that_differ_between_ranks_are_told_apart():
    def program(comm):
        grid, x = pdla.ProcessGrid(2), np.full((4, 4), float(comm.rank))
        for call in (lambda: pdla.from_global(x, grid, Layout("row")), lambda: pdla.from_global(there(x), grid, Layout("row"))):
            with pytest.raises(AgreementError, match="digest"):
                call()
        A = pdla.from_global(x * 0, grid, Layout("row"))
        with pytest.raises(AgreementError, match="digest"):
            pdla.matvec(A, x[0])

    with config.override(array="cupy"):
        pdla.run(2, program)


@pytest.mark.parametrize(("array", "says"), [("cupy", "array of numpy's"), ("numpy", "array of cupy's")])
def test_a_block_that_lies_elsewhere_than_matrices_is_refused(array, says):
    """No kernel reads the host's memory; and no message of a device's arrays is staged where matrices are the host's."""

    def program(comm):
        block = np.ones((2, 4))
        pdla.from_local(there(block) if array == "numpy" else block, (4, 4), pdla.ProcessGrid(2), Layout("row"))

    with config.override(array=array), pytest.raises(DeviceError, match=says):
        pdla.run(2, program)


def test_a_block_of_another_library_on_the_device():
    """As PyTorch's: what it hands on by DLPack is a matrix's memory."""

    def program(comm):
        x = there(np.full((2, 4), comm.rank))
        block = SimpleNamespace(__dlpack__=x.__dlpack__, __dlpack_device__=lambda: (2, 0))
        A = pdla.from_local(block, (4, 4), pdla.ProcessGrid(2), Layout("row"))
        A *= 10
        return x

    with config.override(array="cupy"):
        for rank, found in enumerate(pdla.run(2, program)):
            same(found, np.full((2, 4), 10 * rank))


MAKERS = {
    "zeros": lambda dtype, *on: pdla.zeros((4, 4), *on, dtype=dtype),
    "eye": lambda dtype, *on: pdla.eye(4, *on, dtype=dtype),
    "random": lambda dtype, *on: pdla.random((4, 4), *on, dtype=dtype, distribution="integers", high=3),
    "from_function": lambda dtype, *on: pdla.from_function(lambda i, j: i + j, (4, 4), *on, dtype=dtype),
    "astype": lambda dtype, *on: pdla.zeros((4, 4), *on).astype(dtype),
    "from_global": lambda dtype, *on: pdla.from_global(np.zeros((4, 4), dtype), *on),
    "x": lambda dtype, grid, _: nn.Linear(nn.Megatron1D(grid), 4, 4, name="x", dtype=dtype),
    "x positions": lambda dtype, grid, _: nn.Positions(nn.Megatron1D(grid), 4, sequence=2, name="x", dtype=dtype),
}


@pytest.mark.parametrize(("dtype", "makers"), [
    ("longdouble", [*MAKERS][:6]), (np.clongdouble, [*MAKERS][:6]), (ml_dtypes.float8_e4m3fn, [*MAKERS][:6]),
    (">i2", [*MAKERS][:5]), (">f8", [*MAKERS][:5] + [*MAKERS][6:]),
])
def test_dtypes_of_which_there_are_no_device_arrays(dtype, makers):
    for call in makers:
        with config.override(array="cupy"), pytest.raises(ShapeError, match=f"^{call}: .* has no arrays: give float64"):
            pdla.run(2, lambda comm, call=call: MAKERS[call](dtype, pdla.ProcessGrid(2), Layout("row")))


def test_files_of_which_there_are_no_device_arrays(tmp_path):
    """Those in the other byte order become matrices in this machine's, as NumPy's arrays do."""
    x = np.arange(16.0).reshape(4, 4)
    for dtype in (">f8", "longdouble"):
        np.save(tmp_path / f"{dtype}.npy", x.astype(dtype))

    def program(comm, dtype):
        return pdla.load(tmp_path / f"{dtype}.npy", pdla.ProcessGrid(2), Layout("row")).gather()

    with config.override(array="cupy"):
        same(pdla.run(2, program, ">f8")[0], x)
        with pytest.raises(ShapeError, match=r"^load .*longdouble\.npy: .* has no arrays: give float64"):
            pdla.run(2, program, "longdouble")


def test_dry_runs_count_the_flops_of_triangles_as_devices_compute_them():
    def program(comm):
        grid = pdla.ProcessGrid((1, 2))
        with pdla.record() as ledger:
            pdla.syrk(pdla.zeros((37, 31), grid, Layout("row", "col")))
        return ledger.flops

    for array in ("cupy", "numpy"):
        with config.override(array=array):
            assert pdla.run(2, program) == [pdla.dry_run(2, program, rank=rank)[0] for rank in range(2)]


def test_idle_ranks_have_arrays_of_the_same_kind_as_others():
    whole = np.arange(24.0).reshape(4, 6)

    def program(comm):
        one, both = pdla.ProcessGrid(1), pdla.ProcessGrid(2)
        A = pdla.from_local(None if comm.rank else there(whole), (4, 6), one, Layout("row"))
        return A.redistribute(Layout("row"), both).local

    with config.override(array="cupy"):
        for came, wanted in zip(pdla.run(2, program), (whole[:2], whole[2:]), strict=True):
            same(came, wanted)


@pytest.mark.parametrize("words", [["--dry-run", "-P", "4"], ["calibrate"]])
def test_what_has_no_device_arrays(words, capsys):
    assert main([*words, "--array", "cupy"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.skipif(GPU, reason="an event may be seen late even where nothing is before it")
def test_clocks_of_the_benchmark_are_read_when_the_device_is_done(monkeypatch):
    idle = []

    def program(comm, timed):
        x, y = (xp.empty((4, 4), "float64") for _ in range(2))
        xp.copy_all([(x, y)])
        timed(comm, lambda: xp.copy_all([(y, x)]))

    def clock():
        idle.append(xp.mark().done)
        return 0.0

    monkeypatch.setattr(split, "now", clock)
    monkeypatch.setattr(peak, "time", SimpleNamespace(perf_counter=clock))
    for timed in (split.measure_split, peak.time_once):
        with config.override(array="cupy"):
            pdla.run(1, program, timed)
    assert idle == [True] * 4


def test_without_cupy(monkeypatch):
    import sys

    import pdla.array

    monkeypatch.setitem(sys.modules, "pdla.array.cupy", None)
    monkeypatch.delattr(pdla.array, "cupy")
    with config.override(array="cupy"), pytest.raises(DeviceError, match="no CuPy here"):
        choose()


# ---------------------------------------------------------------------------------------------- LAPACK


def test_what_is_known_and_finite():
    x = np.array([[1.0, np.inf]])
    assert xp.host_or(xp.asarray(x), x[:0]).tolist() == x.tolist()
    assert not xp.is_finite(xp.asarray(x)) and xp.is_finite(xp.asarray(x[:, :1]))
