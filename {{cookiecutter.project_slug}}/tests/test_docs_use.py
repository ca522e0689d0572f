"""The pages of docs/ on the first hour, on changes and on trouble: what they show is so."""

import contextlib
import dataclasses
import errno
import functools
import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT, copy_project, damaged, run_program, small_model
from project.plan import Plan, description, plan_of
from project.sessions import (
    DivergedError,
    card_of,
    told_in_a_line,
    trained_model,
    training_data,
    without_missing_device,
)
from test_docs_pages import OVERLAY, PICTURES, blocks, headings, page
from test_tasks import apply

import convert_dataset
import run as program
from library import report as reports
from library.config import options_of
from library.convert import Found, Layout, Used, folder_per_class, write_checksums
from library.data import Card, Shard, Target, verify
from library.distribute import Cluster, Parallel, wait_until_there
from library.estimator import seam
from library.profile import verdict
from library.serve import find_files
from library.train import (
    BestCheckpointExporter,
    EarlyStopHook,
    EvaluationTable,
    ModelCard,
    ProgressHook,
    exporter,
    hooks,
    model_card,
)
from library.util import StatusLine, log, run_main
from project import commands, overfit, training
from project.settings import Hyperparameters, Settings

PAGES = ("first_hour", "make_it_yours", "troubleshooting")
ELSEWHERE = {"help", "logdir", "port", "lerning_rate"}
"""Flags of argparse and of TensorBoard, and a typo."""
OF_PICTURES = {"antialias", "cache", "cache_decoded", "hub_module", "image_size", "input_dtype"}
OF_PICTURES |= {"max_brightness", "random_flip", "shuffle", "max_edge"}
OF_RECORDINGS = {"noise", "sample_rate", "mel_bands", "window_secs"}
OF_THE_CHANGES = {"focal_gamma", "max_brightness" if PICTURES else "noise"}


# ---- all pages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name):
    for link in re.findall(r"\]\(((?!https?:)[^)]+)\)", page(name)):
        file, _, anchor = link.partition("#")
        target = (ROOT / "docs" / file) if file else ROOT / "docs" / f"{name}.md"
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link


@pytest.mark.parametrize("name", PAGES)
def test_every_flag_that_is_named_exists(name):
    programs = ("run.py", "convert_dataset.py", "library/images/records.py")
    known = {*options_of(Settings), *options_of(Hyperparameters), *ELSEWHERE, *OF_THE_CHANGES}
    known |= set(re.findall(r"\w+", "".join((ROOT / each).read_text() for each in programs)))
    text = re.sub(r"^```diff.*?^```$", "", page(name), flags=re.MULTILINE | re.DOTALL)
    flags = {flag.removeprefix("no-") for flag in re.findall(r"(?<![\w-])--(\w[\w-]*)", text)}
    assert flags - (OF_RECORDINGS if PICTURES else OF_PICTURES) <= known


# ---- make it yours -----------------------------------------------------------------------------


def patches(*, pictures: bool = PICTURES) -> dict[str, str]:
    """The patch of each section; where there are two, the last one is for recordings."""
    found = {}
    for section in re.split(r"^## ", page("make_it_yours"), flags=re.MULTILINE)[1:]:
        diffs = [content for kind, content in blocks(section) if kind == "diff"]
        if diffs:
            found[section.partition("\n")[0]] = diffs[0 if pictures else -1]
    return found


@pytest.mark.parametrize("pictures", [PICTURES, *[False] * OVERLAY.exists()])
def test_each_patch_applies_alone(tmp_path, pictures):
    copy_project(tmp_path)
    if not pictures and PICTURES:
        shutil.copytree(OVERLAY / "project", tmp_path / "project", dirs_exist_ok=True)
    assert len(patches()) == 6
    for patch in patches(pictures=pictures).values():
        apply(patch, tmp_path)
        words = ["git", "apply", "--reverse", "-"]
        subprocess.run(words, cwd=tmp_path, input=patch, text=True, check=True)


