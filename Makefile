# Penstock. `make` alone lists what can be done.
#
# Needs Python 3.11 or newer, make, and a C compiler where no wheel of the embedded Redis fits the Python (3.13 and newer).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO := .demo
ARGS ?=

# Without it, each process of the tests compiles what it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup lock demo test test-all test-fast acceptance clients simulate mutations fuzz reference docs snapshots lint prose bench quality clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s  %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo 'PYTHON=python3.12 chooses the Python of a new .venv, ARGS="-k lanes -x" goes to pytest or the benchmark,'
	@echo 'WORKERS=2 says how many tests run at once, INSTALLER=pip installs without uv.'

setup: $(INSTALLED) ## Make .venv with everything in it; done again only when the dependencies change

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'Penstock needs Python 3.11 or newer. Name one: make setup PYTHON=python3.12' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
		echo '$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Each file that is installed has one of the hashes in the locks, which are whole, so nothing is resolved; what builds
# Penstock itself is one of them.
LOCKS := requirements.lock requirements-dev.lock
INSTALLER ?= uv
INSTALL := INSTALLER=$(INSTALLER) $(BIN)/python deploy/install.py

# All is compiled here: several processes would compile it at once at the first start.
$(INSTALLED): pyproject.toml $(LOCKS) | $(BIN)/python
	$(INSTALL) $(BIN)/python --compile --no-deps --require-hashes $(addprefix -r ,$(LOCKS)) -- --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q celeryconfig.py penstock_entry.py pipeline tasks
	@touch $@

lock: $(BIN)/python ## Renew the locks after a change of pyproject.toml or constraints.txt
	$(BIN)/python deploy/lock.py

# Nothing of the caller's own settings: the demo is the embedded stack and the local converter, in a folder of its own.
demo: setup ## Convert examples/about-penstock.pdf with no service at all, and show the Markdown
	@mkdir -p $(DEMO)
	@env -u PENSTOCK_DATABASE_URL -u PENSTOCK_REDIS_URL -u PENSTOCK_CONFIG \
		PENSTOCK_DATA_DIR=$(DEMO)/data PENSTOCK_STACK_LINGER_S=0 \
		$(BIN)/penstock convert examples/about-penstock.pdf --provider local --fresh --force -o $(DEMO)/about-penstock.md
	@echo && cat $(DEMO)/about-penstock.md && echo
	@$(BIN)/python -c 'import json, sys; print(*(f"{k}: {v}" for k, v in json.load(sys.stdin)["totals"].items()), sep=", ")' \
		< $(DEMO)/about-penstock.manifest.json

# Tests that start fleets wait a good deal, so two workers more than there are cores, up to four. Each has a Redis and a
# PostgreSQL of its own. The longest tests come first.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); [ $$n -lt 2 ] && echo 3 || echo 4)
PARALLEL = -n $(WORKERS) --dist loadgroup --no-loadscope-reorder

# Which of the tests that take longest, and of the repetitions on PostgreSQL, run besides: none, turn (an eighth, by the
# commit), 3/8, all.
ROTATING ?= none

test: setup ## Run the tests, in a quarter of an hour on two cores; they bring their own Redis and PostgreSQL
	$(BIN)/python -m pytest $(PARALLEL) --rotating $(ROTATING) $(ARGS)

test-all: ROTATING = all
test-all: test ## Run every test, all on both databases, with every hostile input

FAST := tests/unit $(addprefix tests/integration/,engine storage documents providers interfaces)

test-fast: setup ## Run what takes a minute: unit tests and some integration tests on SQLite, without the slow ones
	$(BIN)/python -m pytest $(PARALLEL) $(FAST) -m 'not slow' -k 'not postgresql' $(ARGS)

# One test after another: they share the Redis, and empty it.
ACCEPTANCE := $(addprefix tests/,integration/nodes/state integration/nodes/gateway integration/engine/test_gate.py \
	integration/providers/test_gates.py integration/providers/test_gate_configuration.py e2e/test_two_gateways.py)

