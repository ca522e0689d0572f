"""convert_dataset.py: what it writes, what it refuses, and nothing lost."""

import contextlib
import csv
import dataclasses
import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, convert, run_convert

from library.config import Location
from library.convert import ConvertOptions, jobs
from library.convert import convert as convert_here
from library.data import Card
from library.util import BadFileError, Progress
from project.settings import modality


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.slow
def test_the_result_does_not_depend_on_the_workers(samples, tmp_path):
    for workers in (1, 5):
        more = ["--num_workers", workers, "--num_shards", 5]
        convert(samples / "test", tmp_path / str(workers), "test", *more, processes=True)
    convert(samples / "test", tmp_path / "0", "test", "--num_shards", 5)
    assert files(tmp_path / "0") == files(tmp_path / "1") == files(tmp_path / "5")


def test_a_finished_set_is_replaced_only_when_asked_for(samples, tmp_path):
    out = tmp_path / "out"
    convert(samples / "test", out, "test", "--num_shards", 4)
    before = files(out)
    process = convert(samples / "test", out, "test", status=2)
    assert "already exists; use --overwrite to replace it" in process.stderr
    assert files(out) == before
    convert(samples / "test", out, "test", "--num_shards", 2, "--overwrite")
    assert sorted(files(out)) == [
        f"test-00000-of-00002{modality.SUFFIX}",
        f"test-00001-of-00002{modality.SUFFIX}",
        "test.index",
        "test.json",
        "test.sha256",
        "test.thumbnails",
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
        tfrecord_dir=Location(out),
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
            modality.open_data(out / name)
    convert(samples / "test", out, "train", *more[:2], status=2)  # finishes what was stopped
    assert (
        sum(modality.open_data(out / name).num_examples for name in ("train", "validation")) == 24
    )
    assert sorted(path.name for path in out.iterdir()) == sorted(
        f"{name}{rest}"
        for name in ("train", "validation")
        for rest in (
            ".index",
            ".json",
            ".sha256",
            ".thumbnails",
            *(f"-0000{n}-of-00002{modality.SUFFIX}" for n in (0, 1)),
        )
    )


def test_no_example_gets_into_both_sets_by_another_conversion(samples, tmp_path):
    out = tmp_path / "out"
    convert(samples / "test", out, "train", "--validation_fraction", 0.3)
    before = files(out)
    more = ("--validation_fraction", 0, "--overwrite")
    process = convert(samples / "test", out, "train", *more, status=2)
    assert f"has {modality.UNIT} of train, which would be in both: give 0.3 again" in process.stderr
    more = ("--validation_fraction", 0.3, "--overwrite")
    process = convert(samples / "test", out, "other", *more, status=2)
    assert "validation.json is not of other, but of train: use another" in process.stderr
    assert files(out) == before
    (out / "validation.json").write_text("{}")
    process = convert(samples / "test", out, "other", status=2)
    assert "validation.json: not the card of a dataset" in process.stderr


def test_file_names_need_not_be_text(samples, tmp_path):
    shutil.copytree(next((samples / "test").iterdir()), tmp_path / "in" / "bar")
    (tmp_path / "in" / "bar" / "not\udcfftext.jpg").write_bytes(b"no picture")
    convert(tmp_path / "in", tmp_path / "out", "train", "--max_rejected", 1)
    assert b"not\xfftext.jpg,not an " in (tmp_path / "out/train.rejected.csv").read_bytes()


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
            samples / "train", out, "train", *more, "--shards", 0, "--random_seed", 1, status=2
        )
        assert "is of a conversion of other files, or with other options" in process.stderr
    convert(samples / "train", out, "train", *more, "--finalize")
    assert files(out) == files(tmp_path / "one")
    (out / ".train.complete").mkdir()  # as while another process puts the files in their place
    process = convert(samples / "train", out, "train", *more, "--shards", "0", status=2)
    assert f"shards: all of {out}/train are written" in process.stderr
    assert (out / "train.json").exists()


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
def test_flags_that_do_not_fit_are_refused(samples, tmp_path, flags, message):
    process = convert(samples / "test", tmp_path / "out", "test", *flags, status=2)
    assert message in process.stderr