@pytest.fixture(scope="module")
def changed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with all patches, and with data."""
    folder = tmp_path_factory.mktemp("changed")
    copy_project(folder)
    shutil.copytree(data, folder / "data")
    for patch in patches().values():
        apply(patch, folder)
    return folder


def module_of(changed: Path, name: str) -> ModuleType:
    """A module of the changed project, beside that of this one."""
    file = changed / "project" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"changed_{name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_a_session(make) -> list[np.ndarray]:
    """The values of the tensors, the last of a list after the others."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tensors = make()
        session.run(
            [
                tf.compat.v1.global_variables_initializer(),
                tf.compat.v1.local_variables_initializer(),
            ]
        )
        return [session.run(tensor) for tensor in tensors]


LOGITS = np.array([[2.0, -1.0, 0.5], [0.1, 0.2, 0.3], [-3.0, 4.0, 30.0]], np.float32)
LABELS = np.array([0, 1, 2])
P = np.exp(LOGITS.astype(float)) / np.exp(LOGITS.astype(float)).sum(axis=1, keepdims=True)


@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_the_loss_of_the_page_is_the_focal_loss(changed, gamma):
    params = {"xentropy_label_smoothing": 0.0, "l2_regularization": 0.0, "focal_gamma": gamma}

    def losses_and_slopes() -> list[tf.Tensor]:
        tf.compat.v1.get_variable("layer/kernel", [1, 1])
        logits = tf.constant(LOGITS)
        losses = module_of(changed, "model_fn")._losses(logits, tf.constant(LABELS), params)
        return [losses, tf.gradients(losses, logits)[0]]

    losses, slopes = in_a_session(losses_and_slopes)
    p = P[np.arange(3), LABELS]
    np.testing.assert_allclose(losses, -((1 - p) ** gamma) * np.log(p), rtol=1e-4, atol=1e-9)
    assert np.isfinite(slopes).all()


def test_the_metric_of_the_page_is_the_brier_score(changed):
    def metric() -> tuple[tf.Tensor, tf.Tensor]:
        logits, labels = tf.constant(LOGITS), tf.constant(LABELS)
        metrics = module_of(changed, "model_fn")._metrics(logits, tf.argmax(logits, -1), labels)
        value, update = metrics["brier_score"]
        return update, value

    _, value = in_a_session(metric)
    assert value == pytest.approx(((P - np.eye(3)[LABELS]) ** 2).sum(axis=1).mean(), rel=1e-5)


def test_the_augmentation_of_the_page_changes_examples_and_can_be_left_out(changed, data):
    hyperparameters = module_of(changed, "settings").Hyperparameters
    settings = Settings(train_data=str(data / "train"), train_batch_size=8)
    name, amount = ("max_brightness", 20.0) if PICTURES else ("noise", 0.01)

    def batch(train_input, options) -> np.ndarray:
        features, _ = next(iter(train_input(settings, options, 0)))
        return features["image" if PICTURES else "windows"].numpy()

    changed_input = module_of(changed, "input_fn").train_input
    with_it, without, again = (
        batch(changed_input, hyperparameters(**{name: value})) for value in (amount, 0, amount)
    )
    np.testing.assert_array_equal(with_it, again)
    difference = (with_it - without).reshape(8, -1)
    if PICTURES:
        inside = (with_it > 0) & (with_it < 255)
        moved = [row[ok] for row, ok in zip(difference, inside.reshape(8, -1), strict=True)]
        assert max(row.std() for row in moved) < 1e-3
        means = np.array([row.mean() for row in moved])
        assert np.abs(means).max() <= amount
        assert means.std() > 1
    else:
        assert difference.std() == pytest.approx(amount, rel=0.05)


def test_the_setting_of_the_page_is_a_flag_a_line_of_yaml_and_a_row_of_the_page(changed):
    (more,) = [content for kind, content in blocks(page("make_it_yours")) if kind == "yaml"]
    with open(changed / "hyperparameters.yaml", "a", encoding="utf-8") as file:
        file.write(f"\n{more}")
    sets = ["--hyperparameter_set", "hard", "--print_config"]
    assert re.search(
        r"focal_gamma: 3.0  # \S*hyperparameters.yaml:\d+",
        run_program("run.py", *sets, cwd=changed).stdout,
    )
    flag = run_program("run.py", "--focal_gamma", 3, "--print_config", cwd=changed)
    assert "focal_gamma: 3.0  # command line" in flag.stdout
    for value in ("0.5", "many"):
        refused = run_program("run.py", "--focal_gamma", value, cwd=changed, status=2)
        assert f"focal_gamma: {value} is not a number at least 1" in refused.stderr
    assert "--focal_gamma VALUE" in run_program("run.py", "--help", cwd=changed).stdout
    (command,) = re.findall(r"^`python -m (.*?) > docs/settings.md`", page("make_it_yours"), re.M)
    written = subprocess.check_output([sys.executable, "-m", *command.split()], cwd=changed)
    assert b"| `focal_gamma` |" in written


