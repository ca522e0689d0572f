"""Layouts of a data set: which files there are, the class of each, and what is left out."""

import os

import pytest

from library.convert import list_files
from library.data import UNLABELED, Target
from library.util import UserError


@pytest.fixture
def root(tmp_path):
    """Two classes, one nested deeper, with junk and unknown files."""
    names = ["cat/1.jpg", "cat/deep/er/2 ä.jpg", "dog/1.jpg", "dog/notes.txt"]
    names += [".hidden/1.jpg", "cat/.DS_Store", "cat/Thumbs.db", "__MACOSX/cat/1.jpg", "readme.md"]
    for name in names:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).touch()
    return tmp_path / "in"


def test_a_folder_per_class(root):
    target, files, rejected, *_ = list_files(root)
    assert target == Target("class", ("cat", "dog"))
    assert [tuple(found) for found in files] == [
        ("cat/1.jpg", 0),
        ("cat/deep/er/2 ä.jpg", 0),
        ("dog/1.jpg", 1),
        ("dog/notes.txt", 1),  # it may be a picture: its content tells
    ]
    assert rejected == [("readme.md", "not in the folder of a class")]


def test_known_classes_keep_their_labels(root):
    known = Target("class", ("zebra", "dog", "cat"))
    target, files, *_ = list_files(root, known=known)
    assert target == known
    assert {found.name: found.label for found in files}["dog/1.jpg"] == 1
    with pytest.raises(UserError, match="the class dog is not in classes_from .did you mean dogs"):
        list_files(root, known=Target("class", ("cat", "dogs")))


def test_many_unknown_classes_are_counted(tmp_path):
    for number in range(8):
        (tmp_path / str(number)).mkdir()
    with pytest.raises(UserError) as error:
        list_files(tmp_path, known=Target("class", ("cat",)))
    assert len(error.value.lines) == 6
    assert error.value.lines[-1] == "dataset_dir: and 3 more"


def test_no_labels_at_all(root):
    target, files, rejected, *_ = list_files(root, unlabeled=True)
    assert (target, rejected) == (Target("none"), [])
    assert len(files) == 5
    assert {found.label for found in files} == {UNLABELED}


def test_a_table_of_files_and_labels(root, tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text(
        "label,file,more\n10,cat/1.jpg,x\n9,dog/1.jpg,,\n9 ,dog/1.jpg,twice\n9,none.jpg,\n"
        "9,../secret.jpg,\n9,/etc/passwd,\n",
        encoding="utf-8-sig",
    )
    (tmp_path / "secret.jpg").touch()
    target, files, rejected, *_ = list_files(root, labels=table)
    assert target == Target("class", ("9", "10"))
    assert [tuple(found) for found in files] == [("cat/1.jpg", 1), ("dog/1.jpg", 0)]
    assert rejected == [
        ("none.jpg", "no such file"),
        ("../secret.jpg", "a name that leads out of the dataset"),
        ("/etc/passwd", "a name that leads out of the dataset"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name,label\na,b\n", "first line is 'name,label', but has to be the columns file,label"),
        ("file;label\na;b\n", "first line is 'file;label', but has to be the columns file,label"),
        ("file,label,value\na,b,1\n", "first line is 'file,label,value', but has to be"),
        ("", "first line is '', but has to be"),
        ("file,labels\ncat/1.jpg,\n", "labels.csv gives no file a class"),
        ("file,label\n", "labels.csv lists no files"),
        ("file,label\nin/cat/1.jpg,a\n", "none of its files .* in/cat/1.jpg: no such file .names"),
        ("file,value\na,1.5\nb,nan\n", "labels.csv, line 3: nan is not a finite number"),
        ("file,value\na,1e300\n", "labels.csv, line 2: 1e300 is not a finite number"),
        ("file,value\na,\n", "labels.csv, line 2: value is empty"),
        ("file,value\na,x\n", "labels.csv, line 2: x is not a finite number"),
        ("file,label\na,\n", "labels.csv, line 2: label is empty"),
        ("file,label\na, \n", "labels.csv, line 2: label is empty"),
        ("file,value\na,1,5\n", "labels.csv, line 2: a cell more than columns: 5 .quote a cell"),
        ("file,label\n,a\n", "labels.csv, line 2: file is empty"),
        ("file,label\ncat/1.jpg,a\ncat/1.jpg,b\n", "gives cat/1.jpg two labels"),
        (b"file,label\n\xff,a\n", "is not a CSV file in UTF-8"),
        (None, "labels.csv: No such file"),
    ],
)
def test_a_table_that_cannot_be_used_is_one_line(root, tmp_path, content, message):
    if content is not None:
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / "labels.csv").write_bytes(data)
    with pytest.raises(UserError, match=message):
        list_files(root, labels=tmp_path / "labels.csv")


