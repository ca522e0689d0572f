"""convert_dataset.py: what it writes, what it refuses, and nothing lost."""

import contextlib
import csv
import dataclasses
import errno
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
from conftest import ROOT, convert, run_convert
from PIL import Image

from library.convert import ConvertOptions, jobs
from library.convert import convert as convert_here
from library.data import Card, Reader
from library.util import BadFileError, Progress
from project.settings import modality


def examples(path) -> list[tf.train.Example]:
    reader = Reader(str(path))
    ids = np.arange(reader.card.num_examples)
    return [tf.train.Example.FromString(record) for record in reader.read(ids)]


def value(example: tf.train.Example, key: str):
    feature = example.features.feature[key]
    return (feature.bytes_list.value or feature.int64_list.value)[0]


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_every_picture_is_in_one_set_with_its_label(samples, data):
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
            original = samples / "train" / filename
            if original.suffix == ".jpg":
                assert value(example, "image/encoded") == original.read_bytes()
            seen.append(filename)
    assert sorted(seen) == sorted(
        path.relative_to(samples / "train").as_posix() for path in (samples / "train").rglob("*.*")
    )


def test_the_card_describes_the_shards(data):
    card = Card.load(data / "train.json")
    assert len(card.shards) == 3
    for shard in card.shards:
        assert len(list(tf.data.TFRecordDataset(str(data / shard.file)))) == shard.examples
    assert card.options["validation_fraction"] == 0.25
    assert not [path for path in data.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
def test_the_result_does_not_depend_on_the_workers(samples, tmp_path):
    for workers in (1, 5):
        more = ["--num_workers", workers, "--num_shards", 5]
        convert(samples / "test", tmp_path / str(workers), "test", *more, processes=True)
    convert(samples / "test", tmp_path / "0", "test", "--num_shards", 5)
    assert files(tmp_path / "0") == files(tmp_path / "1") == files(tmp_path / "5")


def test_a_picture_stays_in_its_set_when_others_are_added(samples, tmp_path):
    shutil.copytree(samples / "train", tmp_path / "more")
    for path in (samples / "test").rglob("*.jpg"):
        shutil.copy(path, tmp_path / "more" / path.parent.name / f"more-{path.name}")
    Image.new("RGB", (9, 9)).save(tmp_path / "more" / "bar" / "new.png")
    sets = {}
    for name, folder in (("before", samples / "train"), ("after", tmp_path / "more")):
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


def test_broken_pictures_are_listed(samples, tmp_path):
    shutil.copytree(samples / "test", tmp_path / "in")
    (tmp_path / "in" / "bar" / "notes.txt").write_text("no picture")
    broken = tmp_path / "in" / "star" / "broken.jpg"
    broken.write_bytes(next((samples / "train" / "star").glob("*.jpg")).read_bytes()[:500])

    process = convert(tmp_path / "in", tmp_path / "out", "test", status=2)
    assert "max_rejected: 2 of 26 files rejected, more than 0.01 of them" in process.stderr
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [".test.partial", "test.rejected.csv"], "kept for a look, or more patience"

    process = convert(tmp_path / "in", tmp_path / "out", "test", "--max_rejected", 0.1)
    assert "24 images of 6 classes" in process.stdout
    with open(tmp_path / "out" / "test.rejected.csv", newline="") as file:
        rows = {row["file"]: row["reason"] for row in csv.DictReader(file)}
    assert rows["bar/notes.txt"] == "not an image"
    assert rows["star/broken.jpg"].startswith("broken image: ")

    for path in (broken, tmp_path / "in" / "bar" / "notes.txt"):
        path.unlink()
    convert(tmp_path / "in", tmp_path / "out", "test", "--overwrite")
    assert not (tmp_path / "out" / "test.rejected.csv").exists(), "it was of the earlier one"


def test_a_finished_set_is_replaced_only_when_asked_for(samples, tmp_path):
    out = tmp_path / "out"
    convert(samples / "test", out, "test", "--num_shards", 4)
    before = files(out)
    process = convert(samples / "test", out, "test", status=2)
    assert "already exists; use --overwrite to replace it" in process.stderr
    assert files(out) == before
    convert(samples / "test", out, "test", "--num_shards", 2, "--overwrite")
    assert sorted(files(out)) == [
        "test-00000-of-00002.tfrecord",
        "test-00001-of-00002.tfrecord",
        "test.index",
        "test.json",
        "test.sha256",
    ]


@pytest.mark.parametrize("moves", range(6))
def test_a_stop_while_sets_are_replaced_loses_nothing(samples, tmp_path, monkeypatch, moves):
    out = tmp_path / "out"
    more = ("--validation_fraction", 0.3, "--overwrite")
    convert(samples / "train", out, "train", "--num_shards", 3, *more)
    rename, left = os.replace, iter(range(moves))

    def stop_after_some(source, target):
        if Path(source).parent.suffix == ".complete" and next(left, None) is None:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "replace", stop_after_some)
    options = ConvertOptions(
        dataset_dir=samples / "test",
        tfrecord_dir=out,
        tfrecord_filename="train",
        num_shards=2,
        validation_fraction=0.3,
        overwrite=True,
        num_workers=0,
    )
    with contextlib.suppress(KeyboardInterrupt):
        convert_here(options, modality.ShardOptions(), modality)
    monkeypatch.undo()
    for name in ("train", "validation"):  # no card names what is not there
        if (out / f"{name}.json").exists():
            Reader(out / name)
    convert(samples / "test", out, "train", *more[:2], status=2)  # finishes what was stopped
    assert sum(Reader(out / name).card.num_examples for name in ("train", "validation")) == 24
    assert sorted(path.name for path in out.iterdir()) == sorted(
        f"{name}{rest}"
        for name in ("train", "validation")
        for rest in ("-00000-of-00002.tfrecord", "-00001-of-00002.tfrecord", ".index", ".json")
        + (".sha256",)
    )


