"""docs/cluster.md and its manifests: numbers, links, commands, and the TF_CONFIG of each task."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import python

from settings_page import TEMPLATE as ROOT  # isort: skip  it makes library importable

from library.config import Settings  # isort: skip
from library.distribute import Cluster  # isort: skip

DOCS = ROOT / "docs"
PAGE = (DOCS / "cluster.md").read_text(encoding="utf-8")
SLURM = DOCS / "cluster.slurm"
KUBERNETES = DOCS / "cluster.kubernetes.yaml"

BYTES, MESSAGE_SECS = 4, 50e-6
COMPUTATION_SECS = 32 / 400
TRAINERS = (8, 64, 512)
NETWORKS = (10e9, 25e9, 100e9)
"""Bits per second, in each direction."""


def constant(module: str, name: str) -> float:
    """A number of library/distribute."""
    code = (ROOT / "library/distribute" / f"{module}.py").read_text(encoding="utf-8")
    (value,) = re.findall(rf"^{name} = ([\d.]+)$", code, re.MULTILINE)
    return float(value)


PATIENCE_SECS = constant("cluster", "PATIENCE_SECS")
COMING_SECS = constant("cluster", "COMING_SECS")
CHIEF_SECS = constant("cluster", "CHIEF_PATIENCE_SECS")
MAX_RESTARTS = int(constant("local_cluster", "MAX_RESTARTS"))


def flat(text: str) -> str:
    return " ".join(text.split())


def resnet50(classes: int = 1000) -> list[int]:
    """The sizes of its trained variables: He et al. 2015, https://arxiv.org/abs/1512.03385."""

    def conv(size: int, channels: int, filters: int) -> list[int]:
        return [size * size * channels * filters, filters, filters]  # and batch norm

    sizes, channels = conv(7, 3, 64), 64
    for filters, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        sizes += conv(1, channels, 4 * filters)  # the shortcut
        for _ in range(blocks):
            sizes += conv(1, channels, filters) + conv(3, filters, filters)
            sizes += conv(1, filters, 4 * filters)
            channels = 4 * filters
    return [*sizes, channels * classes, classes]


PARAMETERS, LARGEST = BYTES * sum(resnet50()), BYTES * max(resnet50())


def bytes_with_servers(trainers: int, servers: int) -> float:
    """Through the busiest link in a step, both directions: a trainer's, or a server's."""
    of_a_server = max(PARAMETERS / servers, LARGEST) * trainers
    return 2 * max(PARAMETERS, of_a_server)


def bytes_in_ring(trainers: int) -> float:
    """Sent by each trainer in a step, and received at the same time."""
    return 2 * PARAMETERS * (trainers - 1) / trainers


def row(name: str, trainers: int, count: float) -> str:
    cells = [name, str(trainers), f"{count / 1e6:,.1f}"]
    for bits in NETWORKS:
        secs = 8 * count / bits
        text = f"{1e3 * secs:,.0f}"
        cells.append(f"**{text}**" if secs > COMPUTATION_SECS else text)
    return f"| {' | '.join(cells)} |"


