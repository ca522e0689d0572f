"""YAML sets and the command line -> dataclasses, or one line for each mistake."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT

from library.config import REQUIRED, Location, Parser, Settings, load, option
from library.util import UserError
from project.settings import Hyperparameters


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Numbers."""

    rate: float = option(0.5, "a number", minimum=0, maximum=1)
    count: int = option(3, "a count", above=0)


@dataclasses.dataclass(frozen=True)
class Options(Numbers):
    """Other options."""

    fast: bool = option(False, "a switch")
    name: str = option("cat", "a name", choices=("cat", "dog"))
    note: str | None = option(None, "may be empty")
    sizes: tuple[int, ...] = option((), "a list", minimum=-9)
    place: Path = option(Path("here"), "a path", choices=("best",))

    def __post_init__(self) -> None:
        if self.count > 100 * self.rate:
            raise UserError(f"count: {self.count} is above 100 times rate, {self.rate:g}")


RATE = "at least 0 and at most 1"

SETS = """\
default: &DEFAULT
  rate: 1e-1
  count: 5
middle: &MIDDLE
  <<: *DEFAULT
  fast: yes
deep:
  <<: *MIDDLE
  count: 7
named:
  inherits: deep
  name: dog
both:
  <<: [{count: 8}, *DEFAULT]
several:
  inherits: [middle, deep]
"""

SEED_PROJECT = """\
default: &DEFAULT
  train_batch_size: 32
  train_epochs: 1000
  epochs_between_evals: 100
  hyperparameter_file: hyperparameters.yaml
  hyperparameter_set: default
  model: latest
  model_dir: out/current/checkpoints
  best_model_dir: out/current/best

gtx1080ti:
  <<: *DEFAULT
  train_batch_size: 512

thinkpadx201t:
  <<: *DEFAULT
  train_batch_size: 10
  train_epochs: 10
  epochs_between_evals: 1
  random_seed: 0
"""

SEED_HYPERPARAMETERS = """\
default: &DEFAULT
  # batch_size: 100
  # num_epoch: 1000
  # optimizer: Adam
  learning_rate: 1e-4
  dropout_rate: 0.5
  l2_regularization: 1e-8
  xentropy_label_smoothing: 0.
  adam_beta1: 0.9
  adam_beta2: 0.999
  adam_epsilon: 1e-8

mobilenet:
  <<: *DEFAULT
  learning_rate: 1e-5
  fine_tuning: True
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "sets.yaml"
    path.write_text(SETS)
    return path


def resolve(*argv: str, cls: type = Options, path: Any = None, config_set="default", root="."):
    parser = Parser("A program.", cls, root=root)
    parser.parse(argv)
    found = parser.resolve(cls, path, config_set)
    parser.raise_errors()
    return found


def errors(path: Path, content: str | bytes, *argv: str, **more: Any) -> tuple[str, ...]:
    """The error lines for this content of a file, without the path."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as error:
        resolve(*argv, path=path, **more)
    assert not [line for line in error.value.lines if "\n" in line]
    return tuple(line.replace(str(path), "FILE") for line in error.value.lines)


# ---- sets --------------------------------------------------------------------------------------


def test_sets_take_over_others_at_any_depth(file):
    assert load(file, "deep") == {"rate": 0.1, "count": 7, "fast": "yes"}
    assert load(file, "named") == {"rate": 0.1, "count": 7, "fast": "yes", "name": "dog"}
    assert load(file, "both") == {"rate": 0.1, "count": 8}
    assert load(file, "several") == {"rate": 0.1, "count": 5, "fast": "yes"}