acceptance: setup ## Nodes and gates on a Redis of yours: PENSTOCK_TEST_REDIS_URL, _MODE, _CLUSTER_URLS (docs/how-to/nodes.md)
	$(BIN)/python -m pytest $(ACCEPTANCE) -k 'not postgresql' $(ARGS)

# Other projects' clients, in an environment of their own: they bring 700 MB, and must not be able to import Penstock.
# Node.js comes with it, if the machine has none.
CLIENTS := .venv-clients
CLIENTS_INSTALLED := $(CLIENTS)/.installed
CLIENTS_BIN := $(CLIENTS)/bin

$(CLIENTS_INSTALLED): $(addprefix tests/clients/,constraints.txt open_webui_loaders.py nodejs.py node/package.json assistant/package.json conformance/package.json) \
		| $(INSTALLED)
	$(PYTHON) -m venv $(CLIENTS)
	$(INSTALL) $(CLIENTS_BIN)/python --no-compile -c tests/clients/constraints.txt \
		docling-client docling-serve-haystack langchain-docling fastapi pytest pytest-timeout websockets
	$(CLIENTS_BIN)/python tests/clients/open_webui_loaders.py $(CLIENTS)/open-webui
	$(CLIENTS_BIN)/python tests/clients/nodejs.py
	@touch $@

clients: setup $(CLIENTS_INSTALLED) ## Run other projects' clients, an inference node and an assistant in JavaScript, against a stack
	@cd tests/clients && PENSTOCK=$(CURDIR)/$(BIN)/penstock $(CURDIR)/$(CLIENTS_BIN)/python -m pytest -c pytest.ini \
		--rootdir . --confcutdir . -p no:cacheprovider $(ARGS)

SEEDS ?= 10000
DATABASE ?= sqlite

simulate: setup ## Whole fleets, of workers and of gateways, on virtual time, with faults: SEEDS=10000, or the one that failed: SEED=1234 (DATABASE=postgresql)
	$(BIN)/python -m tests.simulation --database $(DATABASE) $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

mutations: setup ## Take safeguards away, one at a time, and count the seeds until the simulation notices
	$(BIN)/python -m tests.simulation.mutations $(ARGS)

SECONDS ?= 600

fuzz: setup ## Hostile inputs for all that reads files, replies and words: SECONDS=3600, ARGS="pdf markdown" for these alone
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(ARGS)

reference: setup ## Write the pages of docs/reference that the code makes: commands, endpoints, events, settings and metrics
	$(BIN)/python -m tests.support.reference

docs: setup ## Build the documentation as a site in site/; a link that leads nowhere fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

snapshots: setup ## Write tests/data/snapshots: routes, commands, settings, tables as the code has them
	$(BIN)/python -m tests.support.snapshots

lint: setup ## Style, formatting, types, layers and plain words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory prose

# Lower a limit when the words are plainer: none may rise.
prose: setup ## Count idioms that hide who acts, for each 1,000 words; ARGS="--list 30" shows the worst lines
	@$(BIN)/python -m tests.support.prose --limit 0.5 $(ARGS) pipeline tasks
	@$(BIN)/python -m tests.support.prose --limit 0.3 $(ARGS) tests
	@$(BIN)/python -m tests.support.prose --limit 0.3 $(ARGS) docs README.md
	@$(BIN)/python -m tests.support.prose --limit 0.4 $(ARGS) benchmarks deploy

bench: setup ## Measure the documents flow (ARGS=--quick: shorter), and print a table
	$(BIN)/python -m benchmarks.documents $(ARGS)

quality: setup ## Count what local conversion gets right, beside its rivals (ARGS=--failures: and wrong)
	$(BIN)/python -m benchmarks.conversion $(ARGS)

clean: ## Remove caches, builds and the demo's data; .venv stays
	rm -rf $(DEMO) build dist site .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
