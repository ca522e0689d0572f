# Each line also works typed by hand. Nothing is needed but Python 3.10 to 3.13 and make.
PYTHON ?= python3
VENV = .venv
BIN = $(CURDIR)/$(VENV)/bin
TEMPLATE = {{cookiecutter.project_slug}}
PROJECT = build/my-tensorflow-project
SOUNDS = build/my-sounds
RENDER = $(BIN)/cookiecutter --no-input --default-config --overwrite-if-exists --output-dir build .
PYTEST = $(BIN)/python -m pytest -p no:cacheprovider -n logical --dist worksteal
# What runs in place leaves no caches in the template.
export PYTHONDONTWRITEBYTECODE = 1
export RUFF_NO_CACHE = true
export MYPY_CACHE_DIR = $(CURDIR)/build/mypy

.PHONY: demo demo-audio test test-slow test-all matrix canary lint benchmark peers screenshots

demo: $(VENV)/installed  ## from nothing to a trained, evaluated, exported classifier
	$(RENDER)
	cd $(PROJECT) && $(BIN)/python demo.py

demo-audio: $(VENV)/installed  ## the same for audio clips
	$(RENDER) modality=audio project_slug=$(notdir $(SOUNDS))
	cd $(SOUNDS) && $(BIN)/python demo.py

test: lint  ## the fast tests in place, then those of the template
	cd "$(TEMPLATE)" && $(PYTEST) --dist loadscope
	$(BIN)/python -m pytest -p no:cacheprovider

test-slow: $(VENV)/installed  ## processes, clusters, kills, fuzzing
	cd "$(TEMPLATE)" && $(PYTEST) -m slow

test-all: test test-slow  ## all tests, those of a rendered project for audio, too
	$(BIN)/python -m pytest -p no:cacheprovider -m slow

matrix: $(VENV)/installed  ## TensorFlow from 2.15 to the newest, each with its Pythons
	$(BIN)/python tests/matrix.py build/matrix

canary: $(VENV)/installed  ## the nightly build of TensorFlow
	$(BIN)/python tests/matrix.py build/matrix --canary

benchmark: $(VENV)/installed  ## what takes time, as ratios
	$(BIN)/python benchmarks/help.py
	$(BIN)/python benchmarks/order.py
	$(BIN)/python benchmarks/reading.py
	$(BIN)/python benchmarks/recording.py
	$(BIN)/python benchmarks/sound.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/steps.py
	$(BIN)/python benchmarks/predict.py
	$(BIN)/python benchmarks/level.py
	$(BIN)/python benchmarks/remote.py

peers: $(VENV)/installed  ## limits, other systems and ours on the same images
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/conversion.py

screenshots: $(VENV)/installed  ## the images of the README; DATASET=DIR: of DIR/train and DIR/test
	$(BIN)/python -m pip install --quiet -e .[screenshots]
	$(RENDER) project_slug=screenshots
	$(BIN)/python screenshots/make.py build/screenshots $(if $(DATASET),--dataset_dir "$(DATASET)")

lint: $(VENV)/installed  ## the linter, and the types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python -m mypy
	cd "$(TEMPLATE)" && $(BIN)/python -m mypy

# One environment for the template and what it renders: the projects are rendered, then installed.
$(VENV)/installed: pyproject.toml $(TEMPLATE)/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e .[dev]
	$(RENDER)
	$(RENDER) modality=audio project_slug=$(notdir $(SOUNDS))
	$(BIN)/python -m pip install --quiet -e ./$(PROJECT)[dev,beam,pretrained] -e ./$(SOUNDS)
	touch $@
