"""What a run keeps to, whatever happens between its starts."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf
from conftest import ROOT, make_run, run_program, small_model

from library.serve import export_model, predict_files
from library.train import newest_checkpoint, read_best, run_evaluation, start_training
from library.util import UserError


@pytest.fixture
def copy(trained, tmp_path):
    """A copy of the trained run, to be continued."""
    for name in ("checkpoints", "best"):
        shutil.copytree(trained.dir / name, tmp_path / name)
    folders = {"model_dir": tmp_path / "checkpoints", "best_model_dir": tmp_path / "best"}
    return trained.replace(**folders)


# ---- what a start computes ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("change", ["l2_regularization", "validation_data", "code"])
def test_the_best_model_is_measured_again_when_the_loss_is_another(copy, data, change, capsys):
    """A value of the old loss is no measure for the new one, nor a reason to stop early."""
    record = copy.settings.best_model_dir / "best.json"
    before = read_best(record.parent)
    record.write_text(record.read_text().replace(str(before["value"]), "0.0"))  # out of reach
    if change == "l2_regularization":
        run = copy.replace(l2_regularization=0.5)
    elif change == "validation_data":
        run = copy.replace(validation_data=str(data / "test"))
    else:
        run = copy
        text = record.read_text()
        code = json.loads(text)["measured_with"]["code"]
        record.write_text(text.replace(code, "another"))
    start_training(run.replace(train_epochs=3, early_stopping_evals=1))
    assert f"again, since {change} changed: loss 0.0000 -> " in capsys.readouterr().out
    kept = {one["step"]: one["value"] for one in read_best(record.parent)["kept"]}
    assert min(kept.values()) > 0
    shutil.rmtree(run.dir / "evaluation", ignore_errors=True)
    run_evaluation(run.replace(split="validation"))
    metrics = json.loads((run.dir / "evaluation/validation/metrics.json").read_text())
    assert metrics["loss"] == pytest.approx(kept[metrics["global_step"]], rel=1e-5)


def test_fewer_examples_than_a_batch_are_refused(data, tmp_path):
    run = make_run(data, tmp_path / "run", train_epochs=2.5, limit_train_examples=1)
    line = "train_batch_size: 32 is more than the 2 examples of 2.5 epochs: use smaller batches"
    with pytest.raises(UserError, match=line):
        start_training(run)
    assert not (tmp_path / "run").exists()


# ---- folders -----------------------------------------------------------------------------------


@pytest.mark.parametrize("character", "*?[\\")
@pytest.mark.parametrize("name", ["model_dir", "best_model_dir", "model", "warm_start_from"])
def test_a_path_that_is_a_pattern_for_tensorflow_is_refused(data, tmp_path, name, character):
    folder = tmp_path / f"lr{character}0.1]" / "m"
    with pytest.raises(UserError, match=f"{name}: .* has one of .* a pattern for TensorFlow"):
        make_run(data, tmp_path / "run", **{name: folder})


@pytest.mark.slow
@pytest.mark.usefixtures("small_network")
def test_any_other_path_may_have_brackets_and_stars(data, samples, tmp_path):
    place = tmp_path / "lr[0.1]*?"
    shutil.copytree(data, place / "data")
    run = make_run(place / "data", tmp_path / "run", train_epochs=1, train_batch_size=8)
    run = run.replace(input=(str(samples / "test"),), output=str(place / "out.csv"))
    run = run.replace(export_dir=place / "export", cache="file", cache_dir=place / "cache")
    start_training(run)
    run_evaluation(run)
    predict_files(run)
    export_model(run)
    assert len((place / "out.csv").read_text().splitlines()) == 1 + 24
    assert len(list((place / "export").iterdir())) == 1


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nobody can write to a folder, nor below it: not root either."""
    if sys.platform == "linux" and os.geteuid() == 0:
        if subprocess.run(["mount", "--bind", folder, folder], capture_output=True).returncode:
            pytest.skip("root can write everywhere, and may not mount here")
        try:
            subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
            yield
        finally:
            subprocess.run(["umount", folder], check=True)
        return
    for place in [folder, *folder.rglob("*")]:
        place.chmod(place.stat().st_mode & ~0o222)
    try:
        yield
    finally:
        for place in [folder, *folder.rglob("*")]:
            place.chmod(place.stat().st_mode | 0o200)


