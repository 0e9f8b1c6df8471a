"""Run a case: python -m bench NAME [words], or on the ranks of a job by mpirun -n 4 python ..."""

from importlib import import_module
from pkgutil import iter_modules

from bench import cases
from bench.common.case import CASES, make_parser


def main(words: list[str] | None = None) -> None:
    for module in iter_modules(cases.__path__, "bench.cases."):
        import_module(module.name)
    given = make_parser().parse_args(words)
    CASES[given.name].run(given)


if __name__ == "__main__":
    main()
