"""The profiler: what it measures, and its verdict on trainings with a known bottleneck."""

import errno
import functools
import time
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from conftest import ROOT, make_run, quick_network, run_program, small_model

from library.profile import bottleneck, measure_stages, measure_storage, profile_training, verdict
from library.util import UserError
from project import input_fn, networks
from project.settings import modality


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
    found, times = bottleneck(step_ms, stages)
    assert (found, times) == (expected[0], pytest.approx(expected[1]))


def test_the_verdict_names_the_change_that_gains_most():
    words = verdict("model", 3.0, {"--xla": 1.01, "--train_batch_size 64": 1.5})
    assert "the model: a training step takes 3.0 times as long" in words
    assert "try --train_batch_size 64 (1.50x faster; it also changes learning)" in words
    assert "try --xla (1.50x faster); tried: --xla (1.50x)" in verdict("model", 3, {"--xla": 1.5})


def test_the_verdict_does_not_advise_a_gain_within_noise():
    words = verdict("model", 3.0, {"--xla": 1.01})
    assert "no setting that was tried gains much: --xla (1.01x)" in words


def test_stages_are_measured_in_their_order(data, tmp_path, capsys):
    run = make_run(data, tmp_path, train_batch_size=8).for_training()
    meters = measure_stages(run, seconds=0.2)
    assert list(meters)[0] == "read"
    assert list(meters)[-1] == "batch"
    for meter in meters.values():
        assert meter.examples_per_sec == pytest.approx(8e3 / meter.batch_ms)
    lines = capsys.readouterr().out.splitlines()
    for line, name in zip(lines, meters, strict=True):
        assert line.startswith(f"input up to {name} ")
        *_, cores, resident_mb = line.replace(",", "").split()
        assert float(cores) >= 0
        assert 50 < float(resident_mb) < 10_000


def test_the_copy_to_a_device_is_the_last_stage(data, tmp_path):
    run = make_run(data, tmp_path, train_batch_size=8).for_training()
    run = run.replace(prefetch_to_device="/cpu:0")
    assert list(measure_stages(run, seconds=0.1))[-2:] == ["batch", "device"]


def test_the_storage_is_read_in_three_ways(data):
    before = sorted(data.iterdir())
    examples = modality.open_data(data / "train")
    found = measure_storage(examples)
    assert list(found) == ["large files, in order", "large files, by number", "a small file each"]
    for examples_per_sec, mb_per_sec in found.values():
        assert mb_per_sec == pytest.approx(examples_per_sec * examples.sizes.mean() / 1e6)
        assert examples_per_sec > 100
    assert sorted(data.iterdir()) == before, "the small files are gone"


