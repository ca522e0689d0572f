"""Every option changes what a run does: its weights, its graph, its files or what it prints."""

import contextlib
import dataclasses
import functools
import io
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from conftest import convert, make_run, quick_network, summaries

from library.config import Settings
from library.data import num_train_examples
from library.estimator import ModeKeys
from library.train import Plan, Run, run_evaluation, start_training
from project import networks
from project.settings import Hyperparameters

pytestmark = pytest.mark.slow

WEIGHTS, GRAPH, CHECKPOINTS, POINTS = "weights", "graph", "checkpoints", "points in TensorBoard"
LINES, FOLDERS, BEST, EVALUATION, BATCHES = "lines", "folders", "best", "evaluation", "eval batches"
CACHE = "bytes in the cache"

DIVERGING = {"learning_rate": 9.0, "train_epochs": 2, "epochs_between_evals": 0.5}
EFFECTS: dict[str, tuple] = {
    "train_data": ("more/validation", WEIGHTS),
    "validation_data": ("more/train", BEST),
    "test_data": ("more/train", EVALUATION),
    "shuffle": ("stream", WEIGHTS),
    "shuffle_buffer_mb": (1e-3, WEIGHTS, {"shuffle": "stream"}),
    "sampling": ("balanced", WEIGHTS),
    "cache": ("file", CACHE),
    "cache_decoded": (True, CACHE, {"cache": "file"}),
    "cache_dir": ("elsewhere", FOLDERS, {"cache": "file"}),
    "limit_train_examples": (20, CHECKPOINTS),
    "fold": (1, CHECKPOINTS),
    "deterministic": (False, GRAPH),
    "early_stopping_evals": (1, CHECKPOINTS, DIVERGING),
    "keep_best_max": (2, BEST, {"epochs_between_evals": 0.5}),
    "model_dir": ("elsewhere", FOLDERS),
    "best_model_dir": ("elsewhere", FOLDERS),
    "model": ("latest", EVALUATION),
    "train_batch_size": (8, WEIGHTS),
    "eval_batch_size": (8, BATCHES),
    "train_epochs": (2.0, CHECKPOINTS),
    "epochs_between_evals": (0.5, CHECKPOINTS),
    "random_seed": (1, WEIGHTS),
    "xla": (True, GRAPH),
    "num_parallel_calls": (1, GRAPH),
    "prefetch_size": (3, GRAPH),
    "prefetch_to_device": ("/cpu:0", GRAPH),
    "log_steps": (1, LINES),
    "save_summary_steps": (1, POINTS),
    "keep_checkpoint_max": (1, CHECKPOINTS),
    "network": ("linear", WEIGHTS),
    "optimizer": ("sgd", WEIGHTS),
    "momentum": (0.5, WEIGHTS, {"optimizer": "sgd"}),
    "weight_decay": (0.5, WEIGHTS, {"optimizer": "adamw"}),
    "mixed_precision": (True, WEIGHTS),
    "gradient_accumulation": (4, WEIGHTS),
    "image_size": (32, GRAPH),
    "dropout_rate": (0.6, WEIGHTS),
    "learning_rate": (1e-2, WEIGHTS),
    "adam_beta1": (0.5, WEIGHTS),
    "adam_beta2": (0.5, WEIGHTS),
    "adam_epsilon": (1e-2, WEIGHTS),
    "average_decay": (0.0, EVALUATION),
    "test_augmentation": ("flip", EVALUATION),
    "learning_rate_schedule": ("exponential", WEIGHTS),
    "warmup_epochs": (1.0, WEIGHTS),
    "decay_epochs": (0.5, WEIGHTS, {"learning_rate_schedule": "exponential"}),
    "decay_rate": (0.1, WEIGHTS, {"learning_rate_schedule": "exponential"}),
    "clip_gradient_norm": (0.01, WEIGHTS),
    "l2_regularization": (1.0, WEIGHTS),
    "xentropy_label_smoothing": (0.4, WEIGHTS),
    "class_weights": ("balanced", WEIGHTS),
    "input_dtype": ("uint8", WEIGHTS),
    "antialias": (False, WEIGHTS),
    "min_crop_area": (0.3, WEIGHTS),
    "random_flip": (False, WEIGHTS),
}
"""Another value of each option, where it has to show, and other options that it needs for that."""

