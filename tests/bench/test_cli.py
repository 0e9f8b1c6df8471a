"""The benchmark, without MPI: its arguments, checks, figures, table and JSON."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import pdla
from pdla.bench.cli import main, parse
from pdla.bench.commands import COMMANDS, info, suite
from pdla.bench.measure.case import LAYOUT, Case, digits, digits_path, integer_operands, random_operands
from pdla.bench.measure.check import SMALL, Checker, differences
from pdla.bench.measure.peak import Peaks
from pdla.bench.measure.product import Bench, predict
from pdla.bench.report.content import SCHEMA, entry
from pdla.bench.stop import Stop
from pdla.config import LAUNCHERS
from pdla.matmul.schedules import ON_GRID
from pdla.model.machine import Machine

SIZES = ["-m", "30", "-n", "20", "-k", "25"]
SLOW = ["scale", "--product", "100000x100000x100000", "--to", "10000000", "--factor", "2"]  # its last line is long after its first


def run(capsys, *words):
    """Exit status and what was printed."""
    status = main(list(words))
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def valid(path):
    """A report that obeys the schema."""
    content = json.loads(path.read_text())
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(content)
    return content


# ---------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("words", "quoted"),
    [
        (["gemm", "-m", "many"], "'many'"),
        (["gemm", "-m", "-3"], "-m"),
        (["gemm", "--grid", "2by3"], "'2by3'"),
        (["gemm", "--grid", "0x3"], "'0x3'"),
        (["gemm", "--dtype", "float12"], "float12"),
        (["gemm", "--algorithm", "strassen"], "strassen"),
        (["gemm", "--panel", "0"], "'0'"),
        (["gemm", "--a", "A.npy"], "--b"),
        (["gemm", "--a", "A.npy", "--b", "B.npy", "-m", "3"], "leave out m"),
        (["multiply"], "multiply"),
        (["--threads", "0"], "'0'"),
        (["--threads", "9999999"], "at most 10000; --dry-run -P 9999999"),
        (["--dry-run"], "-P"),
        (["-P", "64"], "--dry-run"),
        (["--dry-run", "-P", "64", "--threads", "2"], "threads"),
        (["--dry-run", "-P", "10000001"], "up to 10000000 ranks"),
        (["predict", "-P", "10000001"], "up to 10000000 ranks"),
        (["scale", "--to", "10000001"], "up to 10000000 ranks"),
        (["calibrate", "--dry-run"], "no machine to tell about"),
        (["--threads", "4", "gemm", "--grid", "2x3"], "2x3 needs 6 ranks, there are 4"),
        (["--threads", "2", "gemm", "--a", "none.npy", "--b", "none.npy"], "none.npy"),
        (["--threads", "2", "calibrate", "--json", "x.json"], "give --out FILE"),
        (["--threads", "2", "gemm", "--json", ""], "--json : this is a folder"),
        (["--threads", "2", "gemm", "--out", ""], "--out : this is a folder"),
        (["--threads", "4", "predict", "-P", "4"], "--threads before predict"),
        (["-P", "4", "scale"], "-P before scale"),
        (["--json", "x.json", "compare", "a", "b"], "--json before compare"),
        (["--machine", "a100x4", "calibrate"], "--machine before calibrate"),
        (["--threads", "2", "gemm", "-m", "2000000", "-n", "2000000", "-k", "1"], "Unable to allocate"),
        (["--threads", "2", "gemm", "-m", f"{2**63 - 1}"], f"a block of {2**63 - 1} x 1024 float64"),
        (["--dry-run", "-P", "4", "gemm", "-m", f"{2**62}"], f"no array of {2**61} x 1024 fits any memory"),
        (["--dry-run", "-P", "4", "gemm", "-m", f"{2**63}"], f"shape ({2**63}, 2048) are too long"),
        (["predict", "-P", "4", "--product", f"{2**62}x{2**62}x1"], "fits any memory"),
        (["predict", "-P", "4", "--product", f"{2**63}x1x1"], "is too long"),
        (["predict", "-P", "4", "--product", f"{2**63 - 1}x{2**63 - 1}x{2**63 - 1}"], "fits any memory"),
        (["predict", "-P", "4", "--hidden", f"{10**14}"], f"no array of {10**14} x {75 * 10**12} fits any memory"),
        (["predict", "-P", "4", "--csv", "x", "--json", "./x"], "--csv x: --json writes this file; give another"),
        (["report", "x.json", "y.json", "--html", "./y.json"], "--html ./y.json: report reads this file; give another"),
        (["--json", "B.npy", "gemm", "--a", "A.npy", "--b", "B.npy"], "--json B.npy: gemm reads this file; give another"),
        (["gemm", "--machine", "x.toml", "--out", "x.toml"], "--out x.toml: gemm reads this file; give another"),
        (["gemm", "-m", "x"], "(see python -m pdla.bench gemm --help)"),
        (["report", "none.json"], "none.json: No such file or directory"),
        (["compare", "none.json", "none.json"], "none.json: No such file or directory"),
    ],
)
def test_bad_arguments_are_one_line_and_status_2(capsys, words, quoted):
    status, out, err = run(capsys, *words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert quoted in err


@pytest.mark.parametrize("words", [["gemm", "--threads", "2"], ["--dry-run", "-P", "4"], ["predict", "-P", "4"]])
def test_an_unknown_machine_of_the_environment_is_one_line(capsys, words):
    with pdla.config.override(machine="nosuch"):
        status, out, err = run(capsys, *words)
    assert (status, out, err.count("\n")) == (2, "", 1) and "PDLA_MACHINE: no machine 'nosuch'" in err


@pytest.mark.parametrize("name", ["PDLA_TIMEOUT", "PDLA_TIMEOUTS"])
def test_a_wrong_variable_is_one_line(name):
    """Of the program; whoever imports pdla gets an exception."""
    command, environ = [sys.executable, "-m", "pdla.bench", "--help"], os.environ | {name: "x"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1) and done.stderr.startswith(f"pdla: {name}")
    done = subprocess.run([sys.executable, "-c", "import pdla"], env=environ, capture_output=True, text=True)
    assert done.returncode == 1 and f"ValueError: {name}" in done.stderr


def test_help_has_examples(capsys):
    status, out, err = run(capsys, "--help")
    assert (status, err) == (0, "")
    assert "mpirun -n 4 python -m pdla.bench" in out
    assert "--dry-run -P 4096" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_says_what_it_is_for_and_how_it_is_typed(capsys, command):
    status, out, err = run(capsys, command, "--help")
    assert (status, err) == (0, "") and out.startswith(f"usage: python -m pdla.bench {command} ")
    about, example = COMMANDS[command].about, out.partition("examples:\n")[2]
    assert f"{about[1:]}." in out and f"python -m pdla.bench {command} " in example


def test_help_leaves_out_what_a_command_refuses(capsys):
    options = "--dry-run", "-P RANKS", "--json FILE"
    told = {command: run(capsys, command, "--help")[1] for command, has in COMMANDS.items() if not has.alone}
    shown = {command: [option for option in options if option in text] for command, text in told.items()}
    assert shown == {"gemm": ["--dry-run", "-P RANKS", "--json FILE"], "hpl": [], "info": ["--json FILE"], "calibrate": []}


@pytest.mark.parametrize("where", [["--threads", "4"], ["--dry-run", "-P", "4"]])
@pytest.mark.parametrize(("algorithm", "used"), [("summa", True), ("gather", False), ("cannon", True)])
def test_panels_that_an_algorithm_has_not_are_told(capsys, where, algorithm, used):
    status, out, _ = run(capsys, *where, "gemm", *SIZES, "--algorithm", algorithm, "--panel", "7")
    assert status == 0 and ("in panels of 7" in out) == used
    assert (f"panel       7 is not used: {algorithm} has no panels" in out) != used


def begun(*words):
    """The program in a process of its own, which no launcher has started."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    command = [sys.executable, "-u", "-m", "pdla.bench", *words]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_pipe_that_is_closed_early_ends_it_quietly():
    with begun(*SLOW) as job:
        job.stdout.readline()
        job.stdout.close()
        assert job.stderr.read() == ""
    assert job.returncode == -signal.SIGPIPE