def test_the_files_of_the_first_scaffold_are_read_as_they_are(tmp_path):
    project, hyperparameters = tmp_path / "project.yaml", tmp_path / "hyperparameters.yaml"
    project.write_text(SEED_PROJECT)
    hyperparameters.write_text(SEED_HYPERPARAMETERS)
    found = resolve(cls=Settings, path=project, config_set="thinkpadx201t", root=tmp_path).options
    assert found == Settings(
        cache_dir=tmp_path / "data/cache",
        train_data=Location(tmp_path / "data/train"),
        validation_data=Location(tmp_path / "data/validation"),
        test_data=Location(tmp_path / "data/test"),
        hyperparameter_file=hyperparameters,
        model=Path("latest"),
        model_dir=tmp_path / "out/current/checkpoints",
        best_model_dir=tmp_path / "out/current/best",
        train_batch_size=10,
        train_epochs=10,
        epochs_between_evals=1,
    )
    mobilenet = load(hyperparameters, "mobilenet")
    assert mobilenet == {
        "learning_rate": 1e-5,
        "dropout_rate": 0.5,
        "l2_regularization": 1e-8,
        "xentropy_label_smoothing": 0.0,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-8,
        "fine_tuning": True,
    }
    if hasattr(Hyperparameters, "fine_tuning"):
        tuned = resolve(cls=Hyperparameters, path=hyperparameters, config_set="mobilenet").options
        assert tuned == Hyperparameters(**mobilenet)


@pytest.mark.parametrize(
    ("cls", "path"), [(Settings, "project.yaml"), (Hyperparameters, "hyperparameters.yaml")]
)
def test_every_shipped_set_is_right(cls, path):
    for name in yaml.safe_load((ROOT / path).read_text()):
        assert resolve(cls=cls, path=path, config_set=name, root=ROOT).options


# ---- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-4", 1e-4), ("1.5e4", 1.5e4), ("1E-8", 1e-8), ("+1e3", 1e3), (".5", 0.5), ("3", 3)]
    + [("010", 10), ("1:30", "1:30"), ("yes", "yes"), ("true", True), ("null", None), ("~", None)]
    + [("'1e-4'", "1e-4"), ("-7", -7), ("1_000", "1_000"), ("0x10", "0x10"), ("text", "text")]
    + [("2001-01-01", "2001-01-01"), ("off", "off"), ("-1.5E+2", -150.0), ("0.", 0.0)],
)
def test_scalars_are_those_of_yaml_1_2(tmp_path, text, value):
    path = tmp_path / "one.yaml"
    path.write_text(f"default:\n  key: {text}\n")
    loaded = load(path, "default")["key"]
    assert (loaded, type(loaded)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("fast", word, True) for word in ("true", "yes", "on", "True", "ON", "'yes'")]
    + [("fast", word, False) for word in ("false", "no", "off", "No", "FALSE")]
    + [("note", word, word) for word in ("on", "yes", "010", "1:30", "1e-4", "true")]
    + [("note", word, None) for word in ("null", "~", "")]
    + [("note", "a # comment", "a"), ("count", "010", 10), ("rate", "1", 1.0)]
    + [("sizes", "[1, 010, -3]", (1, 10, -3)), ("sizes", "[]", ()), ("sizes", "4", (4,))],
)
def test_the_type_of_an_option_says_what_a_word_means(file, name, text, value):
    file.write_text(f"default:\n  {name}: {text}\n")
    found = getattr(resolve(path=file).options, name)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "path"),
    [("x/y", "ROOT/x/y"), ("/x", "/x"), ("~/x", "HOME/x"), ("$PLACE/x", "ROOT/p/x")]
    + [("${PLACE}", "ROOT/p"), ("best", "best"), ("./best", "ROOT/best"), ("ä b", "ROOT/ä b")],
)
def test_paths_start_from_the_root_and_are_shown_resolved(tmp_path, monkeypatch, text, path):
    monkeypatch.setenv("PLACE", "p")
    monkeypatch.setenv("HOME", "/home/me")
    path = path.replace("ROOT", str(tmp_path)).replace("HOME", "/home/me")
    found = resolve("--place", text, root=tmp_path)
    assert found.options.place == Path(path)
    assert f"  place: {path}  # command line" in found.as_yaml("default").splitlines()
    assert resolve(root=tmp_path).options.place == tmp_path / "here"


@dataclasses.dataclass
class Places:
    here: Path = option(Path("here"), "a folder")
    anywhere: Location = option(Location("there"), "some data")