@pytest.mark.slow
def test_a_training_with_all_changes_shows_them(changed):
    commands = [content for kind, content in blocks(page("make_it_yours")) if kind == "sh"]
    (network,) = [shlex.split(each)[2:] for each in commands if "run.py" in each]
    words = [*network, *small_model(), "--train_epochs", 2, "--train_batch_size", 16]
    shown = run_program("run.py", *words, cwd=changed).stdout
    (columns,) = re.findall(r"^ +step .*$", shown, re.MULTILINE)
    assert columns.split()[:4] == ["step", "epoch", "accuracy", "brier_score"]
    best = json.loads((changed / "out/best/best.json").read_text())
    assert (best["metric"], best["mode"]) == ("accuracy", "max")
    assert f"best model: accuracy {best['value']:.4f} at step {best['step']}" in shown
    assert (
        json.loads((changed / "out/best/model.json").read_text())["hyperparameters"]["network"]
        == (network[network.index("--network") + 1])
    )
    run_program("run.py", "evaluate", *words, cwd=changed)
    evaluation = changed / "out/current/evaluation"
    metrics = json.loads((evaluation / "metrics.json").read_text())
    assert 0 < metrics["brier_score"] < 2
    assert "brier score" in (evaluation / "report.html").read_text()
    curves = reports.read_curves(changed / "out/current", metrics=["brier_score"])
    assert len(curves["brier_score"]["validation"][0]) == 2
    assert "focal_gamma: 2.0" in (changed / "out/current/run.yaml").read_text()


# ---- troubleshooting ---------------------------------------------------------------------------

NOT_PROVOKED = {
    "Out of memory": "there is no GPU; a CPU without memory ends the process",
    "It ends at once": "it takes a training: the test of the demo has it",
}
NOT_PRINTED = ("ERROR: Package", "recording 000000 is damaged")
"""By pip, for another Python; by HDF5, in words of its own: tests of recordings have it."""

BEST = {"metric": "loss", "mode": "min", "value": 0.5, "step": 30, "kept": []}
SMALL = dataclasses.replace(
    Hyperparameters(), **{"image_size": 32} if PICTURES else {"mel_bands": 16, "window_secs": 0.4}
)


def entries() -> dict[str, list[str]]:
    """The lines that the page shows, by symptom, but for those of the other modality."""
    others = (OF_RECORDINGS | {".h5"}) if PICTURES else (OF_PICTURES | {".tfrecord", "hub_module"})
    found = {}
    for section in re.split(r"^### ", page("troubleshooting"), flags=re.MULTILINE)[1:]:
        texts = [content for kind, content in blocks(section) if kind == "text"]
        lines = [line for text in texts for line in text.splitlines()]
        found[section.partition("\n")[0]] = [
            line for line in lines if not any(word in line for word in others)
        ]
    return {symptom: lines for symptom, lines in found.items() if lines}


def pattern(line: str) -> str:
    """A line of the page, with any numbers, and anything for `...`."""
    number = r"\d+(?:\.\d+)*"
    pieces = re.split(rf"(\.\.\.|{number})", line)
    wild = [".*" if piece == "..." else number for piece in pieces[1::2]]
    fixed = [re.escape(piece) for piece in pieces[::2]]
    return "".join(itertools.chain(*zip(fixed, [*wild, ""], strict=True)))