TINY = "gemm", "-m", "8", "-n", "8", "-k", "8"


@pytest.mark.parametrize("words", [["--help"], ["--threads", "2", *TINY]])
@pytest.mark.parametrize("option", [[], ["-u"]])
def test_a_full_disk_is_one_line(words, option):
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, *option, "-m", "pdla.bench", *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "pdla.bench: standard output: No space left on device\n")


def test_without_an_output_it_leaves_its_files_all_the_same(tmp_path):
    command = f"{sys.executable} -m pdla.bench --threads 2 --json {tmp_path}/out.json {' '.join(TINY)} >&-"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "") and (tmp_path / "out.json").exists()


def test_a_terminal_of_few_characters_gets_a_table():
    command, environ = [sys.executable, "-m", "pdla.bench", "--threads", "2"], os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*command, *TINY], env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and "exact" in done.stdout


def test_ctrl_c_ends_it_quietly():
    with begun(*SLOW) as job:
        job.stdout.readline()
        job.send_signal(signal.SIGINT)
        assert job.stderr.read() == ""
    assert job.returncode == -signal.SIGINT


def test_too_little_memory_is_one_line_on_one_rank_of_mpi_too():
    with begun("gemm", "-m", "4300000", "-n", "4300000", "-k", "1") as job:  # more than a process can address
        err = job.stderr.read()
    assert (job.returncode, err.count("\n")) == (2, 1) and "Unable to allocate" in err