@pytest.mark.parametrize(
    ("text", "location"),
    [("gs://bucket/train", "gs://bucket/train"), ("s3://$PLACE/x", "s3://p/x")]
    + [("ram://a//b", "ram://a//b"), ("x/y", "ROOT/x/y"), ("~/x", "HOME/x")],
)
def test_locations_are_paths_or_urls(tmp_path, monkeypatch, text, location):
    monkeypatch.setenv("PLACE", "p")
    monkeypatch.setenv("HOME", "/home/me")
    location = location.replace("ROOT", str(tmp_path)).replace("HOME", "/home/me")
    found = resolve("--anywhere", text, cls=Places, root=tmp_path)
    assert found.options.anywhere == location
    assert yaml.safe_load(found.as_yaml("default"))["default"]["anywhere"] == location
    assert resolve(cls=Places, root=tmp_path).options.anywhere == str(tmp_path / "there")


def test_a_url_where_a_folder_is_wanted_is_refused(tmp_path):
    with pytest.raises(UserError, match="here: gs://bucket/x is not a local path"):
        resolve("--here", "gs://bucket/x", cls=Places, root=tmp_path)


# ---- the command line --------------------------------------------------------------------------


def test_command_line_over_set_over_default(file):
    found = resolve("--count", "9", path=file, config_set="middle")
    assert found.options == Options(rate=0.1, count=9, fast=True, place=Path.cwd() / "here")
    assert found.origins == {
        "rate": f"{file}:2, set default",
        "count": "command line",
        "fast": f"{file}:6, set middle",
        "name": "default",
        "note": "default",
        "sizes": "default",
        "place": "default",
    }


@pytest.mark.parametrize(
    ("argv", "values"),
    [
        (["--rate", "1e-1", "--count=4"], {"rate": 0.1, "count": 4}),
        (["--sizes", "1", "-2", "3"], {"sizes": (1, -2, 3)}),
        (["--sizes=-2"], {"sizes": (-2,)}),
        (["--sizes"], {"sizes": ()}),
        (["--fast"], {"fast": True}),
        (["--fast", "--no-fast"], {"fast": False}),
        (["--note", "two words"], {"note": "two words"}),
        (["--note="], {"note": ""}),
        (["--note", "null"], {"note": None}),
        (["--note", "-1e-3"], {"note": "-1e-3"}),
    ],
)
def test_flags_take_their_values_in_either_way(argv, values):
    options = resolve(*argv).options
    assert {name: getattr(options, name) for name in values} == values


def test_what_a_set_says_can_be_undone(file):
    assert resolve("--no-fast", path=file, config_set="middle").options.fast is False
    file.write_text("default: {note: x}")
    assert resolve("--note", "null", path=file).options.note is None


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--rat", "1"], "unknown argument --rat=1 (did you mean --rate?)"),
        (["--cuont=3"], "unknown argument --cuont=3 (did you mean --count?)"),
        (["--no"], "unknown argument --no (did you mean --no-fast or --note?)"),
        (["--rate", "-1e-3"], f"command line: rate: -1e-3 is not a number {RATE}"),
        (["--rate=-1"], f"command line: rate: -1 is not a number {RATE}"),
        (["--count", "9" * 99], f"command line: count: {'9' * 99} is not a whole number above 0"),
        (["--rate"], "argument --rate: expected one argument"),
        (["--place", "$UNSET/x"], "command line: place: $UNSET/x: this variable is not set"),
        (["--sizes", "1", "x"], "command line: sizes: [1, x] is not a list, each a whole"),
        (["--note", "a\nb"], "command line: note: a b is not a line of text or null"),
    ],
)
def test_a_wrong_flag_is_one_line(words, line):
    with pytest.raises(UserError) as error:
        resolve(*words)
    (found,) = error.value.lines
    assert found.startswith(line)


def test_a_number_can_have_words_beside_it():
    for text, value in (("all", "all"), ("2", 2)):
        assert resolve("--devices", text, cls=Settings).options.devices == value
    for text in ("0", "many", "1.5"):
        with pytest.raises(UserError, match="devices: .* is not all or a whole number at least 1"):
            resolve("--devices", text, cls=Settings)


