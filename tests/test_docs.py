"""The pages of docs/ of both rendered projects: their commands, programs, changes and lines."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from conftest import MODALITIES, TEMPLATE, python
from messages import is_printed

OTHER_FLAGS = {"logdir", "port", "lerning_rate", "help", "no-NAME", "NAME", "file"}
OTHER_FLAGS |= {"seeds", "recipe", "audit", "test_dir", "train"}
"""Of TensorBoard, argparse and benchmarks, a typo, and what stands for a name."""
OF_THE_OLD_PROGRAM = {"data_dir", "batch_size", "max_steps", "augment"}
OLD = "from_tensorflow_2.15.md"


def page(project: Path, name: str) -> str:
    return (project / "docs" / f"{name}.md").read_text(encoding="utf-8")


def pages(project: Path) -> dict[str, str]:
    files = [project / "README.md", *sorted((project / "docs").glob("*.md"))]
    return {file.name: file.read_text(encoding="utf-8") for file in files}


def blocks(text: str) -> list[tuple[str, str]]:
    """(language, content) of each block of code."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """Those of a page that begin with `python`, in blocks and in the text."""
    typed = "\n".join(code for kind, code in blocks(text) if kind in ("", "sh"))
    lines = re.sub(r"\s*\\\n\s*", " ", typed).splitlines()
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines += [" ".join(each.split()) for each in re.findall(r"`(python [^`]+)`", prose)]
    return [
        line for line in lines if re.match(r"python (run|convert_dataset)\.py|python -m ", line)
    ]


# ---- commands and flags ------------------------------------------------------------------------


PARSE = """if True:
    import importlib.util, json, sys
    from pathlib import Path
    from library.config import Parser, parse_command_line
    from library.convert import ConvertOptions
    from library.util import UserError
    from project.settings import Hyperparameters, modality
    import run

    for program, *words in json.loads(sys.argv[1]):
        try:
            if program == "run.py":
                parse_command_line("", run.COMMANDS, Hyperparameters, root=Path(), argv=words)
            elif program == "convert_dataset.py":
                parser = Parser("", ConvertOptions, modality.ShardOptions)
                parser.parse(words)
                parser.resolve(ConvertOptions)
                parser.resolve(modality.ShardOptions)
                parser.raise_errors()
            elif program != "-m" or importlib.util.find_spec(words[0]) is None:
                print("not a command:", program, words)
        except UserError as error:
            print(program, words, error)
"""


def mistakes_of(lines: list[str], project: Path) -> str:
    """What the programs of a project have against command lines."""
    words = [shlex.split(line, comments=True)[1:] for line in lines]
    return python("-c", PARSE, json.dumps(words), cwd=project)


def test_every_command_is_one(project):
    lines = [
        line
        for name, text in pages(project).items()
        if name not in ("make_it_yours.md", OLD)  # their commands are run below
        for line in commands(text)
        if "..." not in line and "--help" not in line
    ]
    assert len(lines) > 40
    assert mistakes_of(sorted(set(lines)), project) == ""


def test_every_flag_that_is_named_exists(project):
    helps = [python(name, "--help", cwd=project) for name in ("run.py", "convert_dataset.py")]
    module = "audio" if (project / "library/audio").exists() else "images"
    helps.append(python("-m", f"library.{module}.sample_data", "--help", cwd=project))
    known = set(re.findall(r"--(\w+)", "".join(helps))) | OTHER_FLAGS
    for name, text in pages(project).items():
        own = set(re.findall(r"^\+    (\w+): \w+ = option", text, re.MULTILINE))
        own |= OF_THE_OLD_PROGRAM if name == OLD else set()
        text = re.sub(r"(?:docker run|pip install|sed -|curl) .*", "", text)
        flags = set(re.findall(r"(?<![\w-])--(\w[\w-]*)", text))
        assert {flag.removeprefix("no-") for flag in flags} - own <= known, name


def test_the_first_hour_types_what_the_readme_types(project):
    text = pages(project)
    (section,) = re.findall(r"^## Your own.*?(?=^## )", text["README.md"], re.M | re.DOTALL)
    wanted = [line for line in commands(section) if "--" in line or "export" in line]
    typed = commands(text["first_hour.md"])
    assert len(wanted) >= 5
    assert [line for line in typed if line in wanted] == wanted


# ---- messages ----------------------------------------------------------------------------------


NUMBERS = re.compile(r"  epoch |^\W*(step  |\d+  )|  +[\d.,]+(e-\d+)?$|^\w+: [\d.]+$|^\.\.\.$|^\[")
"""Rows of tables, lines of progress, and what a program of the page prints."""
PROVOKED = ("error: command line: train_batch_size", "error: max_rejected", "label conflict")
"""Lines that the sources do not have in one piece: command lines below provoke two of them, and the
project's tests of duplicates the third."""
OF_OTHERS = ("ModuleNotFoundError", "ERROR: ", "UnknownError", "tensorflow.python.")
"""Lines that Python, pip, TensorBoard and TensorFlow print."""