def test_a_memory_error_without_words_gets_some(capsys, monkeypatch):
    def measure(self, case, A, B):
        raise MemoryError

    monkeypatch.setattr(Bench, "measure", measure)
    status, _, err = run(capsys, "gemm", *SIZES, "--threads", "2")
    assert (status, err) == (2, "pdla.bench: out of memory\n")


def test_common_options_stand_on_either_side_of_the_command():
    for words in (["--threads", "3", "gemm"], ["gemm", "--threads", "3"]):
        assert parse(words).threads == 3
    common, command = ["--machine", "a100x4", "--json", "x.json"], ["predict", "-P", "4"]
    for words in ([*common, *command], [*command, *common]):
        arguments = parse(words)
        assert (arguments.machine, arguments.json) == ("a100x4", "x.json")
    assert (parse(command).machine, parse(command).json) == (None, None)


@pytest.mark.parametrize(("words", "status"), [(["predict", "-P", "2", "--product", "8x8x8"], 0), (["--threads", "2", "gemm"], 2)])
def test_a_prediction_needs_no_gpu_where_matrices_would_lie_on_one(words, status):
    code = "import sys; sys.modules['cupy'] = None; from pdla.bench.cli import main; sys.exit(main())"
    environ = os.environ | {"PDLA_ARRAY": "cupy"}
    done = subprocess.run([sys.executable, "-c", code, *words], env=environ, capture_output=True, text=True)
    assert (done.returncode, bool(done.stdout), done.stderr.count("\n")) == (status, status == 0, int(status != 0)), done.stderr


@pytest.mark.parametrize(
    ("words", "status"),
    [(["--help"], 0), (["--threads", "2", "gemm", "-m", "64"], 0), (["--dry-run", "-P", "4"], 0), (["info"], 2)],
)
def test_threads_and_dry_runs_need_no_mpi(words, status):
    code = "import sys; sys.modules['mpi4py'] = None; from pdla.bench.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert (done.returncode, bool(done.stdout), done.stderr.count("\n")) == (status, status == 0, int(status != 0)), done.stderr


def test_stops_carry_their_status():
    with pytest.raises(Stop) as stopped:
        parse(["--dry-run"])
    assert stopped.value.status == 2


# ---------------------------------------------------------------------------------------------- checks


