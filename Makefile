# Needs Python ≥ 3.11 and make; everything else is installed into .venv.
#
#   make                                                these lines
#   make demo [PORT=8000] [HOST=127.0.0.1] [CHECK=1]    the demo site with all its services
#   make demo MODEL=local                               … with a small real language model on this machine
#   make test [ARGS="tests/unit -k journal"]            the gate: the tests before each change; RAVI_TEST_SLOW=3 triples all bounds
#   make test-crash                                     death at each point, campaigns, races and volumes at full size
#   make test-all                                       all tests, whole sites included; ARGS=--record-durations see tests/support/durations.py
#   make test-sites                                     of these, the sites that install the app, one of each kind
#   make coverage [ARGS=…]                              all tests with branch coverage, child processes included
#   make test-clients                                   of these, those with clients that others wrote, and generated ones
#   make providers [LITELLM=latest] [HISTORIES=2000]    of these, those at stand-ins of providers; with the newest litellm
#   make test-llm                                       what that real model streams through the whole stack
#   make chaos [N=40] [FAULTS=600] [SEED=7]             N runs while everything around them dies
#   make chaos BACKENDS=2500 [SEED=7]                   one worker that loses so many connections to PostgreSQL
#   make chaos STRESS=600 [SEED=7]                      people and an operator do all they can, on both databases
#   make chaos TREE=500 [SEED=7]                        the same with one tree of so many runs, five deep
#   make simulate [SECONDS=60] [SEED=7]                 schedules of workers on one thread, or all moves of one
#   make mutants [ARGS="fence"]                         remove each guard in tests/support/guards, and check that its test fails
#   make mutants ARGS=--all                             … and search for another test where that one is gone or passes
#   make walks [ARGS=people]                            the files and functions that three requests enter, by folder
#   make freeze VERSION=0.1.0                           the journals and databases that each later release has to read
#   make lint                                           what CI says about the code
#   make docs                                           the site of the docs, in .cache/docs; each warning is an error
#   make dist                                           build the wheel and the source archive into dist, and check both
#   make vendor                                         copy the pinned modules of the pages and their tests from npm
#   make bench [ARGS="--only tree"], make bench-peers   the measurements, ours and beside others
#   make soak [SECONDS=600]                             sockets of 50 users while workers and Valkey die
#   make screenshots                                    the pictures of README and docs, in docs/images
#   make clean                                          remove what these made, the demo's data too

PY ?= python3
VENV := .venv/bin

# Compiled once for all: a test run starts many processes.
export PYTHONPYCACHEPREFIX := $(CURDIR)/.cache/pyc
unexport PYTHONDONTWRITEBYTECODE

# The files of tests are handed out one after the other, the longest first. Three workers also on two cores: tests wait
# for their processes.
PYTEST := $(VENV)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations 20

# Clients in Node, where it is installed.
CLIENTS := tests/clients/node_modules/assistant-ui.js

.PHONY: help demo test test-crash test-all test-sites test-clients coverage providers test-llm chaos simulate mutants walks freeze lint docs dist vendor bench bench-peers soak screenshots clean

help:
	@sed -n '/^#/!q; s/^# *//p' Makefile

demo:
	@$(PY) .ci/install demo $(filter local,$(MODEL))
	@exec $(VENV)/python -m project.demo $(if $(filter 1,$(CHECK)),--check)

test:
	@$(PY) .ci/install dev
	@exec $(PYTEST) $(ARGS)

test-crash:
	@$(PY) .ci/install dev
	@exec $(PYTEST) -m "crash and not llm" $(ARGS)

test-all: $(CLIENTS)
	@$(PY) .ci/install dev
	@exec $(PYTEST) -m "not llm" $(ARGS)

coverage:
	@$(PY) .ci/install dev
	@rm -rf .cache/coverage
	@$(MAKE) --no-print-directory test-all ARGS="--cov --cov-report= $(ARGS)"; code=$$?; \
	echo "coverage: $$($(VENV)/coverage report --format=total --precision=2) %"; exit $$code

test-sites:
	@$(PY) .ci/install dev
	@exec $(VENV)/python -m pytest -m full tests/acceptance/sites $(ARGS)

