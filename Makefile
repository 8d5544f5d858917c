# Two commands on a fresh machine with Python 3.11+ and make:
#   make demo   install, train three algorithms on two embedded tasks, print the table, write the report
#   make test   install, run the test suite
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-slow lint clean

demo: $(INSTALLED)
	$(BIN)/corerl train sweep=demo
	$(BIN)/corerl train sweep=demo_locomotion
	$(BIN)/corerl report runs/demo --out report
	@echo "The report is report/index.html"

test: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow --timeout 3600

lint: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(INSTALLED): requirements.lock pyproject.toml
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	# A real entry on the path: else a folder named corerl beside a script, such as this clone, hides the package.
	$(BIN)/python -c "import sysconfig; open(sysconfig.get_path('purelib') + '/corerl_clone.pth', 'w').write('$(CURDIR)\n')"
	touch $@

clean:
	rm -rf $(VENV) runs report build dist *.egg-info
