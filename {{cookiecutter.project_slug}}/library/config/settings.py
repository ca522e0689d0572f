"""The settings of a run: where its data is, how long it trains, what each command needs."""

import dataclasses
import itertools
import re
from pathlib import Path
from typing import Any

from library.config.options import Location, option
from library.util import PROJECT, refuse

PATTERN = "*?[\\"
"""With one of these in a checkpoint's path, TensorFlow does not find it."""

SPLITS = ("train", "validation", "test")
FOLDS = 5
"""Of a cross-validation."""

COMMAND_ALIASES = {
    "test": "evaluate --split test",
    "eval": "evaluate",
    "fit": "train",
    "infer": "predict",
    "list": "runs",
    "tensorboard": "tensorboard --logdir runs, without python run.py",
}
"""What one may type for a command, and what an error suggests instead."""

ALIASES = {
    **dict.fromkeys(("lr", "rate"), "learning_rate"),
    **dict.fromkeys(("lr_schedule", "schedule", "scheduler"), "learning_rate_schedule"),
    **dict.fromkeys(("epochs", "num_epochs"), "train_epochs"),
    **dict.fromkeys(("batch_size", "bs", "batch"), "train_batch_size"),
    **dict.fromkeys(("gpu", "gpus", "num_gpus"), "devices"),
    **dict.fromkeys(("fp16", "amp"), "mixed_precision"),
    **dict.fromkeys(("name", "run_name"), "run"),
    "seed": "random_seed",
}
"""The same for an option."""


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """Data"""

    train_data: Location = option(Location("data/train"), "dataset to train on")
    extra_data: tuple[Location, ...] = option((), "more datasets to train on, of the same classes")
    mixture_weights: tuple[float, ...] = option(
        (), "shares of train_data and each of extra_data; none: by their examples", above=0
    )
    validation_data: Location = option(
        Location("data/validation"), "dataset used to select the best checkpoint"
    )
    test_data: Location = option(Location("data/test"), "dataset for the final evaluation only")


@dataclasses.dataclass(frozen=True)
class InputSettings:
    """Reading of the training data"""

    shuffle: str = option(
        "global",
        "order of training: shuffle all examples, or stream the shards where random access is slow",
        choices=("global", "stream"),
    )
    shuffle_buffer_mb: float = option(256, "megabytes that shuffle: stream mixes", above=0)
    sampling: str = option(
        "natural",
        "share of each class in what is trained on; balanced: the same; sqrt: between the two",
        choices=("natural", "balanced", "sqrt"),
    )
    cache: str = option(
        "none", "where training data stays after the first read", choices=("none", "memory", "file")
    )
    cache_decoded: bool = option(
        False, "cache decoded images: faster, 5 to 20 times larger, not bit-identical"
    )
    cache_dir: Path = option(
        Path("data/cache"), "folder for cache: file, and for what is read of data at a URL"
    )
    cache_gb: float = option(
        10, "gigabytes of cache_dir that data at a URL may take, at most", minimum=0.01
    )
    limit_train_examples: int | None = option(None, "train on N examples only", minimum=1)
    fold: int | None = option(
        None,
        f"cross-validation: train without every {FOLDS}th example, from number N on",
        minimum=0,
        maximum=FOLDS - 1,
    )


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """Run"""

    run: str = option("default", "name of the run; its folder is runs/NAME")
    # The two are None only as options: in Settings they follow from `run`.
    model_dir: Path = option(None, "folder for checkpoints; null: runs/NAME/checkpoints")
    best_model_dir: Path = option(None, "folder for the best checkpoint; null: runs/NAME/best")
    model: Path = option(
        Path("best"), "checkpoint to evaluate, predict with or export", choices=("latest", "best")
    )
    hyperparameter_file: Path = option(Path("hyperparameters.yaml"), "file of hyperparameter sets")
    hyperparameter_set: str = option("default", "hyperparameter set to use")


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """Training"""

    train_batch_size: int = option(32, "examples per training step", minimum=1)
    eval_batch_size: int = option(128, "examples per step of evaluation or prediction", minimum=1)
    train_epochs: float = option(30, "total epochs, including earlier starts", above=0)
    epochs_between_evals: float = option(1, "epochs per evaluation and checkpoint", above=0)
    random_seed: int = option(
        0, "seed of order, augmentation, initialization, dropout", minimum=0, maximum=2**31 - 1
    )
    warm_start_from: Path | None = option(
        None, "checkpoint, or its folder, that gives a new run its initial weights"
    )
    overfit: int | None = option(
        None, "sanity check: can the model overfit N examples? saves nothing", minimum=1
    )
    deterministic: bool = option(True, "equal runs give equal weights, even if interrupted")
    max_minutes: float | None = option(None, "minutes until training saves and stops", above=0)
    early_stopping_evals: int | None = option(
        None, "stop after N evaluations without a lower loss", minimum=1
    )


@dataclasses.dataclass(frozen=True)
class SpeedSettings:
    """Speed"""

    devices: int = option(
        1, "GPUs that share each batch; parts of the CPU without one", choices=("all",), minimum=1
    )
    sync_replicas: bool = option(False, "workers of parameter servers share each batch, in step")
    xla: bool = option(False, "compile the network with XLA, except in the export")
    mixed_precision: bool = option(
        False, "compute in float16 on a GPU, bfloat16 on a CPU; variables stay float32"
    )
    num_parallel_calls: int = option(-1, "examples read in parallel; -1: one per core", minimum=-1)
    prefetch_size: int = option(2, "batches to prepare in advance", minimum=1)
    prefetch_to_device: str | None = option(None, "device to copy batches to early, as /gpu:0")


