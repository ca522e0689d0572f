"""The profiler: what it measures, and its verdict on trainings with a known bottleneck."""

import dataclasses
import functools
import time

import numpy as np
import pytest
import tensorflow as tf
from conftest import damaged, run_program

from library import images
from library.data import Reader
from library.profile import profiling
from library.util import UserError
from project import networks, profile
from project.input_fn import train_input
from project.settings import Hyperparameters, Settings


@pytest.mark.parametrize(
    ("step_ms", "stages", "expected"),
    [
        (30, {"read": 1, "decode": 9, "batch": 10}, ("model", 3)),
        (5, {"read": 1, "decode": 9, "batch": 10}, ("preprocessing", 2)),
        (5, {"read": 8, "decode": 9, "batch": 10}, ("disk", 2)),
        (5, {"read": 1, "decode": 2, "batch": 3, "device": 10}, ("transfer", 2)),
        (5, {"read": 1, "decode": 9, "batch": 9, "device": 10}, ("preprocessing", 2)),
        (10, {"read": 1, "decode": 9, "batch": 12}, ("balanced", 1.2)),
        (12, {"read": 1, "decode": 9, "batch": 10}, ("balanced", 1.2)),
    ],
)
def test_the_part_that_takes_longest_is_the_bottleneck(step_ms, stages, expected):
    found, times = profiling.bottleneck(step_ms, stages)
    assert (found, times) == (expected[0], pytest.approx(expected[1]))


def test_the_verdict_names_the_change_that_gained():
    words = profiling.verdict("model", 3.0, {"--xla True": 1.01, "--train_batch_size 64": 1.5})
    assert "the model: a training step takes 3.0 times as long" in words
    assert "change --train_batch_size 64: 1.50 times the examples/s" in words
    words = profiling.verdict("model", 3.0, {"--xla True": 1.01})
    assert "no setting that was tried gains much: --xla True (1.01 x)" in words


def sleeping(seconds: float, x: tf.Tensor) -> tf.Tensor:
    """The same tensor, some time later."""

    def sleep() -> bool:
        time.sleep(seconds)
        return True

    with tf.control_dependencies([tf.numpy_function(sleep, [], tf.bool)]):
        return tf.identity(x)


def slow_decode(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    decode_window = images.decode_window

    def slow(encoded, window_of, *, image_size):
        return sleeping(seconds, decode_window(encoded, window_of, image_size=image_size))

    monkeypatch.setattr(images, "decode_window", slow)


def slow_network(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    cnn = networks.NETWORKS["cnn"]
    monkeypatch.setitem(
        networks.NETWORKS, "cnn", lambda x, **options: cnn(sleeping(seconds, x), **options)
    )


def slow_disk(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    read = Reader.read

    def slow(self, ids):
        time.sleep(seconds * len(ids))
        return read(self, ids)

    monkeypatch.setattr(Reader, "read", slow)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        ([(slow_network, 0.1)], "model"),
        ([(slow_decode, 0.01)], "preprocessing"),
        ([(slow_disk, 0.01)], "disk"),
        ([(slow_network, 0.4), (slow_decode, 0.047)], "balanced"),  # 8 in a batch, and the rest
    ],
    ids=["model", "preprocessing", "disk", "balanced"],
)
def test_the_verdict_is_right_where_the_bottleneck_is_known(
    data, monkeypatch, capsys, prepare, expected
):
    for slow, seconds in prepare:
        slow(monkeypatch, seconds)
    settings = Settings(
        train_data=str(data / "train"),
        validation_data=str(data / "validation"),
        train_batch_size=8,
        num_parallel_calls=1,
    )
    found = profile.profile(settings, Hyperparameters(image_size=16), seconds=1.2)
    printed = capsys.readouterr().out
    assert found["bottleneck"] == expected, printed
    assert "bottleneck: " in printed
    if expected == "preprocessing":  # it sleeps one by one, until it may do so side by side
        assert found["gains"]["--num_parallel_calls -1"] > 1.2, printed
    if expected == "model":  # it sleeps once a batch, whatever its size
        assert found["gains"]["--train_batch_size 16"] > 1.2, printed


def test_stages_add_up(data):
    settings = Settings(train_data=str(data / "train"), train_batch_size=8)
    small = Hyperparameters(image_size=16)
    build = functools.partial(train_input, settings, small, 0)
    speeds = dict(profiling.measure_stages(build, 8, seconds=0.3))
    assert list(speeds) == ["read", "decode", "augment", "batch"]
    for speed in speeds.values():
        assert speed.examples_per_sec == pytest.approx(8e3 / speed.batch_ms)
        assert 50 < speed.resident_mb < 10_000
    there = dataclasses.replace(settings, prefetch_to_device="/cpu:0")
    build = functools.partial(train_input, there, small, 0)
    assert list(dict(profiling.measure_stages(build, 8, seconds=0.1)))[-1] == "device"


def test_the_storage_is_read_in_three_ways(data):
    before = sorted(data.iterdir())
    found = profiling.measure_storage(Reader(data / "train"))
    assert list(found) == ["large files, in a row", "large files, by number", "a small file each"]
    size = np.load(data / "train.index")["length"].mean()
    for examples_per_sec, mb_per_sec in found.values():
        assert mb_per_sec == pytest.approx(examples_per_sec * size / 1e6)
        assert examples_per_sec > 100
    assert sorted(data.iterdir()) == before, "the small files are gone"


def test_a_damaged_record_is_one_line(data, tmp_path):
    shard = damaged(data, tmp_path)
    settings = Settings(
        train_data=str(tmp_path / "train"), validation_data=str(tmp_path / "validation")
    )
    with pytest.raises(UserError, match=f"{shard.name}: record 0 is damaged"):
        profile.profile(settings, Hyperparameters(image_size=16), seconds=0.2)


@pytest.mark.slow
def test_a_trace_is_written_where_tensorboard_looks(data, tmp_path, capsys):
    settings = Settings(
        train_data=str(data / "train"),
        validation_data=str(data / "validation"),
        model_dir=tmp_path,
    )
    profile.profile(settings, Hyperparameters(image_size=16), seconds=0.2, trace=True)
    assert f"trace: tensorboard --logdir {tmp_path}" in capsys.readouterr().out
    (trace,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    content = trace.read_bytes()
    assert b"DecodeAndCropJpeg" in content, "the input"
    assert b"Conv2DBackpropFilter" in content, "the step"
    assert [path.name for path in tmp_path.iterdir()] == ["plugins"]


@pytest.mark.slow
def test_profile_as_a_command_keeps_nothing(data, tmp_path):
    places = [f"--{name}_data={data / name}" for name in ("train", "validation")]
    out = [f"--model_dir={tmp_path / 'current'}", f"--best_model_dir={tmp_path / 'best'}"]
    process = run_program("run.py", "profile", *places, *out, "--image_size", 16, cwd=tmp_path)
    for line in (
        "large files, by number",
        "input up to read",
        "input up to batch",
        "training step alone",
        "both",
    ):
        assert line in process.stdout
    assert "bottleneck: " in process.stdout
    assert list(tmp_path.iterdir()) == []