def test_a_name_with_dots_has_its_checksums(samples, tmp_path):
    out = tmp_path / "out"
    convert(samples / "test", out, "train.v1")
    process = convert(samples / "test", out, "test.v1", "--classes_from", out / "train.v1.json")
    assert "leak: 24 test.v1 files are also in train.v1" in process.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_to_is_one_line(samples, tmp_path):
    (tmp_path / "out").mkdir(mode=0o500)
    process = convert(samples / "test", tmp_path / "out" / "deeper", "test", status=2)
    assert "out cannot be written to" in process.stderr


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
    classes = tmp_path / "classes"
    convert(samples / "test", classes, "train")
    process = convert(samples / "train", classes, "other", "--labels", table)
    assert "its labels are not those of" in process.stdout
    mean = np.mean([*values.values()])
    assert Card.load(classes / "other.json").value_mean == pytest.approx(mean)
    table.write_text(table.read_text() + "\nx.jpg,inf\n")
    process = convert(samples / "train", tmp_path / "out", "more", "--labels", table, status=2)
    assert process.stderr == f"error: labels: {table}, line 98: inf is not a finite number\n"


def test_a_folder_is_enough(samples, tmp_path):
    shutil.copytree(samples, tmp_path / "dataset")
    process = run_convert("--dataset_dir", "dataset/train", cwd=tmp_path)
    assert f"10 % of the {modality.UNIT} are kept for validation" in process.stdout
    cards = [Card.load(tmp_path / f"data/{name}.json") for name in ("train", "validation")]
    assert cards[0].num_examples + cards[1].num_examples == 96
    assert 1 <= cards[1].num_examples <= 20
    (tmp_path / "data/train.sha256").unlink()  # as it was with older datasets
    process = run_convert("--dataset_dir", "dataset/test/", cwd=tmp_path)
    assert f"the classes are those of {tmp_path / 'data/train.json'}" in process.stdout
    assert Card.load(tmp_path / "data/test.json").classes == cards[0].classes
    more = ("--overwrite", "--validation_fraction", 0.3)
    run_convert("--dataset_dir", "dataset/train", *more, cwd=tmp_path)
    process = run_convert("--dataset_dir", "dataset/train", "--overwrite", cwd=tmp_path)
    assert f"30 % of the {modality.UNIT} are kept for validation" in process.stdout, "as before"


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
        if progress.unit == modality.UNIT and len(list(tmp_path.rglob("train-*.npz"))) == 2:
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


def test_what_was_stopped_is_begun_anew_with_other_groups(samples, tmp_path, monkeypatch):
    names = sorted(path.relative_to(samples / "train") for path in samples.glob("train/*/*"))

    def convert_to(out: str, group: slice) -> str:
        rows = [f"{name},{name.parts[0]},{name.stem[group]}" for name in names]
        (tmp_path / "t.csv").write_text("\n".join(["file,label,speaker", *rows]))
        more = ("--labels", tmp_path / "t.csv", "--group_by", "speaker", "--num_shards", 3)
        more += ("--validation_fraction", 0.3)
        return convert(samples / "train", tmp_path / out, "train", *more).stdout

    def stop(progress, count, size):
        if progress.unit == modality.UNIT and len([*tmp_path.rglob("train-*.npz")]) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(Progress, "update", stop)
        with pytest.raises(KeyboardInterrupt):
            convert_to("out", slice(-1, None))
    assert "resuming" not in convert_to("out", slice(-2, None))
    convert_to("whole", slice(-2, None))
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
    assert "24 examples in" in verify(tmp_path / "out", "plain").stdout


def test_train_and_test_folders_are_converted_in_one_go(samples, tmp_path):
    shutil.copytree(samples, tmp_path / "dataset")
    (tmp_path / "dataset" / "test").rename(tmp_path / "dataset" / "testing")
    process = run_convert("--dataset_dir", "dataset", cwd=tmp_path)
    folders = [str(tmp_path / "dataset" / name) for name in ("train", "testing")]
    assert f"dataset contains 2 datasets: {', '.join(folders)}\n" in process.stdout
    cards = {name: Card.load(tmp_path / f"data/{name}.json") for name in ("train", "test")}
    assert cards["test"].num_examples == 24
    assert (
        cards["train"].num_examples + Card.load(tmp_path / "data/validation.json").num_examples
        == 96
    )
    counts = ", ".join(f"{name} 4" for name in cards["test"].classes)
    assert f"24 {modality.UNIT} of 6 classes\n  {counts}\n" in process.stdout
    process = run_convert("--dataset_dir", "dataset", cwd=tmp_path, status=2)
    assert "train.json already exists; use --overwrite" in process.stderr
    (tmp_path / "data/test.json").unlink()  # as after a stop
    process = run_convert("--dataset_dir", "dataset", cwd=tmp_path)
    assert "train.json already exists and is kept" in process.stdout
    assert Card.load(tmp_path / "data/test.json").num_examples == 24
    words = ("--dataset_dir", "dataset", "--tfrecord_filename", "all")
    process = run_convert(*words, cwd=tmp_path, status=2)
    assert f"tfrecord_filename: {tmp_path / 'dataset'} contains 2 datasets: " in process.stderr
    (tmp_path / "dataset" / "training").mkdir()
    process = run_convert("--dataset_dir", "dataset", cwd=tmp_path, status=2)
    assert "contains testing and train and training: two of them are one" in process.stderr
    (tmp_path / "dataset" / "training").rmdir()
    (tmp_path / "dataset" / "mine").mkdir()
    process = run_convert("--dataset_dir", "dataset", "--tfrecord_filename", "x", cwd=tmp_path)
    assert "  mine 0, testing 24, train 96\n" in process.stdout