class Place:
    """A project's folder, and what is printed by what fails there."""

    def __init__(self, folder: Path, data: Path, monkeypatch, capsys):
        self.folder, self.data, self.patch, self.capsys = folder, data, monkeypatch, capsys
        for name in ("out/best", "out/current", "data", "mine/train"):
            (folder / name).mkdir(parents=True)

    def settings(self, **values) -> Settings:
        fields = options_of(Settings)
        paths = {name: field.default_from(self.folder) for name, field in fields.items()}
        return Settings(**(paths | values))

    def card(self, name: str, *classes: str) -> None:
        shard = Shard(f"{name}-00000-of-00001", examples=10, bytes=1, sha256="")
        card = Card(list(classes), dict.fromkeys(classes, 5), [shard], {})
        card.save(self.folder / "data" / f"{name}.json")

    def best_model(self, *classes: str, **shaping) -> None:
        folder = self.folder / "out/best"
        (folder / "best.json").write_text(json.dumps(BEST))
        ModelCard.of(
            "classification", Target("class", tuple(classes)), Hyperparameters(**shaping)
        ).save(folder)

    def said(self, *functions: Callable[[], object]) -> list[str]:
        """The lines that they print, each as the `main` of a program that it ends."""
        before = signal.getsignal(signal.SIGTERM)
        for function in functions:
            with contextlib.suppress(SystemExit):
                try:
                    run_main(function)
                except (ValueError, tf.errors.OpError) as error:  # as a traceback ends
                    print(f"{type(error).__name__}: {error}", file=sys.stderr)
                except SystemExit as end:  # what the interpreter does with its text
                    if isinstance(end.code, str):
                        print(end.code, file=sys.stderr)
        signal.signal(signal.SIGTERM, before)
        printed = self.capsys.readouterr()
        text = printed.out + printed.err
        return text.replace(f"{self.folder}{os.sep}", "").splitlines()


@pytest.fixture
def place(tmp_path, data, monkeypatch, capsys) -> Place:
    return Place(tmp_path, data, monkeypatch, capsys)


def unknown_option(place: Place) -> list[str]:
    for name in ("project.yaml", "hyperparameters.yaml"):
        text = (ROOT / name).read_text(encoding="utf-8")
        changed = text.replace("train_epochs: 30", "train_epoch: 30", 1)
        (place.folder / name).write_text(changed, encoding="utf-8")
    place.patch.setattr(program, "__file__", str(place.folder / "run.py"))
    words = ["run.py", "--lerning_rate", "1e-4", "--train_batch_size", "many"]
    place.patch.setattr(sys, "argv", words)
    return place.said(program.main)


def missing_package(place: Place) -> list[str]:
    words = [sys.executable, "-B", "-E", "-S", ROOT / "run.py"]  # without site-packages
    bare = subprocess.run(words, capture_output=True, text=True).stderr.splitlines()[-1:]
    keras = importlib.import_module(tf.keras.Model.__module__.partition(".")[0])
    with place.patch.context() as patched:
        patched.setattr(keras, "__version__", "3.14.1")
        other_keras = place.said(lambda: seam.check(tf))
    find = importlib.util.find_spec
    place.patch.setattr(
        importlib.util, "find_spec", lambda name: None if "estimator" in name else find(name)
    )
    return [*bare, *place.said(lambda: seam.check(tf)), *other_keras]


def other_version(place: Place) -> list[str]:
    place.patch.setattr(tf, "__version__", "2.14.1")
    return place.said(lambda: seam.check(tf))


def no_data_set(place: Place) -> list[str]:
    names = ("train_data", "validation_data")
    return place.said(*(lambda name=name: card_of(place.settings(), name) for name in names))


def other_classes(place: Place) -> list[str]:
    (place.folder / "mine/train/dgo").mkdir()
    place.card("train", "cat", "dog")
    place.card("validation", "cat", "dgo")
    place.card("test", "cat", "dgo")
    place.best_model("cat", "dog")
    return place.said(
        lambda: folder_per_class(place.folder / "mine/train", classes=["cat", "dog"]),
        lambda: training_data(place.settings()),
        lambda: commands.evaluate(place.settings(), Hyperparameters(), split="test"),
    )


def no_model(place: Place) -> list[str]:
    return place.said(
        lambda: trained_model(place.settings(), Hyperparameters()),
        lambda: trained_model(place.settings(model="latest"), Hyperparameters()),
    )


def other_shape(place: Place) -> list[str]:
    place.best_model("cat", "dog")
    other = {"image_size": 96} if PICTURES else {"mel_bands": 40}
    return place.said(
        lambda: trained_model(place.settings(), Hyperparameters(network="resnet")),
        lambda: trained_model(place.settings(), Hyperparameters(**other)),
    )


