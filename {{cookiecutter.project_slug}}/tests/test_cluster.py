"""Processes that train together: TF_CONFIG, and real clusters on this machine."""

import contextlib
import functools
import json
import math
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import forked
import numpy as np
import pytest
import tensorflow as tf
from conftest import (
    LIMIT_SECS,
    ROOT,
    copy_project,
    make_run,
    run_program,
    small_model,
    write_records,
)
from test_estimator import linear_input, linear_model

from library.data import train_records
from library.distribute import (
    Cluster,
    Parallel,
    run_local_cluster,
    wait_until_gone,
    wait_until_there,
)
from library.estimator import Estimator, EvalSpec, RunConfig
from library.train import (
    BestCheckpointExporter,
    EarlyStopHook,
    Plan,
    evaluate_checkpoints,
    global_step_of,
    read_best,
    start_training,
)
from library.util import RunError, UserError

CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "b:2"], "ps": ["c:1"]}


def tf_config(jobs: dict, job: str | None = "worker", index: int = 0) -> dict:
    task = {"type": job, "index": index}
    return {"cluster": jobs, "task": task}


def cluster(monkeypatch, content) -> Cluster:
    text = content if isinstance(content, str) else json.dumps(content)
    monkeypatch.setenv("TF_CONFIG", text)
    return Cluster.from_environment()


@pytest.mark.parametrize(
    ("job", "index", "worker", "is_chief", "needed"),
    [
        ("chief", 0, 0, True, {"ps 0": "c:1"}),
        ("worker", 1, 2, False, {"ps 0": "c:1"}),
        ("evaluator", 0, 0, False, {"ps 0": "c:1"}),
    ],
)
def test_a_task_knows_its_place(monkeypatch, job, index, worker, is_chief, needed):
    found = cluster(monkeypatch, tf_config(CLUSTER, job, index))
    assert (found.num_workers, found.worker, found.is_chief) == (3, worker, is_chief)
    assert found.needed == needed
    assert found.is_evaluator == (job == "evaluator")


def test_without_parameter_servers_all_workers_need_each_other(monkeypatch):
    jobs = {"worker": ["b:1", "b:2"], "evaluator": ["e:1"]}
    first, second = (cluster(monkeypatch, tf_config(jobs, "worker", index)) for index in (0, 1))
    assert (first.is_chief, second.is_chief) == (True, False)
    assert (first.needed, second.needed) == ({"worker 1": "b:2"}, {"worker 0": "b:1"})
    assert not first.has_servers


@pytest.mark.parametrize("content", ["", "{}", {"cluster": {}, "task": {}}, {"service": 1}])
def test_without_a_cluster_a_process_is_alone(monkeypatch, content):
    alone = cluster(monkeypatch, content)
    assert (alone.num_workers, alone.is_chief, alone.needed) == (1, True, {})
    assert RunConfig().is_chief


@pytest.mark.parametrize("job", ["chief", "worker"])
@pytest.mark.parametrize("task", ["trainer", "evaluator"])
def test_a_cluster_of_one_has_a_chief(monkeypatch, job, task):
    """The Estimator refuses a worker without a chief, and a task without an index."""
    content = {"cluster": {job: ["a:1"]}, "task": {"type": job if task == "trainer" else task}}
    one = cluster(monkeypatch, content)
    assert (one.num_workers, one.addresses) == (1, {"chief": ["a:1"]})
    config = RunConfig()
    assert config.task_type == one.job == ("chief" if task == "trainer" else "evaluator")
    assert one.is_chief == config.is_chief == (task == "trainer")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "not a mapping, such as"),
        ("5", "not a mapping, such as"),
        ({"task": {"type": "worker", "index": 0}}, "there is a task, but no cluster"),
        ({"cluster": {}, "task": 3}, "there is a task, but no cluster"),
        (tf_config({"worker": ["a:99999"]}), "is not a list of host:port"),
        (tf_config(CLUSTER, "evaluator", -1), "task index -1 is none of inf of evaluator"),
        (tf_config(CLUSTER, "worker", "0"), "task index 0 is none of 2 of worker"),
        ({"cluster": ["a:1"]}, "cluster is not a mapping"),
        (tf_config({"works": ["a:1"]}), "job works is not one of .*did you mean worker"),
        (tf_config({"worker": "a:1"}), "job worker: a:1 is not a list of host:port"),
        (tf_config({"worker": ["a"]}), "is not a list of host:port"),
        (tf_config({"worker": ["a:1"], "ps": ["c:1"]}), "with parameter servers exactly one"),
        (tf_config({"chief": ["a:1", "a:2"]}), "has at most one chief"),
        (tf_config({"chief": ["a:1"], "ps": []}), r"job ps: \[\] is not a list"),
        (tf_config({"worker": ["a:1", "a:1"]}), "a:1 is the address of two tasks"),
        ({"cluster": CLUSTER}, "task is not a mapping"),
        ({"cluster": CLUSTER, "task": "chief"}, "task is not a mapping"),
        (tf_config(CLUSTER, None), "task type None"),
        (tf_config(CLUSTER, "cheif"), "cheif is not .*did you mean chief"),
        (tf_config(CLUSTER, "ps", 1), "index 1 is none of 1 of ps"),
    ],
)
def test_mistakes_in_tf_config_are_one_line(monkeypatch, content, words):
    with pytest.raises(UserError, match=f"^TF_CONFIG: .*{words}") as error:
        cluster(monkeypatch, content)
    assert len(error.value.lines) == 1


