"""Random settings come back from YAML; files damaged at random resolve or say what is wrong."""

import contextlib
import dataclasses
import functools
import io
import re
import sys
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import yaml
from conftest import ROOT
from test_config import SEED_PROJECT

import run
from library.config import PATHS, Option, Parser, Resolved, Settings, options_of, plain
from library.util import UserError
from library.util import run_main as exit_of
from project.settings import Hyperparameters

pytestmark = pytest.mark.slow

# No deadline for each example, since machines are noisy; and no folder of its own for examples.
LIMITS = {"deadline": None, "database": None, "derandomize": True}
LIMITS |= {"suppress_health_check": list(hypothesis.HealthCheck)}

LINES = st.text(st.characters(exclude_categories=["Cs"])).filter(
    lambda text: len(f".{text}.".splitlines()) == 1
)


def values(option: Option) -> st.SearchStrategy:
    """Any value that an option takes."""
    if option.kind is bool:
        one: st.SearchStrategy = st.booleans()
    elif option.name == "run":
        one = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", fullmatch=True)
    elif option.kind is str:
        one = st.sampled_from(option.rule["choices"]) if option.rule["choices"] else LINES
        one = one.filter(lambda text: text != "null" or not option.optional)
    elif option.kind in PATHS:
        of_checkpoints = option.name in ("model_dir", "best_model_dir", "model", "warm_start_from")
        bad = r"[$\0*?\[\\]" if of_checkpoints else r"[$\0]"
        words = LINES.filter(lambda text: text.strip() and not re.search(bad, text))
        words = words.map(lambda text: ROOT / text) | st.sampled_from(
            [Path(word) for word in option.rule["choices"]] or [ROOT]
        )
        one = words.map(option.kind)
    else:
        lowest = max(option.rule["minimum"], option.rule["above"], -1e9)
        highest = min(option.rule["maximum"], 1e9)
        if option.kind is int:
            one = st.integers(int(lowest), int(highest))
        else:
            one = st.floats(lowest, highest)
        one = one.filter(lambda number: number > option.rule["above"])
    many = st.lists(one).map(tuple) if option.many else one
    return st.none() | many if option.optional else many


@functools.cache
def instances(cls: type) -> st.SearchStrategy:
    """Any value of a dataclass of options; made once, since that takes longer than to draw."""
    drawn = {name: values(option) for name, option in options_of(cls).items()}
    return st.fixed_dictionaries(drawn).map(functools.partial(instance, cls))


def instance(cls: type, drawn: dict[str, Any]) -> Any:
    if "train_epochs" in drawn:  # most that contradict each other would only be drawn again
        drawn["epochs_between_evals"] = min(drawn["epochs_between_evals"], drawn["train_epochs"])
        weights, parts = drawn["mixture_weights"], drawn["extra_data"]
        drawn["extra_data"] = parts[: max(len(weights) - 1, 0)]
        drawn["mixture_weights"] = weights[: len(drawn["extra_data"]) + 1] if parts else ()
    try:
        return cls(**drawn)
    except UserError:
        hypothesis.reject()


def written_by_us(options: Any) -> str:
    drawn = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    return Resolved(type(options), drawn, dict.fromkeys(drawn, "here")).as_yaml("default")


def written_by_others(options: Any) -> str:
    drawn = {f.name: plain(getattr(options, f.name)) for f in dataclasses.fields(options)}
    return yaml.safe_dump({"default": drawn}, allow_unicode=True)


@pytest.mark.parametrize("cls", [Settings, Hyperparameters])
@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=60, **LIMITS)
def test_what_is_written_is_read_again(tmp_path_factory, cls, data):
    options = data.draw(instances(cls))
    path = tmp_path_factory.getbasetemp() / "written.yaml"
    parser = Parser("A program.", cls, root=ROOT)
    parser.parse([])
    for write in (written_by_us, written_by_others):
        path.write_text(write(options), encoding="utf-8")
        found = parser.resolve(cls, path, "default")
        parser.raise_errors()
        assert found.options == options