ELSEWHERE = {"hyperparameter_file", "hyperparameter_set", "max_minutes", "overfit", "live_progress"}
ELSEWHERE |= {"extra_data", "mixture_weights"}
ELSEWHERE |= {"devices", "sync_replicas", "warm_start_from", "resnet_layers"}
ELSEWHERE |= {"hub_module", "hub_input_range", "fine_tuning", "fine_tuning_rate_factor"}
ELSEWHERE |= {"fine_tuned_blocks", "record_features", "print_model"}
ELSEWHERE |= {"run", "head", "split", "input", "output", "top_k", "images_out", "export_dir"}
ELSEWHERE |= {"tflite", "onnx", "check", "trace", "workers", "ps", "runs"}
ELSEWHERE |= {"budget_minutes", "tune_trials", "tune_sets", "cache_gb"}
"""Where others come from, ends, a terminal, several processes, modules: other tests have them."""

SAME_WEIGHTS = ("num_parallel_calls", "prefetch_size", "prefetch_to_device", "log_steps")
SAME_WEIGHTS += ("save_summary_steps", "keep_checkpoint_max", "eval_batch_size")
SAME_WEIGHTS += ("epochs_between_evals", "keep_best_max", "cache", "cache_dir")


PNG = tf.io.encode_png(np.zeros([1, 1, 3], np.uint8)).numpy()
DRAWING = ("library.report.figures.png", "library.report.png", "library.report.image_grid")
"""Drawing has its own tests, and takes half the time."""


def linear(images: tf.Tensor, **_: Any) -> tf.Tensor:
    """Another network."""
    return tf.reduce_mean(tf.cast(images, tf.float32) / 255, axis=[1, 2])


