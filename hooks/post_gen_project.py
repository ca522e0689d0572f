"""Keep the chosen modality, and say what to do next; the working directory is the new project."""

import re
import shutil
from pathlib import Path

# A template that was run and linted in place has caches, which cookiecutter copies along.
for cache in ("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"):
    for folder in list(Path().rglob(cache)):
        shutil.rmtree(folder)

OF_IMAGES = """
library/images library/nn/efficientnet.py library/nn/pretrained.py library/nn/state_dict.py
tests/made_images.py tests/test_images_*.py
tests/test_all_reduce.py tests/test_cluster.py
tests/test_duplicates.py tests/test_effects.py tests/test_profiling.py tests/test_run.py
tests/test_training_steps.py tests/training_steps.py
docs/pretrained.md docs/from_tensorflow_2.15.md docs/from_tensorflow_2.15
"""
OF_AUDIO = "library/audio tests/made_audio.py tests/test_audio_*.py"

# The template is the project for images; what differs for audio is in the folder audio.
audio = "{{ cookiecutter.modality }}" == "audio"
for pattern in (OF_IMAGES if audio else OF_AUDIO).split():
    for path in list(Path().glob(pattern)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
if audio:
    shutil.copytree("audio", ".", dirs_exist_ok=True)
    names = Path("library/nn/__init__.py")  # those of the modules that are gone go with them
    lines = names.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not re.search(r"\.(efficientnet|pretrained) ", line)]
    names.write_text("".join(kept))
shutil.rmtree("audio")

print(f"""
{Path.cwd().name} is ready. In its folder:

    make demo                 train on sample data, and see every step

or by hand:

    python -m venv .venv
    .venv/bin/pip install -e .            (on Windows: .venv\\Scripts\\pip)
    .venv/bin/python demo.py

README.md continues from there, with data of your own.""")