def table() -> list[str]:
    few = [row("1 server", n, bytes_with_servers(n, 1)) for n in TRAINERS]
    many = [row(f"{n // 8} servers", n, bytes_with_servers(n, n // 8)) for n in TRAINERS[1:]]
    return [*few, *many, *[row("all-reduce in a ring", n, bytes_in_ring(n)) for n in TRAINERS]]


def test_the_table_is_what_the_formulas_give():
    header = "| | trainers | MB a step | 10 Gbit/s | 25 Gbit/s | 100 Gbit/s |\n"
    found = PAGE.split(header)[1].split("\n\n")[0].splitlines()[1:]
    assert found == table(), "\n".join(table())


def test_the_numbers_of_the_text():
    n = TRAINERS[-1]
    server_secs = 8 * PARAMETERS / NETWORKS[0]
    assert server_secs > COMPUTATION_SECS, "a single trainer keeps a server busy"
    for words in (
        f"{sum(resnet50()):,} parameters; at 4 bytes each its gradients are P = "
        f"{PARAMETERS / 1e6:.1f} MB",
        f"{max(resnet50()):,} parameters (V = {LARGEST / 1e6:.1f} MB)",
        f"above {1e3 * COMPUTATION_SECS:.0f} ms",
        "32 examples at 400 a second",
        f"sends P once in {1e3 * server_secs:.0f} ms at 10 Gbit/s",
        f"{sum(resnet50()):,} / {max(resnet50()):,} is {PARAMETERS / LARGEST:.1f}",
        f"not beyond {PARAMETERS // LARGEST} of them",
        f"{2 * (n - 1):,} of them with {n} trainers, {1e3 * 2 * (n - 1) * MESSAGE_SECS:.0f} ms",
        "{}, {} and {} in the table".format(*(n - 1 for n in TRAINERS)),
        "is {:,}, {:,} and {:,}, and".format(*(32 * n for n in TRAINERS)),
    ):
        assert words in flat(PAGE), words


def test_the_speeds_of_the_text():
    n = TRAINERS[0]
    ring_secs = [8 * bytes_in_ring(n) / bits for bits in NETWORKS]
    added = [n * COMPUTATION_SECS / (COMPUTATION_SECS + secs) for secs in ring_secs]
    behind = [n * COMPUTATION_SECS / max(COMPUTATION_SECS, secs) for secs in ring_secs]
    server_secs = 8 * bytes_with_servers(n, 1) / NETWORKS[0]
    for words in (
        "{} trainers in a ring are {:.1f}, {:.1f} and {:.1f} times as fast".format(n, *added),
        "and {:.1f}, {:.1f} and {:.1f} times if it passes behind".format(*behind),
        f"are {n * COMPUTATION_SECS / (COMPUTATION_SECS + server_secs):.1f} times as fast: slower",
    ):
        assert words in flat(PAGE), words


def test_the_rate_for_a_larger_batch_is_in_proportion():
    shown = re.findall(r"--train_batch_size (\d+) --learning_rate (\S+)", PAGE)
    assert len(shown) == 2, "of audio, then of images"
    for folder, (batch_size, rate) in zip((ROOT / "audio", ROOT), shown, strict=True):
        sets = yaml.safe_load((folder / "hyperparameters.yaml").read_text(encoding="utf-8"))
        factor = int(batch_size) / Settings().train_batch_size
        assert f"{factor:.0f} times as large" in flat(PAGE)
        assert float(rate) == pytest.approx(factor * float(sets["default"]["learning_rate"]))


def test_the_seconds_of_the_text_are_those_of_the_code():
    for words in (
        f"out of reach for {CHIEF_SECS:.0f} s",
        f"servers end after {CHIEF_SECS:.0f} s, the workers {PATIENCE_SECS:.0f} s later",
        f"every trainer ends after {PATIENCE_SECS:.0f} s",
        f"waits {COMING_SECS:.0f} s for the servers",
        {3: "again, three times"}[MAX_RESTARTS],
    ):
        assert words in flat(PAGE), words
    manifest = flat(KUBERNETES.read_text(encoding="utf-8"))
    assert f"ends {CHIEF_SECS:.0f} s after the chief" in manifest
    assert f"wait {COMING_SECS:.0f} s for the server" in manifest


def test_the_estimator_has_workers_wait():
    package = importlib.util.find_spec("tensorflow_estimator").submodule_search_locations[0]
    code = Path(package, "python", "estimator", "training.py").read_text(encoding="utf-8")
    assert "\n_MAX_DELAY_SECS = 60\n_DELAY_SECS_PER_WORKER = 5\n" in code
    assert "each worker wait after the chief: 5 s, 10 s, and so on, at most 60 s" in flat(PAGE)


def check_options(words: str, folder: Path) -> None:
    python("run.py", *shlex.split(words), "--print_config", cwd=folder)


def test_the_options_of_slurm_are_taken(project):
    commands = re.findall(r"sbatch \S+((?: --\w+ [\w.]+)+)", SLURM.read_text(encoding="utf-8"))
    assert len(commands) == 2
    for words in commands:
        check_options(words, project)


def task_of(config: str, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("TF_CONFIG", config)
    return Cluster.from_environment()


def test_the_page_shows_a_cluster(monkeypatch):
    (config,) = re.findall(r"TF_CONFIG='(.*?)'", PAGE, re.DOTALL)
    found = task_of(config, monkeypatch)
    assert (found.name, found.num_workers, found.worker) == ("worker 0", 3, 1)
    assert found.has_servers


SCONTROL = """#!/bin/bash
[ "$*" = "show hostnames node[1-4]" ] && printf 'node%s\\n' 1 2 3 4
"""

SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do
    case $1 in --ntasks=*) count=${1#*=} ;; esac
    shift
done
worst=0
for ((i = 0; i < count; i++)); do
    SLURM_PROCID=$i "$@"
    status=$?
    if ((status > worst)); then worst=$status; fi
done
exit $worst
"""

PYTHON = f"""#!{sys.executable}
import json, os, signal, sys
task = json.loads(os.environ["TF_CONFIG"])["task"]
name = task["type"] + " " + str(task["index"])
with open(os.path.join(os.environ["STARTS"], name), "a") as file:
    print(json.dumps([os.environ["TF_CONFIG"], os.environ.get("CUDA_VISIBLE_DEVICES"),
                      sys.argv[1:]]), file=file)
number = len(open(file.name).readlines()) - 1
statuses = json.loads(os.environ["STATUSES"]).get(name, [])
status = (statuses[number:] or [0])[0]
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


class Slurm:
    """Runs the script where scontrol, srun and Python are ours."""

    def __init__(self, folder: Path):
        self.bin, self.starts = folder / "bin", folder / "starts"
        self.bin.mkdir()
        self.starts.mkdir()
        for name, text in (("scontrol", SCONTROL), ("srun", SRUN), ("python", PYTHON)):
            (self.bin / name).write_text(text, encoding="utf-8")
            (self.bin / name).chmod(0o755)

    def run(self, *words: str, servers: int | None = None, **statuses: list[int]):
        """`statuses` are those of each start, as worker_0=[-9, 0]."""
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
        environment |= {"PATH": f"{self.bin}:{os.environ['PATH']}", "STARTS": str(self.starts)}
        environment |= {"PYTHON": str(self.bin / "python"), "SLURM_JOB_NODELIST": "node[1-4]"}
        environment |= {"SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_ID": "123456"}
        named = {name.replace("_", " "): each for name, each in statuses.items()}
        environment["STATUSES"] = json.dumps(named)
        environment |= {} if servers is None else {"SERVERS": str(servers)}
        return subprocess.run(
            ["bash", SLURM, *words],
            cwd=self.starts.parent,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
        )

    def started(self) -> dict[str, list]:
        """For each task, [TF_CONFIG, CUDA_VISIBLE_DEVICES, words] of each of its starts."""
        return {
            file.name: [json.loads(line) for line in file.read_text().splitlines()]
            for file in self.starts.iterdir()
        }


@pytest.fixture
def slurm(tmp_path):
    if sys.platform == "win32":
        pytest.skip("a script for bash")
    return Slurm(tmp_path)


@pytest.mark.parametrize("servers", [None, 0, 2])
def test_slurm_gives_each_task_its_place(slurm, servers, monkeypatch):
    subprocess.run(["bash", "-n", SLURM], check=True)
    done = slurm.run("--train_epochs", "90", servers=servers)
    assert (done.returncode, done.stderr) == (0, "")
    count = 1 if servers is None else servers
    trainers = ["chief 0", "worker 0", "worker 1", "worker 2"]
    aside = ["evaluator 0", *(f"ps {number}" for number in range(count))]
    started = slurm.started()
    assert sorted(started) == sorted([*trainers, *aside])
    for name, [(config, gpus, words)] in started.items():
        task = task_of(config, monkeypatch)
        assert task.name == name
        assert task.num_workers == 4
        assert task.has_servers == bool(count)
        assert task.addresses["chief"] == ["node1:16912"]
        assert task.addresses["worker"] == [f"node{node}:16912" for node in (2, 3, 4)]
        assert task.addresses.get("ps", []) == [f"node{n + 1}:16913" for n in range(count)]
        assert gpus == ("0" if name in trainers else "")
        assert words == ["run.py", "train", "--train_epochs", "90"]


def test_slurm_starts_a_killed_worker_again(slurm):
    done = slurm.run(worker_1=[-9, -9, 0])
    assert done.returncode == 0, done.stderr
    assert len(slurm.started()["worker 1"]) == 3


def test_slurm_gives_up_on_a_worker(slurm):
    assert slurm.run(worker_1=[-9] * 9).returncode == 137
    assert len(slurm.started()["worker 1"]) == 1 + MAX_RESTARTS


def test_slurm_starts_no_worker_of_an_all_reduce_again(slurm):
    assert slurm.run(servers=0, worker_1=[-9]).returncode == 137
    assert len(slurm.started()["worker 1"]) == 1


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        ({"worker_0": [130]}, 0),  # the chief may still save
        ({"worker_0": [130], "chief_0": [130]}, 130),
        ({"worker_0": [1]}, 1),
        ({"chief_0": [2]}, 2),
        ({"evaluator_0": [1]}, 1),
    ],
)
def test_slurm_tells_how_it_ended(slurm, statuses, status):
    assert slurm.run(**statuses).returncode == status


def test_slurm_refuses_more_servers_than_nodes(slurm):
    done = slurm.run(servers=5)
    assert done.returncode == 2
    assert "4 nodes, SERVERS=5" in done.stderr


MANIFESTS = [*yaml.safe_load_all(KUBERNETES.read_text(encoding="utf-8"))]
(CONFIG,) = (each for each in MANIFESTS if each["kind"] == "ConfigMap")
(SERVICE,) = (each for each in MANIFESTS if each["kind"] == "Service")
JOBS = {each["metadata"]["name"]: each for each in MANIFESTS if each["kind"] == "Job"}


def test_kubernetes_has_what_each_kind_requires():
    names = [(each["kind"], each["metadata"]["name"]) for each in MANIFESTS]
    assert len(set(names)) == len(names) == 2 + len(JOBS)
    assert CONFIG["apiVersion"] == SERVICE["apiVersion"] == "v1"
    assert SERVICE["spec"]["clusterIP"] == "None"  # headless: a name for each pod
    for job in JOBS.values():
        assert job["apiVersion"] == "batch/v1"
        spec = job["spec"]
        assert spec["completionMode"] == "Indexed"
        assert spec["completions"] == spec["parallelism"]
        template = spec["template"]
        assert SERVICE["spec"]["selector"].items() <= template["metadata"]["labels"].items()
        pod = template["spec"]
        assert pod["restartPolicy"] == "Never"  # which a podFailurePolicy asks for
        assert pod["subdomain"] == SERVICE["metadata"]["name"]
        (container,) = pod["containers"]
        assert {"name", "image", "command", "workingDir"} <= container.keys()
        volumes = {each["name"] for each in pod.get("volumes", [])}
        assert {each["name"] for each in container.get("volumeMounts", [])} == volumes
        for rule in spec.get("podFailurePolicy", {}).get("rules", []):
            assert rule["action"] in ("Ignore", "FailJob")
            assert len(rule.keys() & {"onExitCodes", "onPodConditions"}) == 1


def environment_of(job: dict, index: int) -> dict[str, str]:
    """The variables of a pod: each may use those before it."""
    values: dict[str, str] = {}
    for variable in job["spec"]["template"]["spec"]["containers"][0]["env"]:
        source = variable.get("valueFrom", {})
        if entry := source.get("configMapKeyRef"):
            assert entry["name"] == CONFIG["metadata"]["name"]
            value = CONFIG["data"][entry["key"]]
        elif field := source.get("fieldRef"):
            path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
            assert field["fieldPath"] == path
            value = str(index)
        else:
            value = re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], variable["value"])
        values[variable["name"]] = value
    return values


