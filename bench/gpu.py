"""Speeds of pdla on one GPU, beside PyTorch's and CuPy's: python -m bench.gpu --json FILE. `make test-gpu` runs it, too.

| section | measures | beside |
|---|---|---|
| gemm | local products of 2 m n k operations | PyTorch's by cuBLAS; goal: 0.97 of it at n >= 4096 |
| calls | seconds of a call on a small array | CuPy's and PyTorch's |
| pack | bytes a second of block-cyclic rectangles picked, turned and added | the device's own copy; goal: 0.85 of it |
| fused | element-wise work of layers by pdla's kernels | the same composed of CuPy's functions, and PyTorch's |
| message | bytes a second through pinned memory, from a rank to itself | messages in pieces and whole |
| fill | seconds of random matrices, whose numbers no grid changes | CuPy's own |
| factors | seconds of Cholesky, LU and a triangular system of n columns | CuPy's (cuSOLVER) |
| layer | seconds of a transformer layer forward and backward | PyTorch's, eager and compiled |

Each figure is the median of several runs. A run repeats the work for a tenth of a second; the device is idle before and after.
"""

import json
import sys
import time
import traceback
from statistics import median
from types import SimpleNamespace

import numpy as np

import pdla
from bench.common.given import make_parser
from pdla import config, nn
from pdla.array import choose, composed
from pdla.array.draw import Draw
from pdla.bench.arguments import to_write
from pdla.bench.leave import write_json
from pdla.comm.mpi import staging
from pdla.indices import IndexSet

TIMING = {"runs": 7, "long": 0.1}  # of a measurement: how many; seconds of each


def time_call(finish, work):
    """Seconds of one call of work(), the median of several runs; finish() waits for the device."""

    def many(count):
        finish()
        start = time.perf_counter()
        for _ in range(count):
            work()
        finish()
        return time.perf_counter() - start

    many(2)
    count = max(1, round(TIMING["long"] / max(many(1), 1e-6)))
    return median(many(count) / count for _ in range(TIMING["runs"]))


