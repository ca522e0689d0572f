"""MODEL_CARD.md: what is known of a model, in the form that the Hugging Face hub reads."""

import csv
import json
import platform
import shutil

import pytest
import yaml
from conftest import ROOT

from library.train import HUB_CARD, evaluation_of, hub_card
from project.settings import modality


@pytest.fixture(scope="module")
def card(trained) -> str:
    evaluation_of(trained)
    return (trained.settings.best_model_dir / HUB_CARD).read_text(encoding="utf-8")


def test_the_hub_reads_its_head(card, trained):
    _, head, _ = card.split("---\n", 2)
    content = yaml.safe_load(head)
    name = modality.__name__.rpartition(".")[2]
    assert content["tags"] == ["tensorflow", name]
    assert content["pipeline_tag"] == f"{name.removesuffix('s')}-classification"
    (index,) = content["model-index"]
    by_split = {each["dataset"]["split"]: each for each in index["results"]}
    metrics = json.loads((trained.dir / "evaluation/test/metrics.json").read_text())
    values = {each["name"]: each["value"] for each in by_split["test"]["metrics"]}
    assert values["accuracy"] == metrics["accuracy"]
    assert "accuracy" in content["metrics"]


def test_it_says_what_the_records_say(card, trained):
    train = trained.card("train_data")
    for name, count in train.examples_per_class.items():
        assert f"\n{name} ({count})" in card
    assert f"| train | {train.num_examples} |" in card
    assert "| train_batch_size | 8 |" in card
    assert "| mixture_weights |" not in card, "an option that is the default"
    assert f"python {platform.python_version()}" in card
    with (trained.dir / "evaluation/test/per_class.csv").open(newline="") as file:
        worst = min(csv.DictReader(file), key=lambda row: float(row["f1"] or 0))
    assert f"| {worst['name']} | {worst['examples']} | " in card
    assert "Expected calibration error: " in card
    assert ", 95% interval " in card
    assert "fewer than 20 examples in the test set" in card


def test_it_names_all_that_was_trained_on(trained, tmp_path):
    run, checkpoint = trained.trained()
    folder = shutil.copytree(run.settings.model_dir, tmp_path / "checkpoints")
    (*others, last) = yaml.safe_load_all((folder / "run.yaml").read_text())
    extra = "/elsewhere/data/more"
    last["settings"]["extra_data"], last["data"][extra] = [extra], "0123"
    (folder / "run.yaml").write_text(yaml.safe_dump_all([*others, last]))
    text = hub_card(run.replace(model_dir=folder), checkpoint)
    assert "| more | " in text
    assert "/elsewhere" not in text


def test_it_names_no_place_of_this_machine(card, trained):
    for place in (ROOT, trained.dir, trained.settings.train_data, "/tmp", "/home"):
        assert str(place) not in card


def test_what_is_not_known_is_not_said(trained, tmp_path):
    run, checkpoint = trained.trained()
    nowhere = run.replace(model_dir=tmp_path / "a", best_model_dir=tmp_path / "b")
    text = hub_card(nowhere, checkpoint)
    assert "No evaluation of this checkpoint is known." in text
    assert "model-index" not in text
    assert "## Training" not in text
    assert "None" not in text
    assert "classes" in text
