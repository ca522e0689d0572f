# Each line also works typed by hand. Nothing is needed but Python 3.10 to 3.13 and make.
PYTHON ?= python3
VENV = .venv
BIN = $(CURDIR)/$(VENV)/bin
TEMPLATE = {{cookiecutter.project_slug}}
PROJECT = build/my-tensorflow-project
# What runs in place leaves no caches in the template.
export PYTHONDONTWRITEBYTECODE = 1
export RUFF_NO_CACHE = true

.PHONY: demo test matrix lint benchmark peers

demo: $(VENV)/installed  ## from nothing to a trained, evaluated, exported classifier
	$(BIN)/cookiecutter --no-input --default-config --overwrite-if-exists --output-dir build .
	cd $(PROJECT) && $(BIN)/python demo.py

test: lint  ## the tests in place, then those of the template
	cd "$(TEMPLATE)" && $(BIN)/python -m pytest -p no:cacheprovider -n logical --dist worksteal -m "slow or not slow"
	$(BIN)/python -m pytest -p no:cacheprovider

matrix: $(VENV)/installed  ## the oldest and the newest TensorFlow, each with its Pythons
	$(BIN)/python tests/matrix.py build/matrix

benchmark: $(VENV)/installed  ## what takes time, as ratios
	$(BIN)/python benchmarks/help.py
	$(BIN)/python benchmarks/order.py
	$(BIN)/python benchmarks/reading.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/steps.py
	$(BIN)/python benchmarks/level.py

peers: $(VENV)/installed  ## limits, other systems and ours on the same pictures
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/conversion.py

lint: $(VENV)/installed  ## the linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check

# One environment for the template and what it renders: the project is rendered, then installed.
$(VENV)/installed: pyproject.toml $(TEMPLATE)/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e .[dev]
	$(BIN)/cookiecutter --no-input --default-config --overwrite-if-exists --output-dir build .
	$(BIN)/python -m pip install --quiet -e ./$(PROJECT)[dev,beam]
	touch $@