def find_torch():
    """PyTorch, if it is installed and finds a GPU, else None."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def time_gemm(xp, torch, sizes):
    """Rows of figures, one for each dtype and size."""
    rows = []
    for dtype, tf32 in (("float64", 0), ("float32", 0), ("float32", 1), ("float16", 0), ("bfloat16", 0)):
        for n in sizes:
            a, b, c = (draw(xp, n, seed).astype(find_dtype(dtype)) for seed in range(3))
            with config.override(tf32=bool(tf32)):
                ours = time_call(xp.finish, lambda a=a, b=b, c=c: xp.gemm(a, b, c))
            row = {"dtype": "tf32" if tf32 else dtype, "n": n, "tflops": 2e-12 * n**3 / ours}
            if torch is not None:
                torch.backends.cuda.matmul.allow_tf32 = bool(tf32)
                x, y, z = (torch.randn((n, n), dtype=torch.float32, device="cuda").to(getattr(torch, dtype)) for _ in range(3))
                theirs = time_call(torch.cuda.synchronize, lambda x=x, y=y, z=z: torch.mm(x, y, out=z))
                row |= {"torch_tflops": 2e-12 * n**3 / theirs, "share": theirs / ours}
            rows.append(row)
    return rows


def draw(xp, n, seed):
    """A random matrix: on a device, a product of ones takes less power, and so less time."""
    return xp.asarray(np.random.default_rng(seed).standard_normal((n, n), np.float32))


def find_dtype(dtype):
    if dtype != "bfloat16":
        return np.dtype(dtype)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def time_calls(xp, torch, n):
    """Rows of figures, one for each call on n x n arrays: they are short, so that the device is never behind."""
    import cupy

    rows = []
    for dtype in ("float32", "float64", "float16"):
        a, b, c = (xp.asarray(np.ones((n, n), dtype)) for _ in range(3))
        row = {"what": "product", "dtype": dtype, "seconds": time_call(xp.finish, lambda a=a, b=b, c=c: xp.gemm(a, b, c))}
        row["cupy_seconds"] = time_call(xp.finish, lambda a=a, b=b, c=c: cupy.matmul(a, b, out=c))
        if torch is not None:
            x, y, z = (torch.ones((n, n), dtype=getattr(torch, dtype), device="cuda") for _ in range(3))
            row["torch_seconds"] = time_call(torch.cuda.synchronize, lambda x=x, y=y, z=z: torch.mm(x, y, out=z))
        rows.append(row)
    x, y = (xp.asarray(np.ones((n, n))) for _ in range(2))
    places = [(np.arange(0, n, 2), np.arange(i, n, 2)) for i in range(2)]
    for what, ours, theirs in (
        ("copy", lambda: xp.copy(x, y), lambda: cupy.copyto(x, y)),
        ("transpose", lambda: xp.copy(x, y.T), lambda: cupy.copyto(x, y.T)),
        ("two parts picked", lambda: xp.take_all(x, places), lambda: [x[rows[:, None], cols] for rows, cols in places]),
        ("event", xp.mark, lambda: cupy.cuda.Event(disable_timing=True).record()),
    ):
        row = {"what": what, "dtype": "float64", "seconds": time_call(xp.finish, ours)}
        rows.append(row | {"cupy_seconds": time_call(xp.finish, theirs)})
    return rows


def time_pack(xp, n):
    """Rows of figures by way and dtype: an n x n matrix in 64 x 64 blocks, block-cyclic on 4 x 4 ranks."""
    import cupy

    rows, starts = [], [np.arange(64 * r, n, 256) for r in range(4)]
    dealt = [IndexSet(first, np.minimum(first + 64, n)).selection for first in starts]
    places = [(i, j) for i in dealt for j in dealt]
    for dtype in ("float32", "float64", "complex128"):
        x, y = (xp.asarray(np.ones((n, n), dtype)) for _ in range(2))
        plain = 2 * x.nbytes / time_call(xp.finish, lambda x=x, y=y: cupy.copyto(y, x))
        ways = {
            "picked": (2, lambda x=x: xp.take_all(x, places)),
            "turned": (2, lambda x=x, y=y: xp.copy(y, x.T)),
            "gaps": (2, lambda x=x, y=y: xp.copy(y[:, : n // 2], x[:, n // 2 :])),
            "added with beta": (3, lambda x=x, y=y: xp.combine(y, 0.5, x)),
        }
        for way, (passes, work) in ways.items():
            size = passes * x.nbytes // (2 if way == "gaps" else 1)
            rate = size / time_call(xp.finish, work)
            rows.append({"way": way, "dtype": dtype, "gb_s": rate / 1e9, "copy_gb_s": plain / 1e9, "share": rate / plain})
    return rows


def list_work(xp, n, dtype):
    """Work that layers do on n x n arrays, by name: functions of a namespace `way`, pdla's kernels or what CuPy composes."""
    x, y = (xp.asarray(np.ones((n, n), dtype)) for _ in range(2))
    row, column, both = (xp.asarray(np.ones(shape, dtype)) for shape in ((1, n), (n, 1), (2, n, 1)))
    places, ignored = np.arange(n), np.zeros(n, bool)

    def norm(way):
        sums, squares = way.moments(x)
        way.normalise(x, sums, squares, n, 1e-5, row, row, True)

    def norm_back(way):
        way.column_sums(x, y)
        way.row_sums(x, y, row, both)
        way.norm_gradient(x, y, column, row, both, n)

    def loss(way):
        sums = both.reshape(2, n)
        way.softmax_gradient(way.exponentials(x, column, places, sums), sums[0], places, ignored, n)

    return {
        "GeLU": lambda way: way.gelu(x, True),
        "GeLU with a bias": lambda way: way.gelu(x, True, row),
        "GeLU with a bias, back": lambda way: way.product_sums(x, y),
        "LayerNorm": norm,
        "LayerNorm, back": norm_back,
        "cross-entropy, there and back": loss,
    }


def list_torch_work(torch, n, dtype):
    """The same by PyTorch, which does not keep the slope of GeLU but computes it in the backward pass."""
    functional, aten = torch.nn.functional, torch.ops.aten
    x, y = (torch.ones((n, n), dtype=getattr(torch, dtype), device="cuda") for _ in range(2))
    row, targets, logits = x[0].clone(), torch.arange(n, device="cuda"), x.clone().requires_grad_()
    _, mean, scale = torch.native_layer_norm(x, (n,), row, row, 1e-5)
    return {
        "GeLU": lambda: functional.gelu(x),
        "GeLU with a bias": lambda: functional.gelu(x + row),
        "GeLU with a bias, back": lambda: aten.gelu_backward(y, x).sum(0),
        "LayerNorm": lambda: torch.native_layer_norm(x, (n,), row, row, 1e-5),
        "LayerNorm, back": lambda: aten.native_layer_norm_backward(y, x, (n,), mean, scale, row, row, [True, True, True]),
        "cross-entropy, there and back": lambda: torch.autograd.grad(functional.cross_entropy(logits, targets), logits),
    }


