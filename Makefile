# Two commands do everything: `make audit` runs the main job, `make test` passes the tests.
# Both need only Python 3.11 (or newer) and make; the environment lives in .venv and is reused while it is up to date.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_WAIT_POLICY := PASSIVE

PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.PHONY: audit test fuzz docs setup lint types pictures dist wheel-check clean

# Each defense meets every attack made for it; one table and one page have them all.
DEFENSES := none noise:sigma=0.01 ppp:sigma=0.01 cvb fedkl
define audits
for defense in $(DEFENSES); do \
	$(1) audit --model cnn --data mnist-5k --defense $$defense --attack auto $(2) \
		--out runs/audit-$${defense%%:*} --overwrite --quiet || exit 1; \
done; echo; $(1) report $(foreach each,$(DEFENSES),runs/audit-$(firstword $(subst :, ,$(each)))) --out runs/audit.html
endef

audit: $(VENV)/.core
	@$(call audits,$(BIN)/dosimeter,--victims 6 --steps 250)

test: $(VENV)/.dev lint types
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

# Thousands of hostile calls of the command line, each in a process of its own; make fuzz CALLS=0 makes all there are.
fuzz: $(VENV)/.dev
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz --calls $(or $(CALLS),3200)

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
	$(BIN)/python -m dosimeter.engine.native
	@touch $@

$(VENV)/.dist: $(VENV)/.core
	$(PIP) install build twine
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) install --editable '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.core
	$(PIP) install --editable '.[docs]'
	@touch $@

# Wheel and source archive, as they would be published; neither holds data but the 5,000 digits of the package.
dist: $(VENV)/.dist
	rm -rf dist build
	$(BIN)/python -m build --outdir dist . > $(VENV)/build.log 2>&1 || { cat $(VENV)/build.log; exit 1; }
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tests/archives.py dist

# The wheel in an environment of its own, and the main job in short, outside the checkout.
wheel-check: dist
	@set -e; place=$$(mktemp -d); trap 'rm -rf "$$place"' EXIT; wheel=$$(realpath dist/*.whl); \
	$(PYTHON) -m venv "$$place/env"; began=$$(date +%s); \
	"$$place/env/bin/python" -m pip --quiet --disable-pip-version-check install "$$wheel"; \
	echo "Installed in $$(($$(date +%s) - began)) s; the environment takes $$(du -sm "$$place/env" | cut -f1) MB."; \
	cd "$$place"; $(call audits,env/bin/dosimeter,--victims 1 --steps 20); test -s runs/audit.html

clean:
	rm -rf $(VENV) build dist runs site .mypy_cache .pytest_cache .ruff_cache .hypothesis
