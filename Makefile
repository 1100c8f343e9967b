# Allreduce Lab. Two commands: `make lab` opens the notebooks, `make test` runs all tests.
PYTHON ?= python3
MPI ?= mpich
VENV ?= .venv
TESTS ?=  # all by default; for example TESTS=tests/cluster

.PHONY: lab test env notebooks lint lock clean

lab: env  ## make the environment, start four MPI engines, open JupyterLab
	@"$(VENV)/bin/labkit" lab

test: env  ## make the environment, run all tests
	@"$(VENV)/bin/python" -m pytest $(TESTS)

env:  ## make the environment, unless it is up to date
	@"$(PYTHON)" tools/make_env.py "$(VENV)" "$(MPI)"

notebooks: env  ## run all notebooks and save their outputs, ready to commit
	@"$(VENV)/bin/python" tools/run_notebooks.py notebooks/*.ipynb

lint: env  ## ruff and mypy
	@"$(VENV)/bin/ruff" check . && "$(VENV)/bin/ruff" format --check . && "$(VENV)/bin/mypy"

lock: env  ## lock the newest versions of all packages, for every Python and system
	@"$(VENV)/bin/python" -m pip install -q uv
	@"$(VENV)/bin/python" tools/make_lock.py

clean:  ## remove the environment
	rm -rf "$(VENV)"