def test_no_picture_gets_into_both_sets_by_another_conversion(samples, tmp_path):
    out = tmp_path / "out"
    convert(samples / "test", out, "train", "--validation_fraction", 0.3)
    before = files(out)
    more = ("--validation_fraction", 0, "--overwrite")
    process = convert(samples / "test", out, "train", *more, status=2)
    assert "has images of train, which would be in both: give 0.3 again" in process.stderr
    more = ("--validation_fraction", 0.3, "--overwrite")
    process = convert(samples / "test", out, "other", *more, status=2)
    assert "validation.json is not of other, but of train: use another" in process.stderr
    assert files(out) == before
    (out / "validation.json").write_text("{}")
    process = convert(samples / "test", out, "other", status=2)
    assert "validation.json: not the card of a dataset" in process.stderr


def test_file_names_need_not_be_text(samples, tmp_path):
    shutil.copytree(samples / "test" / "bar", tmp_path / "in" / "bar")
    (tmp_path / "in" / "bar" / "not\udcfftext.jpg").write_bytes(b"no picture")
    convert(tmp_path / "in", tmp_path / "out", "train", "--max_rejected", 1)
    assert b"not\xfftext.jpg,not an image" in (tmp_path / "out/train.rejected.csv").read_bytes()


@pytest.mark.slow
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
    while not list(tmp_path.glob("out/.train.partial/train-*.json")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert not [path for path in (tmp_path / "out").iterdir() if path.name[0] != "."]
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert "finished shards are kept: the same command resumes" in errors
        assert "Traceback" not in errors
    process = convert(tmp_path / "in", tmp_path / "out", "train", "--num_shards", 100)
    assert re.search("resuming: [1-9][0-9]? of 100 shards already done", process.stdout)
    assert Card.load(tmp_path / "out" / "train.json").num_examples == 300
    convert(tmp_path / "in", tmp_path / "again", "train", "--num_shards", 100)
    assert files(tmp_path / "out") == files(tmp_path / "again")


def make_pictures(folder: Path, count: int, classes: int = 2) -> None:
    """Small pictures, all different."""
    random = np.random.default_rng(0)
    for number in range(count):
        file = folder / f"class {number % classes}" / f"{number:05}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (24, 24, 3), np.uint8)).save(file)


@pytest.mark.slow
def test_ten_kills_change_nothing(tmp_path):
    make_pictures(tmp_path / "in", 4000)
    more = ["--validation_fraction", 0.2, "--num_shards", 100, "--num_workers", 2]
    convert(tmp_path / "in", tmp_path / "whole", "train", *more)
    words = ["--dataset_dir", "in", "--tfrecord_filename", "train", "--tfrecord_dir", "out", *more]
    random = np.random.default_rng(1)

    def finished() -> int:
        """Parts: 8 that look at 500 files each, then 125 shards."""
        return len(list(tmp_path.glob("out/.train.partial/*.json")))

    for _ in range(10):
        parts = finished() + random.integers(1, 5)
        process = subprocess.Popen(
            [sys.executable, ROOT / "convert_dataset.py", *map(str, words)],
            cwd=tmp_path,
            start_new_session=True,
        )
        while finished() < parts:
            assert process.poll() is None
        time.sleep(random.uniform(0, 0.02))
        process.kill()  # its workers end by themselves
        assert process.wait() == -signal.SIGKILL
        assert not [path for path in (tmp_path / "out").glob("*") if path.name[0] != "."]
    process = convert(tmp_path / "in", tmp_path / "out", "train", *more)
    assert "shards already done" in process.stdout
    assert files(tmp_path / "out") == files(tmp_path / "whole")


@pytest.mark.slow
def test_a_full_disk_keeps_what_is_finished(tmp_path, small_disk):
    noise = np.random.default_rng(0)
    (tmp_path / "in" / "noise").mkdir(parents=True)
    for number in range(120):
        image = Image.fromarray(noise.integers(0, 256, (300, 300, 3), np.uint8))
        image.save(tmp_path / "in" / "noise" / f"{number}.png", compress_level=1)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(12 * 2**20))
    more = ["--num_shards", 20, "--validation_fraction", 0]
    process = convert(tmp_path / "in", small_disk, "train", *more, status=1, processes=True)
    (line,) = [line for line in process.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: {small_disk}: no space left; finished shards are kept")
    assert "Traceback" not in process.stderr
    ballast.unlink()
    process = convert(tmp_path / "in", small_disk, "train", *more)
    assert "of 20 shards already done" in process.stdout
    convert(tmp_path / "in", tmp_path / "whole", "train", *more)
    assert files(small_disk) == files(tmp_path / "whole")


def test_other_files_begin_a_conversion_anew(samples, tmp_path):
    shutil.copytree(samples / "test", tmp_path / "in")
    (tmp_path / "in" / "bar" / "broken.jpg").write_bytes(b"no picture")
    convert(tmp_path / "in", tmp_path / "out", "test", status=2)
    process = convert(tmp_path / "in", tmp_path / "out", "test", "--max_rejected", 0.5)
    assert "24 images of 6 classes" in process.stdout
    (tmp_path / "in" / "bar" / "broken.jpg").unlink()
    process = convert(tmp_path / "in", tmp_path / "out", "test", "--overwrite")
    assert "resuming" not in process.stdout
    assert examples(tmp_path / "out" / "test")


def test_several_machines_write_what_one_writes(samples, tmp_path):
    more = ["--num_shards", 5, "--validation_fraction", 0.25]
    convert(samples / "train", tmp_path / "one", "train", *more)
    out = tmp_path / "several"
    for shards in ("3-4", "0", "1-2"):
        process = convert(samples / "train", out, "train", *more, "--finalize", status=2)
        assert "finalize: " in process.stderr
        process = convert(samples / "train", out, "train", *more, "--shards", shards)
        assert f"shards {shards} are written" in process.stdout
        process = convert(
            samples / "train", out, "train", *more, "--shards", 0, "--max_edge", 50, status=2
        )
        assert "is of a conversion of other files, or with other options" in process.stderr
    convert(samples / "train", out, "train", *more, "--finalize")
    assert files(out) == files(tmp_path / "one")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--shards", "0-9"], "shards: give --num_shards too"),
        (["--shards", "0-9", "--num_shards", "9"], "shards: 0-9 is not within 0-8"),
        (["--shards", "3-1", "--num_shards", "9"], "shards: 3-1 is not within 0-8"),
        (["--shards", "a"], "shards: a is not a number, or two as 0-99"),
        (["--shards", "0", "--num_shards", "2", "--finalize"], "shards: --finalize comes when"),
        (["--unlabeled", "--labels", "x.csv"], "unlabeled: --labels gives each file a label"),
        (["--classes_from", "none.json"], "none.json: there is no such file"),
        (
            ["--classes_from", "data/train"],
            "train is not a card: that of a dataset is ",
        ),
        (["--runner", "NoRunner"], "runner: "),
    ],
)
def test_flags_that_do_not_fit_are_told(samples, tmp_path, flags, message):
    process = convert(samples / "test", tmp_path / "out", "test", *flags, status=2)
    assert message in process.stderr


