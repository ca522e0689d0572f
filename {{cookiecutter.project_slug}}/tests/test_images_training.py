"""Training and evaluation in this process, on data that is not on this disk."""

import fsspec
import pytest
from conftest import make_run

from library.train import read_best, run_evaluation, start_training
from library.util import UserError

pytestmark = pytest.mark.slow  # whole trainings


@pytest.mark.usefixtures("small_network")
def test_data_on_another_file_system_trains_as_data_on_this_disk(data, tmp_path, capsys):
    for file in data.iterdir():
        fsspec.filesystem("memory").put(str(file), f"run/{file.name}")
    remote = {f"{name}_data": f"memory://run/{name}" for name in ("train", "validation", "test")}
    remote["cache_dir"] = tmp_path / "cache"
    options = {"train_epochs": 1, "image_size": 16}
    best = []
    for name, where in (("here", {}), ("there", remote)):
        run = make_run(data, tmp_path / name, **where, **options)
        start_training(run)
        best.append(read_best(run.settings.best_model_dir)["value"])
    assert best[0] == best[1]
    assert list((tmp_path / "cache" / "blocks").iterdir())
    start_training(run.replace(shuffle="stream", train_epochs=2))
    start_training(run.replace(cache="memory", train_epochs=3))
    run_evaluation(run)
    assert "accuracy: " in capsys.readouterr().out


def test_a_damaged_record_elsewhere_is_one_line(data, tmp_path):
    (damaged, *_) = sorted(data.glob("train-*.tfrecord"))
    for file in data.iterdir():
        content = bytearray(file.read_bytes())
        content[100] ^= file == damaged
        fsspec.filesystem("memory").pipe(f"damaged/{file.name}", bytes(content))
    remote = {f"{name}_data": f"memory://damaged/{name}" for name in ("train", "validation")}
    remote["cache_dir"] = tmp_path / "cache"
    run = make_run(data, tmp_path, **remote, shuffle="stream", image_size=16)
    with pytest.raises(UserError, match=r"memory://damaged/train.*: record 0 is damaged"):
        start_training(run)
