"""The READMEs name only what is there."""

import collections
import re

import pytest
from conftest import MODALITIES, TEMPLATE, python

README = TEMPLATE / "README.md"

MOST_BYTES = 150_000
"""Of an image."""


@pytest.fixture(params=["template", *MODALITIES])
def readme(request, projects):
    return projects.get(request.param, TEMPLATE) / "README.md"


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
    """All that lead to a file or a heading: links and images, in Markdown and in HTML."""
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


def test_the_images_of_the_readme_are_small():
    images = [README.parent / link for link in links_of(README) if link.endswith(".png")]
    assert images
    for image in images:
        assert image.stat().st_size < MOST_BYTES, image


def test_every_flag_that_the_readme_of_the_template_names_exists(projects):
    helps = [python(name, "--help", cwd=project) for project in projects.values()
             for name in ("run.py", "convert_dataset.py")]  # fmt: skip
    known = set(re.findall(r"--(\w+)", "".join(helps)))
    text = re.sub(r"`python benchmarks/[^`]*`", "", README.read_text(encoding="utf-8"))
    flags = set(re.findall(r"(?<![\w-])--(\w+)", text)) - {"file", "logdir"}
    assert {flag.removeprefix("no-") for flag in flags} <= known


def code_of(project, heading):
    """The program of a section of a project's README."""
    text = (project / "README.md").read_text(encoding="utf-8").split(f"## {heading}")[1]
    (lines,) = re.findall(r"```python\n(.*?)```", text.split("\n## ")[0], re.DOTALL)
    return lines


def test_the_sources_of_the_readme_give_examples(walk):
    """Its lines are run as they stand, on the data of the first hour."""
    project = walk("images").project
    code = f"""
import h5py
h5py.File("dataset/train.h5", "w")["images"] = [[1, 2], [3, 4]]
{code_of(project, "Where examples come from")}
for source in (records, streamed, images, arrays, made):
    for key, content in source.take(1):
        print(key.dtype.name, content.dtype.name, content.shape)
"""
    assert python("-c", code, cwd=project).splitlines()[-5:] == [
        "int64 string ()",
        "int64 string ()",
        "string string ()",
        "int64 int64 (2,)",
        "int64 uint8 (64, 64, 3)",
    ]


def test_what_the_readme_does_with_signals_works(walk):
    """Its lines are run as they stand, on the clips of the first hour."""
    project = walk("audio").project
    code = f"""
{code_of(project, "Signals, windows, features")}
count = 0
for spectrogram, target in replay_dataset("out/features"):
    count += 1
for spectrograms, targets in batches.take(1):
    print(count, spectrograms.shape, targets.shape)
"""
    count, shapes = python("-c", code, cwd=project).splitlines()[-1].split(" ", 1)
    assert int(count) > 24 * 2  # clips of half a second and more, a window each quarter
    assert shapes == "(32, 48, 64) (32,)"