def test_help_shows_groups_ranges_choices_and_defaults(capsys):
    with pytest.raises(SystemExit) as exit:
        resolve("--help")
    assert exit.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: ")
    assert "\nNumbers:\n  --rate VALUE" in printed
    text = " ".join(printed.split())
    assert "a number (a number at least 0 and at most 1; default: 0.5)" in text
    assert "a name (one of cat, dog; default: cat)" in text
    assert "may be empty (a line of text or null; default: null)" in text
    assert "--fast, --no-fast a switch (default: false)" in text


def test_what_is_required_is_asked_for():
    @dataclasses.dataclass(frozen=True)
    class Needs:
        place: str = option(REQUIRED, "where")

    with pytest.raises(UserError, match="--place is missing"):
        resolve(cls=Needs)
    assert resolve("--place", "here", cls=Needs).options.place == "here"


def test_what_is_printed_is_a_set_that_resolves_to_the_same(file):
    found = resolve("--note", "1:30 # yes", "--sizes", "3", "-4", path=file, config_set="named")
    file.write_text(found.as_yaml("a: name"))
    again = resolve(path=file, config_set="a: name")
    assert again.options == found.options
    assert again.origins["sizes"] == f"{file}:5, set a: name"


# ---- mistakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("default: {rate: fast}", f"FILE:1, set default: rate: fast is not a number {RATE}"),
        ("default: {rate: 1.5}", f"FILE:1, set default: rate: 1.5 is not a number {RATE}"),
        ("default: {rate: .nan}", f"FILE:1, set default: rate: .nan is not a number {RATE}"),
        ("default: {rate: 1e999}", f"FILE:1, set default: rate: 1e999 is not a number {RATE}"),
        ("default: {rate: [1]}", f"FILE:1, set default: rate: [1] is not a number {RATE}"),
        (
            "default: {rate: {a: 1} }",
            f"FILE:1, set default: rate: a mapping is not a number {RATE}",
        ),
        ("default: {rate: null}", f"FILE:1, set default: rate: null is not a number {RATE}"),
        ("default: {rate: on}", f"FILE:1, set default: rate: on is not a number {RATE}"),
        ("default: {count: 0}", "FILE:1, set default: count: 0 is not a whole number above 0"),
        ("default: {count: 2.5}", "FILE:1, set default: count: 2.5 is not a whole number above 0"),
        ("default: {fast: 1}", "FILE:1, set default: fast: 1 is not true or false"),
        ("default: {fast: null}", "FILE:1, set default: fast: null is not true or false"),
        (
            "default: {sizes: [1, null]}",
            "FILE:1, set default: sizes: [1, null] is not a list, each a whole number at least -9",
        ),
        (
            "default: {name: cot}",
            "FILE:1, set default: name: cot is not one of cat, dog (did you mean cat?)",
        ),
        (
            "default:\n  cuont: 3",
            "FILE:2, set default: there is no option cuont (did you mean count?)",
        ),
        ("default:\n  rate: 1\n  rate: 2", "FILE:3: rate is a duplicate in set default"),
        ("a: {}\ndefault: {}\na: {}", "FILE:3: a is a duplicate in the file"),
        ("default: {[1]: 2}", "FILE:1: a key of set default is not a plain name"),
        ("default: 3", "FILE:1: set default is not a mapping of options to values"),
        ("[1, 2]", "FILE: it has to hold named sets, such as default"),
        ("text", "FILE: it has to hold named sets, such as default"),
        ("", "FILE: it has to hold named sets, such as default"),
        ("# nothing", "FILE: it has to hold named sets, such as default"),
        ("default: {rate: 1", "FILE:1: not YAML: expected ',' or '}', but got '<stream end>'"),
        ("default:\n\trate: 1", "FILE:2: not YAML: found character '\\t' that cannot start any"),
        ("default: *GONE", "FILE:1: not YAML: found undefined alias 'GONE'"),
        ("default: {}\na: !!set {b}", "FILE:2: a: the tag tag:yaml.org,2002:set is not allowed"),
        ("default: {}\n---\nother: {}", "FILE:2: not YAML: but found another document"),
        ("default: {}\na: !!python/object:os.x {}", "FILE:2: a: the tag tag:yaml.org,2002:python/"),
        ("default: {note: !mine x}", "FILE:1: note: the tag !mine is not allowed"),
        (b"\xff\xfe\x00", "FILE: not a text file in UTF-8"),
        (b"default: {note: \x00}", "FILE: not YAML: unacceptable character #x0000: special"),
        (
            "default: {inherits: othr}\nother: {}",
            "FILE:1: set default inherits no known set: othr (did you mean other?)",
        ),
        ("default: {inherits: default}", "FILE:1: set default inherits itself"),
        ("default: {inherits: b}\nb: {inherits: default}", "FILE:2: set b inherits itself"),
        ("default: &A {<<: *A}", "FILE:1: set default inherits itself"),
        ("default: {<<: 3}", "FILE:1: set default is not a mapping of options to values"),
        (
            "defualt: {rate: 1}",
            "FILE: there is no set default; it has defualt (did you mean defualt?)",
        ),
        ("default:\n  count: 99", "FILE:2, set default: count: 99 is above 100 times rate, 0.5"),
    ],
)
def test_a_mistake_is_told_in_one_line(tmp_path, content, line):
    found, *more = errors(tmp_path / "sets.yaml", content)
    assert found.startswith(line)
    if more:  # a ring is there from whichever set it is looked at
        assert "inherits: b" in content