def test_a_test_set_has_the_labels_of_the_training_set(samples, data, tmp_path):
    out = tmp_path / "data"
    shutil.copytree(data, out)
    shutil.copytree(samples / "test", tmp_path / "in")
    shutil.rmtree(tmp_path / "in" / "circle")
    some = sorted((samples / "train" / "bar").iterdir())[:3]
    for file in some:
        shutil.copy(file, tmp_path / "in" / "bar" / f"again-{file.name}")
    shutil.copy(
        tmp_path / "in" / "bar" / f"again-{some[0].name}", tmp_path / "in" / "bar" / "x.jpg"
    )
    from_train = ["--classes_from", out / "train.json"]
    process = convert(tmp_path / "in", out, "more", *from_train)
    card = Card.load(out / "more.json")
    assert card.classes == Card.load(out / "train.json").classes
    assert card.examples_per_class["circle"] == 0
    with open(out / "more.duplicates.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    same_as = [row["same as"].split("/")[0] for row in rows]
    assert same_as.count("train: bar") + same_as.count("validation: bar") == len(rows) == 4
    assert "4 duplicate files: see " in process.stdout
    assert "leak: 4 more files are also in train or validation" in process.stdout
    assert f"{out / 'more'}: no examples of circle" in process.stdout
    (tmp_path / "in" / "dragon").mkdir()
    shutil.copy(some[0], tmp_path / "in" / "dragon" / "1.jpg")
    process = convert(tmp_path / "in", out, "third", *from_train, status=2)
    assert "the class dragon is not in classes_from" in process.stderr


def test_a_name_with_dots_has_its_checksums(samples, tmp_path):
    out = tmp_path / "out"
    convert(samples / "test", out, "train.v1")
    process = convert(samples / "test", out, "test.v1", "--classes_from", out / "train.v1.json")
    assert "leak: 24 test.v1 files are also in train.v1" in process.stdout


def test_a_picture_in_two_classes_is_a_contradiction(samples, tmp_path):
    shutil.copytree(samples / "test" / "bar", tmp_path / "in" / "bar")
    shutil.copytree(samples / "test" / "bar", tmp_path / "in" / "pub")
    process = convert(tmp_path / "in", tmp_path / "out", "test")
    assert "4 duplicate files: see " in process.stdout
    assert "label conflict: 4 duplicates have a different class" in process.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_to_is_one_line(samples, tmp_path):
    (tmp_path / "out").mkdir(mode=0o500)
    process = convert(samples / "test", tmp_path / "out" / "deeper", "test", status=2)
    assert "out cannot be written to" in process.stderr


def test_labels_from_a_table_and_no_labels(samples, tmp_path):
    found = sorted((samples / "test").rglob("*.*"))
    rows = [f"{path.relative_to(samples / 'test')},{len(path.name) % 2}" for path in found]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label", *rows, "none.jpg,0"]))
    more = ["--labels", tmp_path / "labels.csv", "--max_rejected", 0.1]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label", *rows[1:], "none.jpg,0"]))
    process = convert(samples / "test", tmp_path / "out", "less", *more)
    assert f"1 file in {samples / 'test'} not in {more[1]}" in process.stdout
    (tmp_path / "labels.csv").write_text("\n".join(["file,label", *rows, "none.jpg,0"]))
    convert(samples / "test", tmp_path / "out", "table", *more)
    card = Card.load(tmp_path / "out" / "table.json")
    assert sum(card.examples_per_class.values()) == len(found)
    assert "none.jpg,no such file" in (tmp_path / "out" / "table.rejected.csv").read_text()
    convert(samples / "test", tmp_path / "out", "plain", "--unlabeled")
    assert Card.load(tmp_path / "out" / "plain.json").classes == []
    (first, *_) = examples(tmp_path / "out" / "plain")
    assert "image/class/label" not in first.features.feature


def test_checksums_are_those_that_other_programs_check(samples, data):
    process = subprocess.run(
        ["sha256sum", "--check", "--quiet", data / "train.sha256"],
        cwd=samples / "train",
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout + process.stderr


def verify(folder: Path, name: str, status: int = 0):
    words = ["--tfrecord_filename", name, "--tfrecord_dir", folder, "--verify"]
    return run_convert(*words, cwd=folder.parent, status=status)


def test_a_whole_set_is_verified(data):
    card = Card.load(data / "train.json")
    assert f"{card.num_examples} examples in 3 shards" in verify(data, "train").stdout


def flip(file: Path, *positions: int) -> None:
    content = bytearray(file.read_bytes())
    for position in positions:
        content[position] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: flip(file, 3000), "faults, the first one: .*00001-of-00003.*record .* is d"),
        (lambda file: flip(file, 0), "faults, the first one: .*record 0 has a damaged header"),
        (lambda file: file.write_bytes(file.read_bytes()[:-9]), "faults, .*record .* is cut off"),
        (Path.unlink, "00001-of-00003.tfrecord: No such file or directory"),
    ],
)
def test_faults_are_named_and_counted(data, tmp_path, change, message):
    shutil.copytree(data, tmp_path / "data")
    change(tmp_path / "data" / "train-00001-of-00003.tfrecord")
    process = verify(tmp_path / "data", "train", status=2)
    assert re.search(message, process.stderr), process.stderr