def other_rate(place: Place) -> list[str]:
    from project.input_fn import open_archive

    shutil.copytree(place.data, place.folder / "data", dirs_exist_ok=True)
    hyperparameters = Hyperparameters(sample_rate=8000, max_hz=3800)
    return place.said(lambda: open_archive(str(place.folder / "data/train"), hyperparameters))


def other_run(place: Place) -> list[str]:
    place.best_model("cat", "dog")
    model = ModelCard.of("classification", Target("class", ("cat", "dog")), Hyperparameters())
    by_accuracy = BestCheckpointExporter(place.folder / "out/best", "accuracy", "max")
    return place.said(lambda: plan_of(place.settings(), model, 100), by_accuracy._kept)


def conversion(place: Place, name: str, **values) -> convert_dataset.Options:
    folders = {"tfrecord_dir": place.folder / "data", "dataset_dir": place.folder / "mine/train"}
    return convert_dataset.Options(tfrecord_filename=name, **folders, **values)


def rejected(place: Place) -> list[str]:
    empty = [("cat/1", "empty file"), ("cat/2", "empty file")]
    layout = Layout(["cat"], [Found(f"cat/{number}", 0) for number in range(3, 21)], empty)
    return place.said(
        *(
            lambda share=share: convert_dataset.report_rejected(
                layout, {}, conversion(place, "train", max_rejected=share)
            )
            for share in (0.1, 0.01)
        )
    )


def no_classes(place: Place) -> list[str]:
    return place.said(lambda: convert_dataset.find_files(conversion(place, "train")))


def there_already(place: Place) -> list[str]:
    place.card("train", "cat")
    options = conversion(place, "train")
    return place.said(lambda: convert_dataset.check_places(place.folder / "data", options))


def there_twice(place: Place) -> list[str]:
    train = [Used("a", "cat/1", "cat"), Used("b", "cat/2", "cat")]
    write_checksums(place.folder / "data/train.sha256", train)
    test = [("a", "cat/1", "cat"), ("b", "cat/9", "cat"), ("c", "cat/3", "cat"), ("c", "x", "dog")]
    options = conversion(place, "test", classes_from=place.folder / "data/train.json")
    partial = place.folder / "data"
    return place.said(
        lambda: convert_dataset.report_duplicates(partial, {"test": [{"used": test}]}, options)
    )


def no_progress(place: Place) -> list[str]:
    settings = place.settings(train_data=str(place.data / "train"), overfit=2)
    model = ModelCard.of("classification", Card.load(f"{settings.train_data}.json").target, SMALL)
    place.patch.setattr(overfit, "OVERFIT_STEPS", 1)
    learn = functools.partial(overfit.overfit, settings, SMALL, model, 2)
    failed = place.said(learn)
    place.patch.setattr(overfit, "OVERFIT_LOSS", 1e3)
    return [place.said(learn)[-1], failed[-1]]


def progress_at(step: int, rates: dict[str, float]) -> ProgressHook:
    """The progress of a training that has come so far, without the training."""
    hook = ProgressHook.__new__(ProgressHook)
    hook.step, hook.steps, hook.epoch_of = step, 1016, lambda step: step * 32 / 1084
    hook.warm_time, hook.warm_at, hook.rates = 0.0, 5, rates
    hook.line = StatusLine(live=False)
    return hook


def waiting(place: Place) -> list[str]:
    hook = progress_at(50, {"examples_per_sec": 212.0, "step_ms": 27.5, "input_wait_share": 0.82})
    line = hook._text({"loss": 1.7027, "accuracy": 0.25}, 6.85)
    found = ("preprocessing", "disk", "model")
    return [line, *(verdict(name, 3.2, {}) for name in found)]


def divergence(place: Place) -> list[str]:
    settings = place.settings(train_data=str(place.data / "train"))
    plan = Plan(
        checkpoint=None,
        step=0,
        examples=0,
        epoch_examples=96,
        batch_size=32,
        steps=300,
        steps_between_evals=3,
    )

    def diverge() -> None:
        with training._divergence_on_file(settings, plan):
            raise DivergedError({"gradient_norms": {}, "step": 120, "loss": "nan"})

    lines = place.said(diverge)
    found = json.loads((place.folder / "out/current/divergence.json").read_text())
    assert len(found["keys"]) == 32
    return lines