def test_a_dataset_where_nothing_can_be_written_is_read_in_the_other_ways(data, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    found = measure_storage(modality.open_data(data / "train"))
    assert list(found) == ["large files, in order", "large files, by number"]


def test_what_cannot_be_profiled_is_one_line(data, tmp_path, monkeypatch):
    options = {"train_batch_size": 10, "gradient_accumulation": 3}
    with pytest.raises(UserError, match="^train_batch_size: 10 cannot be divided by 3"):
        profile_training(make_run(data, tmp_path, **options))
    monkeypatch.setattr(input_fn, "stage", lambda name: lambda dataset: dataset)
    without = r'^profile: train_input in project/input_fn.py has no .apply\(stage\("read"\)\) and'
    with pytest.raises(UserError, match=without):
        profile_training(make_run(data, tmp_path, train_batch_size=8), seconds=0.1)


# ---- a known bottleneck ------------------------------------------------------------------------

SLEEP_SECS = 0.05


def sleeping(seconds: float, x: tf.Tensor) -> tf.Tensor:
    """The same tensor, some time later."""

    def sleep() -> bool:
        time.sleep(seconds)
        return True

    with tf.control_dependencies([tf.numpy_function(sleep, [], tf.bool)]):
        return tf.identity(x)


def slow_network(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    cnn = networks.NETWORKS["cnn"]
    monkeypatch.setitem(
        networks.NETWORKS, "cnn", lambda x, **options: cnn(sleeping(seconds, x), **options)
    )


def slow_decode(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    one_call = input_fn.one_call

    def slow_call(decode: Callable, *others: Callable, num_parallel_calls: int) -> Callable:
        @functools.wraps(decode)
        def slow(number: tf.Tensor, *example: tf.Tensor) -> Any:
            return decode(sleeping(seconds, number), *example)

        return one_call(slow, *others, num_parallel_calls=num_parallel_calls)

    monkeypatch.setattr(input_fn, "one_call", slow_call)


def slow_disk(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    train_records = input_fn.train_records

    def slow_records(*arguments: Any, **options: Any) -> tf.data.Dataset:
        return train_records(*arguments, **options).map(
            lambda number, *record: (sleeping(seconds, number), *record)
        )

    monkeypatch.setattr(input_fn, "train_records", slow_records)


def without_memory(train_input: Callable) -> Callable:
    """The input, which needs more memory than there is where it is a stream."""

    def input_without(run: Any) -> tf.data.Dataset:
        if run.settings.shuffle == "stream":
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return train_input(run)

    return input_without


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prepare", "expected"),
    [(slow_network, "model"), (slow_decode, "preprocessing"), (slow_disk, "disk")],
    ids=["model", "preprocessing", "disk"],
)
def test_the_verdict_is_right_where_the_bottleneck_is_known(
    data, tmp_path, monkeypatch, capsys, prepare, expected
):
    """The bottleneck sleeps: much longer than a slow and busy machine takes for all the rest."""
    quick_network(monkeypatch)
    monkeypatch.setattr("library.profile.measure.WARM_UP", 2)
    if expected == "disk":
        monkeypatch.setattr(input_fn, "train_input", without_memory(input_fn.train_input))
    prepare(monkeypatch, 8 * SLEEP_SECS if expected == "model" else SLEEP_SECS)  # 8 in a batch
    run = make_run(data, tmp_path, train_batch_size=8, num_parallel_calls=1)
    found = profile_training(run, seconds=1.2)
    printed = capsys.readouterr().out
    assert found["bottleneck"] == expected, printed
    assert "bottleneck: " in printed
    if expected == "preprocessing":  # how much it gains hangs on the cores
        assert found["gains"]["--num_parallel_calls -1"] > 0, printed
    if expected == "disk":
        assert "not tried: --shuffle stream: not enough memory" in printed
    if expected == "model":  # it sleeps once a batch, whatever its size
        assert found["gains"]["--train_batch_size 16"] > 1.2, printed


RUN_PY = f"""
import functools, pytest, runpy, sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
from conftest import quick_network
from library import profile
profile.profile_training = functools.partial(profile.profile_training, seconds=0.2)
quick_network(pytest.MonkeyPatch())
runpy.run_path({str(ROOT / "run.py")!r}, run_name="__main__")
"""
"""The program, which measures each part for a shorter time."""


@pytest.mark.slow
def test_profile_as_a_command_keeps_nothing_but_a_trace_where_tensorboard_looks(data, tmp_path):
    folder = tmp_path / "current"
    (tmp_path / "run.py").write_text(RUN_PY)
    places = [f"--{name}_data={data / name}" for name in ("train", "validation")]
    words = [f"--model_dir={folder}", f"--best_model_dir={tmp_path / 'best'}", "--trace"]
    process = run_program("run.py", "profile", *places, *words, *small_model(), cwd=tmp_path)
    for line in ("input up to read", "input up to batch", "training step alone", "both"):
        assert line in process.stdout
    assert "bottleneck: " in process.stdout
    assert f"trace: tensorboard --logdir {folder}" in process.stdout
    (trace,) = folder.glob("plugins/profile/*/*.xplane.pb")
    content = trace.read_bytes()
    assert b"ParallelMap" in content, "the input"
    assert b"Conv2DBackpropFilter" in content, "the step"
    assert [path.name for path in folder.iterdir()] == ["plugins"]
    assert {path.name for path in tmp_path.iterdir()} == {"run.py", "current"}
