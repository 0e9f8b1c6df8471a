# `make bench` and `make test` need python3, make and a package index, nothing else.
PYTHON = python3
MPI    = mpich
RANKS  = 4
ARGS   =

ifeq ($(MPI),mpich)
VENV   = .venv
EXTRA  = ,mpich
MPIRUN = $(VENV)/bin/mpirun
else ifeq ($(MPI),system)
# A folder of its own: the embedded MPI, once installed, would be found before the system's.
VENV   = .venv-system
OPEN   = $(findstring Open MPI,$(shell mpirun --version 2>&1))
ROOT   = $(filter 0,$(shell id -u))
MPIRUN = mpirun$(if $(OPEN), --oversubscribe$(if $(ROOT), --allow-run-as-root))
else
$(error MPI=$(MPI): say MPI=mpich (embedded, the default) or MPI=system (the mpirun on PATH))
endif

# Tests of all that pdla asks of the packages that it needs.
LOWEST  = $(addprefix array/test_,array.py blas.py dtypes.py numpy.py strips.py) io matrix bench/report bench/commands/test_compare.py \
          $(addprefix matmul/test_,api.py matmul.py) matmul/plan test_checks.py \
          linalg/products linalg/test_checks.py
SPREAD  = -n auto --maxprocesses 8 --dist worksteal
CLIENTS = gfortran libopenmpi-dev libscalapack-openmpi-dev libscalapack-mpich-dev scalapack-mpi-test mpich cp2k cp2k-data

PY    = $(VENV)/bin/python
READY = $(VENV)/.ready

.PHONY: help bench test test-full test-unit test-lowest test-clients test-gpu pblas clients cuda experiments lint dist docs clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:  ## list the targets
	@sed -n 's/^\([a-z%-]*\):.*## /  make \1	/p' Makefile | expand -t 20
	@echo '  MPI=system uses the MPI of the mpirun on PATH; MPIRUN="srun" or the like starts ranks instead; PYTHON=python3.12 chooses Python'

ifdef MAKE_TERMOUT  # make's own output is a terminal, of which the ranks, whose output mpirun takes, know nothing
bench: export COLUMNS := $(shell stty size <$(MAKE_TERMOUT) 2>/dev/null | cut -d' ' -f2)
bench: export FORCE_COLOR := 1
endif
bench: $(READY)  ## run the benchmark on RANKS=4 ranks, with ARGS="gemm -m 1000 ..."
	$(MPIRUN) -n $(RANKS) $(PY) -m pdla.bench $(ARGS)

test: test-unit test-1 test-2 test-3 test-4 test-6  ## run all tests

test-full: $(READY)-test  ## test products and factorizations for every combination of algorithm, dtype, ranks and sizes (hours)
	PDLA_TEST_FULL=1 PDLA_TEST_TIMEOUT=36000 $(PY) -m pytest $(SPREAD) --durations=0 tests/matmul/test_cover.py tests/matmul/schedules/test_fetch.py tests/linalg/test_zoo.py tests/house/test_kernels.py $(ARGS)

test-unit: $(READY)-test  ## run the tests that need no mpirun
	PDLA_TEST_MPIRUN="$(patsubst .venv/%,'$(CURDIR)'/.venv/%,$(MPIRUN))" $(PY) -m pytest $(SPREAD) $(or $(TESTS),tests --ignore=tests/mpi) $(ARGS)

test-lowest:  ## run the tests of matrices and products with the lowest versions that pyproject.toml allows
	mkdir -p build
	grep -Eo '"[a-z0-9_-]+>=[0-9.]+"' pyproject.toml | tr -d '"' | sed 's/>=/==/' | sort -u > build/lowest.txt
	PIP_CONSTRAINT=build/lowest.txt $(MAKE) VENV=.venv-lowest .venv-lowest/.ready-test
	.venv-lowest/bin/python -m pytest $(SPREAD) $(LOWEST:%=tests/%) $(ARGS)

test-%: $(READY)-test  ## run the MPI tests on that number of ranks: make test-4
	OMP_NUM_THREADS=1 $(MPIRUN) -n $* $(PY) -m pytest --with-mpi $(or $(TESTS),tests/mpi) $(ARGS)

pblas: $(READY)-native  ## build libpdla_pblas.so and libpdla.so, which C and Fortran call, in build/native
	$(PY) -m pdla.native.build --to build/native

clients: pblas  ## compile the C and Fortran programs of bench/clients for Debian's Open MPI
	$(MAKE) -C bench/clients

test-clients: $(READY)-test  ## test C and Fortran programs over pdla, ScaLAPACK's testers and CP2K among them; root installs these
	if [ "$$(id -u)" = 0 ]; then apt-get install -y -qq --no-install-recommends $(CLIENTS); fi
	PDLA_TEST_CLIENTS=1 PDLA_TEST_TIMEOUT=600 $(PY) -m pytest tests/clients $(ARGS)

cuda:  ## compile the kernels of cuda/, where there is an nvcc; build/cuda/resources.txt says what they use
	$(PYTHON) .ci/kernels.py

test-gpu:  ## run all that needs a GPU, where there is one: kernels, MPI tests, sanitizer, benchmarks; to build/gpu.json
	$(PYTHON) tests/gpu.py $(ARGS)

experiments: $(READY)-docs  ## check the papers' claims by dry runs and on an emulated cluster (root, 25 minutes): docs/experiments.md
	$(PY) -m bench.experiments --write $(ARGS)

lint: $(READY)-lint  ## check style, types, and which modules import which
	$(VENV)/bin/ruff check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

dist: $(READY)-dist  ## build the sdist and the wheel in dist/, and run each in a bare environment of every Python that is here
	rm -rf dist
	$(PY) -m build --outdir dist .
	$(PY) .ci/dist.py dist $(ARGS)

docs: $(READY)-docs  ## build docs/_build/index.html, and the notebooks docs/notebooks/*.ipynb
	rm -rf docs/generated
	$(PY) -m sphinx -W -q docs docs/_build

clean:  ## remove the environments and everything built
	rm -rf .venv .venv-system .venv-lowest build dist docs/_build docs/generated docs/notebooks/*.ipynb *.egg-info .hypothesis .*_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

$(PY):
	$(PYTHON) .ci/make_venv.py $(VENV)

$(READY): pyproject.toml setup.py | $(PY)
	$(PY) -m pip install --quiet --editable '.[bench$(EXTRA)]'
	@touch $@

$(READY)-%: $(READY)
	$(PY) -m pip install --quiet --editable '.[$*]'
	@touch $@
