"""Images become records: what a conversion keeps of them, what it rejects, and nothing lost."""

import csv
import dataclasses
import re
import shutil
import signal
from pathlib import Path

import fsspec
import numpy as np
import pytest
import tensorflow as tf
from conftest import convert, run_convert, run_signaled
from PIL import Image
from test_convert_dataset import files, verify

from library.data import Card, Reader


def examples(path) -> list[tf.train.Example]:
    reader = Reader(str(path))
    ids = np.arange(reader.card.num_examples)
    return [tf.train.Example.FromString(record) for record in reader.read(ids)]


def value(example: tf.train.Example, key: str):
    feature = example.features.feature[key]
    return (feature.bytes_list.value or feature.int64_list.value)[0]


def test_every_image_is_in_one_set_with_its_label(samples, data):
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


def test_an_image_stays_in_its_set_when_others_are_added(samples, tmp_path):
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


def test_large_images_shrink_and_classes_of_digits_are_sorted_by_value(tmp_path):
    for name in ("10", "9", "a"):
        (tmp_path / "in" / name).mkdir(parents=True)
        Image.new("RGB", (500, 1000)).save(tmp_path / "in" / name / "ä b.png")
    convert(tmp_path / "in", tmp_path / "out", "train", "--max_edge", 100)
    assert Card.load(tmp_path / "out" / "train.json").classes == ["9", "10", "a"]
    for example in examples(tmp_path / "out" / "train"):
        assert (value(example, "image/height"), value(example, "image/width")) == (100, 50)


def test_broken_images_are_listed(samples, tmp_path):
    shutil.copytree(samples / "test", tmp_path / "in")
    (tmp_path / "in" / "bar" / "notes.txt").write_text("no picture")
    broken = tmp_path / "in" / "star" / "broken.jpg"
    broken.write_bytes(next((samples / "train" / "star").glob("*.jpg")).read_bytes()[:500])

    process = convert(tmp_path / "in", tmp_path / "out", "test", status=2)
    assert "max_rejected: 2 of 26 files rejected, above the limit of 1 % (" in process.stderr
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


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_conversion_that_is_stopped_leaves_nothing_that_looks_finished(tmp_path, number):
    make_images(tmp_path / "in", 200)
    more = ["--num_shards", 100, "--validation_fraction", 0]
    words = ["--dataset_dir", "in", "--tfrecord_filename", "train", "--tfrecord_dir", "out", *more]
    moment = {"signals": [number], "at_files": "out/.train.partial/train-*.npz 2"}
    process = run_signaled("convert_dataset.py", *words, "--num_workers", 1, cwd=tmp_path, **moment)
    assert not [path for path in (tmp_path / "out").iterdir() if path.name[0] != "."]
    if number != signal.SIGKILL:
        assert "finished shards are kept: the same command resumes" in process.stderr
        assert "Traceback" not in process.stderr
    process = convert(tmp_path / "in", tmp_path / "out", "train", *more)
    assert re.search("resuming: [1-9][0-9]? of 100 shards already done", process.stdout)
    assert Card.load(tmp_path / "out" / "train.json").num_examples == 200
    convert(tmp_path / "in", tmp_path / "again", "train", *more)
    assert files(tmp_path / "out") == files(tmp_path / "again")


def make_images(folder: Path, count: int, classes: int = 2) -> None:
    """Small pictures, all different."""
    random = np.random.default_rng(0)
    for number in range(count):
        file = folder / f"class {number % classes}" / f"{number:05}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (24, 24, 3), np.uint8)).save(file)


@pytest.mark.slow
def test_ten_kills_change_nothing(tmp_path):
    make_images(tmp_path / "in", 600)
    more = ["--validation_fraction", 0.2, "--num_shards", 100, "--num_workers", 2]
    convert(tmp_path / "in", tmp_path / "whole", "train", *more)
    words = ["--dataset_dir", "in", "--tfrecord_filename", "train", "--tfrecord_dir", "out", *more]
    random = np.random.default_rng(1)

    def finished() -> int:
        """Parts: 2 that look at 500 files at most, then 125 shards."""
        return len(list(tmp_path.glob("out/.train.partial/*.npz")))

    for _ in range(10):
        parts = finished() + random.integers(1, 5)
        moment = {"signals": [signal.SIGKILL], "at_files": f"out/.train.partial/*.npz {parts}"}
        run_signaled("convert_dataset.py", *words, cwd=tmp_path, **moment)
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
    ballast.write_bytes(bytes(40 * 2**20))
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


def test_an_image_in_two_classes_is_a_label_conflict(samples, tmp_path):
    shutil.copytree(samples / "test" / "bar", tmp_path / "in" / "bar")
    shutil.copytree(samples / "test" / "bar", tmp_path / "in" / "pub")
    process = convert(tmp_path / "in", tmp_path / "out", "test")
    assert "4 duplicate files: see " in process.stdout
    assert "label conflict: 4 duplicates have a different class" in process.stdout


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


def test_an_image_that_is_broken_in_a_good_record_is_found(data, tmp_path):
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


@pytest.mark.parametrize(
    ("prepare", "flags", "message"),
    [
        (lambda f: None, [], "dataset_dir: HERE/in is neither a folder nor an archive"),
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
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path, prepare, flags, message):
    prepare(tmp_path / "in")
    words = ["--dataset_dir", "in", "--tfrecord_filename", "train", "--tfrecord_dir", "out"]
    process = run_convert(*words, *flags, cwd=tmp_path, status=2)
    assert process.stderr.splitlines()[0].startswith("error: ")
    assert message in process.stderr.replace(str(tmp_path), "HERE")
    assert not (tmp_path / "out").exists()


def test_a_dataset_elsewhere_is_verified_without_a_cache(data, tmp_path):
    elsewhere = fsspec.filesystem("memory")
    for file in data.glob("train*"):
        elsewhere.put(str(file), f"verified/{file.name}")
    words = ["--tfrecord_dir", "memory://verified", "--tfrecord_filename", "train", "--verify"]
    assert "examples in 3 shards verified" in run_convert(*words, cwd=tmp_path).stdout
    (shard, *_) = sorted(data.glob("train*.tfrecord"))
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    elsewhere.pipe(f"verified/{shard.name}", bytes(content))
    process = run_convert(*words, cwd=tmp_path, status=2)
    faults = f"memory://verified/train: 2 faults, the first one: {shard.name}: record 0"
    assert faults in process.stderr
    elsewhere.rm(f"verified/{shard.name}")
    process = run_convert(*words, cwd=tmp_path, status=2)
    assert process.stderr == f"error: memory://verified/{shard.name}: there is no such file\n"
    assert not any(tmp_path.iterdir())