def checked(P, case, spoil, small, exact=True):
    """What the checker says of a product on P ranks, after `spoil` has been at rank 0's block of it."""

    def program(comm):
        grid = pdla.ProcessGrid(case.grid, comm=comm)
        A, B = (integer_operands if exact else random_operands)(case, grid)
        C = pdla.matmul(A, B, layout=pdla.Layout(rows="row", cols="col"))
        if comm.rank == 0:
            spoil(C.local)
        return Checker(comm, small).check(case.problem, A, B, C, exact)

    said = set(pdla.run(P, program))
    assert len(said) == 1
    return said.pop()


@pytest.mark.parametrize(("dtype", "error"), [("int8", -128), ("int8", 1), ("uint8", 255), ("int64", -(2**63)), ("bool", True)])
def test_products_of_integers_that_are_wrong_are_found(dtype, error):
    right, wrong = np.zeros((2, 3), dtype), np.zeros((2, 3), dtype)
    wrong[1, 2] = error
    assert differences(right, right, 0.0) == ""
    assert differences(wrong, right, 0.0).startswith("1 of 6 elements differs, the first at (1, 2): ")


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_infinities_and_nan_of_a_file_are_compared_as_such(dtype):
    right = np.array([1, np.inf, -np.inf, np.nan], dtype)
    bound = np.array([1e-3, np.inf, np.inf, np.nan])
    assert differences(right, right, bound) == ""
    for i, wrong in enumerate([np.nan, 1, np.inf, 1]):
        c = right.copy()
        c[i] = wrong
        assert differences(c, right, bound).startswith(f"1 of 4 elements differs, the first at ({i},): ")


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("small", [SMALL, 0])
def test_products_of_files_with_infinities_are_right(number, small):
    rng = np.random.default_rng(0)
    a, b = rng.random((20, 15)) - 0.5, rng.random((15, 12)) - 0.5
    a[2, 3] = a[5, 5] = a[5, 6] = number
    if small:  # else each row of C X has some, and nothing is to be seen
        b[3, 4] = b[7, :3] = number

    def program(comm):
        grid = pdla.ProcessGrid((2, 2), comm=comm)
        A, B = (pdla.from_global(x, grid, LAYOUT) for x in (a, b))
        C, spoilt = A @ B, A @ B
        spoilt *= 2
        return [Checker(comm, small).check((), A, B, X, False)[:5] for X in (C, spoilt)]

    assert pdla.run(4, program)[0] == ["bound", "WRONG"]


@pytest.mark.parametrize("small", [SMALL, 0])
@pytest.mark.parametrize("dtypes", [("int8", "float64"), ("bool", "float32"), ("float64", "uint8"), ("bool", "bool")])
def test_products_of_files_of_several_kinds_are_right(dtypes, small):
    rng = np.random.default_rng(0)
    a, b = (rng.random((20, 15)) * 2).astype(dtypes[0]), (rng.random((15, 12)) * 2).astype(dtypes[1])
    if dtypes[0] == "int8":
        a[...] = -128  # whose magnitude an int8 cannot hold

    def program(comm):
        grid = pdla.ProcessGrid((2, 2), comm=comm)
        A, B = (pdla.from_global(x, grid, LAYOUT) for x in (a, b))
        C, spoilt = A @ B, A @ B
        if comm.rank == 0:
            spoilt.local[0, 0] = not spoilt.local[0, 0]
        return [Checker(comm, small).check((), A, B, X, False)[:5] for X in (C, spoilt)]

    assert pdla.run(4, program)[0] == ["bound", "WRONG"]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64"])
def test_products_of_integers_may_wrap(dtype):
    def program(comm):
        grid, top = pdla.ProcessGrid((2, 2), comm=comm), np.iinfo(dtype).max
        A, B = (pdla.from_function(lambda i, j: top - (7 * i + j) % 5, (9, 9), grid, LAYOUT, dtype=dtype) for _ in "AB")
        C = pdla.matmul(A, B)
        found = [Checker(comm, small).check((), A, B, C, exact=True) for small in (SMALL, 0)]
        if comm.rank == 0:
            C.local[0, 0] += 1
        return *found, Checker(comm, 0).check((), A, B, C, exact=True)[:5]

    assert set(pdla.run(4, program)) == {("exact (NumPy)", "exact (Freivalds)", "WRONG")}


