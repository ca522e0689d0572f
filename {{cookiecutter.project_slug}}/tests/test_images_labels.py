"""Records of images with the three kinds of label: written, parsed and verified."""

import csv
import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from made_images import IMAGE, encoded

from library.config import Settings
from library.data import Card, DamagedRecordError, Label, Target, read_in_order, write_index
from library.images import (
    Jpeg,
    ShardOptions,
    canonicalize,
    check_shard,
    encoded_examples,
    open_data,
    parse_example,
    sample_data,
    to_example,
    train_keys,
    write_shard,
)

CLASSES = ("cat", "dog", "Käse")
KINDS: dict[str, tuple[Target, list[Label]]] = {
    "class": (Target("class", CLASSES), [0, 2, 1]),
    "labels": (Target("labels", CLASSES), [(0, 2), (), (1,)]),
    "value": (Target("value", mean=3, std=2), [0.1, -7.25, 1e6]),
    "none": (Target("none"), [-1, -1, -1]),
}


@pytest.fixture(scope="module")
def jpeg() -> Jpeg:
    return canonicalize(encoded(IMAGE), ShardOptions())


def tensors(target: Target, labels: list[Label], jpeg: Jpeg) -> list[tf.Tensor]:
    records = [to_example(jpeg, label, "a.jpg", target) for label in labels]
    return [parse_example(tf.constant(record), target)["label"] for record in records]


def test_a_class_is_a_number(jpeg):
    found = tensors(*KINDS["class"], jpeg)
    assert [(each.dtype, each.numpy()) for each in found] == [(tf.int64, n) for n in (0, 2, 1)]


def test_several_classes_are_multi_hot(jpeg):
    found = tensors(*KINDS["labels"], jpeg)
    assert {each.dtype for each in found} == {tf.float32}
    assert [each.numpy().tolist() for each in found] == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_a_value_is_a_float(jpeg):
    found = tensors(*KINDS["value"], jpeg)
    assert {(each.dtype, each.shape.rank) for each in found} == {(tf.float32, 0)}
    assert [each.numpy() for each in found] == [np.float32(each) for each in (0.1, -7.25, 1e6)]


def test_an_example_without_a_label_has_none(jpeg):
    assert [each.numpy() for each in tensors(*KINDS["none"], jpeg)] == [-1, -1, -1]


@pytest.mark.parametrize("kind", KINDS)
def test_labels_keep_their_shape_in_batches(kind, jpeg):
    target, labels = KINDS[kind]
    records = [to_example(jpeg, label, "a.jpg", target) for label in labels]
    batches = tf.data.Dataset.from_tensor_slices(records)
    batches = batches.map(lambda record: parse_example(record, target)).batch(3)
    shape = [None, 3] if kind == "labels" else [None]
    assert batches.element_spec["label"].shape.as_list() == shape
    (batch,) = batches.as_numpy_iterator()
    assert batch["key"].tolist() == [b"a.jpg"] * 3


@pytest.mark.parametrize(
    ("kind", "texts", "values"),
    [("class", ["Käse"], []), ("labels", ["cat", "Käse"], []), ("value", [], [np.float32(0.1)])],
)
def test_other_programs_can_read_the_labels(kind, texts, values, jpeg):
    target, labels = KINDS[kind]
    label = labels[1] if kind == "class" else labels[0]
    record = to_example(jpeg, label, "a.jpg", target)
    feature = tf.train.Example.FromString(record).features.feature
    assert [text.decode() for text in feature["image/class/text"].bytes_list.value] == texts
    assert list(feature["image/value"].float_list.value) == values


def write(folder, target: Target, records: list[tuple[str, Label, Jpeg]]) -> None:
    """A dataset of one shard."""
    shard, rows = write_shard(folder / "a-00000-of-00001.tfrecord", records, target)
    write_index(folder / "a", [rows])
    Card([*target.classes], {}, [shard], {}, target.label).save(folder / "a.json")


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_that_is_whole_has_no_faults(kind, jpeg, tmp_path):
    target, labels = KINDS[kind]
    write(tmp_path, target, [(f"{n}.jpg", label, jpeg) for n, label in enumerate(labels)])
    told: list[tuple[int, int]] = []
    found = check_shard(
        tmp_path / "a-00000-of-00001.tfrecord", target, {}, lambda *each: told.append(each)
    )
    faults, classes = zip(*found, strict=True)
    assert faults == ("", "", "")
    assert sorted(sum(classes, [])) == ([0, 1, 2] if kind in ("class", "labels") else [])
    assert told == list(enumerate(open_data(tmp_path / "a").sizes))