def test_a_picture_that_is_broken_in_a_good_record_is_found(data, tmp_path):
    from library.data import write_index, write_shard

    shutil.copytree(data, tmp_path / "data")
    card = Card.load(data / "test.json")
    records = [bytearray(example.SerializeToString()) for example in examples(data / "test")]
    for record, harm in ((3, b"\xff\xd8"), (5, b"\x89PNG")):
        example = tf.train.Example.FromString(bytes(records[record]))
        example.features.feature["image/encoded"].bytes_list.value[:] = [harm]
        records[record] = example.SerializeToString()
    file = tmp_path / "data" / card.shards[0].file
    shard, rows = write_shard(file, map(bytes, records))
    write_index(tmp_path / "data" / "test", [rows])
    dataclasses.replace(card, shards=[shard]).save(tmp_path / "data" / "test.json")
    process = verify(tmp_path / "data", "test", status=2)
    assert "2 faults, the first one: " in process.stderr
    assert "record 3 has a broken image" in process.stderr


def test_a_file_that_changes_while_it_is_read_is_rejected(tmp_path, monkeypatch):
    file = tmp_path / "growing"
    file.write_bytes(bytes(1000))
    status = os.fstat

    def grow_then_stat(number):
        found = status(number)
        with open(file, "ab") as growing:
            growing.write(b"more")
        return found

    monkeypatch.setattr(os, "fstat", grow_then_stat)
    with pytest.raises(BadFileError, match="changed while it was read"):
        jobs.read_whole(file)