# ---- damage ------------------------------------------------------------------------------------

FILES = [("--project_file", (ROOT / "project.yaml").read_text())]
FILES += [("--hyperparameter_file", (ROOT / "hyperparameters.yaml").read_text())]
FILES += [("--project_file", SEED_PROJECT)]

WORDS = ["", "null", "yes", "1e-4", "010", "1:30", "-1", "[]", "[1, [2]]", "{a: b}", "&A x", "*A"]
WORDS += ["*DEFAULT", "!!int x", "!x y", "|", '"', "'", "é", "- 1", "? a", "<<: *DEFAULT", "---"]
WORDS += ["inherits: default", "  inherits: [default, {}]", "  inherits: gtx1080ti", "%YAML 9"]
WORDS += ["!!float x", "!!bool maybe", "@", ":", "  <<: [*DEFAULT, *DEFAULT]", "  model: null"]

KINDS = ["drop", "double", "swap", "indent", "rename", "retype", "insert"]
PLACES = st.integers(0, 99)
TEXTS = st.sampled_from(WORDS) | st.text("ab: -[]{},&*!#'\"|>%@`?0123456789.eE\t", max_size=8)
DAMAGE = st.lists(st.tuples(st.sampled_from(KINDS), PLACES, PLACES, TEXTS), min_size=1, max_size=3)


def damaged(content: str, damage: list[tuple[str, int, int, str]]) -> str:
    """Lines dropped, doubled, swapped, indented, renamed, retyped and inserted."""
    lines = content.splitlines()
    for kind, a, b, text in damage:
        a, b = a % len(lines), b % len(lines)
        key, colon, value = lines[a].partition(":")
        if kind == "drop":
            del lines[a : a + (len(lines) > 1)]
        elif kind == "double":
            lines.insert(b, lines[a])
        elif kind == "swap":
            lines[a], lines[b] = lines[b], lines[a]
        elif kind == "indent":
            lines[a] = " " * (b % 7) + lines[a].lstrip()
        elif kind == "rename":
            lines[a] = key[: b % 9] + text + key[b % 9 :] + colon + value
        elif kind == "retype":
            lines[a] = f"{key}: {text}"
        else:
            lines.insert(a, text)
    return "\n".join(lines)


def outcome(*words: object) -> tuple[int, str, str]:
    """Exit status and output of run.py, within this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["run.py", *map(str, words)])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                exit_of(run.main)
                status = 0
            except SystemExit as exit:
                status = exit.code
    return status, out.getvalue(), err.getvalue()


def check(path: Path, flag: str) -> None:
    """The file of this flag resolves, or every line of the output says what is wrong with it."""
    status, out, err = outcome("--print_config", flag, path)
    if status == 0:
        assert [type(each) for each in yaml.safe_load_all(out)] == [dict, dict]
        assert err == ""
    else:
        assert status == 2
        assert out == ""
        assert err
        assert all(line.startswith("error: ") for line in err.split("\n")[:-1])


@hypothesis.given(file=st.sampled_from(FILES), damage=DAMAGE)
@hypothesis.settings(max_examples=500, **LIMITS)
def test_a_damaged_file_resolves_or_is_one_line_for_each_mistake(tmp_path_factory, file, damage):
    path = tmp_path_factory.getbasetemp() / "damaged.yaml"
    flag, content = file
    path.write_text(damaged(content, damage), encoding="utf-8")
    check(path, flag)


@hypothesis.given(
    file=st.sampled_from(FILES), place=st.integers(0, 999), noise=st.binary(max_size=9)
)
@hypothesis.settings(max_examples=200, **LIMITS)
def test_noise_in_a_file_resolves_or_is_one_line(tmp_path_factory, file, place, noise):
    path = tmp_path_factory.getbasetemp() / "noise.yaml"
    flag, content = file
    path.write_bytes(content.encode()[:place] + noise + content.encode()[place:])
    check(path, flag)