BATCH, STEPS = 12, 3


@pytest.mark.parametrize("shuffle", ["global", pytest.param("stream", marks=pytest.mark.slow)])
def test_workers_that_come_and_go_take_the_examples_of_one_process_at_each_step(
    monkeypatch, tmp_path, shuffle
):
    """20 random sequences of worker counts, over two epochs: each worker as TF_CONFIG has it."""
    write_records(tmp_path / "train", *[[b"%d" % n for n in range(i, i + 10)] for i in (0, 10)])
    order = {"shuffle": shuffle, "shuffle_buffer_mb": 5e-4}
    run = make_run(tmp_path, tmp_path, train_batch_size=BATCH, **order)

    @functools.cache
    def batches(step: int, num_workers: int, worker: int) -> np.ndarray:
        """The ids that a worker takes from this step on: [steps, its share of a batch]."""
        addresses = {"worker": [f"host:{1 + index}" for index in range(num_workers)]}
        mine = cluster(monkeypatch, tf_config(addresses, "worker", worker))
        parallel = Parallel.of(mine, 1, sync_replicas=False)
        plan = Plan(None, step, step * BATCH, 20, BATCH, STEPS, STEPS)
        here = run.replace(parallel=parallel, plan=plan)
        share = {"num_workers": here.cluster.num_workers, "worker": here.cluster.worker}
        records = train_records(here.settings, here.start, **share)
        taken = records.take((STEPS - step) * here.batch_size).as_numpy_iterator()
        return np.array([id_ for _, id_, _ in taken]).reshape(STEPS - step, -1)

    whole = np.sort(batches(0, 1, 0))
    random = np.random.default_rng(0)
    for _ in range(20):
        found, step = [], 0
        while step < STEPS:
            num_workers, end = random.choice([1, 2, 3, 4]), random.integers(step + 1, STEPS + 1)
            shares = [batches(step, num_workers, worker) for worker in range(num_workers)]
            found += [*np.sort(np.concatenate(shares, axis=1))[: end - step]]
            step = end
        assert np.array_equal(found, whole)


@pytest.mark.parametrize(("num_workers", "more"), [(4, {}), (2, {"gradient_accumulation": 2})])
def test_a_batch_that_workers_cannot_divide_is_one_line(
    data, monkeypatch, tmp_path, num_workers, more
):
    jobs = {"worker": [f"host:{1 + index}" for index in range(num_workers)]}
    monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config(jobs)))
    with pytest.raises(UserError, match="^train_batch_size: 10 cannot be divided by 4") as error:
        start_training(make_run(data, tmp_path, train_batch_size=10, **more))
    assert len(error.value.lines) == 1
    assert not [*tmp_path.iterdir()]


def test_a_cluster_does_not_overfit(data, monkeypatch, tmp_path):
    monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config({"worker": ["host:1", "host:2"]})))
    with pytest.raises(UserError, match="^overfit: needs one process, without TF_CONFIG$"):
        start_training(make_run(data, tmp_path, train_batch_size=8, overfit=4))


def test_any_way_to_write_an_address_is_tried():
    with socket.socket(socket.AF_INET6) as server:
        try:
            server.bind(("::1", 0))
        except OSError:  # as in many containers
            pytest.skip("there is no IPv6 here")
        server.listen(1)
        wait_until_there({"ps 0": f"[::1]:{server.getsockname()[1]}"}, secs=0)
    with pytest.raises(RunError, match="ps 0"):
        wait_until_there({"ps 0": "a..b:1"}, secs=0)


@contextlib.contextmanager
def listening():
    with socket.socket() as server:
        server.bind(("localhost", 0))
        server.listen(100)
        yield f"localhost:{server.getsockname()[1]}", server