def damaged_data(place: Place) -> list[str]:
    if not PICTURES:
        return []
    folder = place.folder / "data"
    damaged(place.data, folder)
    verified = place.said(lambda: verify(folder / "train"))
    (folder / "train-00000-of-00003.tfrecord").unlink()
    return verified + place.said(lambda: verify(folder / "train"))


def full_disk(place: Place) -> list[str]:
    def write() -> None:
        with told_in_a_line(place.settings()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return place.said(write)


def no_gpu(place: Place) -> list[str]:
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a GPU")
    settings = place.settings(prefetch_to_device="/gpu:0")
    plan = plan_of(
        settings, ModelCard.of("classification", Target("class", ("cat",)), Hyperparameters()), 1084
    )
    parallel = Parallel.of(Cluster(), 1, sync_replicas=False)
    return [
        *description(settings, plan, parallel),
        *place.said(lambda: without_missing_device(settings)),
    ]


def interrupted(place: Place) -> list[str]:
    def stop() -> None:
        raise hooks._saved_at(214)

    return place.said(stop)


def no_files(place: Place) -> list[str]:
    place.patch.chdir(place.folder)
    missing = place.said(lambda: find_files(["mine/new"]))
    Path("mine/new").mkdir()
    return missing + place.said(lambda: find_files(["mine/new"]))


def port_in_use(place: Place) -> list[str]:
    from tensorboard import program as tensorboard

    with socket.create_server(("localhost", 0)) as busy:
        board = tensorboard.TensorBoard()
        words = ["tensorboard", "--logdir", str(place.folder), "--port", str(busy.getsockname()[1])]
        board.configure(words)
        with pytest.raises(tensorboard.TensorBoardPortInUseError) as error:
            board.launch()
    return [f"ERROR: {error.value}"]  # as its own main prints it


def no_cluster(place: Place) -> list[str]:
    with socket.create_server(("localhost", 0)) as busy:
        address = f"localhost:{busy.getsockname()[1]}"
        in_use = place.said(
            lambda: tf.distribute.Server({"ps": [address]}, job_name="ps", task_index=0)
        )
    return [*place.said(lambda: wait_until_there({"chief 0": address}, 0.1)), in_use[-1]]


def no_network(place: Place) -> list[str]:
    pytest.importorskip("tensorflow_hub")
    pretrained = importlib.import_module("library.nn.pretrained")  # a project of sound has none
    return place.said(lambda: pretrained.hub_input("https://localhost:1/module"))


PROVOKED: dict[str, Callable[[Place], list[str]]] = {
    "An option that nobody knows": unknown_option,
    "A package is missing": missing_package,
    "Python or TensorFlow is too new, or too old": other_version,
    "There is no data set": no_data_set,
    "Classes do not fit": other_classes,
    "There is no model yet": no_model,
    "The model and the options do not fit": other_shape,
    "The folder is another run's": other_run,
    "Files are rejected": rejected,
    "There are no classes": no_classes,
    "It is there already": there_already,
    "Files are there twice": there_twice,
    "The loss does not fall": no_progress,
    "It waits for its input": waiting,
    "It diverged": divergence,
    "A file of the data is damaged": damaged_data,
    "The disk is full": full_disk,
    "The GPU is not seen": no_gpu,
    "It was interrupted": interrupted,
    "There is nothing to predict for": no_files,
    "TensorBoard has no port": port_in_use,
    "A cluster does not come together": no_cluster,
}
if PICTURES:
    PROVOKED["A module of TensorFlow Hub cannot be reached"] = no_network
else:
    PROVOKED["Recordings of another rate"] = other_rate


def test_each_symptom_of_the_page_is_provoked_or_cannot_be():
    assert entries().keys() - {"A file of the data is damaged"} <= PROVOKED.keys() | NOT_PROVOKED
    assert PROVOKED.keys() | NOT_PROVOKED.keys() <= entries().keys() | {
        "A file of the data is damaged"
    }
    (line,) = entries()["It ends at once"]
    told = re.escape(line).replace(r"1016", r"\{\w+\}")
    assert re.search(told, (ROOT / "project/training.py").read_text(encoding="utf-8"))
    (python,) = re.findall(r"different Python: \S+ not in '(.*)'", page("troubleshooting"))
    required = re.findall('requires-python = "(.*)"', (ROOT / "pyproject.toml").read_text())
    assert [sorted(python.split(","))] == [sorted(each.split(",")) for each in required]


@pytest.mark.parametrize("symptom", PROVOKED)
def test_the_page_has_the_line_that_is_printed(place, symptom):
    shown = [
        line
        for line in entries().get(symptom, [])
        if not any(words in line for words in NOT_PRINTED)
    ]
    printed = [line for line in PROVOKED[symptom](place) if line]
    assert len(shown) == len(printed), printed
    for line, now in zip(shown, printed, strict=True):
        assert re.fullmatch(pattern(line), now), f"{line}\n{now}"


# ---- the first hour ----------------------------------------------------------------------------


def commands_of(text: str) -> list[str]:
    """What is typed, each command in a line."""
    lines = re.sub(r"\s*\\\n\s*", " ", text).splitlines()
    return [line for line in lines if line.startswith(("python ", "tensorboard "))]


def typed_in_the_first_hour() -> list[str]:
    shell_blocks = [content for kind, content in blocks(page("first_hour")) if kind == "sh"]
    return commands_of("".join(shell_blocks))


def test_the_first_hour_is_that_of_the_readme_and_more():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^```\n(python convert_dataset.*?)^```$", readme, re.M | re.DOTALL)
    typed = typed_in_the_first_hour()
    assert sorted(set(typed) & set(commands_of(section))) == sorted(commands_of(section))
    (more,) = set(typed) - set(commands_of(section))
    run_program(*more.split()[1:], "--print_config", cwd=ROOT)
    times = re.findall(r"^\| `([\w. ]+)`.* \| [\d.]+ \| [\d.]+ \|$", page("first_hour"), re.M)
    assert len(times) == len(commands_of(section))
    for command, timed in zip(sorted(commands_of(section)), sorted(times), strict=True):
        assert command.startswith(timed)


def test_the_first_hour_shows_lines_as_they_are_printed(place):
    shown = [content for kind, content in blocks(page("first_hour")) if kind == "text"]
    lines = [line.replace(".../", "") for text in shown for line in text.splitlines()]

    def is_shown(printed: str) -> None:
        assert any(re.fullmatch(pattern(line), printed) for line in lines), printed

    best = BestCheckpointExporter(place.folder / "out/best")
    table = EvaluationTable(best, StatusLine(live=False), epoch_of=lambda step: step / 34)
    metrics = {"accuracy": 0.5, "mean_per_class_accuracy": 0.5, "top_5_accuracy": 0.9}
    rows = {34: 1.6617, 238: 1.3888}

    def evaluate() -> None:
        for step, loss in rows.items():
            best.evaluations_without_improvement = int(step > 34)
            results = {**metrics, "loss": loss, "global_step": step}
            table.export(None, "", "", results, is_the_final_export=False)

    header, *evaluated = place.said(evaluate)
    assert header in lines
    for row in evaluated:
        is_shown(row)
    hook = progress_at(304, {"examples_per_sec": 236.0, "step_ms": 99.0, "input_wait_share": 0.01})
    hook.line.live = True
    is_shown(hook._text({"loss": 0.728, "accuracy": 0.938}, 50.8))
    is_shown(*interrupted(place))
    is_shown(no_gpu(place)[0])
    (place.folder / "out/best/best.json").write_text(json.dumps(BEST))
    stop = EarlyStopHook(best, 5)
    best.evaluations_without_improvement = 0
    is_shown(*place.said(lambda: training._tell_end(place.settings(), stop)))
    place.card("test", "cat")
    for line in place.said(lambda: program.tell_what_is_next(program.SETS, place.settings())):
        assert line in lines


def test_the_files_that_the_first_hour_names_are_those_of_a_report():
    files = (*reports.FILES, reports.PAGE, model_card.FILE, exporter.BEST_FILE, log.FILE)
    for name in files:
        assert name in page("first_hour")
