"""The command line of run.py, parsed in this process: a command, settings and hyperparameters."""

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

import run
from library.config import CommandLine, DataSettings, RunSettings, Settings, parse_command_line
from library.util import UserError
from project.settings import Hyperparameters


def parse(*words: object, root: Path = ROOT, commands=run.COMMANDS) -> CommandLine:
    argv = [str(word) for word in words]
    return parse_command_line(run.__doc__, commands, Hyperparameters, argv=argv, root=root)


def mistakes(*words: object, root: Path = ROOT) -> tuple[str, ...]:
    with pytest.raises(UserError) as error:
        parse(*words, root=root)
    return error.value.lines


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    """A folder with the sets of this project."""
    for name in ("project.yaml", "hyperparameters.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


# ---- commands and their flags ------------------------------------------------------------------


def test_the_command_is_train_unless_given():
    assert parse().command == "train"
    assert parse("evaluate", "--split", "validation").command == "evaluate"
    assert parse("--split", "validation", "evaluate").settings.split == "validation"


def test_every_field_is_a_flag_of_its_name(capsys):
    with pytest.raises(SystemExit) as exit:
        parse("--help")
    assert exit.value.code == 0
    printed = capsys.readouterr().out
    for field in (*dataclasses.fields(Settings), *dataclasses.fields(Hyperparameters)):
        assert f"  --{field.name}" in printed
        if isinstance(field.default, bool):
            assert f"--no-{field.name}" in printed
    assert max(map(len, printed.splitlines())) <= shutil.get_terminal_size().columns
    assert " | ".join(run.COMMANDS) in " ".join(printed.split())


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("evaluate or compare", ["--split", "test"]),
        ("predict", ["--input", "x"]),
        ("compare", ["--runs", "x", "y"]),
        ("predict", ["--output", "x.csv"]),
        ("predict", ["--top_k", 3]),
        ("predict", ["--images_out", "x"]),
        ("export", ["--export_dir", "x"]),
        ("export", ["--tflite"]),
        ("export", ["--no-check"]),
        ("profile", ["--trace"]),
        ("cluster", ["--workers", 1]),
        ("cluster", ["--ps", 0]),
    ],
)
def test_a_flag_of_one_command_is_refused_with_another(command, words):
    name = words[0].removeprefix("--").removeprefix("no-")
    for each in command.split(" or "):
        assert name in parse(each, *words, *["--input", "x"][: 2 * (each == "predict")]).given
    assert mistakes("train", *words) == (f"--{name} belongs to {command}, not to train",)


def test_what_one_command_names_starts_from_where_it_is_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = parse("export", "--export_dir", "there", "--model_dir", "here")
    assert line.settings.export_dir == tmp_path / "there"
    assert line.settings.model_dir == ROOT / "here"


def test_paths_are_normalized_but_for_links(tmp_path):
    (tmp_path / "far/away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far/away")
    line = parse("--model_dir", f"{tmp_path}/a/../b//c", "--cache_dir", f"{tmp_path}/link/../d")
    assert str(line.settings.model_dir) == f"{tmp_path}/b/c"
    assert str(line.settings.cache_dir) == f"{tmp_path}/link/../d"


# ---- a run -------------------------------------------------------------------------------------


def test_the_folders_of_a_run_follow_from_its_name():
    settings = parse("--run", "wide").settings
    assert settings.run_dir == ROOT / "runs" / "wide"
    assert settings.model_dir == settings.run_dir / "checkpoints"
    assert settings.best_model_dir == settings.run_dir / "best"
    assert parse().settings.run_dir == ROOT / "runs" / "default"


def test_predict_takes_files_without_a_flag():
    line = parse("predict", "x.jpg", "--top_k", 2, "photos", "--model", "latest", "y.jpg")
    assert line.settings.input == ("x.jpg", "photos", "y.jpg")
    assert parse("predict", "-").settings.input == ("-",)
    line = parse("predict", "--input", "a", "b", "--top_k", 1, "c")
    assert line.settings.input == ("a", "b", "c")


def test_a_new_run_has_a_name_that_no_run_has(sets, monkeypatch, capsys):
    for name in ("default", "default-2", "wide"):
        (sets / "runs" / name).mkdir(parents=True)
    monkeypatch.setattr("library.config.settings.PROJECT", sets)
    names = [("--new",), ("--new", "--run", "wide"), ("--new", "--run", "other")]
    lines = [parse(*words, root=sets) for words in names]
    assert [line.settings.run for line in lines] == ["default-3", "wide-2", "other"]
    assert lines[0].settings.best_model_dir == sets / "runs/default-3/best"
    assert lines[1].words() == ["--run", "wide-2"]
    assert capsys.readouterr().out.splitlines()[0] == "new run: default-3"