def time_fused(xp, torch, n):
    """Rows of figures, one for each piece of a layer's work and dtype, on n x n arrays."""
    rows, plain = [], SimpleNamespace(**vars(composed))
    plain.gelu = lambda x, slope, bias=None: composed.gelu(x, slope, bias, xp.erf)
    for dtype in ("float32", "float64"):
        others = {} if torch is None else list_torch_work(torch, n, dtype)
        for what, work in list_work(xp, n, dtype).items():
            one, many = (time_call(xp.finish, lambda work=work, way=way: work(way)) for way in (xp, plain))
            row = {"what": what, "dtype": dtype, "seconds": one, "composed_seconds": many}
            if what in others:
                row["torch_seconds"] = time_call(torch.cuda.synchronize, others[what])
            rows.append(row)
    return rows


def time_message(xp, sizes):
    """Rows of figures, one for each length: bytes a second of a message through pinned memory, in pieces and whole."""
    with config.override(gpu_mpi="off"):
        comm = pdla.world()
    rows, least = [], staging.PIECE
    for nbytes in sizes:
        x, out = xp.asarray(np.ones(nbytes, np.uint8)), xp.asarray(np.zeros(nbytes, np.uint8))

        def once(x=x, out=out):
            receive, send = comm.recv(out, comm.rank), comm.send(x, comm.rank)
            receive.wait()
            send.wait()

        row = {"bytes": nbytes}
        for name, staging.PIECE in (("pieces", least), ("whole", nbytes + 1)):
            row[f"{name}_gb_s"] = 1e-9 * nbytes / time_call(xp.finish, once)
        rows.append(row)
    staging.PIECE = least
    return rows


def time_fill(xp, n):
    """Rows of figures, one for each distribution and dtype, of n x n random matrices."""
    import cupy

    rows, held = [], IndexSet.interval(0, n)
    for dtype in ("float32", "float64"):
        for distribution, high, theirs in (
            ("uniform", 1, cupy.random.random), ("integers", 10, cupy.random.random), ("normal", 1, cupy.random.standard_normal),
        ):
            draw = Draw(n, np.dtype(dtype), 0, distribution, 0, high)
            plain = time_call(xp.finish, lambda theirs=theirs, dtype=dtype: theirs((n, n), dtype))
            ours = time_call(xp.finish, lambda draw=draw: xp.draw_part(held, held, draw))
            rate = n * n * draw.dtype.itemsize / ours
            row = {"what": distribution, "dtype": dtype, "seconds": ours, "gb_s": rate / 1e9, "cupy_seconds": plain}
            rows.append(row)
    return rows


def time_factors(xp, sizes):
    """Rows of figures, one for each dtype and size."""
    return pdla.run(1, lambda comm: [time_factors_of(xp, comm, dtype, n) for dtype in ("float64", "float32") for n in sizes])[0]


def time_factors_of(xp, comm, dtype, n):
    """Seconds of pdla's factors and solutions on a world of one rank, and of CuPy's."""
    import cupy
    from cupyx.scipy import linalg as cupyx

    grid = pdla.ProcessGrid((1,), comm=comm)
    A, B = (pdla.random((n, n), grid, pdla.Layout(), dtype=dtype, seed=seed) for seed in range(2))
    a, b = A.local, B.local
    s = a @ a.T + n * cupy.eye(n, dtype=dtype)
    S, plain = pdla.from_local(s, (n, n), grid, pdla.Layout()), {"check_finite": False}
    L = pdla.linalg.cholesky(S, **plain)
    ways = {
        "cholesky": (lambda: pdla.linalg.cholesky(S, **plain), lambda: cupy.linalg.cholesky(s)),
        "lu": (lambda: pdla.linalg.lu_factor(A, **plain), lambda: cupyx.lu_factor(a, **plain)),
        "trsm": (
            lambda: pdla.linalg.solve_triangular(L, B, lower=True, **plain),
            lambda: cupyx.solve_triangular(L.local, b, lower=True, **plain),
        ),
    }
    row = {"dtype": dtype, "n": n}
    for what, (ours, theirs) in ways.items():
        row |= {what: time_call(xp.finish, ours), f"cupy_{what}": time_call(xp.finish, theirs)}
    return row


