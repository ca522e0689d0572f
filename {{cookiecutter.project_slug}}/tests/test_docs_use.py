"""The pages of docs/ on the first hour, on changes and on trouble: what they show is so."""

import dataclasses
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT, copy_project, run_program, small_model
from test_docs_pages import OVERLAY, PICTURES, blocks, headings, page
from test_tasks import apply

from library.options import options_of
from library.reports import read_curves
from project.settings import Hyperparameters, Settings

PAGES = ("first_hour", "make_it_yours", "troubleshooting")
ELSEWHERE = {"help", "logdir", "port", "print_config", "reverse", "NAME", "no-NAME"}
"""Flags of other programs, and of argparse's own."""
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
    programs = ("run.py", "convert_dataset.py", "library/shards.py")
    known = {*options_of(Settings), *options_of(Hyperparameters), *ELSEWHERE, *OF_THE_CHANGES}
    known |= set(re.findall(r"\w+", "".join((ROOT / each).read_text() for each in programs)))
    flags = {flag.removeprefix("no-") for flag in re.findall(r"(?<![\w-])--(\w[\w-]*)", page(name))}
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
            [tf.compat.v1.global_variables_initializer(), tf.compat.v1.local_variables_initializer()]
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
    assert json.loads((changed / "out/best/model.json").read_text())["hyperparameters"][
        "network"
    ] == (network[network.index("--network") + 1])
    run_program("run.py", "evaluate", *words, cwd=changed)
    evaluation = changed / "out/current/evaluation"
    metrics = json.loads((evaluation / "metrics.json").read_text())
    assert 0 < metrics["brier_score"] < 2
    assert "brier score" in (evaluation / "report.html").read_text()
    curves = read_curves(changed / "out/current", metrics=["brier_score"])
    assert len(curves["brier_score"]["validation"][0]) == 2
    assert "focal_gamma: 2.0" in (changed / "out/current/run.yaml").read_text()