def sides_of(samples: Path, out: Path, group_of) -> dict[str, set[str]]:
    """In which datasets the files of each group are."""
    sides: dict[str, set[str]] = {}
    for name in ("train", "validation"):
        for line in (out / f"{name}.sha256").read_text().splitlines():
            sides.setdefault(group_of(line.split("  ")[1]), set()).add(name)
    return sides


def test_a_group_stays_in_one_dataset(samples, tmp_path):
    def last_digit(name: str) -> str:
        return Path(name).stem[-1]

    more = ("--validation_fraction", 0.3, "--group_by")
    process = convert(samples / "train", tmp_path / "a", "train", *more, r"(\d)\.")
    assert r"group_by: 10 groups by (\d)\." + "\n" in process.stdout
    process = convert(samples / "train", tmp_path / "0", "train", *more, r"(0)\.")
    assert "group_by: 1 group by (0)\\.; 84 of 96 files are in none" in process.stdout
    sides = sides_of(samples, tmp_path / "a", last_digit)
    assert len(sides) == 10
    assert {len(names) for names in sides.values()} == {1}
    names = [path.relative_to(samples / "train").as_posix() for path in samples.glob("train/*/*")]
    table = [f"{name},{name[0]},{last_digit(name)}" for name in sorted(names)]
    (tmp_path / "t.csv").write_text("\n".join(["file,label,speaker", *table]))
    csv_of = ("--labels", tmp_path / "t.csv")
    convert(samples / "train", tmp_path / "b", "train", *csv_of, *more, "speaker")
    assert sides_of(samples, tmp_path / "b", last_digit) == sides
    more = (0.01, "--group_by", r"\d\.")
    convert(samples / "train", tmp_path / "c", "train", "--validation_fraction", *more)
    sides = sides_of(samples, tmp_path / "c", last_digit)
    assert [*map(len, sides.values())] == [1] * 10
    assert {"validation"} in sides.values(), "one of few, at least"
    again = (samples / "train", tmp_path / "c", "train", "--overwrite")
    before = files(tmp_path / "c")
    process = convert(*again, status=2)
    assert r"validation.json was split by \d\.: give it again, or a --validation" in process.stderr
    assert files(tmp_path / "c") == before
    convert(*again, "--group_by", r"\d\.")
    assert files(tmp_path / "c") == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--validation_fraction", 0.3, "--group_by", "("], "group_by: ( is not a regular expr"),
        (["--validation_fraction", 0.3, "--group_by", "x{9}"], "x{9} finds nothing in any name"),
        (["--group_by", "a"], "group_by: there is no split: give --validation_fraction too"),
        (["--beam_options=--x"], "beam_options: nothing runs on Beam: give --runner, too"),
    ],
)
def test_groups_that_cannot_be_are_refused(samples, tmp_path, flags, message):
    process = convert(samples / "test", tmp_path / "out", "x", *flags, status=2)
    assert message in process.stderr


def test_a_misspelt_folder_is_answered_with_the_nearest_one(samples, tmp_path):
    process = convert(samples / "trian", tmp_path / "out", "a", status=2)
    assert process.stderr.endswith("neither a folder nor an archive (did you mean train?)\n")


def test_nothing_to_learn_is_said(samples, tmp_path):
    table = labeled(samples, tmp_path / "t.csv", "label", lambda number: "cat")
    process = convert(samples / "train", tmp_path / "out", "a", "--labels", table)
    assert "warning: cat is the only class: there is nothing to learn" in process.stdout
    table = labeled(samples, tmp_path / "t.csv", "value", lambda number: 3)
    process = convert(samples / "train", tmp_path / "out", "b", "--labels", table)
    assert "warning: all values are 3: there is nothing to learn" in process.stdout
    process = run_convert(cwd=tmp_path, status=2)
    assert "dataset_dir: missing: give the folder, as --dataset_dir dataset" in process.stderr


