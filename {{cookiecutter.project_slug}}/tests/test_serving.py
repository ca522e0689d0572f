"""What is exported for servers and devices, asked as they ask, and docs/serving.md."""

import base64
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT, copy_project, run_program, small_model

from library.serve import serving
from library.util import RunError
from project import exporting, model_fn
from project.settings import Hyperparameters, Settings

SIGNATURES = {"serving_default", "single", "tensors"}
SMALL = small_model()


@pytest.fixture(scope="module")
def project(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with data and a model."""
    folder = tmp_path_factory.mktemp("serving")
    copy_project(folder)
    shutil.copytree(data, folder / "data")
    run_program("run.py", "--train_epochs", 1, "--train_batch_size", 16, *SMALL, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def printed(project: Path) -> str:
    """What the export says."""
    return run_program("run.py", "export", "--tflite", "--check", *SMALL, cwd=project).stdout


@pytest.fixture(scope="module")
def export(project: Path, printed: str) -> Path:
    (folder,) = (project / "export").iterdir()  # and nothing else is there
    return folder


@pytest.fixture
def exported(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The command in this process, as a function of its flags; it writes to the folder new."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    words = dict(zip((word.removeprefix("--") for word in SMALL[::2]), SMALL[1::2], strict=True))
    types = {"image_size": int, "mel_bands": int, "window_secs": float}
    hyperparameters = Hyperparameters(**{name: types[name](text) for name, text in words.items()})
    folders = {"model_dir": project / "out/current", "best_model_dir": project / "out/best"}
    data = {f"{split}_data": str(project / f"data/{split}") for split in ("validation", "test")}
    settings = Settings(**folders, **data)

    def call(**flags: bool) -> None:
        exporting.export(settings, hyperparameters, export_dir=str(tmp_path / "new"), **flags)

    return call


def warm_up(export: Path) -> dict[str, serving.Request]:
    """The requests in an export, by signature."""
    file = export / "assets.extra" / "tf_serving_warmup_requests"
    requests = list(serving.read_requests(file))
    assert len(requests) == len(SIGNATURES)
    return {request.signature: request for request in requests}


def classes(export: Path) -> list[str]:
    return json.loads((export / "assets.extra/model.json").read_text())["target"]["classes"]


def test_the_check_has_a_line_for_all_that_is_exported(project, export, printed):
    _, agreements = printed.split("the export and the checkpoint on ")
    rows = [line.split() for line in agreements.splitlines()[2:-1]]
    assert [row[0] for row in rows] == ["serving_default", "single", "tensors", *serving.TFLITE]
    assert all(row[2:4] == ["of", "16"] for row in rows)
    for name, same, _, _, largest, _ in rows[:-1]:
        assert float(largest) <= 1e-5, name
        assert same == "16"
    assert agreements.splitlines()[-1] == f"exported to {export.relative_to(project)}"


def test_every_signature_answers_what_the_server_warms_up_with(export):
    signatures = tf.saved_model.load(str(export)).signatures
    assert set(signatures) == warm_up(export).keys() == SIGNATURES
    found = {
        name: serving.answers(signatures[name], request.inputs)
        for name, request in warm_up(export).items()
    }
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
        for name, request in requests.items():
            signature = graph.signature_def[name]
            assert signature.method_name == "tensorflow/serving/predict"
            feeds = {signature.inputs[n].name: value for n, value in request.inputs.items()}
            found[name] = session.run(signature.outputs["probabilities"].name, feeds)
    for name, request in requests.items():
        expected = serving.answers(signatures[name], request.inputs)["probabilities"]
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
    answers = serving.answers(signature, {name: files})
    assert len(answers["class"]) == len(rows)
    assert files[0] == warm_up(export)["single"].inputs[name].item()


def test_models_for_devices_give_what_their_report_says(export, printed):
    extra = export / "assets.extra"
    assert (extra / "labels.txt").read_text(encoding="utf-8").splitlines() == classes(export)
    report = json.loads((extra / "tflite.json").read_text())
    assert Path(report["data"]).name == "test"
    features = warm_up(export)["tensors"].inputs
    signature = tf.saved_model.load(str(export)).signatures["tensors"]
    expected = serving.answers(signature, features)["probabilities"]
    for name in serving.TFLITE:
        assert report[name]["examples"] == 24
        same, largest = report[name]["same_class"], report[name]["largest_difference"]
        assert re.search(rf"{name} +{same} of 24 +{largest:.1e}", printed)
        found = serving.tflite_runner((extra / name).read_bytes())(features)
        assert found.keys() == {"probabilities"}
        atol = 1e-5 if name == "model.tflite" else 1.0
        np.testing.assert_allclose(found["probabilities"], expected, atol=atol)
    assert report["model.tflite"]["same_class"] == 24
    small, whole = ((extra / name).stat().st_size for name in reversed(serving.TFLITE))
    assert small < whole / 2


def test_what_differs_from_the_checkpoint_is_not_exported(exported, monkeypatch, tmp_path, capsys):
    original = exporting.serving_input

    def darker(hyperparameters):
        receiver = original(hyperparameters)
        (name, *_) = receiver.features
        changed = {name: receiver.features[name] * 0.9 + 0.1}
        return receiver._replace(features={**receiver.features, **changed})

    monkeypatch.setattr(exporting, "serving_input", darker)
    with pytest.raises(RunError, match=r"--check: the SavedModel is .* from the checkpoint"):
        exported(check=True)
    assert list((tmp_path / "new").iterdir()) == []
    assert "exported" not in capsys.readouterr().out


def test_what_tflite_lacks_is_named_and_the_savedmodel_is_whole(exported, monkeypatch, tmp_path):
    original = model_fn.logits_of

    def with_rare_operation(features, **more):
        logits = original(features, **more)
        return logits + 0 * tf.linalg.svd(logits[..., tf.newaxis], compute_uv=False)

    monkeypatch.setattr(model_fn, "logits_of", with_rare_operation)
    with pytest.raises(RunError, match=r"--tflite: .*Svd.*; the SavedModel is whole") as caught:
        exported(tflite=True)
    assert "\n" not in str(caught.value)
    (export,) = (tmp_path / "new").iterdir()
    assert set(tf.saved_model.load(str(export)).signatures) == SIGNATURES
    assert not list(export.rglob("*tflite*"))


@pytest.mark.skipif(sys.platform == "win32", reason="a kill is another thing there")
def test_a_kill_leaves_nothing_that_a_server_would_load(project, tmp_path):
    words = [sys.executable, project / "run.py", "export", "--export_dir", tmp_path / "killed"]
    process = subprocess.Popen([*words, "--tflite", *SMALL], stdout=subprocess.DEVNULL)
    while not list(tmp_path.glob("killed/temp-*/*/variables/*")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (left,) = (tmp_path / "killed").iterdir()
    assert left.name.startswith("temp-")


def test_the_page_runs(project, export):
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "\n".join(blocks)],
        cwd=project,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    served, on_device = process.stdout.splitlines()
    assert served.split()[0] in classes(export)
    assert on_device in classes(export)
    for text in re.findall(r"^```json\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        json.loads(text)
    assert set(re.findall(r"assets\.extra/([a-z._A-Z]+)", page)) == {
        file.name for file in (export / "assets.extra").iterdir()
    }