def faults_in(file: Path, target: Target, bad: dict[int, str] | None = None) -> list[str]:
    found = check_shard(file, target, bad or {}, lambda number, size: None)
    return [fault for fault, _ in found if fault]


@pytest.mark.parametrize(
    ("target", "label", "fault"),
    [
        (Target("class", ("x", "y")), 2, "has no label from 0 to 1"),
        (Target("class", ("x", "y")), -1, "has no label from 0 to 1"),
        (Target("labels", ("x", "y")), (0, 2), r"has labels \[0, 2\], not some from 0 to 1"),
        (Target("labels", ("x", "y")), (1, 1), r"has labels \[1, 1\]"),
        (Target("value"), float("nan"), "has no value"),
    ],
)
def test_a_wrong_label_is_a_fault(target, label, fault, jpeg, tmp_path):
    file = tmp_path / "a.tfrecord"
    write_shard(file, [("a.jpg", label, jpeg)], Target(target.label, tuple("xyz")))
    (found,) = faults_in(file, target)
    assert found.startswith("record 0 has ")
    assert re.search(fault, found)


@pytest.mark.parametrize(
    ("change", "end"),
    [
        (lambda data: data[:-1], "a.tfrecord: record 2 is cut off"),
        (lambda data: b"\1" + data[1:], "a.tfrecord: record 0 has a damaged header"),
    ],
)
def test_damage_that_hides_the_rest_is_named(change, end, jpeg, tmp_path):
    target, labels = KINDS["class"]
    file = tmp_path / "a.tfrecord"
    write_shard(file, [("a.jpg", label, jpeg) for label in labels], target)
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(DamagedRecordError, match=end):
        faults_in(file, target)


def test_damage_in_a_record_is_a_fault_and_the_rest_is_read(jpeg, tmp_path):
    target, labels = KINDS["class"]
    file = tmp_path / "a.tfrecord"
    write_shard(file, [("a.jpg", label, jpeg) for label in labels], target)
    data = file.read_bytes()
    file.write_bytes(data[:50] + b"\0\0" + data[52:])
    found = check_shard(file, target, {}, lambda number, size: None)
    assert [*found] == [("record 0 is damaged", []), ("", [2]), ("", [1])]


def test_what_is_no_image_is_a_fault_and_what_hangs_is_not_decoded(jpeg, tmp_path):
    target, file = Target("none"), tmp_path / "a.tfrecord"
    broken = Jpeg(b"no image", 1, 1)
    write_shard(file, [("a", -1, broken), ("b", -1, broken), ("c", -1, jpeg)], target)
    first, second = faults_in(file, target, {0: "takes too long"})
    assert first == "record 0 takes too long"
    assert second.startswith("record 1 has a broken image")


def test_names_and_images_of_a_dataset_are_listed(jpeg, tmp_path):
    target = Target("class", CLASSES)
    names = [f"Käse/{number}.jpg" for number in range(20)]
    write(tmp_path, target, [(name, 0, jpeg) for name in names])
    settings = Settings(train_data=str(tmp_path / "a"), random_seed=1)
    keys = train_keys(settings, 0, 40)
    assert sorted(keys[:20]) == sorted(keys[20:]) == sorted(names)
    cached = dataclasses.replace(settings, cache="file", cache_dir=tmp_path / "cache")
    assert train_keys(cached, 13, 5) == keys[13:18]
    assert not (tmp_path / "cache").exists()
    assert encoded_examples(tmp_path / "a", [0, 6, 12]) == [jpeg.data] * 3
    ids = [int(number) for number, _ in read_in_order(tmp_path / "a")]
    assert ids == list(range(20))


@pytest.mark.parametrize(("task", "labels"), [("labels", 8), ("value", 6)])
def test_sample_data_has_a_row_for_each_image(task, labels, tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        sample_data.make(folder, per_class={"train": 3, "test": 2}, task=task)
    one, two = ({p.name: p.read_bytes() for p in f.rglob("*.*")} for f in folders)
    assert one == two, "the same arguments give the same images"
    for split, count in {"train": 3, "test": 2}.items():
        with open(folders[0] / f"{split}.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        files = sorted(path.name for path in (folders[0] / split).iterdir())
        assert sorted(row["file"] for row in rows) == files
        unseen = task == "value" and split == "train"
        assert len(rows) == count * (labels - unseen)
        if task == "value":
            assert ("10" in {row["value"] for row in rows}) == (split == "test")
            row = next(row for row in rows if row["value"] == "15")
            image = np.asarray(tf.io.decode_image((folders[0] / split / row["file"]).read_bytes()))
            assert (image.min(axis=-1) > 180).sum() == pytest.approx(np.pi * 15**2, rel=0.1)
        else:
            assert {row["labels"] for row in rows} >= {"", "blue", "blue;green;red"}