def test_a_task_that_was_there_is_missed():
    with listening() as (address, server):
        wait_until_there({"ps 0": address}, secs=1)
        threading.Timer(1.0, server.close).start()
        assert wait_until_gone({"ps 0": address}, patience_secs=0.5) == "ps 0"
    assert wait_until_gone({"ps 0": address}, enough=lambda: True) is None
    with pytest.raises(RunError, match="ps 0 at localhost:1 has not started in 1 s"):
        wait_until_there({"ps 0": "localhost:1"}, secs=1)


@pytest.mark.slow
def test_a_worker_ends_when_another_does_not_come():
    code = (
        "import time; from library.distribute import end_unless_there\n"
        "end_unless_there(dict([('worker 1', 'localhost:1')]), secs=1); time.sleep(60)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_SECS
    )
    assert process.returncode == 1
    assert process.stderr.splitlines()[-1] == (
        "error: worker 1 at localhost:1 has not started in 1 s"
    )


def test_an_evaluator_goes_on_where_a_checkpoint_is_gone_by_the_time(tmp_path):
    config = RunConfig(model_dir=str(tmp_path / "now"), keep_checkpoint_max=1)
    model = Estimator(linear_model, config=config)

    def while_the_chief_goes_on():
        if model.latest_checkpoint().endswith("ckpt-1"):
            model.train(linear_input, steps=1)  # deletes the one that is to be evaluated
        return linear_input().take(1)

    model.train(linear_input, steps=1)
    exporter = BestCheckpointExporter(tmp_path / "best")
    spec = EvalSpec(while_the_chief_goes_on, exporters=exporter)
    evaluate_checkpoints(model, spec, steps=2, early_stop=EarlyStopHook(exporter, math.inf))
    assert exporter.evaluated_step == read_best(tmp_path / "best")["step"] == 2


TASK = """
import json, os, sys, time
job = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
print("2026-01-01 10:00:00.123456: I tensorflow/core/x.cc:1] noise", file=sys.stderr)
print("I0000 00:00:17.1 x.cc:2] noise\\nINFO:tensorflow:noise\\n/x.py:3: UserWarning: noise")
if job == "chief":
    print("step 50 of 50")
if job == "evaluator":
    print("training from step 0 to 50\\n    step   epoch\\n      50     1.0  best")
    print("best model: loss 1")
time.sleep(60 * (job == "ps"))
"""


def test_a_local_cluster_prints_what_the_chief_and_the_evaluations_say(tmp_path, capfd):
    run_local_cluster([sys.executable, "-c", TASK], workers=1, servers=1, logs=tmp_path)
    printed = capfd.readouterr().out.splitlines()
    assert sorted(printed[1:]) == sorted(
        ["step 50 of 50", "    step   epoch", "      50     1.0  best", "best model: loss 1"]
    )
    assert (tmp_path / "chief-0.log").read_text().count("noise") == 4


def free_addresses(count: int) -> list[str]:
    with contextlib.ExitStack() as stack:
        return [stack.enter_context(listening())[0] for _ in range(count)]