@dataclasses.dataclass(frozen=True)
class LoggingSettings:
    """Logging"""

    log_steps: int = option(50, "steps between progress lines in a log", minimum=1)
    live_progress: bool = option(True, "overwrite one progress line, on a terminal")
    save_summary_steps: int = option(100, "steps between points in TensorBoard", minimum=1)
    keep_checkpoint_max: int = option(5, "checkpoints to keep in model_dir; 0: all", minimum=0)
    keep_best_max: int = option(1, "checkpoints to keep in best_model_dir", minimum=1)


@dataclasses.dataclass(frozen=True)
class CommandSettings:
    """Flags of one command"""

    print_model: bool = option(
        False, "print layers, shapes, parameters, FLOPs, and stop", command="train"
    )
    split: str | None = option(
        None,
        "dataset to evaluate on; null: test, for compare validation",
        choices=SPLITS,
        command="evaluate or compare",
    )
    runs: tuple[str, ...] = option(
        (), "names or folders of runs, the first one the baseline; none: all", command="compare"
    )
    input: tuple[str, ...] = option(
        (), "files, folders, patterns; - for names from standard input", command="predict"
    )
    output: str | None = option(
        None, ".csv or .jsonl file; - for standard output; null: in runs/NAME", command="predict"
    )
    top_k: int | None = option(None, "only the N likeliest classes", minimum=1, command="predict")
    images_out: Path | None = option(
        None, "folder to draw the worst mistakes in, if folders are classes", command="predict"
    )
    export_dir: Path | None = option(
        None, "folder for SavedModels; null: runs/NAME/export", command="export"
    )
    tflite: bool = option(False, "also write LiteRT models", command="export")
    onnx: bool = option(False, "also write an ONNX model", command="export")
    check: bool = option(False, "compare the export with the checkpoint", command="export")
    budget_minutes: float = option(
        20, "minutes for the search, over all its starts", above=0, command="tune"
    )
    tune_trials: int | None = option(None, "at most N trials", minimum=1, command="tune")
    tune_sets: tuple[str, ...] = option(
        (), "hyperparameter sets to choose from; none: that of hyperparameter_set", command="tune"
    )
    trace: bool = option(False, "write a trace for TensorBoard", command="profile")
    workers: int = option(2, "workers beside the chief", minimum=0, command="cluster")
    ps: int = option(1, "parameter servers; 0: all-reduce", minimum=0, command="cluster")


@dataclasses.dataclass(frozen=True)
class Settings(
    DataSettings,
    RunSettings,
    TrainingSettings,
    InputSettings,
    SpeedSettings,
    LoggingSettings,
    CommandSettings,
):
    """How and where a run happens: the sets of project.yaml, and the command line."""

    @property
    def run_dir(self) -> Path:
        """The folder of the run."""
        return self.model_dir.parent if self.model_dir.name == "checkpoints" else self.model_dir

    def __post_init__(self) -> None:
        for name, folder in (("model_dir", "checkpoints"), ("best_model_dir", "best")):
            if getattr(self, name) is None:
                object.__setattr__(self, name, PROJECT / "runs" / self.run / folder)
        stream = self.shuffle == "stream"
        mistakes: dict[str, Any] = {
            f"run: {self.run or 'nothing'} is not a name of letters, digits, '.', '-' and '_', the "
            "first no '.' or '-'": not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", self.run),
            f"epochs_between_evals: {self.epochs_between_evals:g} is above train_epochs, "
            f"{self.train_epochs:g}: there would be no evaluation": (
                self.epochs_between_evals > self.train_epochs
            ),
            f"best_model_dir: {self.best_model_dir} is model_dir, too": (
                self.model_dir == self.best_model_dir
            ),
            "extra_data: needs shuffle: global": self.extra_data and stream,
            f"mixture_weights: {len(self.mixture_weights)} of them, but train_data and extra_data "
            f"have {1 + len(self.extra_data)} datasets": (
                self.mixture_weights and len(self.mixture_weights) != 1 + len(self.extra_data)
            ),
            "limit_train_examples: takes no extra_data": (
                self.limit_train_examples and self.extra_data
            ),
            "limit_train_examples: needs shuffle: global": self.limit_train_examples and stream,
            f"sampling: {self.sampling} needs shuffle: global": self.sampling != "natural"
            and stream,
            "fold: needs shuffle: global": self.fold is not None and stream,
            f"cache: {self.cache} needs shuffle: global": self.cache != "none" and stream,
            "cache_decoded: needs cache: memory or cache: file": (
                self.cache_decoded and self.cache == "none"
            ),
            "num_parallel_calls: 0 is not -1 or at least 1": self.num_parallel_calls == 0,
        }
        for name in ("model_dir", "best_model_dir", "model", "warm_start_from"):
            path = getattr(self, name)
            line = f"{name}: {path} has one of {PATTERN}, which are a pattern for TensorFlow"
            mistakes[line] = path and {*Path(path).as_posix()} & {*PATTERN}
        refuse(mistakes)

    @property
    def next_run(self) -> str:
        """The first of the names NAME, NAME-2, NAME-3 and so on that no run has."""
        names = itertools.chain([self.run], (f"{self.run}-{i}" for i in itertools.count(2)))
        return next(name for name in names if not (PROJECT / "runs" / name).exists())
