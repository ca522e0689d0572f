"""Training and evaluation in this process, on data that is not on this disk."""

import pytest
import tensorflow as tf
from conftest import make_run

from library.train import run_evaluation, start_training
from library.util import UserError

pytestmark = pytest.mark.slow  # whole trainings


def test_data_on_another_file_system_is_streamed(data, tmp_path, capsys):
    for file in data.iterdir():
        tf.io.gfile.copy(str(file), f"ram://run/{file.name}", overwrite=True)
    remote = {f"{name}_data": f"ram://run/{name}" for name in ("train", "validation", "test")}
    by_id = make_run(data, tmp_path, **remote, train_epochs=1, image_size=16)
    with pytest.raises(UserError, match=r"ram://run/train: .*set shuffle: stream, or cache"):
        start_training(by_id)
    assert not (tmp_path / "checkpoints").exists()
    for changed in ({"shuffle": "stream"}, {"cache": "memory", "train_epochs": 2}):
        run = by_id.replace(**changed)
        start_training(run)
        assert "best model: loss" in capsys.readouterr().out
    run_evaluation(run)
    assert "accuracy: " in capsys.readouterr().out


def test_a_damaged_record_elsewhere_is_one_line(data, tmp_path):
    (damaged, *_) = sorted(data.glob("train-*.tfrecord"))
    for file in data.iterdir():
        content = bytearray(file.read_bytes())
        content[100] ^= file == damaged
        with tf.io.gfile.GFile(f"ram://damaged/{file.name}", "wb") as there:
            there.write(bytes(content))
    remote = {f"{name}_data": f"ram://damaged/{name}" for name in ("train", "validation")}
    run = make_run(data, tmp_path, **remote, shuffle="stream", image_size=16)
    with pytest.raises(UserError, match=r"ram://damaged/train or .*corrupted record at 12"):
        start_training(run)