$(CLIENTS): $(addprefix tests/clients/,package.json package-lock.json assistant-ui.jsx docs.jsx) $(wildcard tests/clients/docs/*) ravi_django/static/ravi/ravi-client.js
	@! command -v npm >/dev/null || npm ci --silent --prefix tests/clients

GENERATED := tests/clients/generated

tests/clients/%/node_modules: tests/clients/%/package-lock.json
	@! command -v npm >/dev/null || npm ci --silent --prefix $(@D)

COPILOTKIT := tests/clients/copilotkit

$(COPILOTKIT)/node_modules/pages: $(addprefix $(COPILOTKIT)/,package.json package-lock.json pages.jsx)
	@! command -v npm >/dev/null || { cd $(COPILOTKIT) && npm ci --silent --ignore-scripts && npm run --silent build; }

.cache/generated-clients: $(GENERATED)/requirements.txt
	@rm -rf $@ && $(PY) -m venv $@ && $@/bin/python -m pip install --quiet --no-compile -r $< && touch $@

.cache/clients-%: tests/clients/python/%.lock.txt
	@rm -rf $@ && $(PY) -m venv $@ && $@/bin/python -m pip install --quiet --no-compile -r $< && touch $@

LIVE := tests/clients/node/node_modules .cache/clients-openai2 .cache/clients-openai3

test-clients: $(CLIENTS) $(GENERATED)/node_modules $(COPILOTKIT)/node_modules/pages .cache/generated-clients $(LIVE)
	@$(PY) .ci/install dev
	@exec $(VENV)/python -m pytest -m full tests/acceptance/api/test_agui_clients.py tests/acceptance/api/test_dojo.py tests/acceptance/api/test_generated_clients.py tests/acceptance/api/test_live_clients.py tests/acceptance/ws/test_programs.py $(ARGS)

PROVIDERS = tests/unit/capabilities/llm $$(grep -rlE 'support.(providers|histories)' tests --include='test_*.py' | grep -v capabilities/llm)
LATEST := .cache/litellm-latest

providers:
ifeq ($(LITELLM),latest)
	@rm -rf $(LATEST) && $(PY) -m venv $(LATEST)
	@$(LATEST)/bin/python -m pip install --quiet --no-compile --upgrade -e .[dev] litellm
	@$(LATEST)/bin/python -m pytest -n 3 --dist loadfile -m "not llm" $(PROVIDERS) $(ARGS); \
	code=$$?; $(LATEST)/bin/python -m pip list | grep '^litellm '; rm -rf $(LATEST); exit $$code
else
	@$(PY) .ci/install dev
	@$(VENV)/python -m pip install --quiet --no-compile "$$(grep '^litellm' requirements.txt)"
	@exec $(PYTEST) -m "not llm" $(PROVIDERS) $(ARGS)
endif

test-llm:
	@$(PY) .ci/install dev local
	@exec $(VENV)/python -m pytest -m llm $(ARGS)

chaos:
	@$(PY) .ci/install dev
	@exec $(VENV)/python -m tests.acceptance.crash.chaos --runs $(or $(N),40) $(if $(TREE),--tree $(TREE)) \
		$(if $(FAULTS),--faults $(FAULTS)) $(if $(BACKENDS),--backends $(BACKENDS)) $(if $(STRESS),--stress $(STRESS)) \
		$(if $(SEED),--seed $(SEED))

simulate:
	@$(PY) .ci/install dev
	@exec $(VENV)/python -m tests.sim $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

mutants:
	@$(PY) .ci/install dev
	@exec $(VENV)/python -m tests.mutants $(ARGS)

walks:
	@$(PY) .ci/install dev
	@exec $(VENV)/python -m tests.walks $(ARGS)

freeze:
	@$(PY) .ci/install dev
	@FREEZE=$(VERSION) exec $(VENV)/python -m pytest -n 0 -q tests/unit/runtime/test_corpus.py -k test_freeze

lint:
	@$(PY) .ci/install dev
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	$(VENV)/lint-imports
	$(VENV)/zizmor --offline --quiet .github
	$(VENV)/python manage.py makemigrations --check --dry-run

docs:
	@$(PY) .ci/install docs
	@exec $(VENV)/python -m sphinx -W --keep-going -q -d .cache/doctrees docs .cache/docs

dist:
	@$(PY) .ci/install dev
	@rm -rf dist
	$(VENV)/python -m build
	$(VENV)/twine check --strict dist/*
	$(VENV)/check-wheel-contents dist/*.whl

vendor:
	@.ci/vendor

bench:
	@$(PY) .ci/install dev
	@exec $(VENV)/python -m benchmarks.run $(ARGS)

bench-peers:
	@$(PY) .ci/install dev
	@exec $(VENV)/python -m benchmarks.peers

soak:
	@$(PY) .ci/install dev
	@exec $(VENV)/python -m benchmarks.soak $(if $(SECONDS),--seconds $(SECONDS)) $(ARGS)

screenshots:
	@$(PY) .ci/install dev
	@exec $(VENV)/python -m tests.screenshots

clean:
	rm -rf .venv .bench-venv tests/clients/node_modules tests/clients/*/node_modules .cache .demo build dist db.sqlite3* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf "/var/tmp/ravi-$$($(PY) -c 'import hashlib, os; print(hashlib.sha256(os.fsencode(os.getcwd())).hexdigest()[:12])')"