def test_the_commands_that_come_next_have_the_flags_that_they_take(capsys):
    words = ["--run", "wide", "--test_data", "gs://x", "--limit_train_examples", 9]
    run.print_next(parse(*words))
    assert capsys.readouterr().out.splitlines() == [
        "next: python run.py evaluate --split validation --test_data gs://x --run wide",
        "      python run.py predict FILE_OR_DIR --run wide",
    ]


def test_folders_that_are_given_are_kept():
    settings = parse("--model_dir", "out/current", "--run", "wide").settings
    assert settings.model_dir == settings.run_dir == ROOT / "out" / "current"
    assert settings.best_model_dir == ROOT / "runs" / "wide" / "best"


@pytest.mark.parametrize("name", ["a/b", "..", "", "two words", "ä", ".hidden", "-x"])
def test_a_run_is_named_so_that_it_is_one_folder(name):
    (line,) = mistakes(f"--run={name}")
    assert line.startswith(f"command line: run: {name or 'nothing'} is not a name of letters")


# ---- values and their origins ------------------------------------------------------------------


def test_command_line_over_set_over_default(sets):
    line = parse("--config_set", "gtx1080ti", "--train_epochs", 3, root=sets)
    assert (line.settings.train_batch_size, line.settings.train_epochs) == (64, 3)
    assert line.settings.log_steps == 50
    assert line.given == {"train_epochs"}


def test_a_config_set_may_choose_the_hyperparameter_set(sets):
    with open(sets / "project.yaml", "a", encoding="utf-8") as file:
        file.write("mine:\n  inherits: default\n  hyperparameter_set: quick\n")
    with open(sets / "hyperparameters.yaml", "a", encoding="utf-8") as file:
        file.write("quick:\n  inherits: default\n  learning_rate: 0.5\n")
    assert parse("--config_set", "mine", root=sets).hyperparameters.learning_rate == 0.5
    words = ["--config_set", "mine", "--hyperparameter_set", "default"]
    default = parse(root=sets).hyperparameters.learning_rate
    assert parse(*words, root=sets).hyperparameters.learning_rate == default != 0.5


def test_print_config_tells_where_each_value_came_from(sets):
    words = ["--config_set", "gtx1080ti", "--learning_rate", "1e-4", "--print_config"]
    line = parse(*words, root=sets)
    assert line.print_config
    lines = line.as_yaml().splitlines()
    assert lines[0] == "# project.yaml"
    assert "  learning_rate: 0.0001  # command line" in lines
    assert f"  model_dir: null  # default: {ROOT}/runs/default/checkpoints" in lines
    assert any(each.startswith("  train_batch_size: 64  # project.yaml:") for each in lines)
    assert any(each.endswith(", set gtx1080ti") for each in lines)
    assert any(each.endswith(", set default") for each in lines)
    assert "  xla: false  # default" in lines


def test_what_is_printed_gives_the_same_again(sets):
    line = parse("--config_set", "thinkpadx201t", "--random_seed", 7, root=sets)
    first, second = line.as_yaml().split("---\n")
    (sets / "project.yaml").write_text(first, encoding="utf-8")
    (sets / "hyperparameters.yaml").write_text(second, encoding="utf-8")
    again = parse("--config_set", "thinkpadx201t", root=sets)
    assert (again.settings, again.hyperparameters) == (line.settings, line.hyperparameters)
    assert [*yaml.safe_load(first)] == ["thinkpadx201t"]


def test_the_words_of_a_command_line_can_be_given_again():
    words = ["--config_set", "gtx1080ti", "--train_data", "gs://x/y", "--no-deterministic"]
    words += ["--xla", "--num_parallel_calls", "-1", "--learning_rate", "1e-3"]
    line = parse("cluster", *words, "--workers", 1)
    assert "--workers" not in line.words()
    again = parse(*line.words())
    assert dataclasses.replace(again.settings, workers=1) == line.settings
    assert again.hyperparameters == line.hyperparameters
    assert line.words(only=(DataSettings, RunSettings)) == [*words[:2], *words[2:4]]
    assert parse("evaluate").words() == []