HASTY = """
import time
sleep = time.sleep
time.sleep = lambda secs: sleep(min(secs, 0.5))
"""
"""Runs at the start of Python, as sitecustomize: TensorFlow's workers wait for 5 s and for 30 s."""


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A project whose tasks miss each other sooner."""
    folder = tmp_path_factory.mktemp("cluster") / "project"
    copy_project(folder)
    module = folder / "library/distribute/cluster.py"
    assert "\nPATIENCE_SECS = 10.0\n" in (text := module.read_text())
    module.write_text(text.replace("\nPATIENCE_SECS = 10.0\n", "\nPATIENCE_SECS = 3.0\n"))
    (folder / "sitecustomize.py").write_text(HASTY)
    return folder


class Tasks:
    """The tasks of a cluster, each a process with a log."""

    def __init__(self, project: Path, folder: Path, data: Path, **jobs: int):
        self.project, self.folder, self.data = project, folder, data
        self.cluster = {job: free_addresses(count) for job, count in jobs.items()}
        self.processes: dict[str, forked.Process] = {}
        self.words = ["--model_dir", folder / "now", "--best_model_dir", folder / "best"]
        for split in ("train", "validation", "test"):
            self.words += [f"--{split}_data", data / split]
        self.words += small_model()

    def start(self, job: str, index: int, *more: object) -> None:
        task = json.dumps(tf_config(self.cluster, job, index))
        self.processes[f"{job}-{index}"] = forked.start(
            [str(word) for word in (self.project / "run.py", *self.words, *more)],
            self.folder,
            {"TF_CONFIG": task, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(self.project)},
            [self.folder / f"{job}-{index}.log"] * 2,
        )

    def start_all(self, *more: object) -> None:
        for job, addresses in [*self.cluster.items(), ("evaluator", ["beside"])]:
            for index in range(len(addresses)):
                self.start(job, index, *more)

    def log(self, name: str) -> str:
        log = self.folder / f"{name}.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def wait_for(self, name: str, pattern: str, secs: float = LIMIT_SECS) -> None:
        deadline = time.monotonic() + secs
        while not re.search(pattern, self.log(name), re.M):
            assert time.monotonic() < deadline, self.log(name)
            assert self.processes[name].poll() is None, self.log(name)
            time.sleep(0.1)

    def status(self, name: str, secs: float = LIMIT_SECS) -> int:
        try:
            return self.processes[name].wait(secs)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.log(name)) from None

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def tasks(data, project, tmp_path):
    with contextlib.ExitStack() as stack:

        def make(**jobs: int) -> Tasks:
            made = Tasks(project, tmp_path, data, **jobs)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def run_cluster(project, tmp_path, monkeypatch, capsys):
    """Runs the command cluster in this process; returns what it prints. Its tasks are forked."""

    def popen(command: list[str], *, env: dict[str, str], stdout, **_) -> forked.Process:
        env["PYTHONPATH"] = str(project)
        return forked.start(list(map(str, command[1:])), tmp_path, env, [Path(stdout.name)] * 2)

    def run(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", list(map(str, ["run.py", "cluster", *words])))
        runpy.run_path(str(project / "run.py"))["main"]()
        return capsys.readouterr().out

    names = {name: getattr(subprocess, name) for name in ("DEVNULL", "TimeoutExpired")}
    processes = types.SimpleNamespace(Popen=popen, **names)
    monkeypatch.setattr("library.distribute.local_cluster.subprocess", processes)
    monkeypatch.chdir(tmp_path)
    return run


@pytest.mark.slow
def test_a_killed_worker_rejoins_and_a_killed_server_ends_a_run_that_goes_on(
    tasks, tmp_path, run_cluster
):
    run = tasks(chief=1, worker=2, ps=1)
    more = ("--train_epochs", 100_000, "--learning_rate", 1e-3, "--train_batch_size", 4)
    more += ("--epochs_between_evals", 5, "--log_steps", 20)
    run.start_all(*more)
    run.wait_for("worker-1", "^step [1-9]")
    run.kill("worker-1")
    run.start("worker", 1, *more)
    run.wait_for("worker-1", "(?s)^step [1-9].*^training from step .*^step [1-9]")
    run.wait_for("evaluator-0", "^ +[1-9][0-9]* +[0-9]")
    run.kill("ps-0")
    for name in ("chief-0", "worker-0", "worker-1"):
        assert run.status(name) == 1, run.log(name)
        (line,) = re.findall("^error: .*", run.log(name), re.M)
        assert line.startswith("error: ps 0 is gone: start all tasks again")
        assert "Traceback" not in run.log(name)
    run.kill("evaluator-0")
    assert (tmp_path / "now" / "run.yaml").read_text().count("command:") == 1, "the chief's"

    before = global_step_of(tf.train.latest_checkpoint(tmp_path / "now"))
    epochs = before * 4 // 69 + 5
    words = ["--workers", 1, "--train_epochs", epochs, "--learning_rate", 1e-3]
    printed = run_cluster(*words, *run.words)
    (step,) = re.findall("^training from step (\\d+)", printed, re.M)
    assert int(step) == before > 0
    assert "done: chief 0" in printed
    log = (tmp_path / "now" / "cluster" / "evaluator-0.log").read_text()
    best = read_best(tmp_path / "best")
    assert (tmp_path / "best" / f"model.ckpt-{best['step']}.index").exists()
    assert f"best model: loss {best['value']:.4f} at step {best['step']}" in log
    assert global_step_of(tf.train.latest_checkpoint(tmp_path / "now")) > before


@pytest.mark.slow
@pytest.mark.parametrize("how", [["--ps", 1, "--sync_replicas"], ["--ps", 0]], ids=["sync", "all"])
def test_the_command_cluster_trains_in_step(data, tmp_path, run_cluster, how):
    """Workers that share each batch: by a parameter server, and by all-reduce."""
    words = ["--train_epochs", 3, "--train_batch_size", 8, *small_model()]
    words += ["--model_dir", tmp_path / "now", "--best_model_dir", tmp_path / "best"]
    for split in ("train", "validation", "test"):
        words += [f"--{split}_data", data / split]
    printed = run_cluster("--workers", 1, *how, *words)
    assert "each step: 8 examples, 4 per device" in printed
    assert "done: chief 0" in printed
    assert read_best(tmp_path / "best")
    logs = {file.name for file in (tmp_path / "now" / "cluster").iterdir()}
    assert {"chief-0.log", "worker-0.log", "evaluator-0.log"} <= logs


@pytest.mark.slow
def test_workers_that_come_and_go_in_an_epoch_end_like_one_process(tasks, tmp_path):
    """Two workers, then three: the weights of one process, but for the rounding of sums."""
    more = ["--train_batch_size", 12, "--epochs_between_evals", 0.5, "--optimizer", "sgd"]
    more += ["--learning_rate", 0.01, "--learning_rate_schedule", "constant"]
    more += ["--warmup_epochs", 0, "--dropout_rate", 0]
    epochs = {1: 1.4, 2: 0.7, 3: 1.4}  # of 69 examples: to the steps 8, 4 and 8
    for num_workers in epochs:
        if num_workers == 2:
            (tmp_path / "now").rename(tmp_path / "one")
        run = tasks(worker=num_workers)
        names = [f"worker-{index}" for index in range(num_workers)]
        for index in range(num_workers):
            run.start("worker", index, "--train_epochs", epochs[num_workers], *more)
        for name in names:
            assert run.status(name) == 0, run.log(name)
    assert "training from step 4 to 8" in run.log("worker-2")
    before, one, found = (
        np.concatenate([tf.train.load_variable(str(path), name).ravel() for name in names])
        for path in (tmp_path / "now/model.ckpt-4", tmp_path / "one/model.ckpt-8", tmp_path / "now")
        for names in [[name for name, _ in tf.train.list_variables(str(path))]]
    )
    # Other examples would be as far off as these are from what the last four steps began with.
    assert np.linalg.norm(found - one) < 1e-3 * np.linalg.norm(one - before)


@pytest.mark.slow
def test_a_cluster_that_has_come_to_its_time_is_saved(data, tmp_path, run_cluster):
    words = ["--workers", 1, "--train_epochs", 5000, "--max_minutes", 0.05, *small_model()]
    words += ["--model_dir", tmp_path / "now", "--best_model_dir", tmp_path / "best"]
    for split in ("train", "validation", "test"):
        words += [f"--{split}_data", data / split]
    with pytest.raises(KeyboardInterrupt) as interrupt:
        run_cluster(*words)
    # By its name: the worker may take a step while the chief saves.
    step = tf.train.latest_checkpoint(tmp_path / "now").rpartition("-")[2]
    assert str(interrupt.value) == f"saved at step {step}; run the same command to resume"


@pytest.mark.slow
def test_the_command_cluster_tells_what_failed(data, tmp_path):
    words = ["--workers", 1, "--ps", 0, "--train_data", tmp_path / "none"]
    words += ["--model_dir", tmp_path / "now", "--best_model_dir", tmp_path / "best"]
    process = run_program("run.py", "cluster", *words, cwd=tmp_path, status=2)
    (line,) = process.stderr.splitlines()
    assert line.startswith("error: train_data: there is no dataset")
    assert not (tmp_path / "best").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "more", "words"),
    [
        ({"ps": 0}, ["--sync_replicas"], "sync_replicas: TF_CONFIG has no parameter servers"),
        ({"ps": 1}, ["--devices", 2], "devices: on a CPU, or with parameter servers"),
        ({"ps": 0}, ["--max_minutes", 1], "max_minutes: workers without parameter servers"),
        ({"ps": 0}, ["--early_stopping_evals", 1], "early_stopping_evals: workers without"),
        ({"ps": 1}, ["--train_batch_size", 7, "--sync_replicas"], "train_batch_size: 7 cannot be"),
    ],
)
def test_what_a_cluster_cannot_do_is_told(data, tmp_path, config, more, words):
    jobs = {"chief": ["localhost:1"], "worker": ["localhost:2"]}
    jobs |= {"ps": ["localhost:3"]} if config["ps"] else {}
    task = tf_config(jobs)
    more += ["--train_data", data / "train", "--validation_data", data / "validation"]
    more += ["--model_dir", tmp_path / "now", "--best_model_dir", tmp_path / "best"]
    environment = {"TF_CONFIG": json.dumps(task)}
    process = run_program("run.py", *more, cwd=tmp_path, status=2, **environment)
    assert words in process.stderr
    assert not (tmp_path / "now").exists()
