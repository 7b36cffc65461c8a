# Needs Python 3.11 or later, git and make; everything else goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
# Test processes that run at once. They wait more than they compute, so four keep two cores busy.
WORKERS ?= 4

.DEFAULT_GOAL := help
.PHONY: help install demo test tests style types models notebook trackers wan machines slurm ray compose hostile browser bench tables soak site lint format protos clean

help: ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | awk -F '\t' '{printf "  make %-9s %s\n", $$1, $$2}'

install: $(INSTALLED) ## set up .venv (skipped when nothing changed)

# pip takes torch from the index it is configured for. On a machine without a GPU,
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu saves some gigabytes.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=python3.12 install" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: install ## train on four nodes, lose some, end with the same bits
	$(BIN)/python -m culm demo

# mypy computes on one core: while it does, tests use the others. What takes a second goes first.
test: install style ## all checks: style, then types, imports and tests at once
	@$(MAKE) --no-print-directory -j 2 types tests

# Processes by the hundred are faster where Python keeps what it has compiled.
tests: install
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q tests --ignore tests/wan --ignore tests/machines --ignore tests/compose --ignore tests/browser --ignore tests/models --ignore tests/notebook --ignore tests/engines

models: install ## 80 models and 50 ways of training them, each on a grid that loses two nodes: the same bits?
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pytorch_optimizer
	CULM_SOAK=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q -rs tests/models tests/unit/test_bamboo_jobs.py

notebook: install ## run examples/quickstart.ipynb in a kernel of Jupyter
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[notebook]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs tests/notebook

trackers: install ## TensorBoard, trackio, Weights & Biases and MLflow: is every number there once?
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[tensorboard,trackio,wandb,mlflow]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs tests/trackers

# Root makes network namespaces; CULM_WAN names the relay between them (tests/wan/network.py says what it is).
wan: install ## nodes that are 20 ms apart, and cut off from each other; as root: CULM_WAN=RELAY make wan
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs tests/wan

# Root makes namespaces. Kubernetes' part needs Debian's redis-server, since the wheel's knows no TLS, and curl.
machines: install ## deploy/vm and deploy/kubernetes as they are, each machine a namespace of its own: the same bits; as root
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs tests/machines

# Needs Debian's slurmctld, slurmd and munge, and root: the test starts them on loopback, and ends them.
slurm: install ## culm up --on slurm: a real Slurm takes a machine, another one is lost; the same bits
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs tests/engines/test_slurm.py

ray: install ## culm up --on ray: a real Ray drains a machine, another one is lost, the same bits; culm plan --on ray
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs tests/engines/test_ray.py tests/engines/test_spread.py

compose: install ## build the images and try docker compose on a real engine: kills, a stopped Redis, the same bits
	docker compose build coordinator stage ui
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs -o faulthandler_timeout=1800 tests/compose

# Runs the slow tests too. The chaos needs a Docker engine, as make compose does, and is skipped without one.
CHAOS_MINUTES ?= 10
hostile: install ## everything that broke Culm once, then CHAOS_MINUTES=10 of chaos in compose
	-docker compose build coordinator stage ui
	CULM_SOAK=1 CHAOS_MINUTES=$(CHAOS_MINUTES) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs -s \
		-o faulthandler_timeout=0 tests/hostile tests/compose/test_chaos.py

# CULM_CHROMIUM names an installed Chromium; without it playwright's own is used, if it has one. axe-core is npm's: without
# npm the pages are looked at all the same, but for what axe-core finds. CULM_SCREENSHOTS=FOLDER keeps a picture of each.
AXE := 4.14.1
AXE_FOLDER := $(CURDIR)/build/axe-core-$(AXE)
browser: install ## the dashboard in a real browser: its pages in every state of a run, and its button, which takes a node
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt playwright
	-test -f $(AXE_FOLDER)/package/axe.min.js || ! command -v npm || { mkdir -p $(AXE_FOLDER) && cd $(AXE_FOLDER) \
		&& npm pack --silent axe-core@$(AXE) && tar -xzf axe-core-$(AXE).tgz; }
	CULM_AXE="$${CULM_AXE-$$(ls $(AXE_FOLDER)/package/axe.min.js)}" OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs tests/browser

bench: install ## measure beside the peers, in turn; writes benchmarks/results.json, its picture and docs/performance.md
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks

# As published, 400 seeds of BERT and GPT-2 and 50 of the others take days of one core: SEEDS=2 takes two of each. It goes
# on where it was. CULM_TRACES names a folder of traces; without it markets are drawn alone.
SEEDS ?= 0
tables: install ## the tables and pictures of docs/value.md and docs/graphs_value.md, from simulated runs; or SEEDS=2 CULM_TRACES=FOLDER
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python -m benchmarks.sweep --seeds $(SEEDS) --processes $$(nproc)
	$(BIN)/python -m benchmarks.traces
	$(BIN)/python -m benchmarks.bubbles
	$(BIN)/python -m benchmarks.assumed
	$(BIN)/python -m benchmarks.graph_value
	$(BIN)/python -m benchmarks.tables

# On two cores it takes four hours. SPLITS=4 GROUP=1 runs the first quarter alone, and so on to GROUP=4.
SPLITS ?= 1
GROUP ?= 1
soak: install ## the long tests, 8 hours of one core: every kill on every stage, 250,000 random histories; or SPLITS=4 GROUP=1
	CULM_SOAK=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q tests/integration tests/simulation \
		--splits $(SPLITS) --group $(GROUP) --splitting-algorithm least_duration

site: install ## the pages as a site, in build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

lint: style types ## style, types, and who may import whom

style: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy
	PYTHONPATH=. $(BIN)/lint-imports

format: install ## put the code into the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: install ## generate the committed stubs from the .proto files
	$(BIN)/python -m culm.protos.generate

clean: ## remove .venv and what tools and runs left behind
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .culm runs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
