"""Archives: converted like the folders that they are of, and nothing gets out of them."""

import csv
import gzip
import io
import json
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from conftest import convert, run_convert

from library.convert.packed import folder_of
from library.data import Example, write_shard


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def rejected(out: Path) -> dict[str, str]:
    with open(out / "test.rejected.csv", newline="") as file:
        return {row["file"]: row["reason"] for row in csv.DictReader(file)}


@pytest.mark.parametrize("kind", ["zip", "tar", "gztar"])
def test_an_archive_becomes_what_its_folder_becomes(samples, tmp_path, kind):
    """Also where the folder itself is in it, as `zip -r test.zip test` makes it."""
    folder, packed = tmp_path / "test", tmp_path / "packed" / "test"
    shutil.copytree(samples / "test", folder)
    name = next(folder.iterdir())
    (name / "broken").write_bytes(b"nothing")
    more = ("--max_rejected", 1, "--validation_fraction", 0.3, "--contact_sheet")
    convert(folder, tmp_path / "expected", "test", *more)
    archive = shutil.make_archive(str(packed), kind, root_dir=tmp_path, base_dir="test")
    convert(archive, tmp_path / "out", "test", *more)
    expected, found = files(tmp_path / "expected"), files(tmp_path / "out")
    sheet = "test.contact_sheet.html"
    assert expected.pop(sheet).count(b"data:") == found.pop(sheet).count(b"data:")
    assert found == expected
    assert rejected(tmp_path / "out").keys() == {f"{name.name}/broken"}


def test_datasets_in_an_archive_are_converted_in_one_go(samples, tmp_path):
    archive = shutil.make_archive(str(tmp_path / "all"), "zip", root_dir=samples)
    run_convert("--dataset_dir", archive, "--tfrecord_dir", tmp_path / "out", cwd=tmp_path)
    cards = {path.stem for path in (tmp_path / "out").glob("*.json")}
    assert {"train", "test"} <= cards


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize("ending", [".cls", ".json"])
def test_classes_beside_the_files(samples, tmp_path, ending):
    """As webdataset has them: 000.jpg, and 000.cls or 000.json. The result is that of a table."""
    folder, table = tmp_path / "test", ["file,label"]
    folder.mkdir()
    with tarfile.open(tmp_path / "test.tar.gz", "w:gz") as archive:
        for number, file in enumerate(sorted(samples.glob("test/*/*"))):
            name, label = f"{number:03}{file.suffix}", file.parent.name
            beside = {".json": json.dumps({"label": label, "x": 1}), ".cls": f"{label}\n"}
            if ending == ".cls":  # which wins
                beside[".json"] = json.dumps({"label": "another"})
            else:
                del beside[".cls"]
            add(archive, name, file.read_bytes())
            for suffix, text in beside.items():
                add(archive, f"{number:03}{suffix}", text.encode())
            shutil.copy(file, folder / name)
            table.append(f"{name},{label}")
        add(archive, "without.jpg", b"")
    (tmp_path / "labels.csv").write_text("\n".join(table))
    convert(folder, tmp_path / "expected", "test", "--labels", tmp_path / "labels.csv")
    convert(tmp_path / "test.tar.gz", tmp_path / "out", "test", "--max_rejected", 1)
    assert rejected(tmp_path / "out") == {"without.jpg": "it has no class"}
    expected, found = files(tmp_path / "expected"), files(tmp_path / "out")
    del found["test.rejected.csv"]
    assert found == expected


def test_a_class_that_cannot_be_read_is_none(samples, tmp_path):
    (file,) = [*samples.glob("test/*/*")][:1]
    with zipfile.ZipFile(tmp_path / "test.zip", "w") as archive:
        for name, content in {"0": b"cat", "1": b"the class dog"}.items():
            archive.write(file, f"{name}{file.suffix}")
            archive.writestr(f"{name}.cls", content)
    damaged = (tmp_path / "test.zip").read_bytes().replace(b"the class dog", b"the cla\0s dog", 1)
    (tmp_path / "test.zip").write_bytes(damaged)
    convert(tmp_path / "test.zip", tmp_path / "out", "test", "--max_rejected", 1)
    assert rejected(tmp_path / "out") == {f"1{file.suffix}": "it has no class"}


def test_any_part_of_a_gzipped_archive_is_read(tmp_path):
    """Also of several gzip files one after another, as bgzip writes them."""
    random, file = np.random.default_rng(0), tmp_path / "large.tar.gz"
    contents = [random.bytes(200_000 + number) for number in range(60)]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for number, content in enumerate(contents):
            add(archive, f"{number:02}.bin", content)
    whole = packed.getvalue()
    parts = [gzip.compress(whole[at : at + 2**20], 1) for at in range(0, len(whole), 2**20)]
    file.write_bytes(b"".join(parts))
    root = folder_of(file)
    for number in random.integers(0, 60, 100):
        assert (root / f"{number:02}.bin").read() == contents[number]


