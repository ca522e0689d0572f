"""Tidy up, and say what to do next; the working directory is the new project."""

import shutil
from pathlib import Path

# A template that was run and linted in place has caches, which cookiecutter copies along.
for cache in ("__pycache__", ".pytest_cache", ".ruff_cache"):
    for folder in list(Path().rglob(cache)):
        shutil.rmtree(folder)

print(f"""
{Path.cwd().name} is ready. In its folder:

    make demo                 train on sample data, and see every step

or by hand:

    python -m venv .venv
    .venv/bin/pip install -e .            (on Windows: .venv\\Scripts\\pip)
    .venv/bin/python demo.py

README.md goes on from there, with pictures of your own.""")