def nothing(block):
    pass


def one_more(block):
    block[0, 0] += 1


def one_ulp(block):
    block[-1, -1] = np.nextafter(block[-1, -1], np.inf)


def a_nan(block):
    block[0, 0] = np.nan


def two_swapped(block):
    block[:, [0, 1]] = block[:, [1, 0]]


@pytest.mark.parametrize("small", [SMALL, 0])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("trans", ["NN", "TN", "NC", "CT"])
def test_right_products_pass(dtype, small, trans):
    case = Case(13, 11, 17, dtype, grid=(2, 3), transa=trans[0], transb=trans[1])
    how = "NumPy" if small else "Freivalds"
    assert checked(6, case, nothing, small) == f"exact ({how})"
    assert checked(6, case, nothing, small, exact=False) == f"bound ({how})"


@pytest.mark.parametrize("small", [SMALL, 0])
@pytest.mark.parametrize("spoil", [one_more, one_ulp, a_nan, two_swapped])
def test_exact_products_must_be_exact(small, spoil):
    assert checked(2, Case(13, 11, 17, grid=(1, 2)), spoil, small).startswith("WRONG, exact")


@pytest.mark.parametrize("small", [SMALL, 0])
@pytest.mark.parametrize("spoil", [one_more, a_nan, two_swapped])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounded_products_must_obey_the_bound(small, spoil, dtype):
    assert checked(2, Case(13, 11, 17, dtype, grid=(1, 2)), spoil, small, exact=False).startswith("WRONG, bound")


@pytest.mark.parametrize("sizes", [(0, 5, 7), (5, 0, 7), (5, 7, 0), (1, 1, 1)])
@pytest.mark.parametrize("small", [SMALL, 0])
def test_tiny_and_empty_products(sizes, small):
    case = Case(*sizes, grid=(2, 2))
    if 0 in sizes or small:
        assert not checked(4, case, nothing, small).startswith("WRONG")
        assert not checked(4, case, nothing, small, exact=False).startswith("WRONG")


def test_long_products_get_smaller_integers():
    def largest(comm, k):
        A, _ = integer_operands(Case(2, 2, k, "float32"), pdla.ProcessGrid((1, 1), comm=comm))
        return np.abs(A.local).max()

    assert pdla.run(1, largest, 2**18) == [4]
    assert pdla.run(1, largest, 2**20) == [1]


# ---------------------------------------------------------------------------------------------- rows


def measured(P, case):
    def program(comm):
        bench = Bench(comm, Checker(comm), Peaks(comm), repeats=2)
        with pdla.ProcessGrid(case.grid, comm=comm) as grid:
            return bench.measure(case, *random_operands(case, grid))

    return pdla.run(P, program)[0]


@pytest.mark.parametrize("algorithm", pdla.algorithms)
@pytest.mark.parametrize("grid", [(2, 2), (1, 4), (2, 3)])
def test_recorded_bytes_are_the_formula_and_the_prediction(algorithm, grid):
    P = grid[0] * grid[1]
    case = Case(48, 48, 48, algorithm=algorithm, grid=grid)
    row, foreseen = measured(P, case), predict(case, P)
    assert row.bytes_received == foreseen.bytes_received
    assert row.bytes_by_formula == (row.bytes_received if algorithm in ON_GRID else None)
    assert (row.messages, row.peak_workspace) == (foreseen.messages, foreseen.peak_workspace)
    assert row.bytes_received >= row.bytes_lower_bound > 0
    assert len(row.seconds) == 2


@pytest.mark.parametrize("algorithm", ["auto", "summa"])
def test_the_bound_is_the_plans_where_the_matrices_lie_on_few_ranks(algorithm):
    """auto multiplies on all 64 ranks, and received 0.75 of what six ranks would have had to."""
    row = predict(Case(2048, 2048, 2048, algorithm=algorithm, grid=(2, 3)), 64)
    assert row.multiple_of_bound >= 1
    assert f"bound       {row.bytes_lower_bound:.0f} bytes" in row.explained


