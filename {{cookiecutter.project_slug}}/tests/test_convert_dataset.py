"""convert_dataset.py, run as a process: what it writes, what it refuses, and nothing lost."""

import contextlib
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT, convert, run_program
from PIL import Image

import convert_dataset
from library.tfrecord import Card, Reader


def examples(path) -> list[tf.train.Example]:
    reader = Reader(str(path))
    ids = np.arange(reader.card.num_examples)
    return [tf.train.Example.FromString(record) for record in reader.read(ids)]


def value(example: tf.train.Example, key: str):
    feature = example.features.feature[key]
    return (feature.bytes_list.value or feature.int64_list.value)[0]


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_every_picture_is_in_one_set_with_its_label(pictures, data):
    seen = []
    for name in ("train", "validation"):
        card = Card.load(data / f"{name}.json")
        assert card.classes == ["bar", "circle", "cross", "square", "star", "triangle"]
        found = examples(data / name)
        labels = [value(example, "image/class/label") for example in found]
        assert list(np.bincount(labels, minlength=6)) == list(card.examples_per_class.values())
        for example in found:
            filename = value(example, "image/filename").decode()
            name_of_class = card.classes[value(example, "image/class/label")]
            assert filename.startswith(name_of_class + "/")
            assert value(example, "image/class/text").decode() == name_of_class
            original = pictures / "train" / filename
            if original.suffix == ".jpg":
                assert value(example, "image/encoded") == original.read_bytes()
            seen.append(filename)
    assert sorted(seen) == sorted(
        path.relative_to(pictures / "train").as_posix()
        for path in (pictures / "train").rglob("*.*")
    )


def test_the_card_describes_the_shards(data):
    card = Card.load(data / "train.json")
    assert len(card.shards) == 3
    for shard in card.shards:
        assert len(list(tf.data.TFRecordDataset(str(data / shard.file)))) == shard.examples
    assert card.options["validation_fraction"] == 0.25
    assert not [path for path in data.iterdir() if path.name.startswith(".")]


def test_the_result_does_not_depend_on_the_workers(pictures, tmp_path):
    for workers in (1, 5):
        convert(pictures / "test", tmp_path / str(workers), "test", "--num_workers", workers)
    one, five = files(tmp_path / "1"), files(tmp_path / "5")
    assert {k: v for k, v in one.items() if k != "test.json"} == {
        k: v for k, v in five.items() if k != "test.json"
    }


def test_a_picture_stays_in_its_set_when_others_are_added(pictures, tmp_path):
    shutil.copytree(pictures / "train", tmp_path / "more")
    for path in (pictures / "test").rglob("*.jpg"):
        shutil.copy(path, tmp_path / "more" / path.parent.name / f"more-{path.name}")
    Image.new("RGB", (9, 9)).save(tmp_path / "more" / "bar" / "new.png")
    sets = {}
    for name, folder in (("before", pictures / "train"), ("after", tmp_path / "more")):
        convert(folder, tmp_path / name, "train", "--validation_fraction", 0.25)
        found = examples(tmp_path / name / "validation")
        sets[name] = {value(example, "image/encoded") for example in found}
    assert sets["before"] < sets["after"]


def test_large_pictures_shrink_and_classes_of_digits_are_sorted_by_value(tmp_path):
    for name in ("10", "9", "a"):
        (tmp_path / "in" / name).mkdir(parents=True)
        Image.new("RGB", (500, 1000)).save(tmp_path / "in" / name / "ä b.png")
    convert(tmp_path / "in", tmp_path / "out", "train", "--max_edge", 100)
    assert Card.load(tmp_path / "out" / "train.json").classes == ["9", "10", "a"]
    for example in examples(tmp_path / "out" / "train"):
        assert (value(example, "image/height"), value(example, "image/width")) == (100, 50)