def lines_of(project: Path, name: str) -> list[str]:
    return [line for kind, code in blocks(page(project, name)) if kind == "text"
            for line in code.splitlines()]  # fmt: skip


@pytest.mark.parametrize("name", ["troubleshooting", "input_pipeline", "first_hour"])
def test_every_line_that_is_shown_is_one_that_is_printed(project, name):
    skipped = (*OF_OTHERS, *PROVOKED)
    lines = [each for each in lines_of(project, name) if not each.startswith(skipped)]
    assert len(lines) > 3
    assert [each for each in lines if not (is_printed(each, project) or NUMBERS.search(each))] == []


def test_a_line_that_nothing_prints_is_found(project):
    assert is_printed("error: model: there is no best model in out/best: train first", project)
    assert not is_printed("error: model: there is no good model in out/best: train first", project)
    assert not is_printed("error: no dataset was found in out/best: make one first", project)
    shown = "2 duplicate files, 1 of them near ones: see data/test.duplicates.csv"
    assert is_printed(shown, project)


def test_the_python_that_pip_asks_for_is_that_of_the_project(project):
    (asked,) = re.findall(r"different Python: \S+ not in '(.*)'", page(project, "troubleshooting"))
    required = re.findall(
        '^requires-python = "(.*)"', (project / "pyproject.toml").read_text(), re.M
    )
    assert [sorted(asked.split(","))] == [sorted(each.split(",")) for each in required]


BAD = {"train/cat": ["a", "b"], "test/dgo": ["c"], "test/cat": []}
"""Files that are no images or clips, by folder."""


def test_mistakes_are_told_as_the_page_tells_them(project, tmp_path):
    """A handful, by command lines that take no TensorFlow; the others are found in the sources."""
    for folder, names in BAD.items():
        (tmp_path / folder).mkdir(parents=True)
        for name in names:
            (tmp_path / folder / name).write_bytes(b"no such file")
    (tmp_path / "bad.yaml").write_text("default:\n  train_epoch: 30\n")
    at = ["--tfrecord_dir", tmp_path / "data", "--num_workers", 0]
    shown = lines_of(project, "troubleshooting")
    for words in (
        ["run.py", "--lerning_rate=1e-4"],
        ["run.py", "--train_batch_size", "many"],
        ["run.py", "--split", "test"],
        ["run.py", "--project_file", tmp_path / "bad.yaml"],
        ["run.py", "predict"],
        ["convert_dataset.py", "--dataset_dir", tmp_path / "train/cat", *at],
        ["convert_dataset.py", "--dataset_dir", tmp_path / "train", *at],
    ):
        printed = python(*words, cwd=project, status=2)
        printed = printed.replace(f"{tmp_path}/bad.yaml:2", "project.yaml:15")
        (line,) = [line for line in printed.splitlines() if line.startswith("error: ")]
        assert any(re.fullmatch(like(each), line) for each in shown), line


def like(line: str) -> str:
    """A pattern for a line of the page: other numbers, files and reasons."""
    line = re.sub(r"\([^()]+\)(?=: see)", "...", line)
    pattern = re.sub(r"\S*/\S*?(?=:? |$)|\d+(?:\.\d+)*|\.\.\.", "\0", line)
    return re.escape(pattern).replace("\0", ".+?").replace("\\\0", ".+?")


# ---- programs of the pages ---------------------------------------------------------------------


def test_the_programs_of_the_pages_print_what_they_show(walked):
    """In a project with data, a run and an export, each program in an interpreter of its own."""
    python("run.py", "export", "--tflite", cwd=walked)
    programs = 0
    for name in ("order_and_resume", "input_pipeline", "serving"):
        found = [each for each in blocks(page(walked, name)) if each[0] in ("python", "text")]
        code = "".join(f"{code}\nprint({MARK!r})\n" for kind, code in found if kind == "python")
        printed = python("-W", "ignore", "-c", code, cwd=walked).split(f"{MARK}\n")[:-1]
        for number, (kind, _) in enumerate(found):
            shown = found[number + 1 :][:1]
            if kind == "python":
                now = printed.pop(0)
                programs += 1
                if name != "serving" and shown and shown[0][0] == "text":
                    pattern = re.escape(shown[0][1]).replace(re.escape("[...]"), r"\[.*\]")
                    assert re.fullmatch(
                        pattern, "".join(now.splitlines(keepends=True)[-pattern.count(chr(10)) :])
                    ), now
    assert programs == 7


MARK = "== the end of a program"