def test_all_mistakes_are_told_at_once_those_of_other_sets_too(tmp_path):
    content = "default:\n  rate: 2\nother:\n  inherits: default\n  cuont: 1\n"
    content += "third:\n  count: 51\nfourth:\n"
    assert errors(tmp_path / "sets.yaml", content, "--name", "bird", "--rat=1") == (
        "unknown argument --rat=1 (did you mean --rate?)",
        "FILE:8: set fourth is not a mapping of options to values",
        f"FILE:2, set default: rate: 2 is not a number {RATE}",
        "command line: name: bird is not one of cat, dog",
        "FILE:5, set other: there is no option cuont (did you mean count?)",
        "FILE:7, set third: count: 51 is above 100 times rate, 0.5",
    )


def test_a_contradiction_names_where_it_was_given_and_not_the_defaults(tmp_path):
    path = tmp_path / "sets.yaml"
    assert errors(path, "default:\n  count: 5\n", "--rate", "0.01") == (
        "command line: count: 5 is above 100 times rate, 0.01",
    )
    assert errors(path, "default: {}\nother:\n  rate: 0.01\n") == (
        "FILE:3, set other: count: 3 is above 100 times rate, 0.01",
    )


@pytest.mark.parametrize("value", ["!!bool foo", "[!!timestamp foo]"])
def test_a_value_that_is_not_what_its_tag_says_is_one_line(tmp_path, value):
    (tmp_path / "x.yaml").write_text(f"default:\n  name: {value}\n")
    with pytest.raises(UserError) as caught:
        load(tmp_path / "x.yaml", "default")
    assert str(caught.value).startswith(f"{tmp_path}/x.yaml: set default: ")


@pytest.mark.parametrize("kind", ["missing", "folder", "forbidden"])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, kind):
    path = tmp_path / "sets.yaml"
    if kind == "folder":
        path.mkdir()
    elif kind == "forbidden":
        path.write_text(SETS)
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("root reads everything")
    reason = {"missing": "No such file or directory", "folder": "Is a directory"}
    with pytest.raises(UserError) as error:
        resolve(path=path)
    assert error.value.lines == (f"{path}: {reason.get(kind, 'Permission denied')}",)


def test_contradictions_between_settings_are_refused():
    with pytest.raises(UserError, match="epochs_between_evals: 5 is above train_epochs, 2"):
        Settings(epochs_between_evals=5, train_epochs=2)
