"""The READMEs name only what is there."""

import re
import subprocess
import sys

import pytest
from conftest import TEMPLATE

README = TEMPLATE / "README.md"


@pytest.fixture(params=["template", "images", "audio"])
def readme(request, render):
    if request.param == "template":
        return README
    return render(modality=request.param) / "README.md"


def test_every_make_target_exists(readme):
    targets = re.findall(r"^([\w-]+):", (readme.parent / "Makefile").read_text(), re.MULTILINE)
    named = set(re.findall(r"`make ([\w-]+)`|^make ([\w-]+)", readme.read_text(), re.MULTILINE))
    named = {a or b for a, b in named}
    assert named
    assert named <= set(targets)


def test_every_link_to_a_file_leads_somewhere(readme):
    links = re.findall(r"\]\((?!https?:|#)([^)]+)\)", readme.read_text())
    for link in links:
        assert (readme.parent / link).exists(), link


def test_every_flag_that_is_named_exists(readme, render):
    project = render() if readme == README else readme.parent
    programs = ("run.py", "convert_dataset.py", "library/shards.py")
    known = "".join((project / name).read_text() for name in programs)
    known += (project / "project" / "settings.py").read_text()
    for flag in set(re.findall(r"--(\w+)", readme.read_text())) - {"file", "logdir"}:
        name = flag.removeprefix("no-")
        assert re.search(rf"\b{name}\b", known), flag


def test_the_sources_of_the_readme_give_examples(render):
    """Its lines are run as they stand, on the demo's pictures."""
    project = render()
    text = (project / "README.md").read_text().split("## Where examples come from")[1]
    (lines,) = re.findall(r"```python\n(.*?)```", text.split("\n## ")[0], re.DOTALL)
    code = f"""
import subprocess, sys
import h5py
from library import sample_data
sample_data.make("mine", per_class=dict(train=4, test=1))
words = "--dataset_dir mine/train --tfrecord_filename train --tfrecord_dir data".split()
subprocess.run([sys.executable, "convert_dataset.py", *words], check=True)
h5py.File("mine/train.h5", "w")["images"] = [[1, 2], [3, 4]]
{lines}
for source in (records, streamed, pictures, arrays, made):
    for key, content in source.take(3):
        print(key.dtype.name, content.dtype.name, content.shape)
"""
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=project, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    found = process.stdout.splitlines()[-15::3]
    assert found == [
        "int64 string ()",
        "int64 string ()",
        "string string ()",
        "int64 int64 (2,)",
        "int64 uint8 (64, 64, 3)",
    ]


def test_what_the_readme_does_with_signals_works(render):
    """Its lines are run as they stand, on the demo's recordings."""
    project = render(modality="audio")
    text = (project / "README.md").read_text().split("## Signals, windows, features")[1]
    (lines,) = re.findall(r"```python\n(.*?)```", text.split("\n## ")[0], re.DOTALL)
    code = f"""
from library import sample_data
sample_data.make("mine", per_class=dict(train=6, test=1))
{lines}
count = 0
for spectrogram, target in replay_dataset("out/features"):
    count += 1
for spectrograms, targets in batches.take(1):
    print(count, spectrograms.shape, targets.shape)
"""
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=project, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    count, shapes = process.stdout.splitlines()[-1].split(" ", 1)
    assert int(count) > 36 * 2  # recordings of half a second and more, a window each quarter
    assert shapes == "(32, 48, 64) (32,)"