# ---- mistakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["trian"],
            f"command: trian is not one of {', '.join(run.COMMANDS)} (did you mean train?)",
        ),
        (
            ["--learning_rat", "1"],
            "unknown argument --learning_rat=1 (did you mean --learning_rate?)",
        ),
        (["--max_time", "1"], "unknown argument --max_time=1 (did you mean --max_minutes?)"),
        (["--learning_rate", "fast"], "command line: learning_rate: fast is not a number above 0"),
        (["--network", "cmm"], "command line: network: cmm is not one of cnn"),
        (["--config_set", "gtx"], "project.yaml: there is no set gtx; it has default, gtx1080ti"),
        (["--hyperparameter_set", "x"], "hyperparameters.yaml: there is no set x; it has default"),
        (["--project_file", "no.yaml"], "no.yaml: No such file or directory"),
        (["--hyperparameter_file", "no.yaml"], "no.yaml: No such file or directory"),
        (["evaluate", "--split", "tset"], "command line: split: tset is not one of train, valid"),
        (["predict"], "predict: name files or folders, for example: python run.py predict photos"),
        (["evaluate", "x.jpg"], "unknown argument x.jpg"),
        (["evaluate", "--new"], "--new belongs to train, not to evaluate"),
        (["--new", "--model_dir", "x"], "--new: model_dir is given"),
        (["cluster", "--workers", "-1"], "command line: workers: -1 is not a whole number at l"),
        (["--cache_decoded"], "command line: cache_decoded: needs cache: memory or cache: file"),
        (["--model_dir", "runs/default/best"], "command line: best_model_dir: "),
    ],
)
def test_a_mistake_is_one_line(words, message):
    (line,) = mistakes(*words)
    assert line.startswith(message)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--lr", "1e-3"], "--learning_rate"),
        (["--epochs", "3"], "--train_epochs"),
        (["--batch_size=8"], "--train_batch_size"),
        (["--bs", "8"], "--train_batch_size"),
        (["--lr_schedule", "cosine"], "--learning_rate_schedule"),
        (["--gpu", "0"], "--devices"),
        (["--name", "second"], "--run"),
        (["--seed", "3"], "--random_seed"),
        (["test"], "evaluate --split test"),
        (["eval"], "evaluate"),
        (["tensorboard"], "tensorboard --logdir runs, without python run.py"),
    ],
)
def test_what_people_type_from_memory_is_named_as_it_is_here(words, meant):
    (line,) = mistakes(*words)
    assert line.endswith(f"(did you mean {meant}?)")


def test_an_alias_in_a_file_is_named_as_it_is_here(sets):
    (sets / "project.yaml").write_text("default:\n  epochs: 5\n", encoding="utf-8")
    assert mistakes(root=sets) == (
        "project.yaml:2, set default: there is no option epochs (did you mean train_epochs?)",
    )


def test_an_option_of_the_other_file_is_sent_there(sets):
    (sets / "project.yaml").write_text("default:\n  learning_rate: 5\n", encoding="utf-8")
    (sets / "hyperparameters.yaml").write_text("default:\n  command: 5\n", encoding="utf-8")
    assert mistakes(root=sets) == (
        "project.yaml:2, set default: there is no option learning_rate here: the other file has it",
        "hyperparameters.yaml:2, set default: there is no option command",
    )


def test_an_option_of_before_is_named_as_it_is_now(sets):
    (sets / "project.yaml").write_text("default:\n  max_time: 5\n", encoding="utf-8")
    assert mistakes(root=sets) == (
        "project.yaml:2, set default: there is no option max_time (did you mean max_minutes?)",
    )


def test_all_mistakes_are_told_at_once(sets):
    (sets / "project.yaml").write_text("default:\n  train_epochs: -1\n", encoding="utf-8")
    (sets / "hyperparameters.yaml").write_text("default:\n  momentum: 2\n", encoding="utf-8")
    words = ["trian", "--learning_rat", "1", "--log_steps", "0"]
    assert [line.partition(": ")[0] for line in mistakes(*words, root=sets)] == [
        "unknown argument --learning_rat=1 (did you mean --learning_rate?)",
        "project.yaml:2, set default",
        "command line",
        "hyperparameters.yaml:2, set default",
        "command",
    ]


def test_words_of_a_path_are_no_options(sets):
    text = "default:\n  model_dir: /x/model[1]/c\n"
    (sets / "project.yaml").write_text(text, encoding="utf-8")
    (line,) = mistakes("--model", "latest", root=sets)
    assert line.startswith("project.yaml:2, set default: model_dir: ")


def test_all_contradictions_are_told_at_once():
    words = ["--shuffle", "stream", "--cache", "memory", "--limit_train_examples", 5]
    words += ["--epochs_between_evals", 99, "--sampling", "balanced"]
    assert len(mistakes(*words)) == 4


# ---- as a process ------------------------------------------------------------------------------


@pytest.mark.slow
def test_help_does_not_import_tensorflow():
    code = (
        "import runpy, sys; sys.argv = ['run.py', '--help']\n"
        f"try: runpy.run_path({str(ROOT / 'run.py')!r}, run_name='__main__')\n"
        "except SystemExit as exit: assert exit.code == 0\n"
        "assert not {'tensorflow', 'yaml', 'numpy'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert "--xentropy_label_smoothing" in process.stdout


@pytest.mark.slow
def test_a_reader_who_has_had_enough_is_no_traceback():
    process = subprocess.Popen(
        [sys.executable, "-u", ROOT / "run.py", "--print_config"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    assert process.wait(60) == 1
    assert process.stderr.read() == b""