def test_evaluate_says_where_it_cannot_write_before_it_starts(copy, capsys):
    with read_only(copy.dir), pytest.raises(UserError, match="^run: .* is not writable: "):
        run_evaluation(copy)
    shutil.rmtree(copy.settings.model_dir / "eval_test", ignore_errors=True)
    (copy.settings.model_dir / "eval_test").touch()  # a file in the place of a folder
    with pytest.raises(UserError, match="^model_dir: .*eval_test is a file, not a folder"):
        run_evaluation(copy)
    assert capsys.readouterr().out == ""


def test_a_broken_record_stops_evaluate_before_the_metrics(copy, capsys):
    (copy.settings.model_dir / "run.yaml").write_text("{")
    with pytest.raises(UserError, match="run.yaml: not a file that was written here"):
        run_evaluation(copy)
    assert capsys.readouterr().out == ""
    assert not (copy.dir / "evaluation").exists()


@pytest.mark.slow
def test_predict_writes_nothing_but_its_table(trained_cnn, samples, tmp_path):
    for name in ("checkpoints", "best"):
        shutil.copytree(trained_cnn.dir / name, tmp_path / name)
    folders = ["--model_dir", tmp_path / "checkpoints", "--best_model_dir", tmp_path / "best"]
    out = tmp_path.parent / f"{tmp_path.name}.csv"
    with read_only(tmp_path):
        words = ["predict", "--input", samples / "test", "--output", out, *folders]
        run_program("run.py", *words, cwd=samples)
    assert len(out.read_text().splitlines()) == 1 + 24


# ---- power cuts --------------------------------------------------------------------------------


def files_of(checkpoint: str) -> list[Path]:
    return [*Path(checkpoint).parent.glob(f"{Path(checkpoint).name}.*")]


def test_the_newest_checkpoint_that_can_be_read_is_found(copy, capsys):
    """Each file of the last checkpoint, cut off after so many bytes."""
    folder = copy.settings.model_dir
    *_, older, latest = tf.train.get_checkpoint_state(folder).all_model_checkpoint_paths
    for file in (*files_of(latest), folder / "checkpoint"):
        content = file.read_bytes()
        needed = file.suffix == ".index" or ".data" in file.name
        for part in (0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1):
            file.write_bytes(content[: min(int(part * len(content)), len(content) - 1)])
            assert newest_checkpoint("model_dir", folder) == (older if needed else latest)
            line = capsys.readouterr().err
            assert line.startswith(f"model_dir: {latest} cannot be read: ") == needed
            assert line.endswith(f": {older} is used\n") == needed
        file.unlink()
        assert newest_checkpoint("model_dir", folder) == (older if needed else latest)
        capsys.readouterr()
        file.write_bytes(content)
    for file in folder.glob("model.ckpt-*"):
        file.write_bytes(b"")
    with pytest.raises(
        UserError, match=f"model_dir: {latest} cannot be read: .*; nor can an older"
    ):
        newest_checkpoint("model_dir", folder)


def weights(run) -> dict[str, bytes]:
    """Every tensor of the last checkpoint."""
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(run.settings.model_dir))
    return {name: reader.get_tensor(name).tobytes() for name in reader.get_variable_to_shape_map()}


@pytest.mark.slow
@pytest.mark.usefixtures("small_network")
def test_a_run_goes_on_from_the_newest_checkpoint_that_can_be_read(copy, tmp_path, capsys):
    """It ends with the weights of one whose checkpoints were not damaged."""
    folder, best = tmp_path / "first/checkpoints", tmp_path / "first/best"
    first = copy.replace(  # whose rates do not depend on the end of the run
        model_dir=folder, best_model_dir=best, learning_rate_schedule="constant", warmup_epochs=0.0
    )
    start_training(first)
    latest = Path(tf.train.latest_checkpoint(folder)).name
    runs = {}
    for name in ("whole", f"{latest}.index", f"{latest}.data-00000-of-00001", "checkpoint"):
        shutil.copytree(folder, tmp_path / name / "checkpoints")
        shutil.copytree(best, tmp_path / name / "best")
        folders = {"model_dir": tmp_path / name / "checkpoints"}
        run = first.replace(**folders, best_model_dir=tmp_path / name / "best", train_epochs=3)
        if name != "whole":
            os.truncate(run.settings.model_dir / name, 20)
        start_training(run)
        runs[name] = weights(run)
        assert newest_checkpoint("model_dir", run.settings.model_dir).endswith(
            Path(tf.train.latest_checkpoint(run.settings.model_dir)).name
        )
    assert capsys.readouterr().err.count("cannot be read") == 2
    for name, found in runs.items():
        assert found == runs["whole"], name