@pytest.mark.parametrize(
    ("prepare", "flags", "message"),
    [
        (lambda f: None, [], "dataset_dir: HERE/in is not a folder"),
        (lambda f: f.mkdir(), [], "dataset_dir: HERE/in contains no class folders; give their"),
        (
            lambda f: (f / "cat").mkdir(parents=True),
            [],
            "dataset_dir: there are no files in HERE/in",
        ),
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
    process = run_convert(*words, *flags, cwd=tmp_path, status=2)
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
    assert set(card) == {field.name for field in dataclasses.fields(Card)}
    assert (card["format_version"], card["label"]) == (2, "class")


# ---- labels, defaults, restart -------------------------------------------------------------------


def labeled(samples: Path, table: Path, column: str, label) -> Path:
    """A CSV file of the samples for training, with what `label` makes of each one's number."""
    names = [path.relative_to(samples / "train") for path in sorted(samples.glob("train/*/*"))]
    rows = [f"{name},{label(number)}" for number, name in enumerate(names)]
    table.write_text("\n".join([f"file,{column}", *rows]))
    return table


def test_several_labels_are_counted_each(samples, tmp_path):
    table = labeled(samples, tmp_path / "t.csv", "labels", lambda n: ";".join("abc"[: n % 4]))
    more = ("--labels", table, "--validation_fraction", 0.25)
    process = convert(samples / "train", tmp_path / "out", "train", *more)
    cards = [Card.load(tmp_path / "out" / f"{name}.json") for name in ("train", "validation")]
    assert [(card.label, card.classes) for card in cards] == [("labels", ["a", "b", "c"])] * 2
    counts = [sum(card.examples_per_class[name] for card in cards) for name in "abc"]
    assert counts == [72, 48, 24]
    assert "images of 3 classes" in process.stdout or "audio clips of 3 classes" in process.stdout
    assert "examples in" in verify(tmp_path / "out", "train").stdout
    process = convert(samples / "test", tmp_path / "out", "test", status=2)
    assert "dataset_dir: the kind of label is class, but labels in classes_from" in process.stderr


def test_values_have_the_statistics_of_the_training_set(samples, tmp_path):
    table = labeled(samples, tmp_path / "t.csv", "value", lambda n: n / 8)
    more = ("--labels", table, "--validation_fraction", 0.25)
    process = convert(samples / "train", tmp_path / "out", "train", *more)
    cards = {name: Card.load(tmp_path / "out" / f"{name}.json") for name in ("train", "validation")}
    values = {row["file"]: float(row["value"]) for row in csv.DictReader(table.open())}
    used = (tmp_path / "out" / "train.sha256").read_text().splitlines()
    trained = [values[line.split("  ")[1]] for line in used]
    for card in cards.values():
        assert (card.label, card.classes, card.examples_per_class) == ("value", [], {})
        assert card.value_mean == pytest.approx(np.mean(trained))
        assert card.value_std == pytest.approx(np.std(trained))
    assert "with values: mean" in process.stdout
    assert "examples in" in verify(tmp_path / "out", "validation").stdout
    more = ("--labels", table, "--classes_from", tmp_path / "out" / "train.json")
    convert(samples / "train", tmp_path / "out", "again", *more)
    assert Card.load(tmp_path / "out" / "again.json").target == cards["train"].target
    table.write_text(table.read_text() + "\nx.jpg,inf\n")
    process = convert(samples / "train", tmp_path / "out", "more", "--labels", table, status=2)
    assert process.stderr == f"error: labels: {table}, line 98: inf is not a finite number\n"


def test_a_folder_is_enough(samples, tmp_path):
    shutil.copytree(samples, tmp_path / "dataset")
    process = run_convert("--dataset_dir", "dataset/train", cwd=tmp_path)
    assert f"0.1 of the {modality.UNIT} are kept for validation" in process.stdout
    cards = [Card.load(tmp_path / f"data/{name}.json") for name in ("train", "validation")]
    assert cards[0].num_examples + cards[1].num_examples == 96
    assert 1 <= cards[1].num_examples <= 20
    process = run_convert("--dataset_dir", "dataset/test/", cwd=tmp_path)
    assert f"the classes are those of {tmp_path / 'data/train.json'}" in process.stdout
    assert Card.load(tmp_path / "data/test.json").classes == cards[0].classes
    more = ("--overwrite", "--validation_fraction", 0.3)
    run_convert("--dataset_dir", "dataset/train", *more, cwd=tmp_path)
    process = run_convert("--dataset_dir", "dataset/train", "--overwrite", cwd=tmp_path)
    assert f"0.3 of the {modality.UNIT} are kept for validation" in process.stdout, "as before"


def test_a_validation_set_of_its_own_is_enough(samples, tmp_path):
    shutil.copytree(samples / "train", tmp_path / "dataset/train")
    shutil.copytree(samples / "test", tmp_path / "dataset/validation")
    process = run_convert("--dataset_dir", "dataset/train", cwd=tmp_path)
    assert "kept for validation" not in process.stdout
    run_convert("--dataset_dir", "dataset/validation", cwd=tmp_path)
    shutil.rmtree(tmp_path / "dataset/validation")
    run_convert("--dataset_dir", "dataset/train", "--overwrite", cwd=tmp_path)
    cards = [Card.load(tmp_path / f"data/{name}.json") for name in ("train", "validation")]
    assert [card.num_examples for card in cards] == [96, 24]


def test_few_files_need_no_validation_set_unless_it_is_asked_for(samples, tmp_path):
    (tmp_path / "in" / "bar").mkdir(parents=True)
    file = next((samples / "train").rglob("*.*"))
    shutil.copy(file, tmp_path / "in" / "bar")
    process = convert(tmp_path / "in", tmp_path / "data", "train")
    assert f"no validation dataset: 0.1 of 1 {modality.UNIT[:-1]} leaves none for" in process.stdout
    more = ("--overwrite", "--validation_fraction", 0.1)
    process = convert(tmp_path / "in", tmp_path / "data", "train", *more, status=2)
    assert f"validation_fraction: 0.1 of 1 {modality.UNIT[:-1]} leaves none" in process.stderr


def test_a_conversion_resumes_with_the_shards_that_are_missing(samples, tmp_path, monkeypatch):
    def stop(progress, count, size):
        if progress.unit == modality.UNIT and len(list(tmp_path.rglob("train-*.npy"))) == 2:
            raise KeyboardInterrupt

    more = ("--num_shards", 5, "--validation_fraction", 0.25)
    with monkeypatch.context() as context:
        context.setattr(Progress, "update", stop)
        with pytest.raises(KeyboardInterrupt, match="finished shards are kept: the same command"):
            convert(samples / "train", tmp_path / "out", "train", *more)
    assert not [path for path in (tmp_path / "out").iterdir() if path.name[0] != "."]
    process = convert(samples / "train", tmp_path / "out", "train", *more)
    assert "resuming: 2 of 10 shards already done" in process.stdout
    convert(samples / "train", tmp_path / "whole", "train", *more)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_a_storage_that_fails_stops_the_conversion(samples, tmp_path, monkeypatch):
    read, broken = jobs.read_whole, next((samples / "test").rglob("*.*"))

    def read_some(path):
        if path == broken:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return read(path)

    with monkeypatch.context() as context:
        context.setattr(jobs, "read_whole", read_some)
        process = convert(samples / "test", tmp_path / "out", "test", status=1)
    assert f"error: {broken}: Input/output error; finished shards are kept" in process.stderr
    convert(samples / "test", tmp_path / "out", "test")
    assert Card.load(tmp_path / "out" / "test.json").num_examples == 24


def test_a_card_names_files_of_its_own_folder_only(data, tmp_path):
    shutil.copytree(data, tmp_path / "data")
    foreign = tmp_path / "x.json"
    foreign.write_text("mine")
    for name in ("../x", str(tmp_path / "x"), "..", "a\\b"):
        card = Card.load(data / "test.json")
        shards = [dataclasses.replace(card.shards[0], file=name)]
        dataclasses.replace(card, shards=shards).save(tmp_path / "data" / "test.json")
        process = verify(tmp_path / "data", "test", status=2)
        assert "test.json: not the card of a dataset" in process.stderr
    assert foreign.read_text() == "mine"


def test_a_card_of_before_is_read(data, tmp_path):
    card = json.loads((data / "test.json").read_text())
    old = {key: card[key] for key in ("classes", "examples_per_class", "shards", "options")}
    for classes, label in ((card["classes"], "class"), ([], "none")):
        content = old | {"classes": classes, "format_version": 1}
        (tmp_path / "old.json").write_text(json.dumps(content))
        assert Card.load(tmp_path / "old.json").label == label
