# Needs Python ≥ 3.11 and make; everything else is installed into .venv.
#
#   make demo [PORT=8000] [HOST=127.0.0.1] [CHECK=1]    the demo site with all its services
#   make demo MODEL=local                               … with a small real language model on this machine
#   make test [ARGS="tests/unit -k journal"]            the test suite
#   make test-llm                                       what that real model streams through the whole stack
#   make chaos [N=40] [SEED=7]                          N runs while everything around them dies
#   make chaos TREE=500 [SEED=7]                        the same with one tree of so many runs, five deep
#   make mutants [ARGS="fence"]                         take each guard out, and see which test notices
#   make lint                                           what CI says about the code
#   make bench, make bench-peers                        the measurements, ours and beside others
#   make clean                                          remove what these made, the demo's data too

PY ?= python3
VENV := .venv/bin

.PHONY: demo test test-llm chaos mutants lint bench bench-peers clean

demo:
	@$(PY) .ci/install demo $(filter local,$(MODEL))
	@exec $(VENV)/python -m project.demo $(if $(filter 1,$(CHECK)),--check)

test:
	@$(PY) .ci/install dev
	@exec $(VENV)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

test-llm:
	@$(PY) .ci/install dev local
	@exec $(VENV)/python -m pytest -m llm $(ARGS)

chaos:
	@$(PY) .ci/install dev
	@exec $(VENV)/python -m tests.acceptance.crash.chaos --runs $(or $(N),40) $(if $(TREE),--tree $(TREE)) $(if $(SEED),--seed $(SEED))

mutants:
	@$(PY) .ci/install dev
	@exec $(VENV)/python -m tests.mutants $(ARGS)

lint:
	@$(PY) .ci/install dev
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	$(VENV)/lint-imports
	$(VENV)/python manage.py makemigrations --check --dry-run

bench:
	@$(PY) .ci/install dev
	@exec $(VENV)/python -m benchmarks.run

bench-peers:
	@$(PY) .ci/install dev
	@exec $(VENV)/python -m benchmarks.peers

clean:
	rm -rf .venv .bench-venv .demo build dist db.sqlite3* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