def time_layer(xp, torch, hidden, heads, sequence, batch):
    """Rows of figures, one for each dtype."""
    return [time_layer_of(precision, xp, torch, hidden, heads, sequence, batch) for precision in ("float32", "tf32", "bfloat16")]


def time_layer_of(precision, xp, torch, hidden, heads, sequence, batch):
    """Seconds of a pass forward and backward, pdla's on a world of one rank."""
    dtype = "float32" if precision == "tf32" else precision

    def ours(comm):
        scheme = nn.Serial(pdla.ProcessGrid((1,), comm=comm))
        layer = nn.TransformerLayer(scheme, hidden, heads, sequence=sequence, dtype=find_dtype(dtype))
        x = scheme.shard(np.ones((batch * sequence, hidden), find_dtype(dtype)), sequence=sequence)

        def step():
            for parameter in layer.all_parameters():
                parameter.gradient = None
            layer.backward(layer.forward(x))

        return time_call(xp.finish, step)

    with config.override(tf32=precision == "tf32"):
        seconds = pdla.run(1, ours)[0]
    figures = {"dtype": precision, "hidden": hidden, "heads": heads, "sequence": sequence, "batch": batch, "seconds": seconds}
    if torch is None:
        return figures
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    block = torch.nn.TransformerEncoderLayer(
        hidden, heads, 4 * hidden, dropout=0.0, activation="gelu", batch_first=True, norm_first=True, device="cuda",
        dtype=getattr(torch, dtype),
    )
    mask = torch.nn.Transformer.generate_square_subsequent_mask(sequence, device="cuda", dtype=getattr(torch, dtype))
    x = torch.ones((batch, sequence, hidden), device="cuda", dtype=getattr(torch, dtype), requires_grad=True)
    for name, network in (("eager", block), ("compiled", torch.compile(block))):

        def step(network=network):
            block.zero_grad()
            network(x, src_mask=mask, is_causal=True).sum().backward()

        try:
            figures[f"torch_{name}_seconds"] = time_call(torch.cuda.synchronize, step)
        except Exception as error:  # torch.compile needs a compiler
            figures[f"torch_{name}_failed"] = str(error)[:300]
    return figures


def list_sections(xp, torch, small):
    """The sections, by name, as functions that return figures."""
    n = 64 if small else 8192
    return {
        "gemm": lambda: time_gemm(xp, torch, (32,) if small else (1024, 4096, 8192)),
        "calls": lambda: time_calls(xp, torch, 64),
        "pack": lambda: time_pack(xp, 300 if small else n),
        "fused": lambda: time_fused(xp, torch, n),
        "message": lambda: time_message(xp, (1000, 1 << 21) if small else (1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)),
        "fill": lambda: time_fill(xp, n),
        "factors": lambda: time_factors(xp, (40,) if small else (4096, 8192)),
        "layer": lambda: time_layer(xp, torch, *((16, 2, 4, 2) if small else (2048, 16, 512, 8))),
    }


def main():
    parser = make_parser(__doc__)
    parser.add_argument("--json", type=to_write, metavar="FILE", help="write the figures to FILE, after each section")
    parser.add_argument("--only", default="", metavar="NAMES", help="these sections: gemm,pack")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see whether everything runs")
    arguments = parser.parse_args()
    if arguments.small:
        TIMING.update(runs=1, long=0.0)
    figures, failed = {}, []
    with config.override(array="cupy"):
        for name, measure in list_sections(choose(), find_torch(), arguments.small).items():
            if arguments.only and name not in arguments.only.split(","):
                continue
            try:
                figures[name] = measure()
            except Exception:  # the other sections are still measured
                failed.append(name)
                figures[name] = {"failed": traceback.format_exc()}
            print(name, flush=True)
            if arguments.json:
                write_json(arguments.json, figures)
    print(json.dumps(figures, indent=1))
    return f"failed: {', '.join(failed)}" if failed else 0


if __name__ == "__main__":
    sys.exit(main())
