"""The settings of a run: where its data is, how long it trains, what each command needs."""

import dataclasses
import re
from pathlib import Path

from library.config.options import Location, option
from library.util import UserError

PROJECT = Path(__file__).parents[2]
"""The folder of run.py."""

SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """Data"""

    train_data: Location = option(Location("data/train"), "dataset to train on")
    validation_data: Location = option(
        Location("data/validation"), "dataset used to select the best checkpoint"
    )
    test_data: Location = option(Location("data/test"), "dataset for the final evaluation only")
    shuffle: str = option(
        "global",
        "global: shuffle all examples; stream: read shards in order, for slow random access",
        choices=("global", "stream"),
    )
    shuffle_buffer_mb: float = option(256, "buffer of shuffle: stream, in megabytes", above=0)
    cache: str = option(
        "none",
        "where to keep the training data after the first read",
        choices=("none", "memory", "file"),
    )
    cache_decoded: bool = option(
        False, "cache decoded images: faster, 5 to 20 times larger, not bit-identical"
    )
    cache_dir: Path = option(Path("data/cache"), "folder of cache: file")
    limit_train_examples: int | None = option(
        None, "train on this many examples only, for a quick test", minimum=1
    )


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """Run"""

    run: str = option("default", "name of the run, whose folder is runs/NAME")
    # Never None in a Settings: they follow from `run`.
    model_dir: Path = option(None, "folder for checkpoints and logs; null: runs/NAME/checkpoints")
    best_model_dir: Path = option(None, "folder for the best checkpoint; null: runs/NAME/best")
    model: Path = option(
        Path("best"),
        "checkpoint for evaluate, predict and export",
        choices=("latest", "best"),
    )
    hyperparameter_file: Path = option(
        Path("hyperparameters.yaml"), "YAML file of hyperparameter sets"
    )
    hyperparameter_set: str = option("default", "hyperparameter set to use")


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """Training"""

    train_batch_size: int = option(32, "examples per training step", minimum=1)
    eval_batch_size: int = option(128, "examples per step of evaluation and prediction", minimum=1)
    train_epochs: float = option(30, "total epochs, including earlier starts", above=0)
    epochs_between_evals: float = option(
        1, "epochs between evaluations; each also saves a checkpoint", above=0
    )
    random_seed: int = option(
        0,
        "seed of the order, augmentation, initial weights and dropout",
        minimum=0,
        maximum=2**31 - 1,
    )
    warm_start_from: Path | None = option(
        None, "checkpoint or its folder: a new run takes variables of equal name and shape"
    )
    overfit: int | None = option(
        None, "sanity check: can the model overfit N examples? saves nothing", minimum=1
    )
    deterministic: bool = option(True, "give the same weights in every run, interrupted or not")
    max_minutes: float | None = option(
        None, "minutes after which training saves and stops", above=0
    )
    early_stopping_evals: int | None = option(
        None, "stop after this many evaluations without a lower loss", minimum=1
    )


@dataclasses.dataclass(frozen=True)
class SpeedSettings:
    """Speed"""

    devices: int = option(
        1,
        "GPUs that share each batch; without a GPU, parts of the CPU",
        choices=("all",),
        minimum=1,
    )
    sync_replicas: bool = option(
        False, "with parameter servers: workers share each batch and wait for each other"
    )
    xla: bool = option(False, "compile the network with XLA, except in the export")
    mixed_precision: bool = option(
        False, "compute in float16 on a GPU, bfloat16 on a CPU; variables stay float32"
    )
    num_parallel_calls: int = option(-1, "examples decoded in parallel; -1: autotune", minimum=-1)
    prefetch_size: int = option(2, "batches prepared in advance", minimum=1)
    prefetch_to_device: str | None = option(
        None, "device to copy batches to in advance, for example /gpu:0"
    )


@dataclasses.dataclass(frozen=True)
class LoggingSettings:
    """Logging"""

    log_steps: int = option(50, "steps between progress lines in a log", minimum=1)
    live_progress: bool = option(True, "overwrite one progress line on a terminal")
    save_summary_steps: int = option(100, "steps between points in TensorBoard", minimum=1)
    keep_checkpoint_max: int = option(
        5, "latest checkpoints to keep in model_dir; 0: all", minimum=0
    )
    keep_best_max: int = option(1, "best checkpoints to keep in best_model_dir", minimum=1)


@dataclasses.dataclass(frozen=True)
class CommandSettings:
    """Flags of one command"""

    split: str = option("test", "dataset to evaluate on", choices=SPLITS, command="evaluate")
    input: tuple[str, ...] = option(
        (), "files, folders, patterns; -: standard input", command="predict"
    )
    output: str | None = option(
        None, ".csv or .jsonl; -: standard output; null: in the run's folder", command="predict"
    )
    top_k: int | None = option(
        None, "write the N most probable classes, not all", minimum=1, command="predict"
    )
    images_out: Path | None = option(
        None, "folder for the worst mistakes, where folders name the classes", command="predict"
    )
    export_dir: Path | None = option(None, "null: export, in the run's folder", command="export")
    tflite: bool = option(False, "write LiteRT models, too", command="export")
    check: bool = option(
        False, "compare the export with the checkpoint, in a new process", command="export"
    )
    trace: bool = option(False, "write a trace for TensorBoard to model_dir", command="profile")
    workers: int = option(2, "workers beside the chief", minimum=0, command="cluster")
    ps: int = option(1, "parameter servers; 0: all-reduce", minimum=0, command="cluster")


@dataclasses.dataclass(frozen=True)
class Settings(
    DataSettings, RunSettings, TrainingSettings, SpeedSettings, LoggingSettings, CommandSettings
):
    """How and where a run happens: the sets of project.yaml, and the command line."""

    @property
    def run_dir(self) -> Path:
        """The folder of the run."""
        return self.model_dir.parent if self.model_dir.name == "checkpoints" else self.model_dir

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]*\w[\w.-]*", self.run, re.ASCII):
            raise UserError(f"run: {self.run} is not a name of letters, digits, . - and _")
        for name, folder in (("model_dir", "checkpoints"), ("best_model_dir", "best")):
            if getattr(self, name) is None:
                object.__setattr__(self, name, PROJECT / "runs" / self.run / folder)
        if self.epochs_between_evals > self.train_epochs:
            raise UserError(
                f"epochs_between_evals: {self.epochs_between_evals:g} is above train_epochs, "
                f"{self.train_epochs:g}: there would be no evaluation"
            )
        if self.model_dir == self.best_model_dir:
            raise UserError(f"best_model_dir: {self.best_model_dir} is model_dir too")
        if self.limit_train_examples and self.shuffle == "stream":
            raise UserError(
                "limit_train_examples: a stream has no numbers to choose by: set shuffle: global"
            )
        if self.cache != "none" and self.shuffle == "stream":
            raise UserError(
                f"cache: {self.cache} is read by number, in a shuffle of all: set shuffle: global"
            )
        if self.cache_decoded and self.cache == "none":
            raise UserError("cache_decoded: there is no cache: set cache: memory, or cache: file")
        if self.num_parallel_calls == 0:
            raise UserError("num_parallel_calls: 0 is not -1 or at least 1")