def test_broken_pictures_are_listed(pictures, tmp_path):
    shutil.copytree(pictures / "test", tmp_path / "in")
    (tmp_path / "in" / "bar" / "notes.txt").write_text("no picture")
    broken = tmp_path / "in" / "star" / "broken.jpg"
    broken.write_bytes(next((pictures / "train" / "star").glob("*.jpg")).read_bytes()[:500])

    process = convert(tmp_path / "in", tmp_path / "out", "test", status=2)
    assert "max_rejected: 2 of 26 files could not be used" in process.stderr
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [".test.partial", "test.rejected.csv"], "kept for a look, or more patience"

    process = convert(tmp_path / "in", tmp_path / "out", "test", "--max_rejected", 0.1)
    assert "24 pictures of 6 classes" in process.stdout
    with open(tmp_path / "out" / "test.rejected.csv", newline="") as file:
        rows = {row["file"]: row["reason"] for row in csv.DictReader(file)}
    assert rows["bar/notes.txt"] == "not a picture"
    assert rows["star/broken.jpg"].startswith("broken picture: ")

    for path in (broken, tmp_path / "in" / "bar" / "notes.txt"):
        path.unlink()
    convert(tmp_path / "in", tmp_path / "out", "test", "--overwrite")
    assert not (tmp_path / "out" / "test.rejected.csv").exists(), "it was of the earlier one"


def test_a_finished_set_is_replaced_only_when_asked_for(pictures, tmp_path):
    out = tmp_path / "out"
    convert(pictures / "test", out, "test", "--num_shards", 4)
    before = files(out)
    process = convert(pictures / "test", out, "test", status=2)
    assert "is there already: --overwrite replaces it" in process.stderr
    assert files(out) == before
    convert(pictures / "test", out, "test", "--num_shards", 2, "--overwrite")
    assert sorted(files(out)) == [
        "test-00000-of-00002.tfrecord",
        "test-00001-of-00002.tfrecord",
        "test.index",
        "test.json",
        "test.sha256",
    ]


@pytest.mark.parametrize("moves", range(6))
def test_a_stop_while_sets_are_replaced_loses_nothing(pictures, tmp_path, monkeypatch, moves):
    out = tmp_path / "out"
    more = ("--validation_fraction", 0.3, "--overwrite")
    convert(pictures / "train", out, "train", "--num_shards", 3, *more)
    rename, left = os.replace, iter(range(moves))

    def stop_after_some(source, target):
        if Path(source).parent.suffix == ".complete" and next(left, None) is None:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "replace", stop_after_some)
    options = convert_dataset.Options(
        dataset_dir=pictures / "test",
        tfrecord_dir=out,
        tfrecord_filename="train",
        num_shards=2,
        validation_fraction=0.3,
        overwrite=True,
    )
    with contextlib.suppress(KeyboardInterrupt):
        convert_dataset.convert(options)
    monkeypatch.undo()
    for name in ("train", "validation"):  # no card names what is not there
        if (out / f"{name}.json").exists():
            Reader(out / name)
    convert(pictures / "test", out, "train", *more[:2], status=2)  # finishes what was stopped
    assert sum(Reader(out / name).card.num_examples for name in ("train", "validation")) == 24
    assert sorted(path.name for path in out.iterdir()) == sorted(
        f"{name}{rest}"
        for name in ("train", "validation")
        for rest in ("-00000-of-00002.tfrecord", "-00001-of-00002.tfrecord", ".index", ".json")
        + (".sha256",)
    )


def test_no_picture_gets_into_both_sets_by_another_conversion(pictures, tmp_path):
    out = tmp_path / "out"
    convert(pictures / "test", out, "train", "--validation_fraction", 0.3)
    before = files(out)
    process = convert(pictures / "test", out, "train", "--overwrite", status=2)
    assert "has pictures of train, which would be in both: give 0.3 again" in process.stderr
    more = ("--validation_fraction", 0.3, "--overwrite")
    process = convert(pictures / "test", out, "other", *more, status=2)
    assert "validation.json is not of other, but of train: take another" in process.stderr
    assert files(out) == before
    (out / "validation.json").write_text("{}")
    process = convert(pictures / "test", out, "other", status=2)
    assert "validation.json: not the card of a data set" in process.stderr


