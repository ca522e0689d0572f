"""Archives: converted like the folders that they are of, and nothing gets out of them."""

import csv
import io
import json
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import convert, run_convert


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def rejected(out: Path) -> dict[str, str]:
    with open(out / "test.rejected.csv", newline="") as file:
        return {row["file"]: row["reason"] for row in csv.DictReader(file)}


@pytest.mark.parametrize("kind", ["zip", "tar"])
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


def test_classes_beside_the_files(samples, tmp_path):
    """As webdataset has them: 000.jpg, 000.cls, 000.json."""
    expected = {}
    with tarfile.open(tmp_path / "test.tar", "w") as archive:
        for number, file in enumerate(sorted(samples.glob("test/*/*"))):
            expected[file.parent.name] = expected.get(file.parent.name, 0) + 1
            beside = {".cls": file.parent.name.encode() + b"\n", ".json": b"{}"}
            for suffix, content in {file.suffix: file.read_bytes(), **beside}.items():
                info = tarfile.TarInfo(f"{number:03}{suffix}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    convert(tmp_path / "test.tar", tmp_path / "out", "test")
    card = json.loads((tmp_path / "out" / "test.json").read_text())
    assert card["examples_per_class"] == expected


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


def test_an_archive_that_is_cut_off_is_one_line(samples, tmp_path):
    archive = Path(shutil.make_archive(str(tmp_path / "test"), "zip", root_dir=samples / "test"))
    archive.write_bytes(archive.read_bytes()[:-100])
    process = convert(archive, tmp_path / "out", "test", status=2)
    assert process.stderr.startswith(f"error: dataset_dir: {archive} cannot be read: ")