@pytest.mark.parametrize("sizes", [(64, 64, 4096), (10, 2048, 2048), (0, 64, 64)])
def test_the_formula_says_nothing_of_what_the_rule_does_otherwise(sizes):
    """It is that of a C that stays in place, and here A or B does."""
    row = predict(Case(*sizes, grid=(2, 4)), 8)
    assert row.algorithm == "gather" and row.bytes_by_formula is None


def test_a_wrong_product_is_not_timed(monkeypatch):
    class Off(pdla.Plan):
        def __call__(self, *operands, **options):
            C = super().__call__(*operands, **options)
            C.local[...] += 1
            return C

    def off(A, B, **keywords):
        plan = pdla.matmul.__globals__["plan_matmul"](A, B, **keywords)
        return Off(**{one.name: getattr(plan, one.name) for one in fields(plan) if one.init})

    monkeypatch.setattr("pdla.bench.measure.product.pdla.plan_matmul", off)
    row = measured(2, Case(8, 8, 8, grid=(1, 2)))
    assert not row.right
    assert (row.seconds, len(row.faults)) == ((), 2)


def test_flops_count_real_arithmetic():
    assert Case(2, 3, 4).flops == 48
    assert Case(2, 3, 4, "complex64").flops == 192


@pytest.mark.parametrize("P", [1, 2, 4, 6, 7, 61, 64, 100, 1009])
def test_the_suite_fits_any_count_and_its_square_divides(P):
    cases = list(suite.made_up(P))
    assert {case.algorithm for case in cases if case.grid == pdla.balanced_shape(P)} >= set(pdla.algorithms)
    assert {case.grid for case in cases} == {pdla.balanced_shape(P), (1, P)}
    square = cases[0]
    assert square.m == square.n == square.k
    assert all(square.n % parts == 0 for parts in (*square.grid, P))


def test_digits_are_read_without_importing_sklearn():
    path = digits_path()
    if path is None:
        pytest.skip("scikit-learn is not installed")
    X = digits(path)
    assert X.shape == (1797, 64)
    assert set(np.unique(X)) == set(range(17))


def test_without_sklearn_the_suite_says_so(capsys, monkeypatch):
    monkeypatch.setattr(suite, "digits_path", lambda: None)
    monkeypatch.setattr(suite, "made_up", lambda ranks: [Case(8, 8, 8)])
    status, out, _ = run(capsys, "--threads", "1")
    assert status == 0
    assert "pip install scikit-learn" in out


# ---------------------------------------------------------------------------------------------- whole runs