@pytest.fixture(scope="module")
def here(data: Path, samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the datasets in `data`, and `more` with the halves the other way round."""
    here = tmp_path_factory.mktemp("effects")
    (here / "data").symlink_to(data)
    convert(samples / "train", here / "more", "train", "--validation_fraction", 0.5)
    return here


def new_run(here: Path, **changed: Any) -> Run:
    """A run of some steps in a folder of its own."""
    start = Path(tempfile.mkdtemp(dir=here)) / "run"
    start.mkdir()
    values = {"train_batch_size": 16, "train_epochs": 1, "epochs_between_evals": 1}
    values |= {"image_size": 16, "cache_dir": "cache", **changed}
    for name in values:
        if name.endswith("_data"):
            values[name] = str(here / values[name])
        elif name.endswith("_dir"):
            values[name] = start / values[name]
    return make_run(here / "data", start, **values)


def weights(run: Run) -> dict[str, bytes]:
    latest = tf.train.latest_checkpoint(str(run.settings.model_dir))
    names = [name for name, _ in tf.train.list_variables(latest)]
    return {name: tf.train.load_variable(latest, name).tobytes() for name in names}


@contextlib.contextmanager
def training_graph(here: Path, **changed: Any) -> Iterator[tuple[tf.Graph, tf.data.Iterator, Any]]:
    """The graph of a training, the iterator of its input, and its specification."""
    run = new_run(here, **changed).for_training()
    examples = num_train_examples(run.settings, run.card("train_data"))
    run = run.replace(plan=Plan.without_end(run, examples))
    with tf.Graph().as_default() as graph:
        tf.compat.v1.train.create_global_step()
        batches = tf.compat.v1.data.make_initializable_iterator(run.inputs.train_input(run))
        mode, params = ModeKeys.TRAIN, run.hyperparameters
        yield graph, batches, run.model_fn(*batches.get_next(), mode, params, run=run)


def observe_graph(here: Path, **changed: Any) -> dict[str, Any]:
    """The graph of a training."""
    with training_graph(here, **changed) as (graph, _, _):
        text = str(graph.as_graph_def()).replace(str(here), "")
    # Functions have names that are numbered through the process, and are sorted by them.
    return {GRAPH: sorted(re.sub(r"_\d+", "", text).splitlines())}


def observe_steps(here: Path, **changed: Any) -> dict[str, Any]:
    """Train for four steps and nothing else: the weights."""
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True  # slower than four steps
    with (
        training_graph(here, **changed) as (_, batches, spec),
        tf.compat.v1.Session(config=config) as session,
    ):
        session.run([tf.compat.v1.global_variables_initializer(), batches.initializer])
        for _ in range(4):
            session.run(spec.train_op)
        variables = {each.op.name: each for each in tf.compat.v1.global_variables()}
        return {WEIGHTS: {name: x.tobytes() for name, x in session.run(variables).items()}}


def observe_training(here: Path, **changed: Any) -> dict[str, Any]:
    """Train as the command does, and collect what there is to see."""
    run = new_run(here, **changed)
    settings, start = run.settings, run.settings.model_dir.parent
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        start_training(run)
    best = json.loads((settings.best_model_dir / "best.json").read_text())
    batches = run.inputs.evaluation_input(run.trained()[0], settings.test_data)
    return {
        WEIGHTS: weights(run),
        CHECKPOINTS: sorted(path.name for path in settings.model_dir.glob("*.index")),
        POINTS: [step for step, _ in summaries(settings.model_dir)],
        LINES: printed.getvalue().count("\nstep "),
        FOLDERS: sorted(relative(path, start, here) for path in start.iterdir()),
        CACHE: sum(path.stat().st_size for path in start.glob("cache/*.tfrecord")),
        BEST: [one["value"] for one in best["kept"]],
        BATCHES: [int(labels.shape[0]) for _, labels in batches],
    }


def observe_evaluation(here: Path, **changed: Any) -> dict[str, Any]:
    """Train and evaluate as the commands do: the metrics."""
    run = new_run(here, **changed)
    start_training(run)
    run_evaluation(run)
    metrics = json.loads((run.dir / "evaluation" / "test" / "metrics.json").read_text())
    return {EVALUATION: {name: relative(x, run.dir, here) for name, x in metrics.items()}}


def relative(value: Any, start: Path, here: Path) -> str:
    """The text of a value, without the folders of the run."""
    return str(value).replace(str(start), "").replace(str(here), "")


@pytest.fixture(scope="module")
def observed(here: Path) -> Callable[..., dict[str, Any]]:
    """A function that observes each combination of options once, with a small network."""
    with pytest.MonkeyPatch.context() as patch:
        quick_network(patch)
        patch.setitem(networks.NETWORKS, "linear", linear)
        for name in DRAWING:
            patch.setattr(name, lambda *_, **__: PNG)
        yield functools.cache(lambda how, **options: how(here, **options))


HOW = {WEIGHTS: observe_steps, GRAPH: observe_graph, EVALUATION: observe_evaluation}
"""Where an effect shows is looked at alone; where it is none of these, in a whole training."""


@pytest.mark.parametrize("how", [*HOW.values(), observe_training])
def test_the_same_options_show_the_same(observed, how):
    assert observed(how, xla=False) == observed(how)


@pytest.mark.parametrize("name", EFFECTS)
def test_another_value_shows(observed, name):
    value, shows, *needs = EFFECTS[name]
    needs = dict(*needs)
    how = HOW.get(shows, observe_training)
    before, after = observed(how, **needs), observed(how, **needs, **{name: value})
    assert after[shows] != before[shows]
    if name in SAME_WEIGHTS:
        how = observe_steps if shows == GRAPH else how
        before, after = observed(how, **needs), observed(how, **needs, **{name: value})
        assert after[WEIGHTS] == before[WEIGHTS]


def test_no_option_is_left_out():
    names = {f.name for cls in (Settings, Hyperparameters) for f in dataclasses.fields(cls)}
    assert names == EFFECTS.keys() | ELSEWHERE
