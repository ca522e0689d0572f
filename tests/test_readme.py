"""The READMEs name only what is there."""

import collections
import re
import subprocess
import sys

import pytest
from conftest import TEMPLATE

README = TEMPLATE / "README.md"

MOST_BYTES = 150_000
"""Of a picture."""


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


def pages_of(folder):
    return [*folder.glob("*.md"), *folder.glob("docs/*.md")]


def prose_of(page):
    """Its text without code: what looks like a link there is none."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.sub(r"`[^`]*`", lambda code: code[0] if "](" not in code[0] else "", text)


def links_of(page):
    """All that lead to a file or a heading: links and pictures, in Markdown and in HTML."""
    patterns = (r"\]\(([^)\s]+)\)", r"^\[[^\]]+\]: (\S+)", r"\b(?:src|href)=\"([^\"]+)\"")
    found = [link for each in patterns for link in re.findall(each, prose_of(page), re.M)]
    return [link for link in found if not re.match(r"https?:|mailto:", link)]


def anchors_of(page):
    """Of its headings, as GitHub names them."""
    anchors, times = [], collections.Counter()
    for heading in re.findall(r"^#+ +(.+?) *$", prose_of(page), re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        anchors.append(f"{anchor}-{times[anchor]}" if times[anchor] else anchor)
        times[anchor] += 1
    return anchors


def test_every_link_leads_somewhere(readme):
    count = 0
    for page in pages_of(readme.parent):
        for link in links_of(page):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page.name}: {link}"
            assert target.is_relative_to(readme.parent), f"{page.name}: {link} leads out"
            if anchor:
                assert anchor in anchors_of(target), f"{page.name}: {link}"
            count += 1
    assert count > 5


def test_an_anchor_is_named_as_on_github(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# `run.py`, and [more](x.md)\n```\n# no heading\n```\n## Same\n## Same\n")
    assert anchors_of(page) == ["runpy-and-more", "same", "same-1"]
    page.write_text('[a](b.md#c) ![d](e.png)\n<img src="f.png"> [g](https://h) `[i](j)`\n')
    assert links_of(page) == ["b.md#c", "e.png", "f.png"]


def test_the_pictures_of_the_readme_are_small():
    pictures = [README.parent / link for link in links_of(README) if link.endswith(".png")]
    assert pictures
    for picture in pictures:
        assert picture.stat().st_size < MOST_BYTES, picture


def test_every_flag_that_is_named_exists(readme, render):
    project = render() if readme == README else readme.parent
    programs = ("run.py", "convert_dataset.py", "library/images/records.py")
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
from library.images import sample_data
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
from library.images import sample_data
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
