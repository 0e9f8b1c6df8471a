"""The benchmark's command line, without MPI: arguments, help, and how it ends."""

import os
import signal
import subprocess
import sys

import pytest
from helpers.commands import SIZES, faults, on_a_screen, run

import pdla
from pdla.bench.cli import main, parse
from pdla.bench.commands import COMMANDS
from pdla.bench.measure.product import Bench
from pdla.config import LAUNCHERS

SLOW = ["scale", "--product", "100000x100000x100000", "--to", "10000000", "--factor", "2"]  # its last line is long after its first


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
        (["gem"], "did you mean 'gemm'?"),
        (["--treads", "4"], "unrecognized argument: --treads; did you mean '--threads'? (see python -m pdla.bench --help)"),
        (["gemm", "--algoritm=summa"], "--algoritm=summa; did you mean '--algorithm'? (see python -m pdla.bench gemm --help)"),
        (["gemm", "--algorithm", "suma"], "'c-stationary'; did you mean 'summa'?"),
        (["gemm", "--dtype", "flaot64"], "did you mean 'float64'?"),
        (["gemm", "--threads", "2", "--machine", "laptpo"], "did you mean 'laptop'?"),
        (["--threads", "0"], "'0'"),
        (["--threads", "9999999"], "at most 10000; --dry-run -P 9999999"),
        (["--dry-run"], "-P"),
        (["-P", "64"], "--dry-run"),
        (["--dry-run", "-P", "64", "--threads", "2"], "threads"),
        (["--dry-run", "-P", "10000001"], "up to 10000000 ranks"),
        (["predict", "-P", "10000001"], "up to 10000000 ranks"),
        (["scale", "--to", "10000001"], "up to 10000000 ranks"),
        (["calibrate", "--dry-run"], "calibrate measures a machine, and a dry run has none: leave out --dry-run and -P"),
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
        (["predict", "-P", "4", "--layers", "9" * 309], "a whole number from 1 to 9223372036854775807"),
        (["scale", "--layers", "9" * 309], "a whole number from 1 to 9223372036854775807"),
        (["--threads", "2", "hpl", "--nb", f"32,{2**40 + 1}"], f"'{2**40 + 1}' is too many: up to {2**40}"),
        (["--threads", "2", "lu", "--nb", f"{2**40 + 1}"], f"'{2**40 + 1}' is too many: up to {2**40}"),
        (["--threads", "2", "gemm", "--a", "", "--b", ""], "the ending tells the format"),
        (["predict", "-P", "4", "--csv", "x", "--json", "./x"], "--csv x: --json writes this file; give another"),
        (["--json", "B.npy", "gemm", "--a", "A.npy", "--b", "B.npy"], "--json B.npy: gemm reads this file; give another"),
        (["gemm", "--machine", "x.toml", "--out", "x.toml"], "--out x.toml: gemm reads this file; give another"),
        (["gemm", "-m", "x"], "(see python -m pdla.bench gemm --help)"),
        (["report", "none.json"], "none.json: No such file or directory"),
        (["compare", "none.json", "none.json"], "none.json: No such file or directory"),
    ],
)
def test_bad_arguments_are_one_line_and_status_2(capsys, words, quoted):
    status, out, err = run(capsys, *words)
    assert (status, err.count("\n")) == (2, 1) and quoted in err
    assert not out or (out.startswith(("pdla ", "C = A B", "24 layers")) and out.count("\n") <= 2)  # what was begun


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
    assert f"{about[1:]}." in " ".join(out.split()) and f"python -m pdla.bench {command}" in example


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("words", [[], *([command] for command in COMMANDS)], ids=" ".join)
def test_help_fits_the_screen(capsys, words, columns):
    with on_a_screen(columns):
        assert main([*words, "--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= columns


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"pdla {pdla.__version__}\n", "")


def test_the_first_line_says_what_runs_where(capsys):
    for where, told in (["--threads", "2"], "2 ranks, threads of one process"), (["--dry-run", "-P", "1"], "1 rank, run dry"):
        _, out, _ = run(capsys, *where, *TINY)
        assert out.splitlines()[0] == f"pdla {pdla.__version__}: gemm on {told}"


def test_help_leaves_out_what_a_command_refuses(capsys):
    options = "--dry-run", "-P RANKS", "--json FILE"
    told = {command: run(capsys, command, "--help")[1] for command, has in COMMANDS.items() if not has.alone}
    shown = {command: [option for option in options if option in text] for command, text in told.items()}
    factored = {command: ["--dry-run", "-P RANKS"] for command in ("cholesky", "lu", "qr", "solve", "tridiagonal", "trsm")}
    assert shown == {"gemm": list(options), "hpl": [], "info": ["--json FILE"], "calibrate": [], **factored}


def begun(*words):
    """The program in a process of its own, which no launcher has started."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    command = [sys.executable, "-u", "-m", "pdla.bench", *words]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_pipe_that_is_closed_early_ends_it_quietly():
    with begun(*SLOW) as job:
        job.stdout.readline()
        job.stdout.close()
        assert faults(job.stderr.read()) == ""
    assert job.returncode == -signal.SIGPIPE


TINY = "gemm", "-m", "8", "-n", "8", "-k", "8"


@pytest.mark.parametrize("words", [["--help"], ["--threads", "2", *TINY]])
@pytest.mark.parametrize("option", [[], ["-u"]])
def test_a_full_disk_is_one_line(words, option):
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, *option, "-m", "pdla.bench", *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, faults(done.stderr)) == (2, "pdla.bench: standard output: No space left on device\n")


def test_without_an_output_it_leaves_its_files_all_the_same(tmp_path):
    command = f"{sys.executable} -m pdla.bench --threads 2 --json {tmp_path}/out.json {' '.join(TINY)} >&-"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, faults(done.stderr)) == (0, "") and (tmp_path / "out.json").exists()


def test_a_terminal_of_few_characters_gets_a_table():
    command, environ = [sys.executable, "-m", "pdla.bench", "--threads", "2"], os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*command, *TINY], env=environ, capture_output=True, text=True)
    assert done.returncode == 0 and "GFLOP/s" in done.stdout


def test_ctrl_c_ends_it_quietly():
    with begun(*SLOW) as job:
        job.stdout.readline()
        job.send_signal(signal.SIGINT)
        assert faults(job.stderr.read()) == ""
    assert job.returncode == -signal.SIGINT


def test_too_little_memory_is_one_line_on_one_rank_of_mpi_too():
    with begun("gemm", "-m", "4300000", "-n", "4300000", "-k", "1") as job:  # more than a process can address
        err = faults(job.stderr.read())
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
    told = faults(done.stderr)
    assert (done.returncode, bool(done.stdout), told.count("\n")) == (status, status == 0, int(status != 0)), told


@pytest.mark.parametrize(
    ("words", "status"),
    [(["--help"], 0), (["--threads", "2", "gemm", "-m", "64"], 0), (["--dry-run", "-P", "4"], 0), (["info"], 2)],
)
def test_threads_and_dry_runs_need_no_mpi(words, status):
    code = "import sys; sys.modules['mpi4py'] = None; from pdla.bench.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    told = faults(done.stderr)
    assert (done.returncode, bool(done.stdout), told.count("\n")) == (status, status == 0, int(status != 0)), told