def write_parquet(path: Path, rows: list, labels: list, names: list[str] | None, kind: str) -> None:
    """As `datasets` writes it to the hub: the features are in the metadata of the schema."""
    features = {kind: {"_type": kind.capitalize()}}
    features |= {"label": {"_type": "ClassLabel", "names": names}} if names else {}
    table = pyarrow.table(
        {kind: [{"bytes": each, "path": "../a.x"} for each in rows], "label": labels}
    )
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    path.parent.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), path, row_group_size=5)


@pytest.mark.parametrize(("kind", "numbered"), [("image", True), ("audio", False)])
def test_parquet_files_become_what_their_files_become(samples, tmp_path, kind, numbered):
    """Of two splits, one of them in two files; the label is a number of a name, or a text."""
    names = sorted(folder.name for folder in (samples / "train").iterdir())
    for split in ("train", "test"):
        found, table = sorted(samples.glob(f"{split}/*/*")), ["file,label"]
        parts = [found[::2], found[1::2]] if split == "train" else [found]
        for part, some in enumerate(parts):  # the last one has a row without content
            stem = f"{split}-{part:05}-of-{len(parts):05}"
            labels = [file.parent.name for file in some]
            given = [names.index(label) for label in labels] if numbered else labels
            rows = [file.read_bytes() for file in some]
            path = tmp_path / "hub" / f"{stem}.parquet"
            if part + 1 == len(parts):
                rows, given = [*rows, None, rows[0]], [*given, given[0], -1 if numbered else None]
            write_parquet(path, rows, given, names if numbered else None, kind)
            for number, (file, label) in enumerate(zip(some, labels, strict=True)):
                name = f"{stem}-{number:06}"
                (tmp_path / split).mkdir(exist_ok=True)
                shutil.copy(file, tmp_path / split / name)
                table.append(f"{name},{label}")
        (tmp_path / split / f"{stem}-{len(labels):06}").touch()  # of the last one, rejected
        table.append(f"{stem}-{len(labels):06},{label}")
        (tmp_path / f"{split}.csv").write_text("\n".join(table))
        more = [
            "--max_rejected",
            1,
            "--labels",
            tmp_path / f"{split}.csv",
            "--validation_fraction",
            0,
        ]
        convert(tmp_path / split, tmp_path / "expected", split, *more)
    words = ["--dataset_dir", tmp_path / "hub", "--tfrecord_dir", tmp_path / "out"]
    run_convert(*words, "--validation_fraction", 0, "--max_rejected", 1, cwd=tmp_path)
    last = len(found)
    assert rejected(tmp_path / "out") == {
        f"test-00000-of-00001-{last:06}": "its row has no content",
        f"test-00000-of-00001-{last + 1:06}": "it has no class",
    }
    expected, converted = files(tmp_path / "expected"), files(tmp_path / "out")
    for name in ("train.rejected.csv", "test.rejected.csv"):
        assert converted.pop(name).count(b"\n") == expected.pop(name).count(b"\n") + 1
    assert converted == expected


@pytest.mark.parametrize("kind", ["gztar", "parquet"])
def test_a_conversion_of_an_archive_resumes(samples, tmp_path, kind):
    archive = tmp_path / "test.parquet"
    if kind == "parquet":
        found = sorted(samples.glob("test/*/*"))
        labels = [file.parent.name for file in found]
        write_parquet(archive, [file.read_bytes() for file in found], labels, None, "image")
    else:
        archive = Path(shutil.make_archive(str(archive), kind, root_dir=samples / "test"))
    words = ["--dataset_dir", archive, "--tfrecord_filename", "x", "--num_shards", 2]
    if kind == "parquet":  # of the split test
        words = ["--dataset_dir", archive, "--num_shards", 2]
    run_convert(*words, "--tfrecord_dir", "whole", cwd=tmp_path)
    run_convert(*words, "--tfrecord_dir", "parts", "--shards", 0, cwd=tmp_path)
    process = run_convert(*words, "--tfrecord_dir", "parts", cwd=tmp_path)
    assert "resuming: 1 of 2 shards already done" in process.stdout
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


