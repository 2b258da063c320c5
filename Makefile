# Two commands do everything: `make audit` runs the main job, `make test` passes the tests.
# Both need only Python 3.11 (or newer) and make; the environment lives in .venv and is reused while it is up to date.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_WAIT_POLICY := PASSIVE

PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.PHONY: audit test browser docs setup lint types fuzz faults fuzz-files pictures soak dist wheel-check release-check short-audit clean

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

test: $(VENV)/.dev browser lint types
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

# Thousands of hostile calls of the command line, each in a process of its own; make fuzz CALLS=0 makes all there are.
fuzz: $(VENV)/.dev
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz --calls $(or $(CALLS),3200)

# Chromium for the tests of pages, where packages may be installed; elsewhere they are skipped where there is none.
browser:
	@command -v chromium > /dev/null || command -v google-chrome > /dev/null || \
		if command -v apt-get > /dev/null && test "$$(id -u)" = 0; then \
			echo "Installing chromium for the tests of pages ..."; apt-get -qq update > /dev/null; \
			apt-get -qq install --yes --no-install-recommends chromium > /dev/null 2>&1 \
				|| echo "chromium could not be installed; tests of pages are skipped."; \
		else echo "No chromium here; tests of pages are skipped."; fi

# Pages as HTML in site/, which opens from the disk; a link that leads nowhere is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -W ignore::DeprecationWarning -m mkdocs --quiet build --strict

setup: $(VENV)/.core

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

# All that writes is killed 210 times and troubled otherwise, on one core in some minutes; docs/reliability.md says what for.
faults: $(VENV)/.dev
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m faults

# 10,000 changed files for everything that reads, for a night.
fuzz-files: $(VENV)/.dev
	DOSIMETER_FUZZ=10000 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/faults/test_hostile_files.py

# The pictures of pages in the documents, from the runs of `make audit` and a small store for the explorer.
pictures: $(VENV)/.dev
	$(BIN)/dosimeter compare --defense none --defense noise:sigma=0.1 --defense noise:sigma=1 \
		--protocol ppp:rounds=5 --victims 4 --steps 100 --out runs/explored
	$(BIN)/python tests/pictures.py runs docs/pictures

# Two hours of mixed work in one process: memory stays flat, and no descriptor or thread is left behind.
MINUTES ?= 120
soak: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/soak.py runs/soak --minutes $(MINUTES)

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
	$(BIN)/python tests/release.py dist $(PYTHON)

# What a release needs: the same by every Python that is here, licences of all extras, and names that were not lost.
release-check: dist $(VENV)/.dev
	$(BIN)/python tests/licences.py
	$(BIN)/python -m pytest tests/test_surface.py tests/test_project.py
	$(BIN)/python tests/release.py dist python3.11 python3.12 python3.13

short-audit:
	@$(call audits,$(PROGRAM),--victims 1 --steps 20); test -s runs/audit.html

clean:
	rm -rf $(VENV) build dist runs site .mypy_cache .pytest_cache .ruff_cache .hypothesis