CALLS = "openat,write,pwrite64,writev,ftruncate,fsync,fdatasync,rename,renameat,renameat2,unlink"


def calls(log: str) -> Iterator[tuple[str, str]]:
    """The calls in a log of strace, with their arguments, in the order of their ends."""
    begun = {}
    for line in log.splitlines():
        process, _, text = line.partition(" ")
        text = text.strip()
        if text.endswith(" <unfinished ...>"):
            begun[process] = text.removesuffix(" <unfinished ...>")
            continue
        if resumed := re.match(r"<\.\.\. \w+ resumed>", text):
            text = begun.pop(process) + text[resumed.end() :]
        if found := re.fullmatch(r"(\w+)\((.*)\) += \d+.*", text):
            yield found[1], found[2]


def durable_steps(log: str, folder: Path) -> Iterator[tuple[str, str]]:
    """What strace saw of a folder: ("write" | "sync" | "delete", path), ("name", "old new")."""
    for call, arguments in calls(log):
        opened = re.match(r"\d+<([^>]*)>", arguments)
        quoted = [os.path.normpath(path) for path in re.findall(r'"([^"]*)"', arguments)]
        path = opened[1] if opened else quoted[0] if quoted else ""
        if not path.startswith(str(folder)):
            continue
        if call in ("fsync", "fdatasync"):
            yield "sync", path
        elif call.startswith("rename"):
            yield "name", " ".join(quoted)
        elif call == "unlink":
            yield "delete", path
        elif call != "openat" or "O_CREAT" in arguments:
            yield "write", path


@pytest.mark.slow
def test_no_name_is_visible_before_its_bytes_are_safe(data, tmp_path):
    """In a real run, as the system sees it: what a power cut could take was never relied on."""
    trace = ["strace", "-f", "--seccomp-bpf", "-y", "-s", "500", "-e", f"trace={CALLS}"]
    if not shutil.which("strace") or subprocess.run([*trace, "-o", os.devnull, "true"]).returncode:
        pytest.skip("needs strace")
    folder = tmp_path / "run"
    words = [f"--{split}_data={data / split}" for split in ("train", "validation")]
    words += [f"--model_dir={folder / 'checkpoints'}", f"--best_model_dir={folder / 'best'}"]
    words += ["--train_epochs=3", "--train_batch_size=16", "--keep_checkpoint_max=2"]
    words += small_model()
    program = [sys.executable, str(ROOT / "run.py"), *words]
    subprocess.run([*trace, "-o", tmp_path / "log", *program], check=True, capture_output=True)
    unsafe, unsafe_names, named = set(), {}, []
    for step, path in durable_steps((tmp_path / "log").read_text(errors="replace"), folder):
        if step == "write":
            unsafe.add(path)
        elif step == "sync":
            unsafe.discard(path)
            unsafe_names = {new: in_ for new, in_ in unsafe_names.items() if in_ != path}
        elif step == "name":
            old, new = path.split()
            if ".tmp/" in new and old in unsafe:
                unsafe ^= {old, new}
            if ".tmp/" in new:  # hidden
                continue
            assert old not in unsafe, f"{new} has its name before its content is safe"
            if os.path.basename(new) in ("checkpoint", "best.json"):
                assert not unsafe_names, f"{new} comes before the names that it needs"
            unsafe_names[new] = os.path.dirname(new)
            named.append(os.path.basename(new))
        elif "model.ckpt" in path:
            assert not unsafe_names, f"{path} is deleted before the names of others are safe"
    written = {os.path.basename(path) for path in unsafe if ".tmp/" not in path}
    assert not {name for name in written if not name.startswith(("events.", ".", "log"))}
    assert {"run.yaml", "model.json", "best.json", "patience.json"} <= {*named}
    assert named.count("checkpoint") >= 4, "of three epochs, and of the best"
    assert sum(name.endswith(".index") for name in named) >= 4