def test_a_folder_of_tensorflow_datasets_becomes_what_its_images_become(samples, tmp_path):
    """NAME-SPLIT.tfrecord-00000-of-00002, and label.labels.txt; one without image."""
    names = sorted(folder.name for folder in (samples / "test").iterdir())
    found, table, made = sorted(samples.glob("test/*/*")), ["file,label"], tmp_path / "tfds"
    made.mkdir()
    (made / "label.labels.txt").write_text("\n".join(names))
    (tmp_path / "test").mkdir()
    for part in range(2):
        records = []
        for file in found[part::2]:
            feature = (example := Example()).features.feature
            feature["label"].int64_list.value.append(names.index(file.parent.name))
            if file != found[3]:
                feature["image"].bytes_list.value.append(file.read_bytes())
            name = f"0000{part}-of-00002-{len(records):06}"
            table.append(f"{name},{file.parent.name}")
            (tmp_path / "test" / name).write_bytes(b"" if file == found[3] else file.read_bytes())
            records.append(example.SerializeToString())
        write_shard(made / f"shapes-test.tfrecord-0000{part}-of-00002", records)
    (tmp_path / "labels.csv").write_text("\n".join(table))
    more = ("--max_rejected", 1)
    folder = tmp_path / "expected"
    convert(tmp_path / "test", folder, "test", "--labels", tmp_path / "labels.csv", *more)
    run_convert("--dataset_dir", made, "--tfrecord_dir", "out", *more, cwd=tmp_path)
    assert rejected(tmp_path / "out") == {
        "00001-of-00002-000001": "its record has no feature image"
    }
    expected, converted = files(folder), files(tmp_path / "out")
    del expected["test.rejected.csv"], converted["test.rejected.csv"]
    assert converted == expected


def test_a_bomb_in_a_row_is_rejected(samples, tmp_path):
    rows = [file.read_bytes() for file in sorted(samples.glob("test/*/*"))[:4]]
    bomb, labels = bytes(2**25), ["a", "b", "a", "b"]
    path = tmp_path / "test.parquet"
    contents = [{"bytes": each} for each in (*rows, bomb)]
    table = pyarrow.table({"image": contents, "label": [*labels, "a"]})
    pyarrow.parquet.write_table(table, path, row_group_size=4, compression="zstd")
    run_convert("--dataset_dir", path, "--max_rejected", 1, cwd=tmp_path)
    (reason,) = rejected(tmp_path / "data").values()
    assert reason.startswith("too large: 33,")


def test_parquet_files_of_something_else_are_one_line(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"x": [1], "y": ["a"]}), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"nothing")
    for name, words in {
        "a": "has 0 columns of images .*: its columns are x, y",
        "b": "read",
    }.items():
        process = convert(tmp_path / f"{name}.parquet", tmp_path / "out", "test", status=2)
        (line,) = process.stderr.splitlines()
        assert re.match(f"error: dataset_dir: {tmp_path}/{name}.parquet .*{words}", line)


def test_bombs_and_names_that_climb_out_are_rejected(samples, tmp_path):
    good = sorted(samples.glob("test/*/*"))
    with zipfile.ZipFile(tmp_path / "test.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in good:
            archive.write(file, f"{file.parent.name}/{file.name}")
        for name in ("../out.jpg", "a/../../out.jpg", "/out.jpg"):
            archive.writestr(name, good[0].read_bytes())
        archive.writestr("a/bomb.jpg", bytes(2**25))
    with tarfile.open(tmp_path / "links.tar", "w") as archive:
        for file in good:
            archive.add(file, f"{file.parent.name}/{file.name}")
        link = tarfile.TarInfo("a/link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    before = {*tmp_path.rglob("*")}
    for archive in ("test.zip", "links.tar"):
        out = tmp_path / archive.partition(".")[0]
        convert(tmp_path / archive, out, "test", "--max_rejected", 1)
        found = rejected(out)
        if archive == "test.zip":
            assert found.pop("a/bomb.jpg").startswith("too large: 33,554,432 bytes, compressed")
            assert {*found.values()} == {"a name that leads out of the dataset"}
            assert len(found) == 3
        else:
            assert found == {"a/link.jpg": "not a file, or a link"}
        new = {*tmp_path.rglob("*")} - before
        assert {path for path in new if out not in path.parents} == {out}
        before = {*tmp_path.rglob("*")}


def test_a_gzipped_bomb_is_one_line(tmp_path):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        add(archive, "a/bomb.jpg", bytes(2**26))
    (tmp_path / "bomb.tgz").write_bytes(gzip.compress(packed.getvalue()))
    process = convert(tmp_path / "bomb.tgz", tmp_path / "out", "test", status=2)
    (line,) = process.stderr.splitlines()
    assert line.startswith(f"error: dataset_dir: {tmp_path}/bomb.tgz is too large: ")


@pytest.mark.parametrize("kind", ["zip", "gztar"])
def test_an_archive_that_is_cut_off_is_one_line(samples, tmp_path, kind):
    archive = Path(shutil.make_archive(str(tmp_path / "test"), kind, root_dir=samples / "test"))
    archive.write_bytes(archive.read_bytes()[:-1000])
    process = convert(archive, tmp_path / "out", "test", status=2)
    assert process.stderr.startswith(f"error: dataset_dir: {archive} cannot be read: ")
