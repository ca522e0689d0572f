"""Prediction and export, in this process: files, tables, signatures and models for devices."""

import base64
import contextlib
import csv
import dataclasses
import importlib.util
import io
import json
import os
import re
import shutil
import signal
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT, convert, make_run, quick_network
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

from library.data import Target
from library.estimator import export as estimator_export
from library.serve import (
    FILES_PER_TASK,
    TASKS_AHEAD,
    InputFiles,
    answer,
    check_output,
    compare,
    device_runner,
    export_model,
    find_files,
    predict_files,
    write_rows,
)
from library.train import ModelCard, Run, run_evaluation, start_training
from library.util import RunError, UserError, write_json

SIGNATURES = {"serving_default", "single", "tensors"}
TFLITE = ["model.tflite", "model.dynamic_range.tflite", "model.int8.tflite"]


# ---- files -------------------------------------------------------------------------------------


def test_files_are_found_in_the_order_they_are_named(tmp_path, monkeypatch):
    names = ["b/2", "b/1", "a[1]", "c.x", "d.x"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"e\nno such\r\n\nf")))
    found = find_files(["*.x", "b", "a[1]", "-"])
    assert list(map(str, found)) == ["c.x", "d.x", "b/1", "b/2", "a[1]", "e", "no such", "f"]