def test_an_empty_column_of_groups_is_one_line(root, tmp_path):
    (tmp_path / "labels.csv").write_text("file,label,speaker\ncat/1.jpg,a,\n")
    with pytest.raises(UserError, match="^group_by: the column speaker is empty$"):
        list_files(root, labels=tmp_path / "labels.csv", group_by="speaker")


def test_links_are_followed_once_and_not_out_of_the_data_set(root, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "3.jpg").touch()
    (root / "cat" / "file").symlink_to(tmp_path / "outside" / "3.jpg")
    (root / "cat" / "folder").symlink_to(tmp_path / "outside")
    (root / "cat" / "inside").symlink_to(root / "dog" / "1.jpg")
    (root / "cat" / "loop").symlink_to(root / "cat")
    (root / "cat" / "nowhere").symlink_to(root / "nothing")
    os.mkfifo(root / "cat" / "pipe")
    (root / "bird").symlink_to(tmp_path / "outside")
    target, files, rejected, *_ = list_files(root)
    assert target.classes == ("cat", "dog")
    names = {found.name for found in files}
    assert "cat/inside" in names
    assert not names & {"cat/file", "cat/folder/3.jpg", "cat/loop/1.jpg", "cat/pipe"}
    reasons = dict(rejected)
    for name in ("cat/file", "cat/folder", "bird"):
        assert reasons[name] == "a link that leads out of the dataset"
    assert reasons["cat/loop"] == "a link to a folder that it is in"
    for name in ("cat/nowhere", "cat/pipe"):
        assert reasons[name] == "not a file, or a link to nothing"
    target, files, *_ = list_files(root, follow_links=True)
    assert target.classes == ("bird", "cat", "dog")
    assert {"cat/file", "cat/folder/3.jpg"} <= {found.name for found in files}


def table_of(folder, *rows: str):
    (folder / "labels.csv").write_text("\n".join(rows))
    return folder / "labels.csv"


def test_a_table_of_several_labels(root, tmp_path):
    table = table_of(
        tmp_path, "file,labels", "cat/1.jpg, wet ;10;wet", "dog/1.jpg,", "dog/notes.txt,9"
    )
    target, files, *_ = list_files(root, labels=table)
    assert target == Target("labels", ("9", "10", "wet"))
    assert [*files] == [("cat/1.jpg", (1, 2)), ("dog/1.jpg", ()), ("dog/notes.txt", (0,))]


def test_a_table_of_values(root, tmp_path):
    target, files, *_ = list_files(
        root, labels=table_of(tmp_path, "value,file", "-1e-3,cat/1.jpg", "12,dog/1.jpg")
    )
    assert target == Target("value")
    assert [*files] == [("cat/1.jpg", -0.001), ("dog/1.jpg", 12.0)]


def test_known_kinds_of_label_are_kept(root, tmp_path):
    known = Target("value", mean=3.0, std=2.0)
    values = table_of(tmp_path, "value,file", "5,cat/1.jpg")
    assert list_files(root, labels=values, known=known).target == known
    with pytest.raises(UserError, match="labels: the kind of label is value, but class in"):
        list_files(root, labels=values, known=Target("class", ("cat",)))
    with pytest.raises(UserError, match="dataset_dir: the kind of label is class, but value"):
        list_files(root, known=known)