def test_kubernetes_gives_each_pod_its_place(monkeypatch):
    pods = [
        (name, index, task_of(environment_of(job, index)["TF_CONFIG"], monkeypatch))
        for name, job in JOBS.items()
        for index in range(job["spec"]["completions"])
    ]
    tasks = {f"train-{task.job}-{task.index}": task for _, _, task in pods}
    assert [f"{name}-{index}" for name, index, _ in pods] == list(tasks)
    assert "train-evaluator-0" in tasks
    service = SERVICE["metadata"]["name"]
    for task in tasks.values():
        named = {
            f"train-{job}-{number}": address
            for job, addresses in task.addresses.items()
            for number, address in enumerate(addresses)
        }
        assert named == {
            name: f"{name}.{service}:2222" for name in tasks if name != "train-evaluator-0"
        }
        assert task.num_workers == 3


def test_kubernetes_gives_options_that_there_are(project):
    check_options(CONFIG["data"]["options"], project)
    for job in JOBS.values():
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert container["command"] == ["sh", "-c", "exec python run.py train $OPTIONS"]
        # The folders of the default paths, on what all pods share.
        folders = {each["mountPath"] for each in container.get("volumeMounts", [])}
        wanted = set() if container["name"] == "ps" else {"/project/data", "/project/runs"}
        assert folders == wanted