def test_the_page_on_serving_names_all_files_and_its_requests_are_json(walked):
    text = page(walked, "serving")
    (*_, export) = sorted((walked / "runs/default/export").iterdir())
    named = set(re.findall(r"assets\.extra/([\w.]+)", text)) - {"model.onnx"}  # of an extra
    assert {file.name for file in (export / "assets.extra").iterdir()} == named
    assert all(json.loads(code) for kind, code in blocks(text) if kind == "json")


def test_the_verdicts_of_the_page_on_the_input_are_those_of_profile(walked):
    code = """if True:
        from library.profile import verdict
        times = {"model": 22.6, "preprocessing": 3.2, "disk": 3.2, "transfer": 3.2, "balanced": 1.1}
        for found, count in times.items():
            print(verdict(found, count, {}))
    """
    assert python("-c", code, cwd=walked) in page(walked, "input_pipeline")


def test_the_files_that_the_first_hour_names_are_those_of_a_run(walked):
    named = re.findall(r"^\| `(?:data|runs)/.*", page(walked, "first_hour"), re.MULTILINE)
    files = {word for row in named for word in re.findall(r"`(\w+\.\w+)`", row)}
    assert len(files) > 8
    there = {path.name for path in walked.rglob("*")}
    assert files <= there
    for row in named:
        assert (walked / re.match(r"\| `(.*?)`", row)[1]).exists(), row


# ---- make it yours -----------------------------------------------------------------------------


@pytest.fixture(scope="session", params=MODALITIES)
def changed(request, projects, tmp_path_factory) -> Path:
    """A copy of the project with all changes of make_it_yours."""
    folder = tmp_path_factory.mktemp("changed") / request.param
    shutil.copytree(projects[request.param], folder)
    changes = list(changes_of(folder))
    assert len(changes) == {"images": 10, "audio": 10}[request.param]
    for name, kind, code in changes:
        text = (folder / name).read_text(encoding="utf-8")
        if kind == "python":
            text += f"\n\n{code}"
        else:
            old, new = sides(code)
            assert text.count(old) == 1, code
            text = text.replace(old, new)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def changes_of(project: Path):
    """(file, python or diff, code) of each change of the page, in its order."""
    text, name = page(project, "make_it_yours"), ""
    for before, kind, code in re.findall(r"(.*?)^```(\w+)\n(.*?)^```$", text, re.M | re.S):
        # Its file is the last one that is named before it, in its section.
        name = ([name] + re.findall(r"`((?:project|library)/\w[\w/]*\.py)`", before))[-1]
        if kind in ("python", "diff"):
            yield name, kind, code


def sides(diff: str) -> tuple[str, str]:
    """The text that a diff replaces, and what stands there then."""
    lines = [line or " " for line in diff.splitlines()]
    old, new = ("".join(f"{x[1:]}\n" for x in lines if x[0] in mark) for mark in (" -", " +"))
    return old, new


def test_each_change_alone_applies_and_compiles(project):
    for name, kind, code in changes_of(project):
        text = (project / name).read_text(encoding="utf-8")
        if kind == "diff":
            old, new = sides(code)
            assert text.count(old) == 1, code
            code = text.replace(old, new)
        compile(code, name, "exec")


def test_a_head_of_ones_own_is_under_30_lines(project):
    (head,) = [code for _, kind, code in changes_of(project) if "Head(" in code]
    assert len(head.splitlines()) < 30


def test_the_changed_project_is_typed_and_formatted(changed):
    python("-m", "ruff", "check", "project", cwd=changed)
    python("-m", "ruff", "format", "--check", "project", "library/train", cwd=changed)
    python("-m", "mypy", "--cache-dir", changed.parent / "mypy", cwd=changed)


def test_the_commands_of_the_changes_are_taken_and_mistakes_refused(changed):
    lines = commands(page(changed, "make_it_yours"))
    assert len(lines) >= 4
    assert mistakes_of(lines, changed) == ""
    (more,) = [code for kind, code in blocks(page(changed, "make_it_yours")) if kind == "yaml"]
    with open(changed / "hyperparameters.yaml", "a", encoding="utf-8") as file:
        file.write(f"\n{more}")
    words = ["run.py", "--hyperparameter_set", "hard", "--print_config"]
    assert re.search(r"focal_gamma: 3.0  # \S*yaml:\d+", python(*words, cwd=changed))
    for value in ("0.5", "many"):
        refused = python("run.py", "--focal_gamma", value, cwd=changed, status=2)
        assert f"focal_gamma: {value} is not a number at least 1" in refused


def test_the_changed_project_builds_its_model_and_its_input(changed, walk):
    audio = (changed / "library/audio").exists()
    words = [
        walk(changed.name).project / "data",
        *(("echo", 0.3) if audio else ("max_brightness", 20.0)),
    ]
    assert python(TEMPLATE / "tests/changed_project.py", *words, cwd=changed).endswith(
        "all is so\n"
    )
    training = (changed / "library/train/training.py").read_text(encoding="utf-8")
    assert '"accuracy",\n            "max",' in training
