"""model.json: written, read, read as older versions wrote it, and compared."""

import dataclasses
import json
from pathlib import Path

import pytest

from library.config import Location, option
from library.data import Target
from library.train import ModelCard
from library.util import UserError


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Options of a test."""

    layers: int = option(18, "layers", defines_architecture=True)
    optimizer: str = option("adam", "optimizer", defines_architecture=True)
    average_decay: float = option(0.0, "averages", defines_architecture=True)
    flip: bool = option(False, "flip", defines_architecture=True)
    module: Location | None = option(None, "module", defines_architecture=True)
    learning_rate: float = option(1e-3, "rate")


CATS = Target("class", ("cat", "dog"))


def card(target: Target = CATS, head: str = "classification", **changes) -> ModelCard:
    return ModelCard.of(head, target, Architecture(**changes))


@pytest.mark.parametrize(
    "written",
    [
        card(),
        card(Target("labels", ("ä", "b"), thresholds=(0.25, 0.5)), "multi_label"),
        card(Target("value", mean=3.5, std=0.1), "regression", module=Location("/modules/one")),
    ],
    ids=lambda card: card.head,
)
def test_what_is_written_is_read(tmp_path, written):
    file = written.save(tmp_path / "run")
    assert ModelCard.load(tmp_path / "run") == written
    assert json.loads(file.read_text(encoding="utf-8"))["format_version"] == 4
    assert "learning_rate" not in written.hyperparameters
    written.must_equal(ModelCard.load(tmp_path / "run"), tmp_path)


def test_a_card_of_the_first_version_is_a_classifier(tmp_path):
    shape = {"layers": 18, "flip": False, "module": "one"}
    old = {"class_names": ["cat", "dog"], "hyperparameters": shape}
    (tmp_path / "model.json").write_text(json.dumps(old))
    found = ModelCard.load(tmp_path)
    shape |= {"optimizer": "adam", "average_decay": 0.0}  # there was nothing else
    assert (found.head, found.target, found.hyperparameters) == ("classification", CATS, shape)
    card(module=Location("/elsewhere/one")).must_equal(found, tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "5",
        "{}",
        '{"format_version": 2}',
        '{"class_names": 3, "hyperparameters": {}}',
        '{"class_names": [], "hyperparameters": [1]}',
    ]
    + ['{"format_version": 2, "head": "x", "hyperparameters": {}, "target": {"classes": []}}'],
)
def test_what_is_no_card_is_one_line(tmp_path, content):
    (tmp_path / "model.json").write_text(content)
    with pytest.raises(UserError, match=r"model.json: not the card of a model"):
        ModelCard.load(tmp_path)


def test_checkpoints_of_the_second_version_hold_no_averages(tmp_path):
    content = dataclasses.asdict(card())
    del content["hyperparameters"]["average_decay"]
    (tmp_path / "model.json").write_text(json.dumps(content | {"format_version": 2}))
    old = ModelCard.load(tmp_path)
    with pytest.raises(
        UserError, match="average_decay: 0.98, but .*: pass --average_decay 0.0, or "
    ):
        card(average_decay=0.98).must_equal(old, tmp_path)


def test_models_of_the_third_version_saw_the_whole_image(tmp_path):
    content = dataclasses.asdict(card()) | {"format_version": 3}
    for shape, changes in ({"image_size": 64}, {"min_crop_area": 1.0}), ({"mel_bands": 40}, {}):
        content["hyperparameters"] = shape
        (tmp_path / "model.json").write_text(json.dumps(content))
        assert ModelCard.load(tmp_path).hyperparameters == shape | changes


def test_of_an_option_that_is_newer_than_a_model_nothing_is_known(tmp_path):
    old = card()
    del old.hyperparameters["flip"]
    card(flip=True).must_equal(old, tmp_path)
    assert old.applied_to(Architecture(flip=True), ["flip"], tmp_path).flip


def test_a_missing_card_and_one_of_a_later_version_are_told(tmp_path):
    with pytest.raises(UserError, match=r"model.json: .*it belongs to the checkpoint"):
        ModelCard.load(tmp_path)
    (tmp_path / "model.json").write_text('{"format_version": 5}')
    with pytest.raises(UserError, match="format_version 5, but this program reads up to 4"):
        ModelCard.load(tmp_path)


@pytest.mark.parametrize(
    ("mine", "found", "line"),
    [
        (card(layers=34), card(), "layers: 34, but the model in out has 18: pass --layers 18, or "),
        (card(), card(flip=True), "flip: false, but the model in out has true: pass --flip, or "),
        (card(flip=True), card(), ".* pass --no-flip, or start a new run: python "),
        (card(module=Location("/a/b")), card(), "module: /a/b, but .* pass --module null"),
        (card(head="custom"), card(), "head: custom, but .* pass --head classification"),
        (
            card(Target("class", ("cat",))),
            card(),
            "train_data: the dataset has the classes cat, but the model in out has the classes ",
        ),
    ],
)
def test_a_difference_says_what_to_do(mine, found, line, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/some/run.py", "--layers", "34"])
    with pytest.raises(UserError, match=f"^{line}") as error:
        mine.must_equal(found, Path("out"))
    assert len(error.value.lines) == 1
    assert error.value.lines[0].endswith(" --layers 34 --new")


def test_other_labels_are_one_line_and_no_head_is_proposed():
    with pytest.raises(UserError) as error:
        card(Target("value"), head="regression").must_equal(card(), Path("out"))
    (line,) = error.value.lines
    assert line.startswith("train_data: the dataset has values, but the model in out has the")


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (Target("class", ("cat", "dog")), "the classes cat, dog"),
        (Target("labels", ("cat", "dog")), "labels among cat, dog"),
        (
            Target("class", tuple("abcdefghijkl")),
            "the classes a, b, c, d, e, f, g, h, i, j and 2 more",
        ),
        (Target("value"), "values"),
        (Target("none"), "no labels"),
    ],
)
def test_a_target_says_what_it_is(target, text):
    assert str(target) == text


def test_a_moved_module_and_other_numbers_of_the_data_are_no_difference():
    card(module=Location("/a/one/")).must_equal(card(module=Location("/b/one")), "out")
    first, second = (card(Target("value", mean=mean), "regression") for mean in (1.0, 2.0))
    first.must_equal(second, "out")
    with pytest.raises(UserError, match="module"):
        card(module=Location("gs://a/one")).must_equal(card(module=Location("gs://b/one")), "out")
