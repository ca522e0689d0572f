"""YAML sets and the command line -> dataclasses, or one line for each mistake."""

import dataclasses

import pytest
import yaml

from library.config import REQUIRED, Parser, load, option, resolve
from library.errors import UserError
from project.settings import Hyperparameters, Settings


@dataclasses.dataclass(frozen=True)
class Options:
    rate: float = option(0.5, "a number", minimum=0, maximum=1)
    count: int = option(3, "a count", above=0)
    fast: bool = option(False, "a switch")
    name: str = option("cat", "a name", choices=("cat", "dog"))
    note: str | None = option(None, "may be empty")


RANGE = "at least 0 and at most 1"

SETS = """\
default: &DEFAULT
  rate: 1e-4
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
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "sets.yaml"
    path.write_text(SETS)
    return path


def errors(path, content: str, config_set: str = "default", **flags) -> tuple[str, ...]:
    """The error lines for this content of a file, without the path."""
    path.write_text(content)
    with pytest.raises(UserError) as error:
        resolve(Options, flags, path, config_set)
    return tuple(line.replace(str(path), "FILE") for line in error.value.lines)


def test_sets_take_over_others_at_any_depth(file):
    assert load(file, "deep") == {"rate": 1e-4, "count": 7, "fast": "yes"}
    assert load(file, "named") == {"rate": 1e-4, "count": 7, "fast": "yes", "name": "dog"}
    assert load(file, "both") == {"rate": 1e-4, "count": 8}


def test_command_line_over_set_over_default(file):
    found = resolve(Options, {"count": "9"}, file, "middle")
    assert found.options == Options(rate=1e-4, count=9, fast=True, name="cat")
    assert found.origins == {
        "rate": f"{file}:2, set default",
        "fast": f"{file}:6, set middle",
        "count": "command line",
    }


def test_what_is_printed_resolves_to_the_same(file):
    found = resolve(Options, {"note": "1:30 # yes"}, file, "named")
    file.write_text("again:\n" + "".join(f"  {line}\n" for line in str(found).splitlines()))
    assert resolve(Options, {}, file, "again").options == found.options


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-4", 1e-4), ("1.5e4", 1.5e4), ("1E-8", 1e-8), ("+1e3", 1e3), (".5", 0.5), ("3", 3)]
    + [("010", 10), ("1:30", "1:30"), ("yes", "yes"), ("true", True), ("null", None), ("~", None)]
    + [("'1e-4'", "1e-4"), ("-7", -7), ("1_000", "1_000"), ("0x10", "0x10"), ("text", "text")],
)
def test_scalars_are_those_of_yaml_1_2(tmp_path, text, value):
    path = tmp_path / "one.yaml"
    path.write_text(f"default:\n  key: {text}\n")
    loaded = load(path, "default")["key"]
    assert (loaded, type(loaded)) == (value, type(value))


@pytest.mark.parametrize("word", ["true", "yes", "on", "True", "ON"])
def test_a_switch_takes_the_words_for_yes(word):
    assert resolve(Options, {"fast": word}).options.fast is True


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (
            "default: {rate: fast}",
            f"FILE:1, set default: rate: fast is not a number {RANGE}",
        ),
        (
            "default: {rate: 1.5}",
            f"FILE:1, set default: rate: 1.5 is not a number {RANGE}",
        ),
        (
            "default: {rate: .nan}",
            f"FILE:1, set default: rate: .nan is not a number {RANGE}",
        ),
        (
            "default: {rate: [1]}",
            f"FILE:1, set default: rate: a list or a mapping is not a number {RANGE}",
        ),
        (
            "default: {rate: null}",
            f"FILE:1, set default: rate: null is not a number {RANGE}",
        ),
        ("default: {count: 0}", "FILE:1, set default: count: 0 is not a whole number above 0"),
        ("default: {count: 2.5}", "FILE:1, set default: count: 2.5 is not a whole number above 0"),
        ("default: {fast: 1}", "FILE:1, set default: fast: 1 is not true or false"),
        (
            "default: {name: cot}",
            "FILE:1, set default: name: cot is not one of cat, dog (did you mean cat?)",
        ),
        (
            "default:\n  cuont: 3",
            "FILE:2, set default: there is no option cuont (did you mean count?)",
        ),
        ("default:\n  rate: 1\n  rate: 2", "FILE:3: rate is there twice in set default"),
        ("default: 3", "FILE:1: set default must be a mapping of names to values"),
        ("[1, 2]", "FILE:1: the file must be a mapping of names to a set"),
        ("", "FILE: the file must be a mapping of names to a set"),
        ("default: {rate: 1", "FILE:1: not YAML: expected ',' or '}', but got '<stream end>'"),
        ("default: {inherits: other}", "FILE:1: set default inherits an unknown set: other"),
        ("default: {inherits: default}", "FILE:1: set default takes over itself"),
        (
            "defualt: {rate: 1}",
            "FILE: there is no set default; it has defualt (did you mean defualt?)",
        ),
    ],
)
def test_a_mistake_is_told_in_one_line(tmp_path, content, line):
    assert errors(tmp_path / "sets.yaml", content) == (line,)


def test_all_mistakes_are_told_at_once_those_of_other_sets_too(tmp_path):
    content = "default:\n  rate: 2\nother:\n  inherits: default\n  cuont: 1\n"
    assert errors(tmp_path / "sets.yaml", content, name="bird") == (
        f"FILE:2, set default: rate: 2 is not a number {RANGE}",
        "FILE:5, set other: there is no option cuont (did you mean count?)",
        "command line: name: bird is not one of cat, dog",
    )


@pytest.mark.parametrize("kind", ["missing", "folder", "binary"])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, kind):
    path = tmp_path / "sets.yaml"
    if kind == "folder":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(bytes(range(256)))
    with pytest.raises(UserError) as error:
        load(path, "default")
    assert len(error.value.lines) == 1
    assert error.value.lines[0].startswith(str(path))


def parse(*argv: str) -> dict:
    parser = Parser("A program.")
    parser.add_fields(Options)
    return parser.parse(argv)


def test_flags_take_their_value_with_or_without_an_equals_sign():
    assert parse("--rate", "-1e-3", "--count=4") == {"rate": "-1e-3", "count": "4"}


def test_a_switch_can_be_switched_off(file):
    assert resolve(Options, parse("--no-fast"), file, "middle").options.fast is False


@pytest.mark.parametrize("word", ["--rat", "--cuont=3"])
def test_flags_are_not_guessed(word):
    with pytest.raises(UserError, match="unknown argument .*did you mean"):
        parse(word)


def test_help_shows_range_choices_and_default(capsys):
    with pytest.raises(SystemExit) as exit:
        parse("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert exit.value.code == 0
    assert "a number (at least 0 and at most 1; default: 0.5)" in text
    assert "a name (one of cat, dog; default: cat)" in text
    assert "--fast, --no-fast a switch (default: false)" in text


def test_what_is_required_is_asked_for():
    @dataclasses.dataclass(frozen=True)
    class Needs:
        place: str = option(REQUIRED, "where")

    with pytest.raises(UserError, match="--place is missing"):
        resolve(Needs, {})
    assert resolve(Needs, {"place": "here"}).options.place == "here"


@pytest.mark.parametrize(
    ("cls", "path"), [(Settings, "project.yaml"), (Hyperparameters, "hyperparameters.yaml")]
)
def test_every_shipped_set_is_right(cls, path):
    with open(path, encoding="utf-8") as file:
        names = list(yaml.safe_load(file))
    for name in names:
        assert resolve(cls, {}, path, name).options


def test_contradictions_between_settings_are_refused():
    with pytest.raises(UserError, match="epochs_between_evals: 5 is above train_epochs, 2"):
        Settings(epochs_between_evals=5, train_epochs=2)
