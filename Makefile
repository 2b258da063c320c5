# Two commands do everything: `make audit` runs the main job, `make test` passes the tests.
# Both need only Python 3.11 (or newer) and make; the environment lives in .venv and is reused while it is up to date.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_WAIT_POLICY := PASSIVE

PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.PHONY: audit test docs setup lint types pictures clean

# Each defense meets every attack made for it.
DEFENSES := none noise:sigma=0.01 ppp:sigma=0.01 cvb fedkl

audit: $(VENV)/.core
	for defense in $(DEFENSES); do \
		$(BIN)/dosimeter audit --model cnn --data mnist-5k --defense $$defense --attack auto --victims 6 --steps 250 \
			--out runs/audit-$${defense%%:*} --overwrite || exit 1; \
	done

test: $(VENV)/.dev lint types
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

# Pages as HTML in site/, which opens from the disk; a link that leads nowhere is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -W ignore::DeprecationWarning -m mkdocs --quiet build --strict

setup: $(VENV)/.core

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

# The pictures of pages in the documents, from the runs of `make audit`.
pictures: $(VENV)/.dev
	$(BIN)/python tests/pictures.py runs docs/pictures

$(VENV)/.core: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dosimeter needs Python 3.11 or newer; name one with make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing dosimeter into $(VENV) (a few minutes the first time) ..."
	$(PIP) install --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) install --editable '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.core
	$(PIP) install --editable '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) build dist runs site .mypy_cache .pytest_cache .ruff_cache .hypothesis