def test_inputs_that_name_nothing_are_refused_together(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="--input: there is no no.png\n--input: there is no z*"):
        find_files(["no.png", "z*"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no files in empty"):
        find_files(["empty"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\0b\0")))
    with pytest.raises(UserError, match="--input: -: names are one per line, without NUL"):
        list(find_files(["-"]))


def test_files_are_read_a_little_ahead_and_no_further(tmp_path):
    """So that there may be any number of them."""
    file = tmp_path / "file"
    file.write_bytes(b"content")
    asked = most = 0

    def paths() -> Iterator[Path]:
        nonlocal asked
        for number in range(10_000):
            asked += 1
            yield tmp_path / "gone" if number % 1000 == 500 else file

    def predictions() -> Iterator[dict[str, Any]]:
        nonlocal most
        for key, content in files:
            assert content == b"content!"
            most = max(most, asked - int(key))
            yield {"key": np.array([key])}

    files = InputFiles(paths(), lambda content: content + b"!")
    failed = [row for row in files.rows(predictions(), lambda _: {}) if "error" in row]
    assert [Path(row["file"]).name for row in failed] == ["gone"] * 10
    assert "No such file" in failed[0]["error"]
    assert most <= FILES_PER_TASK * (TASKS_AHEAD + 1)
    assert (files.count, files.failed) == (10_000, 10)


def test_what_tensorflow_cannot_decode_is_an_error_row_in_its_place(tmp_path):
    names = ["0", "1", "2", "3"]
    for name in names:
        (tmp_path / name).write_bytes(name.encode())

    def predictions() -> Iterator[dict[str, Any]]:
        for key, content in files:
            if content in (b"0", b"3"):  # TensorFlow could not decode the others
                yield {"key": np.array([key]), "value": np.array([float(content)])}

    files = InputFiles((tmp_path / name for name in names), lambda content: content)
    rows = list(files.rows(predictions(), lambda each: {"value": each["value"].item()}))
    assert [Path(row["file"]).name for row in rows] == names
    errors = [row.get("error", row.get("value")) for row in rows]
    assert errors == [0, "it cannot be decoded", "it cannot be decoded", 3]


def test_a_bug_in_canonicalization_is_no_silent_end(tmp_path):
    """A dataset may hide the error, and end."""
    (tmp_path / "0").touch()

    def faulty(content: bytes) -> bytes:
        raise AttributeError("ours")

    def predictions() -> Iterator[dict[str, Any]]:
        with pytest.raises(AttributeError):
            list(files)
        yield from ()

    files = InputFiles([tmp_path / "0"], faulty)
    with pytest.raises(AttributeError, match="ours"):
        list(files.rows(predictions(), lambda _: {}))


# ---- tables ------------------------------------------------------------------------------------

ROWS = [
    {"file": "a,b", "class": "cat\n", "probability": 1 / 3, "more": 1},
    {"file": "c", "error": "not an image"},
]
COLUMNS = ["file", "class", "probability", "error"]


def test_a_csv_file_has_all_columns_in_each_row(tmp_path):
    write_rows(str(tmp_path / "new/p.csv"), iter(ROWS), COLUMNS)
    text = (tmp_path / "new/p.csv").read_text(encoding="utf-8")
    assert text == ('file,class,probability,error\n"a,b","cat\n",0.333333333,\nc,,,not an image\n')


def test_a_table_on_standard_output_is_utf_8_whatever_the_console_takes(monkeypatch):
    console = io.TextIOWrapper(io.BytesIO(), encoding="cp1252", newline="\r\n")
    monkeypatch.setattr(sys, "stdout", console)
    write_rows("-", [{"file": "\udcff", "class": "图像"}], ["file", "class"])
    console.flush()
    assert console.buffer.getvalue() == b"file,class\n\xff," + "图像\n".encode()


def test_json_lines_have_the_columns_that_a_row_has(tmp_path):
    write_rows(str(tmp_path / "p.jsonl"), iter(ROWS), COLUMNS)
    first, second = (json.loads(line) for line in (tmp_path / "p.jsonl").open(encoding="utf-8"))
    assert first == {"file": "a,b", "class": "cat\n", "probability": 1 / 3}
    assert second == ROWS[1]


def test_a_table_that_is_not_complete_has_no_name(tmp_path):
    def rows() -> Iterator[dict[str, Any]]:
        yield ROWS[0]
        raise RunError("no power")

    with pytest.raises(RunError):
        write_rows(str(tmp_path / "p.csv"), rows(), COLUMNS)
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_is_refused(tmp_path):
    with pytest.raises(UserError, match="p.txt does not end in .csv or .jsonl"):
        check_output("p.txt")
    with pytest.raises(UserError, match="is a folder, not a file"):
        check_output(str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="--output: .*file is a file, not a folder"):
        check_output(str(tmp_path / "file/p.csv"))
    check_output("-")
    check_output(str(tmp_path / "new/p.csv"))


# ---- agreement ---------------------------------------------------------------------------------


def test_agreement_of_classes_counts_the_same_class(capsys):
    probabilities = np.float32([[0.6, 0.4], [0.49, 0.51]])
    expected = {"class": np.array([b"a", b"b"], object), "probabilities": probabilities}
    other = {"probabilities": probabilities[:, ::-1] + 0.02}
    table = compare(
        "title", expected, {"same": expected, "other": other}, Target("class", ("a", "b"))
    )
    assert table["same"] == {
        "examples": 2,
        "same_class": 2,
        "largest_difference": 0,
        "mean_difference": 0,
    }
    assert table["other"]["same_class"] == 0
    assert table["other"]["largest_difference"] == pytest.approx(0.22)
    title, head, same, other = capsys.readouterr().out.splitlines()
    assert title == "title:"
    assert head.split() == ["same", "class", "largest", "difference", "mean"]
    assert same.split() == ["same", "2", "of", "2", "0.0e+00", "0.0e+00"]


def test_a_class_of_another_name_is_not_the_same():
    expected = {"class": np.array([b"a"], object), "probabilities": np.float32([[0.6, 0.4]])}
    found = {**expected, "class": np.array([b"b"], object)}
    table = compare("", expected, {"m": found}, Target("class", ("a", "b")))
    assert (table["m"]["same_class"], table["m"]["largest_difference"]) == (0, 0)


def test_agreement_of_several_labels_heeds_their_thresholds():
    expected = {"probabilities": np.float32([[0.4, 0.8], [0.6, 0.1]])}
    found = {"probabilities": np.float32([[0.6, 0.8], [0.7, 0.1]])}
    table = compare("", expected, {"m": found}, Target("labels", ("a", "b")))
    assert table["m"]["same_labels"] == 1
    lower = Target("labels", ("a", "b"), thresholds=(0.3, 0.5))
    assert compare("", expected, {"m": found}, lower)["m"]["same_labels"] == 2


def test_agreement_of_values_is_in_standard_deviations(capsys):
    expected, found = {"value": np.float32([1, 50])}, {"value": np.float32([2, 51])}
    table = compare("", expected, {"m": found}, Target("value", mean=3, std=10))
    assert table["m"] == {
        "examples": 2,
        "largest_difference": pytest.approx(0.1),
        "mean_difference": pytest.approx((0.1 + 0.02) / 2),
    }
    assert "same" not in capsys.readouterr().out


# ---- prediction --------------------------------------------------------------------------------


@pytest.fixture
def inputs(samples: Path, tmp_path: Path) -> list[Path]:
    """Two folders of the test set, and a file between them that is of no use."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more/broken.bin").write_bytes(b"nothing")
    first, second, *_ = sorted(path for path in (samples / "test").iterdir() if path.is_dir())
    return [first, tmp_path / "more", second]


def predicted(run: Run, inputs: list[Path], **settings: Any) -> None:
    predict_files(run.replace(input=tuple(map(str, inputs)), **settings))


def test_predictions_are_rows_in_the_order_of_the_files(trained, inputs, tmp_path, capsys):
    output = tmp_path / "predictions.csv"
    predicted(trained, inputs, output=str(output))
    printed = capsys.readouterr().out
    assert (
        f"wrote 8 predictions to {output}\n1 of 9 files could not be used: see the `error`"
        in printed
    )
    with open(output, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = [folder.name for folder in inputs]
    assert [Path(row["file"]).parent.name for row in rows] == (
        [names[0]] * 4 + ["more"] + [names[2]] * 4
    )
    assert (rows[4]["class"], bool(rows[4]["error"])) == ("", True)
    for row in rows[:4] + rows[5:]:
        probabilities = {
            name.removeprefix("probability of "): float(text)
            for name, text in row.items()
            if name.startswith("probability of ")
        }
        assert sum(probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert row["class"] == max(probabilities, key=probabilities.__getitem__)
        assert float(row["probability"]) == max(probabilities.values())


def test_predictions_are_below_the_run_unless_the_output_says_otherwise(trained, inputs, capsys):
    for left in trained.dir.glob("predictions*.csv"):  # by another test
        left.unlink()
    predicted(trained, inputs[:1], top_k=2)
    file = trained.dir / "predictions.csv"
    assert f"wrote 4 predictions to {file}\n" in capsys.readouterr().out
    with open(file, newline="", encoding="utf-8") as opened:
        (first, *_) = csv.DictReader(opened)
    assert list(first) == ["file", "class", "probability", "error", "class 2", "probability 2"]
    assert float(first["probability"]) >= float(first["probability 2"]) > 0
    before = file.read_bytes()
    predicted(trained, inputs[2:])
    assert (
        f"the last predictions are in {trained.dir}/predictions-1.csv\n" in capsys.readouterr().out
    )
    assert (trained.dir / "predictions-1.csv").read_bytes() == before != file.read_bytes()


def test_top_k_is_refused_where_there_are_no_classes(trained, inputs):
    card = dataclasses.replace(ModelCard.load(trained.settings.best_model_dir), head="regression")
    card = dataclasses.replace(card, target=Target("value"))
    run = trained.replace(best_model_dir=trained.dir / "numbers", top_k=2)
    shutil.copytree(trained.settings.best_model_dir, run.settings.best_model_dir)
    card.save(run.settings.best_model_dir)
    with pytest.raises(UserError, match="--top_k: chooses among classes, but the head is regress"):
        predicted(run, inputs)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="no folder that nobody can write to")
def test_a_place_where_nothing_can_be_written_is_one_line(trained, inputs):
    with pytest.raises(UserError, match="--output: /proc is not writable"):
        predicted(trained, inputs, output="/proc/x.csv")
    with pytest.raises(UserError, match="--export_dir: /proc is not writable"):
        export_model(trained.replace(export_dir=Path("/proc/export")))


def test_an_export_that_fails_leaves_no_folder(trained, tmp_path, monkeypatch):
    monkeypatch.setattr("library.serve.export.name_signatures", lambda export: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_model(trained.replace(export_dir=tmp_path / "export"))
    assert not (tmp_path / "export").exists()


def test_where_no_file_can_be_used_nothing_is_predicted(trained, inputs, tmp_path):
    output = tmp_path / "bad.csv"
    why = f"--input: 1 file, none of which could be used: see the `error` column of {output}$"
    with pytest.raises(UserError, match=why):
        predicted(trained, inputs[1:2], output=str(output))
    assert "broken.bin" in output.read_text()


@pytest.mark.parametrize("command", [predict_files, export_model, run_evaluation])
def test_a_damaged_checkpoint_is_one_line(trained, inputs, tmp_path, monkeypatch, command):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    best = shutil.copytree(trained.settings.best_model_dir, tmp_path / "best")
    (data,) = best.glob("*.data-*")
    data.write_bytes(data.read_bytes()[:100])
    run = trained.replace(best_model_dir=best, input=(str(inputs[0]),), export_dir=tmp_path / "new")
    output = str(tmp_path / "p.csv")
    with pytest.raises(UserError, match="model: .*best/model.ckpt-[0-9]+ cannot be read: "):
        command(run.replace(output=output))
    assert {path.name for path in tmp_path.iterdir()} <= {"best", "more", "new"}


@pytest.mark.parametrize(
    "command",
    [
        predict_files,
        *(pytest.param(each, marks=pytest.mark.slow) for each in (export_model, run_evaluation)),
    ],
)
def test_a_checkpoint_of_another_network_is_one_line(
    trained, inputs, tmp_path, monkeypatch, command
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    best = shutil.copytree(trained.settings.best_model_dir, tmp_path / "best")
    card = ModelCard.load(best)
    other = card.hyperparameters | {"network": "resnet"}
    dataclasses.replace(card, hyperparameters=other).save(best)
    run = trained.replace(best_model_dir=best, input=(str(inputs[0]),), export_dir=tmp_path / "new")
    with pytest.raises(UserError, match="model: the checkpoint does not fit the network"):
        command(run.replace(output=str(tmp_path / "p.csv")))
    assert {path.name for path in tmp_path.iterdir()} <= {"best", "more", "new"}


def test_mistakes_are_drawn_where_folders_name_the_classes(trained, inputs, tmp_path, capsys):
    # With two folders the other way round, what is correct is a mistake.
    first, _, second = inputs
    for source, name in ((first, second.name), (second, first.name)):
        shutil.copytree(source, tmp_path / "swapped" / name)
    output, drawn = tmp_path / "p.jsonl", tmp_path / "mistakes"
    predicted(trained, [tmp_path / "swapped/*"], output=str(output), images_out=drawn)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(rows) == 8
    wrong = [row for row in rows if Path(row["file"]).parent.name != row["class"]]
    files = sorted(path.name for path in drawn.iterdir())
    assert files == [f"mistake-{i:02}.png" for i in range(1, len(wrong) + 1)]
    assert f"drew the {len(wrong)} worst of {len(wrong)} mistakes" in capsys.readouterr().out


# ---- export ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def export(trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("serving") / "export"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "-1")
        export_model(trained.replace(export_dir=parent))
    (folder,) = parent.iterdir()  # and nothing else is there
    return folder


@pytest.fixture
def exported(trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The command as a function of its flags; it writes to the folder new."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")

    def call(run: Run = trained, **flags: Any) -> None:
        export_model(run.replace(export_dir=tmp_path / "new", **flags))

    return call


def warm_up(export: Path) -> dict[str, dict[str, np.ndarray]]:
    """The inputs of the warm-up requests in an export, by signature."""
    file = export / "assets.extra" / "tf_serving_warmup_requests"
    records = tf.data.TFRecordDataset(str(file)).as_numpy_iterator()
    requests = [PredictionLog.FromString(each).predict_log.request for each in records]
    assert len(requests) == len(SIGNATURES)
    return {
        each.model_spec.signature_name: {
            name: tf.make_ndarray(proto) for name, proto in each.inputs.items()
        }
        for each in requests
    }


def classes(export: Path) -> list[str]:
    card = json.loads((export / "assets.extra/model.json").read_text())
    return card["target"]["classes"]


def test_every_signature_answers_what_the_server_warms_up_with(export):
    signatures = tf.saved_model.load(str(export)).signatures
    assert set(signatures) == warm_up(export).keys() == SIGNATURES
    found = {name: answer(signatures[name], inputs) for name, inputs in warm_up(export).items()}
    for name in SIGNATURES:
        assert found[name]["probabilities"].shape == (1, len(classes(export)))
        assert found[name]["class"] == found["single"]["class"]
        np.testing.assert_allclose(
            found[name]["probabilities"], found["single"]["probabilities"], atol=1e-6
        )
    best = found["single"]["probabilities"].argmax()
    assert found["single"]["class"][0].decode() == classes(export)[best]


def test_a_session_answers_the_same(export):
    """As TensorFlow Serving and saved_model_cli ask: tensors by their names in the signature."""
    signatures, requests = tf.saved_model.load(str(export)).signatures, warm_up(export)
    found = {}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        graph = tf.compat.v1.saved_model.load(session, ["serve"], str(export))
        for name, inputs in requests.items():
            signature = graph.signature_def[name]
            assert signature.method_name == "tensorflow/serving/predict"
            feeds = {signature.inputs[n].name: value for n, value in inputs.items()}
            found[name] = session.run(signature.outputs["probabilities"].name, feeds)
    for name, inputs in requests.items():
        expected = answer(signatures[name], inputs)["probabilities"]
        np.testing.assert_allclose(found[name], expected, atol=1e-6)


def test_the_request_for_rest_is_one_for_the_signature(export):
    """Decoded as the server does: instances in rows, each with a value for every input."""
    request = json.loads((export / "assets.extra/request.json").read_text())
    signature = tf.saved_model.load(str(export)).signatures[request["signature_name"]]
    (name,) = signature.structured_input_signature[1]
    assert name.endswith("_bytes")
    assert not [output for output in signature.structured_outputs if output.endswith("_bytes")]
    rows = request["instances"] * 2
    assert all(row.keys() == {name} and row[name].keys() == {"b64"} for row in rows)
    files = [base64.b64decode(row[name]["b64"], validate=True) for row in rows]
    answers = answer(signature, {name: files})
    assert len(answers["class"]) == len(rows)
    assert files[0] == warm_up(export)["single"][name].item()


@pytest.fixture(scope="module")
def for_devices(trained_cnn, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A checked export with models for devices, and what was printed."""
    parent, printed = tmp_path_factory.mktemp("devices") / "export", io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setenv("CUDA_VISIBLE_DEVICES", "-1")
        export_model(trained_cnn.replace(export_dir=parent, tflite=True, check=True))
    (folder,) = parent.iterdir()
    return folder, printed.getvalue()


@pytest.mark.slow
def test_models_for_devices_give_what_their_report_says(for_devices):
    export, printed = for_devices
    extra = export / "assets.extra"
    assert (extra / "labels.txt").read_text(encoding="utf-8").splitlines() == classes(export)
    report = json.loads((extra / "tflite.json").read_text())
    assert Path(report["data"]).name == "test"
    features = warm_up(export)["tensors"]
    signature = tf.saved_model.load(str(export)).signatures["tensors"]
    expected = answer(signature, features)["probabilities"]
    for name in TFLITE:
        assert report[name]["examples"] == 24
        assert 0 <= report[name]["accuracy"] <= 1
        same, largest = report[name]["same_class"], report[name]["largest_difference"]
        assert re.search(rf"{name} +{same} of 24 +{largest:.1e}", printed)
        found = device_runner(name, (extra / name).read_bytes())(features)
        assert found.keys() == {"probabilities"}
        atol = 1e-5 if name == "model.tflite" else 1.0
        np.testing.assert_allclose(found["probabilities"], expected, atol=atol)
    assert report["model.tflite"]["same_class"] == 24
    whole, *small = ((extra / name).stat().st_size for name in TFLITE)
    assert max(small) < whole / 2


def test_an_export_has_the_highest_number(exported, tmp_path):
    """A server takes the highest one, also where the clock was set back."""
    for name in ("99999999999", "temp-1", "notes"):
        (tmp_path / "new" / name).mkdir(parents=True)
    exported()
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names == {"99999999999", "temp-1", "notes", "100000000000"}


def test_other_labels_than_those_of_the_model_are_refused(trained, exported, tmp_path):
    card = trained.card("test_data")
    other = dataclasses.asdict(card) | {"label": "value", "classes": []}
    write_json(tmp_path / "other.json", other)
    with pytest.raises(UserError, match="test_data: .*other has values, but the model has the"):
        exported(test_data=str(tmp_path / "other"), check=True)
    assert not (tmp_path / "new").exists()


def test_a_card_is_not_its_dataset(trained):
    card = f"{trained.settings.test_data}.json"
    with pytest.raises(UserError, match=f"test_data: {card} is a card: its dataset is .*test$"):
        trained.replace(test_data=card).card("test_data")


@pytest.mark.slow
def test_what_tflite_lacks_is_named_and_the_savedmodel_is_complete(trained, exported, tmp_path):
    original = trained.model_fn

    def with_rare_operation(features, labels, mode, params, run):
        spec = original(features, labels, mode, params, run=run)
        outputs = dict(spec.export_outputs["serving_default"].outputs)
        rare = 0 * tf.linalg.svd(outputs["probabilities"][..., tf.newaxis], compute_uv=False)
        outputs["probabilities"] += rare
        output = estimator_export.PredictOutput(outputs)
        return spec._replace(export_outputs={"serving_default": output})

    run = trained.replace(model_fn=with_rare_operation)
    with pytest.raises(RunError, match=r"--tflite: .*Svd.*; the SavedModel is complete") as caught:
        exported(run, tflite=True)
    assert "\n" not in str(caught.value)
    (export,) = (tmp_path / "new").iterdir()
    assert set(tf.saved_model.load(str(export)).signatures) == SIGNATURES
    assert not list(export.rglob("*tflite*"))


@pytest.mark.slow
def test_without_training_data_there_is_no_int8_model(exported, tmp_path, capsys):
    exported(tflite=True, train_data=str(tmp_path / "gone"))
    (export,) = (tmp_path / "new").iterdir()
    assert f"no {TFLITE[2]}: there is no {tmp_path / 'gone'}" in capsys.readouterr().out
    assert sorted(file.name for file in export.rglob("*.tflite")) == sorted(TFLITE[:2])


@pytest.mark.slow
def test_an_onnx_model_answers_as_the_checkpoint_or_is_refused_at_once(exported, tmp_path, capsys):
    if not all(map(importlib.util.find_spec, ("tf2onnx", "onnxruntime"))):
        with pytest.raises(UserError, match="--onnx: needs pip install tf2onnx onnxruntime"):
            exported(onnx=True)
        assert not (tmp_path / "new").exists()
        return
    exported(onnx=True, check=True)
    (export,) = (tmp_path / "new").iterdir()
    report = json.loads((export / "assets.extra/tflite.json").read_text())
    assert report["model.onnx"]["largest_difference"] < 1e-4
    assert capsys.readouterr().out.count("model.onnx ") == 2


@pytest.mark.slow
def test_the_check_has_a_line_for_all_that_is_exported(for_devices):
    export, printed = for_devices
    _, agreements = printed.split("the export and the checkpoint on ")
    rows = [line.split() for line in agreements.splitlines()[2:-1]]
    assert [row[0] for row in rows] == ["serving_default", "single", "tensors", *TFLITE]
    assert all(row[2:4] == ["of", "16"] for row in rows)
    for name, same, _, _, largest, _ in rows[:4]:  # the others compute in 8 bits
        assert float(largest) <= 1e-5, name
        assert same == "16"
    assert agreements.splitlines()[-1] == f"exported to {export}"


@pytest.mark.slow
def test_what_differs_from_the_checkpoint_is_not_exported(trained, exported, tmp_path, capsys):
    class Darker(types.ModuleType):
        """The input functions, one of which disagrees with the others."""

        def __getattr__(self, name: str) -> Any:
            return getattr(trained.inputs, name)

        def serving_input(self, run: Run) -> Any:
            receiver = trained.inputs.serving_input(run)
            (name, *_) = receiver.features
            changed = {name: receiver.features[name] * 0.9 + 0.1}
            return receiver._replace(features={**receiver.features, **changed})

    with pytest.raises(RunError, match=r"--check: the SavedModel is .* from the checkpoint"):
        exported(trained.replace(inputs=Darker("darker")), check=True)
    assert not (tmp_path / "new").exists()
    assert "exported" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a kill is another thing there")
def test_a_kill_leaves_nothing_that_a_server_would_load(trained_cnn, tmp_path):
    settings = trained_cnn.settings
    folders = [f"--{name}={getattr(settings, name)}" for name in ("model_dir", "best_model_dir")]
    data = [f"--{name}={getattr(settings, name)}" for name in ("test_data", "validation_data")]
    words = ["export", f"--export_dir={tmp_path / 'killed'}", "--tflite", *folders, *data]
    process = forked.start([str(ROOT / "run.py"), *words], tmp_path, {}, [Path(os.devnull)] * 2)
    while not list(tmp_path.glob("killed/temp-*/*/variables/*")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (left,) = (tmp_path / "killed").iterdir()
    assert left.name.startswith("temp-")


# ---- other heads -------------------------------------------------------------------------------


@pytest.fixture(params=["labels", "value"])
def labeled(request, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run on files with several labels each, or with a number."""
    folder, kind = tmp_path, request.param
    quick_network(monkeypatch)
    files = sorted(path for path in (samples / "train").rglob("*") if path.is_file())
    texts = {
        "labels": lambda i: ["", "even", "third", "even;third"][(i % 2 == 0) + 2 * (i % 3 == 0)],
        "value": lambda i: str(1000 + i % 10),
    }
    with open(folder / "labels.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["file", kind])
        rows = [
            (path.relative_to(samples / "train"), texts[kind](i)) for i, path in enumerate(files)
        ]
        table.writerows(rows)
    words = ["--labels", folder / "labels.csv", "--validation_fraction", 0.25]
    convert(samples / "train", folder / "data", "train", *words)
    run = make_run(folder / "data", folder, train_epochs=2, train_batch_size=8)
    start_training(run)
    return run


@pytest.mark.slow
def test_other_heads_predict_and_export_what_they_predict(labeled, samples, tmp_path, capsys):
    predicted(labeled, [samples / "test"], output=str(tmp_path / "p.csv"))
    with open(tmp_path / "p.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 24
    column = "labels" if "labels" in rows[0] else "value"
    target = labeled.trained()[0].head.target
    assert len(target.thresholds) == len(target.classes)
    least = dict(zip(target.classes, target.thresholds, strict=True))
    for row in rows:
        assert row["error"] == ""
        if column == "value":
            assert 900 < float(row["value"]) < 1100
        else:
            found = [name for name in least if float(row[f"probability of {name}"]) >= least[name]]
            assert row["labels"] == ";".join(found)
    capsys.readouterr()
    export_model(labeled.replace(export_dir=tmp_path / "new", tflite=True, check=True))
    (export,) = (tmp_path / "new").iterdir()
    report = json.loads((export / "assets.extra/tflite.json").read_text())["model.tflite"]
    assert report["largest_difference"] < 1e-5
    assert report.get("same_labels") == (report["examples"] if column == "labels" else None)
    printed = capsys.readouterr().out
    for name in (*SIGNATURES, *TFLITE):
        assert re.search(rf"^{name}  ", printed, re.MULTILINE)
    assert (export / "assets.extra/labels.txt").exists() == (column == "labels")
    with pytest.raises(UserError, match="--images_out: draws misclassified files, but"):
        predicted(labeled, [samples / "test"], images_out=tmp_path / "drawn")