def test_the_suite_in_threads(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(suite, "SIDE", 48)
    status, out, _ = run(capsys, "--threads", "4", "--json", str(tmp_path / "out.json"))
    assert status == 0, out
    content = valid(tmp_path / "out.json")
    assert (content["world"], content["ranks"], content["mpi"]) == ("threads", 4, None)
    assert {row["algorithm"] for row in content["rows"]} == set(pdla.algorithms)
    assert all(row["right"] and row["checks"] and row["seconds"] for row in content["rows"])
    for heading in ("algorithm", "median ms", "GFLOP/s", "of peak", "received", "x bound", "workspace", "checked"):
        assert heading in out


def test_gemm_in_threads_explains_itself(capsys, tmp_path):
    options = ["--grid", "2x3", "--algorithm", "summa", "--panel", "5", "--transa", "C", "--dtype", "complex64"]
    status, out, _ = run(capsys, "gemm", *SIZES, *options, "--threads", "6", "--json", str(tmp_path / "out.json"))
    assert status == 0, out
    assert "roles" in out
    (row,) = valid(tmp_path / "out.json")["rows"]
    assert (row["m"], row["n"], row["k"], row["transa"], row["panel"]) == (30, 20, 25, "C", 5)
    assert (row["grid"], row["algorithm"], row["dtype"]) == ([2, 3], "summa", "complex64")
    assert {span[0] for span in row["split"]["timeline"]["spans"]} == set(range(6))
    assert row["predicted"] is None


@pytest.mark.parametrize("P", [1, 7, 4096])
def test_dry_runs_have_figures_and_no_times(capsys, tmp_path, P):
    status, out, _ = run(capsys, "gemm", "--dry-run", "-P", str(P), "--json", str(tmp_path / "out.json"))
    assert status == 0
    assert "median" not in out
    content = valid(tmp_path / "out.json")
    assert (content["world"], content["ranks"]) == ("dry", P)
    assert content["rows"][0]["seconds"] == content["rows"][0]["checks"] == []


def test_a_dry_run_plans_for_the_machine_for_which_it_predicts(capsys):
    _, out, _ = run(capsys, "gemm", "--dry-run", "-P", "64", "--machine", "a100x4")
    assert f"at {Machine.load('a100x4').flops:.3g} flops" in out and pdla.config.settings.machine == ""


@pytest.mark.parametrize("dtypes", [("float64", "float64"), ("float32", "complex64"), ("int32", "int32")])
def test_matrices_from_files(capsys, tmp_path, dtypes):
    a = np.arange(35).reshape(5, 7).astype(dtypes[0])
    b = (np.arange(21).reshape(3, 7) % 5).astype(dtypes[1])
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    files = ["--a", str(tmp_path / "a.npy"), "--b", str(tmp_path / "b.npy"), "--out", str(tmp_path / "c.npy")]
    status, out, _ = run(capsys, "gemm", *files, "--transb", "T", "--threads", "4")
    assert status == 0, out
    assert np.array_equal(np.load(tmp_path / "c.npy"), a @ b.T)


def test_files_that_do_not_fit(capsys, tmp_path):
    np.save(tmp_path / "a.npy", np.ones((3, 4)))
    files = ["--a", str(tmp_path / "a.npy"), "--b", str(tmp_path / "a.npy")]
    status, _, err = run(capsys, "gemm", *files, "--threads", "2")
    assert (status, err.count("\n")) == (2, 1)
    assert "3 x 4" in err


def test_an_out_without_a_folder_is_told_before_the_work(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(Bench, "measure", None)
    status, out, err = run(capsys, "gemm", *SIZES, "--threads", "2", "--out", str(tmp_path / "none" / "c.npy"))
    assert (status, out, err.count("\n")) == (2, "", 1) and "--out" in err and "there is no folder" in err
    status, out, err = run(capsys, "gemm", *SIZES, "--threads", "2", "--out", str(tmp_path / "c.xyz"))
    assert (status, out, err.count("\n")) == (2, "", 1) and "c.xyz" in err and ".npy" in err


def test_a_json_that_cannot_be_written(capsys, tmp_path):
    """Told before the work where there is no folder, or no file in it; after it where the disk says no."""
    for path in (tmp_path / "none" / "out.json", tmp_path, Path("/dev/full")):
        status, out, err = run(capsys, "gemm", *SIZES, "--threads", "2", "--json", str(path))
        assert (status, err.count("\n"), bool(out)) == (2, 1, path == Path("/dev/full"))
        assert str(path) in err


def test_a_blas_that_tells_no_processor_is_named_without_one():
    known = {"internal_api": "mkl", "version": "2026.2", "num_threads": 1}
    assert info._library({**known, "architecture": None}) == "mkl 2026.2"
    assert info._library({**known, "architecture": "Zen"}) == "mkl 2026.2 (Zen)"


def test_info_in_threads(capsys, tmp_path):
    status, out, _ = run(capsys, "info", "--threads", "2", "--json", str(tmp_path / "out.json"))
    assert status == 0
    for word in ("BLAS", "waiting", "devices    none used", "2 on 1 host"):
        assert word in out
    assert valid(tmp_path / "out.json")["rows"] == []


def test_the_schema_refuses_a_row_without_checks(tmp_path):
    schema = json.loads(SCHEMA.read_text())
    row = entry(replace(predict(Case(4, 4, 4, algorithm="gather"), 1), checks=("exact (NumPy)",)))
    only_row = {**schema, **schema["$defs"]["row"]}
    jsonschema.validate(json.loads(json.dumps(row)), only_row)
    del row["checks"]
    with pytest.raises(jsonschema.ValidationError, match="checks"):
        jsonschema.validate(json.loads(json.dumps(row)), only_row)
