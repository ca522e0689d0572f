"""Pretrained networks, from SavedModels that are made here: frozen and fine-tuned."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT, make_run, run_program
from test_cluster import project, run_cluster  # noqa: F401  fixtures

from library.config import Settings
from library.data import Target
from library.estimator import Estimator
from library.nn import hub_features
from library.train import ModelCard, Plan
from library.util import UserError
from project.networks import resolve_hyperparameters
from project.settings import Hyperparameters

pytestmark = pytest.mark.slow  # SavedModels are made, trained and exported

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.uniform(0, 255, [24, 16, 16, 3]).astype(np.float32)
LABELS = np.arange(24) % 3


class Module(tf.Module):
    """Convolution, batch norm, ReLU and average, as a reusable SavedModel."""

    def __init__(self, size: int | None, dtype: tf.DType = tf.float32, listed: bool = True):
        super().__init__()
        initial = tf.random.stateless_normal([3, 3, 3, 8], [1, 2]) * 0.3
        self.kernel = tf.Variable(initial, name="kernel")
        self.mean = tf.Variable(tf.fill([8], 0.1), trainable=False, name="mean")
        self.variance = tf.Variable(tf.fill([8], 2.0), trainable=False, name="variance")
        if listed:
            self.__dict__["trainable_variables"] = [self.kernel]
        self.spec = tf.TensorSpec([None, size, size, 3], dtype)

    @tf.function
    def __call__(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        x = tf.nn.conv2d(tf.cast(x, tf.float32), self.kernel, 1, "SAME")
        mean, variance = self.mean, self.variance
        if training:
            mean, variance = tf.nn.moments(x, [0, 1, 2])
            self.mean.assign_sub(0.1 * (self.mean - mean))
            self.variance.assign_sub(0.1 * (self.variance - variance))
        return tf.reduce_mean(tf.nn.relu((x - mean) * tf.math.rsqrt(variance + 1e-3)), [1, 2])


def save(module: tf.Module, folder: Path) -> str:
    for training in (False, True):
        module.__call__.get_concrete_function(module.spec, training=training)
    tf.saved_model.save(module, str(folder))
    return str(folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> str:
    return save(Module(16), tmp_path_factory.mktemp("modules") / "plain")


@pytest.fixture(scope="module")
def keras(tmp_path_factory) -> str:
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.InputLayer([16, 16, 3]),
            layers.Conv2D(8, 3, bias_initializer="ones"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
        ]
    )
    folder = str(tmp_path_factory.mktemp("modules") / "keras")
    tf.saved_model.save(model, folder)
    return folder


@pytest.fixture(params=["plain", "keras"])
def module(request) -> str:
    return request.getfixturevalue(request.param)


def trained(handle: str, folder: Path, steps: int = 4, **more) -> Estimator:
    options = {"network": "hub", "hub_module": handle, "image_size": 16, "train_batch_size": 8}
    run = make_run(Path("no-data"), folder, **options, **more)
    run = run.replace(
        model_card=ModelCard("classification", Target("class", tuple("abc")), {}),
        plan=Plan.without_end(run, 24),
    )
    return run.estimator().train(lambda: batches(8).repeat(), max_steps=steps)


def batches(size: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(({"image": IMAGES}, LABELS)).batch(size)


def pretrained_values(handle: str) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(f"{handle}/variables/variables")
    values = {}
    for key in reader.get_variable_to_shape_map():
        if key.endswith(".ATTRIBUTES/VARIABLE_VALUE"):
            value = reader.get_tensor(key)
            values[value.tobytes()] = value
    return values


def variables(model: Estimator) -> dict[str, np.ndarray]:
    names = [name for name in model.get_variable_names() if "Adam" not in name]
    return {name: model.get_variable_value(name) for name in names if "/average" not in name}


def of_module(model: Estimator) -> dict[str, np.ndarray]:
    ours = ("logits", "global_step", "beta1_power", "beta2_power")
    return {name: v for name, v in variables(model).items() if not name.startswith(ours)}


def test_it_begins_with_the_pretrained_values_bit_for_bit(module, tmp_path):
    """Zero-rate steps, with the module in training: all but the averages of batch norm stay."""
    found = of_module(trained(module, tmp_path, learning_rate=1e-45, fine_tuning=True))
    known = pretrained_values(module)
    averages = [name for name, value in found.items() if value.tobytes() not in known]
    assert len(found) >= 3
    assert len(averages) == 2
    assert all("mean" in name or "variance" in name for name in averages)


def test_frozen_means_that_nothing_of_it_moves_but_the_last_layer_learns(module, tmp_path):
    model = trained(module, tmp_path)
    known = pretrained_values(module)
    assert all(value.tobytes() in known for value in of_module(model).values())
    first = trained(module, tmp_path / "first", steps=1)
    assert (variables(model)["logits/kernel"] != variables(first)["logits/kernel"]).any()
    assert not [name for name in model.get_variable_names() if "Adam" in name and "log" not in name]


def test_fine_tuning_trains_it_at_a_rate_of_its_own(module, tmp_path):
    """The first step of Adam is the learning rate, whatever the gradient."""
    before = of_module(trained(module, tmp_path / "frozen", steps=1))
    for factor in (0.1, 0.5):
        rates = {"learning_rate": 1e-2, "warmup_epochs": 0, "fine_tuning_rate_factor": factor}
        model = trained(module, tmp_path / str(factor), 1, fine_tuning=True, **rates)
        after = of_module(model)
        (kernel,) = (name for name in after if name.endswith("kernel"))
        assert np.abs(after[kernel] - before[kernel]).max() == pytest.approx(
            1e-2 * factor, rel=0.01
        )
        assert any((after[n] != before[n]).any() for n in after if "mean" in n)


def test_predictions_are_those_of_the_averages_of_all_its_variables(plain, tmp_path):
    model = trained(plain, tmp_path, fine_tuning=True, learning_rate=1e-2)
    images = {"image": IMAGES, "key": ["x"] * len(IMAGES)}
    (found,) = model.predict(
        lambda: tf.data.Dataset.from_tensors(images), yield_single_examples=False
    )
    names = [name for name in model.get_variable_names() if name.endswith("/average")]
    value = {name.removesuffix("/average"): model.get_variable_value(name) for name in names}
    assert value.keys() == variables(model).keys() - {"global_step", "beta1_power", "beta2_power"}
    x = tf.nn.conv2d(IMAGES / 255, value["kernel"], 1, "SAME")
    x = tf.nn.relu((x - value["mean"]) * tf.math.rsqrt(value["variance"] + 1e-3))
    logits = tf.reduce_mean(x, [1, 2]) @ value["logits/kernel"] + value["logits/bias"]
    np.testing.assert_allclose(found["probabilities"], tf.nn.softmax(logits), atol=1e-5)


def test_a_module_without_a_list_of_trainable_variables_is_asked_for_it(tmp_path):
    handle = save(Module(16, listed=False), tmp_path / "module")
    before, after = (
        of_module(trained(handle, tmp_path / str(tuned), fine_tuning=tuned))
        for tuned in (False, True)
    )
    assert {n for n in after if (after[n] != before[n]).any()} == {"kernel", "mean", "variance"}


@pytest.mark.parametrize(
    ("dtype", "input_range", "low", "high"),
    [
        (tf.float32, "0..1", 0, 1),
        (tf.float32, "-1..1", -1, 1),
        (tf.float32, "0..255", 0, 255),
        (tf.uint8, "0..1", 0, 255),
    ],
)
def test_pixels_come_in_the_range_of_the_module(tmp_path, dtype, input_range, low, high):
    class Pixels(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, None, None, 3], dtype)])
        def __call__(self, x):
            x = tf.reshape(tf.cast(x, tf.float32), [tf.shape(x)[0], -1])
            return tf.stack([tf.reduce_min(x, 1), tf.reduce_max(x, 1)], axis=1)

    tf.saved_model.save(Pixels(), str(tmp_path / "pixels"))
    image = np.zeros([1, 4, 4, 3], np.float32)
    image[0, 0] = 255
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        options = {"input_range": input_range, "training": False, "rate_factor": 1.0}
        found = session.run(hub_features(image, str(tmp_path / "pixels"), **options))
    np.testing.assert_allclose(found, [[low, high]], rtol=1e-6)


def checked(handle: str | None, **more) -> Hyperparameters:
    settings = Settings(**{name: more.pop(name) for name in ("mixed_precision",) if name in more})
    params = Hyperparameters(network="hub", hub_module=handle, **more)
    return resolve_hyperparameters(params, settings)


def test_the_size_is_what_the_module_says(plain, tmp_path):
    assert checked(plain, image_size=None).image_size == 16
    assert checked(plain, image_size=16).image_size == 16
    any_size = save(Module(None), tmp_path / "any")
    assert checked(any_size, image_size=40).image_size == 40
    with pytest.raises(UserError, match="image_size: 64, but .*plain takes 16 x 16"):
        checked(plain, image_size=64)
    with pytest.raises(UserError, match="image_size: null: .*any takes any size"):
        checked(any_size, image_size=None)


def test_mistakes_are_one_line_each(plain, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    url = "https://module.invalid/vision/1"
    monkeypatch.setenv("TFHUB_CACHE_DIR", str(tmp_path / "cache"))
    place = tmp_path / "cache" / hashlib.sha1(url.encode()).hexdigest()

    class Sound(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def __call__(self, x):
            return x

    tf.saved_model.save(Sound(), str(tmp_path / "sound"))

    class Image(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 16, 16, 3], tf.float32)])
        def __call__(self, x):
            return x

    tf.saved_model.save(Image(), str(tmp_path / "image"))
    tf.saved_model.save(tf.Module(), str(tmp_path / "nothing"))
    for handle, words in {
        str(tmp_path / "none"): "there is no folder",
        str(tmp_path / "empty"): "no SavedModel of TensorFlow 2",
        str(tmp_path / "sound"): "not images",
        str(tmp_path / "nothing"): "cannot be called",
        str(tmp_path / "image"): r"gives .*, and not \[batch, features\]",
        url: f"cannot be reached.*set TFHUB_CACHE_DIR.*unpack its .tar.gz by hand in {place}",
    }.items():
        with pytest.raises(UserError, match=words) as error:
            checked(handle, image_size=16)
        (line,) = error.value.lines
        assert line.startswith("hub_module: ")
        assert handle in line
    with pytest.raises(UserError, match="mixed_precision"):
        checked(plain, image_size=16, mixed_precision=True)
    with pytest.raises(UserError, match="hub_module: null"):
        Hyperparameters(network="hub")
    with pytest.raises(UserError, match="image_size: null"):
        Hyperparameters(image_size=None)


def test_a_copy_placed_by_hand_is_found(plain, tmp_path, monkeypatch):
    url = "https://module.invalid/vision/1"
    monkeypatch.setenv("TFHUB_CACHE_DIR", str(tmp_path))
    (tmp_path / hashlib.sha1(url.encode()).hexdigest()).symlink_to(plain)
    assert checked(url, image_size=None).image_size == 16


@pytest.mark.slow
def test_a_url_is_fetched_without_the_pkg_resources_of_old_setuptools(plain, tmp_path):
    url = "https://module.invalid/vision/1"
    (tmp_path / hashlib.sha1(url.encode()).hexdigest()).symlink_to(plain)
    (tmp_path / "run.py").write_text(
        f"import sys; sys.path[:0] = [{str(ROOT)!r}]\n"
        "from library.nn import hub_input\n"
        f"assert hub_input({plain!r}).size == (16, 16)\n"
        "assert 'tensorflow_hub' not in sys.modules\n"
        f"assert hub_input({url!r}).size == (16, 16)\n"
        "assert 'tensorflow_hub' in sys.modules\n"
        "assert 'pkg_resources' not in sys.modules\n"
    )
    run_program("run.py", cwd=tmp_path, TFHUB_CACHE_DIR=str(tmp_path))


def test_a_module_that_cannot_learn_can_be_used_frozen(tmp_path):
    class Frozen(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 16, 16, 3], tf.float32)])
        def __call__(self, x):
            return tf.reduce_mean(x, [1, 2])

    handle = str(tmp_path / "frozen")
    tf.saved_model.save(Frozen(), handle)
    trained(handle, tmp_path / "model")
    with pytest.raises(UserError, match="fine_tuning: .* takes no argument `training`"):
        checked(handle, image_size=16, fine_tuning=True)


def test_a_signature_does_where_the_module_itself_cannot_be_called(tmp_path):
    module = tf.Module()
    module.scale = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([None, 16, 16, 3], tf.float32, name="pictures")])
    def serve(pictures):
        return {"mean": module.scale * tf.reduce_mean(pictures, [1, 2])}

    handle = str(tmp_path / "signature")
    tf.saved_model.save(module, handle, signatures=serve)
    assert checked(handle, image_size=None).image_size == 16
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        options = {"input_range": "0..255", "training": False, "rate_factor": 1.0}
        outputs = hub_features(IMAGES, handle, **options)
        session.run(tf.compat.v1.global_variables_initializer())
        np.testing.assert_allclose(session.run(outputs), 2 * IMAGES.mean((1, 2)), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("tuning", ["--fine_tuning", "--no-fine_tuning"])
def test_from_training_to_the_export(plain, data, tmp_path, tuning):
    (tmp_path / "data").symlink_to(data)
    hub = ["--network", "hub", "--hub_module", plain, "--image_size", "null", tuning]
    hub += ["--train_data", tmp_path / "data/train", "--test_data", tmp_path / "data/test"]
    hub += [
        "--validation_data",
        tmp_path / "data/validation",
        "--model_dir",
        tmp_path / "checkpoints",
    ]
    hub += ["--best_model_dir", tmp_path / "best"]
    run_program("run.py", "--train_epochs", 1, *hub, cwd=tmp_path)
    evaluated = run_program("run.py", "evaluate", *hub, cwd=tmp_path).stdout
    metrics = json.loads((tmp_path / "evaluation/test/metrics.json").read_text())
    assert f"loss: {metrics['loss']:.6g}" in evaluated
    run_program("run.py", "export", *hub, "--export_dir", "export", cwd=tmp_path)
    (folder,) = (tmp_path / "export").iterdir()
    image = tf.io.encode_jpeg(np.zeros([20, 20, 3], np.uint8))
    served = tf.saved_model.load(str(folder)).signatures["serving_default"](
        image_bytes=tf.stack([image])
    )
    (tmp_path / "black.jpg").write_bytes(image.numpy())
    run_program("run.py", "predict", *hub, "--input", "black.jpg", cwd=tmp_path)
    row = (tmp_path / "predictions.csv").read_text().splitlines()[1].split(",")
    assert row[1] == served["class"][0].numpy().decode()
    assert float(row[2]) == pytest.approx(float(served["probability"][0]), abs=1e-5)


@pytest.mark.slow
def test_its_variables_can_be_on_a_parameter_server(plain, data, tmp_path, request):
    words = ["--network", "hub", "--hub_module", plain, "--image_size", "null", "--fine_tuning"]
    for split in ("train", "validation", "test"):
        words += [f"--{split}_data", data / split]
    words += ["--model_dir", tmp_path / "now", "--best_model_dir", tmp_path / "best"]
    words += ["--workers", 0, "--ps", 1, "--train_epochs", 1]
    assert "done: chief 0" in request.getfixturevalue("run_cluster")(*words)
    assert (tmp_path / "best" / "best.json").exists()