def test_file_names_need_not_be_text(pictures, tmp_path):
    shutil.copytree(pictures / "test" / "bar", tmp_path / "in" / "bar")
    (tmp_path / "in" / "bar" / "not\udcfftext.jpg").write_bytes(b"no picture")
    convert(tmp_path / "in", tmp_path / "out", "train", "--max_rejected", 1)
    assert b"not\xfftext.jpg,not a picture" in (tmp_path / "out/train.rejected.csv").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_conversion_that_is_stopped_leaves_nothing_that_looks_finished(tmp_path, number):
    (tmp_path / "in" / "noise").mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (700, 700, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "in" / "noise" / "0.png", compress_level=1)
    for i in range(1, 300):
        shutil.copy(tmp_path / "in" / "noise" / "0.png", tmp_path / "in" / "noise" / f"{i}.png")
    words = ["--dataset_dir", "in", "--tfrecord_filename", "train", "--tfrecord_dir", "out"]
    process = subprocess.Popen(
        [
            sys.executable,
            ROOT / "convert_dataset.py",
            *words,
            "--num_shards",
            "100",
            "--num_workers",
            "1",
        ],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list(tmp_path.glob("out/.train.partial/*.tfrecord")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert not [path for path in (tmp_path / "out").iterdir() if path.name[0] != "."]
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert "finished shards are kept: the same command goes on" in errors
        assert "Traceback" not in errors
    process = convert(tmp_path / "in", tmp_path / "out", "train", "--num_shards", 100)
    assert re.search("going on: [1-9][0-9]? of 100 parts are there already", process.stdout)
    assert Card.load(tmp_path / "out" / "train.json").num_examples == 300
    convert(tmp_path / "in", tmp_path / "again", "train", "--num_shards", 100)
    assert files(tmp_path / "out") == files(tmp_path / "again")


@pytest.mark.parametrize(
    ("prepare", "flags", "message"),
    [
        (lambda f: None, [], "dataset_dir: HERE/in is not a folder"),
        (lambda f: f.mkdir(), [], "dataset_dir: HERE/in has no folders: one for each class is"),
        (lambda f: (f / "cat").mkdir(parents=True), [], "dataset_dir: there are no files in HERE/in"),
        (lambda f: None, ["--tfrecord_filename", "a/b"], "tfrecord_filename: a/b is not a name of"),
        (lambda f: None, ["--validation_fraction", "1"], "validation_fraction: 1 is not a number"),
        (
            lambda f: None,
            ["--max_edges", "9"],
            "unknown argument --max_edges=9 (did you mean --ma",
        ),
        (
            lambda f: (f / "cat\udcff").mkdir(parents=True),
            [],
            "/in/cat\\udcff' is not in UTF-8",
        ),
        (lambda f: None, ["--num_shards", "none"], "num_shards: none is not a whole number"),
    ],
)
def test_bad_input_is_told_in_one_line_and_nothing_is_written(tmp_path, prepare, flags, message):
    prepare(tmp_path / "in")
    words = ["--dataset_dir", "in", "--tfrecord_filename", "train", "--tfrecord_dir", "out"]
    process = run_program("convert_dataset.py", *words, *flags, cwd=tmp_path, status=2)
    assert process.stderr.splitlines()[0].startswith("error: ")
    assert message in process.stderr.replace(str(tmp_path), "HERE")
    assert not (tmp_path / "out").exists()


def test_help_does_not_import_tensorflow(tmp_path):
    code = (
        "import runpy, sys; sys.argv = ['convert_dataset.py', '--help']\n"
        f"try: runpy.run_path({str(ROOT / 'convert_dataset.py')!r}, run_name='__main__')\n"
        "except SystemExit as exit: assert exit.code == 0\n"
        "assert 'tensorflow' not in sys.modules"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert "--validation_fraction" in process.stdout


def test_the_card_is_json_that_others_can_read(data):
    card = json.loads((data / "train.json").read_text())
    assert set(card) == {"classes", "examples_per_class", "shards", "options", "format_version"}
