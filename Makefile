# Two commands on a fresh machine with Python 3.11+ and make:
#   make demo   install, train on three embedded tasks, print the tables, write the report
#   make test   install, run the test suite
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Hundreds of processes of the tests read the bytecode that the first one leaves.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow operations gpu docs lint clean

# As many cells of a sweep at a time as there are cores, each with one thread.
demo: CELLS := processes=1 hydra/launcher=joblib hydra.launcher.n_jobs=-1
demo: export OMP_NUM_THREADS := 1
demo: $(INSTALLED)
	$(BIN)/corerl train sweep=demo $(CELLS)
	$(BIN)/corerl train sweep=demo_risk $(CELLS)
	$(BIN)/corerl report runs/demo --out report
	@echo "The report is report/index.html"

test: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

# SLOW="--part 3/12 FILES": another twelfth of these files' slow tests for every 3.
test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow --timeout 3600 $(SLOW)

# What one update of each algorithm launches: the table that the tests compare with.
operations: $(INSTALLED)
	$(BIN)/python tests/operations.py

# On a machine with a GPU: tests, speed of every algorithm, a full run; writes results/bench/gpu.md.
# Without a network, with a torch that sees the GPU and what else is lacking as wheels in a folder (also
# setuptools, where it is older than 77 or, as with Python 3.12, not there):
#   make gpu WHEELS=folder PYTHON=python3
# Fewer stages at a time: make gpu GPU="--stages bench --minutes 9"
ifdef WHEELS
SITE := $(CURDIR)/$(VENV)-gpu
gpu:
	$(PYTHON) -m pip install --quiet --no-index --no-deps --upgrade --target $(SITE) $(wildcard $(WHEELS)/*.whl)
	PYTHONPATH=$(SITE) $(PYTHON) -m pip install --quiet --no-index --no-deps --no-build-isolation --upgrade --target $(SITE) .
	PYTHONPATH=$(SITE) $(PYTHON) tools/gpu/gpu.py $(GPU)
else
gpu: $(INSTALLED)
	$(BIN)/python tools/gpu/gpu.py $(GPU)
endif

# The documentation into site/; a broken link ends it.
docs: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -e ".[docs]"
	$(BIN)/python -P -m mkdocs build --strict

lint: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(INSTALLED): requirements.lock pyproject.toml
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	# Python compiles what is imported; pip would compile all of torch, which takes as long as the rest.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	# A real entry on the path: else a folder named corerl beside a script, such as this clone, hides the package.
	$(BIN)/python -c "import sysconfig; open(sysconfig.get_path('purelib') + '/corerl_clone.pth', 'w').write('$(CURDIR)\n')"
	touch $@

clean:
	rm -rf $(VENV) runs report site build dist *.egg-info
