# What README says: `make run`, `make test`. Both begin with `make setup`.

# Debian's own Python where there is one: it is built with optimisation, twice as fast as what
# version managers compile by default.
PYTHON ?= $(shell for p in /usr/bin/python3 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run setup test check bench chaos ansible-test clean

run: setup
	$(BIN)/weir up --simulate

setup: $(VENV)/installed

$(VENV)/installed: setup.cfg pyproject.toml .ci/packages .ci/prometheus
	@sh .ci/packages "$(PYTHON)"
	@echo "setup: virtual environment in $(VENV), with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-input -e '.[dev]'
	@sh .ci/prometheus $(VENV)
	@touch $@

# One more than there are cores: most tests wait for something. A file's tests share a node; the long
# ones of the playbook are the first files.
test: setup
	$(BIN)/pytest -n $$(($$(nproc) + 1)) --dist loadfile --no-loadscope-reorder

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	luacheck --quiet lua
	cd ansible && ../$(BIN)/ansible-lint --offline -q
	$(BIN)/pytest -q tests/unit/test_render.py  # what is rendered passes `nginx -t`

bench: setup
	$(BIN)/python -m tests.bench

# Faults at random for three times five minutes; `make chaos SEEDS=7 DURATION=1m` repeats one.
SEEDS := 1 2 3
DURATION := 5m
chaos: setup
	$(BIN)/python -m tests.chaos $(SEEDS:%=--seed %) --duration $(DURATION)

# The playbook on machines of its own, with what takes too long for `make test`. As root.
ansible-test: setup
	WEIR_ANSIBLE=all $(BIN)/pytest tests/ansible

clean:
	rm -rf $(VENV) var build bench-results *.egg-info
