# The two commands of the README are `make demo` and `make test`. Each sets up what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Extra arguments for the tests, for example: make test ARGS="-k ledger"
ARGS ?=
# Test processes. The two sites' container tests are all in one of them, which mostly waits, and so are those on PostgreSQL.
WORKERS ?= 4
# Where each demo makes a folder of its own, for example: make demo OUTPUT=/tmp/demo
OUTPUT ?= demo-output

# The networks here are small: two threads that wait for each other on a busy machine are slower than one.
export OMP_NUM_THREADS ?= 1

# Commands and tests start hundreds of interpreters: each would compile this project anew where bytecode is not kept.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-quick test-containers test-exhaustive set-up lint types format proto lock bom audit docs settings-page accountant-table proofs-reviewed clean

help:
	@echo "make demo              adapt a model to a rehearsal hospital on this machine (about two minutes)"
	@echo "make test              lint, types, import directions and the tests, the story in containers too"
	@echo "make test-quick        lint, types and the tests that start no process and open no socket, without long searches"
	@echo "make test-exhaustive   random kills, long timing runs, the air gap, twenty times the examples, new seeds (hours)"
	@echo "make test-containers   all that is tested in containers: two hospitals, lost networks, the air gap too"
	@echo "make docs              build the documentation site into .build/site"
	@echo "make accountant-table  write docs/privacy/accountant.md"
	@echo "make proofs-reviewed   after you read a proof again: pin it to its files as they are (PAGES=bracket.md)"
	@echo "make settings-page     write docs/reference/settings.md from both parties' settings"
	@echo "make proto             regenerate shared/core/wire/v1 after a change to proto/"
	@echo "make lock              resolve requirements.lock anew after a change to pyproject.toml"
	@echo "make bom               list the dependencies with their digests (dpswd/dependencies.cdx.json)"
	@echo "make audit             known vulnerabilities of the locked dependencies, where a database can be reached"
	@echo "make clean             remove .venv and caches"

# The virtual environment is ready when this file is newer than what it was made from.
$(VENV)/.ready: requirements.lock deploy/build.lock deploy/torch-cpu.lock deploy/torch-cuda.lock pyproject.toml deploy/set-up.sh
	@PYTHON="$(PYTHON)" bash deploy/set-up.sh $(VENV)
	@touch $@

set-up: $(VENV)/.ready

demo: set-up
	$(BIN)/dpswd-client demo --output $(OUTPUT)

# The container tests start an engine of their own (root and Debian), or use the one in DOCKER_HOST; where there can be
# none they are skipped, and the summary says so.
test: set-up lint
	@$(TYPED) $(BIN)/pytest --collect-only --quiet >/dev/null; \
	  $(BIN)/pytest --numprocesses $(WORKERS) $(ARGS); tests=$$?; wait $$types && exit $$tests

# These wait for nothing: a process for each processor.
test-quick: set-up lint
	@$(TYPED) $(BIN)/pytest --numprocesses logical -m "not long and not exhaustive" tests/unit $(ARGS); \
	  tests=$$?; wait $$types && exit $$tests

# Types are looked at beside the tests, and behind them where processors are short. Before all tests begin their
# bytecode is written: each of more test processes than processors would compile all of it for itself.
TYPED = { nice $(BIN)/mypy; } & types=$$!;

test-containers: set-up
	$(BIN)/pytest -m containers --timeout 7200 $(ARGS)

# What was found is printed with its seed or its example; put it into the test as a case of its own.
test-exhaustive: set-up
	HYPOTHESIS_PROFILE=explore $(BIN)/pytest --numprocesses $(WORKERS) -m "exhaustive or hypothesis" --timeout 7200 $(ARGS)
	$(BIN)/pip install --quiet --require-hashes --requirement deploy/mutants.lock
	$(BIN)/python -m benchmarks.mutants cover
	$(BIN)/python -m benchmarks.mutants run --seeds $$(date +%s)
	$(BIN)/python -m benchmarks.mutants summary --results measured/mutants.jsonl

lint: set-up
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: set-up
	$(BIN)/mypy

format: set-up
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: set-up
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m deploy.protocol

PIP_COMPILE = $(BIN)/pip-compile --quiet --generate-hashes --strip-extras \
  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
  --unsafe-package torch --unsafe-package setuptools --unsafe-package pip

# The images install less than a developer does, in the same versions. those of torch are kept by hand: pip-compile
# would download the wheels of all platforms, dozens of gigabytes, for digests that the index states.
# NVFlare is left out: it asks for much, and its tests are skipped where it is not installed.
lock: EXTRAS = client cluster curator dev docs embed oidc onnx pkcs11 sources test tracing transport trees
lock:
	$(PIP_COMPILE) $(addprefix --extra ,$(EXTRAS)) --output-file requirements.lock pyproject.toml
	$(PIP_COMPILE) --constraint requirements.lock --extra curator --output-file deploy/images/curator.lock pyproject.toml
	$(PIP_COMPILE) --constraint requirements.lock --extra client --extra transport --output-file deploy/images/client.lock pyproject.toml
	$(PIP_COMPILE) --constraint requirements.lock --extra curator --extra cluster --output-file deploy/images/cluster.lock pyproject.toml
	$(PIP_COMPILE) --allow-unsafe --constraint requirements.lock --output-file deploy/build.lock deploy/build.in
	$(PIP_COMPILE) --allow-unsafe --constraint requirements.lock --output-file deploy/mutants.lock deploy/mutants.in
	sed -i '/^# WARNING/,$$d' requirements.lock deploy/build.lock deploy/mutants.lock deploy/images/*.lock
	$(BIN)/python -m deploy.bom

bom: set-up
	$(BIN)/python -m deploy.bom

# A package that the database does not know counts as a failure: "nothing known" must not mean "nobody was asked".
AUDIT_SERVICE ?= pypi
audit: set-up
	@for lock in requirements.lock deploy/build.lock deploy/mutants.lock deploy/kubernetes.lock deploy/torch-cuda.lock; do \
	  $(BIN)/pip-audit --strict --require-hashes --disable-pip --progress-spinner off --vulnerability-service $(AUDIT_SERVICE) \
	    --requirement $$lock || { echo "audit: $$lock has vulnerabilities (listed above), or the database" \
	    "'$(AUDIT_SERVICE)' could not be reached or does not know a package: then nothing is known of it" >&2; exit 1; }; \
	done

docs: set-up
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

settings-page: set-up
	PYTHONPATH=. $(BIN)/python deploy/settings_page.py > docs/reference/settings.md

accountant-table: set-up
	$(BIN)/python -m benchmarks.accountant table --page docs/privacy/accountant.md

# Which pages: all that are out of date, or PAGES="bracket.md events.md".
proofs-reviewed: set-up
	$(BIN)/python -m deploy.proofs --reviewed $(PAGES)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-output