def test_a_second_dataset_takes_the_classes_of_the_first_one(samples, tmp_path):
    out = tmp_path / "out"
    convert(samples / "train", out, "train")
    shutil.copytree(samples / "test", tmp_path / "in")
    some = next((tmp_path / "in").iterdir())
    shutil.rmtree(some)
    process = convert(tmp_path / "in", out, "more")
    assert f"the classes are those of {out / 'train.json'}" in process.stdout
    assert Card.load(out / "more.json").classes == Card.load(out / "train.json").classes
    shutil.copytree(next((samples / "train").iterdir()), tmp_path / "in" / "dragon")
    process = convert(tmp_path / "in", out, "other")
    assert f"its labels are not those of {out / 'train.json'}: a dataset of" in process.stdout
    assert "leak: 16 other files are also in train or validation" in process.stdout
    process = convert(tmp_path / "in", out, "test", status=2)
    assert "the class dragon is not in classes_from" in process.stderr


def test_the_number_of_shards_follows_from_the_files():
    def count(files: int, file_size: float = 1e6, **options) -> int:
        return ConvertOptions(**options).num_shards_of(files, file_size)

    assert [count(n) for n in (1, 64, 65, 1024, 16_000, 16_001)] == [1, 1, 2, 16, 16, 17]
    assert count(10**7, 3000) == 200, "of 150 MB"
    assert [count(10**6, size) for size in (0, 1e4, 1e5, 4e6)] == [16, 67, 667, 1000]
    assert (count(10**7, num_shards=2000), count(7, num_shards=20)) == (2000, 7)


@pytest.mark.parametrize("step", ["np.savez", "os.replace"])
def test_a_quota_that_is_used_up_is_one_line(samples, tmp_path, monkeypatch, step):
    def refuse(*_, **__):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with monkeypatch.context() as context:
        context.setattr(*((np, "savez") if step == "np.savez" else (os, "replace")), refuse)
        process = convert(samples / "test", tmp_path / "out", "test", status=1)
    assert process.stderr.startswith(f"error: {tmp_path / 'out'}: no space left; finished shards")
    convert(samples / "test", tmp_path / "out", "test")


def test_a_contact_sheet_has_examples_duplicates_and_rejections(samples, tmp_path):
    folder, out = tmp_path / "test", tmp_path / "out"
    shutil.copytree(samples / "test", folder)
    first = next(path for path in sorted(folder.rglob("*")) if path.is_file())
    again, broken = (first.with_name(f"{name}{first.suffix}") for name in ("again", "<broken>"))
    shutil.copy(first, again)
    broken.write_bytes(b"nothing")
    convert(folder, out, "test", "--max_rejected", 1, "--contact_sheet")
    sheet = out / "test.contact_sheet.html"
    page = sheet.read_text()
    shown = re.findall(r'src="data:(?:image/jpeg|audio/flac);base64,[^"]+"', page)
    assert len(shown) >= 2 * len([*folder.iterdir()]) + 2
    assert "http" not in page, "it needs nothing beside it"
    assert page.count("<img alt") == len(re.findall(r'<img alt="[^"]+"', page)), "a text for each"
    for name in (first.name, again.name, "&lt;broken&gt;", "not an "):
        assert name in page
    for name, count in json.loads((out / "test.json").read_text())["examples_per_class"].items():
        assert f'<th scope="row">{name}</th><td>{count}</td>' in page
    sheet.unlink()
    convert(folder, out, "test", "--contact_sheet")
    assert sheet.read_text() == page, "a finished dataset is left as it is"


def test_a_contact_sheet_shows_no_file_of_the_same_name_for_one_of_another_dataset(
    samples, tmp_path
):
    first, second = sorted(samples.glob("test/*/*"))[::12]
    for name, source in (("train", first), ("test", second)):
        shutil.copytree(samples / "test", tmp_path / name, ignore=shutil.ignore_patterns("*.*"))
        shutil.copy(source, tmp_path / name / first.parent.name / first.name)
    again = tmp_path / "test" / first.parent.name / f"again{first.suffix}"
    shutil.copy(first, again)
    convert(tmp_path / "train", tmp_path / "out", "train", "--validation_fraction", 0)
    convert(tmp_path / "test", tmp_path / "out", "test", "--contact_sheet")
    page = (tmp_path / "out" / "test.contact_sheet.html").read_text()
    pair = page.partition("<h2>Duplicates</h2>")[2]
    assert again.name in pair
    assert pair.count("base64,") == 1, "the other one is in the folder of train"
    (tmp_path / "t.csv").write_text(
        f"file,value\n{again.parent.name}/{again.name},1.5\n{first.parent.name}/x{first.suffix},2\n"
    )
    again.with_name(f"x{first.suffix}").write_bytes(first.read_bytes())
    convert(tmp_path / "test", tmp_path / "values", "train", "--labels", tmp_path / "t.csv")
    (row,) = csv.DictReader((tmp_path / "values" / "train.duplicates.csv").open())
    assert row["conflicting label"] in ("1.5", "2")
