"""All that can be set: `Settings` in project.yaml, `Hyperparameters` in hyperparameters.yaml.

A field is an option everywhere: in the YAML file, as a flag of `run.py`, in the code. Its help,
type, default and range stand here and nowhere else.
"""

import dataclasses
from pathlib import Path

from library import images as modality  # noqa: F401  what this project learns from
from library.config import Location, option
from library.util import UserError

DATA, FILES, TRAINING, SPEED, LOGGING = "data", "files", "training", "speed", "logging"
NETWORK, OPTIMIZATION, AUGMENTATION = "network", "optimization", "augmentation"


@dataclasses.dataclass(frozen=True)
class Settings:
    """How and where a run happens: the command line, kept in project.yaml."""

    train_data: Location = option(Location("data/train"), "data set to train on", group=DATA)
    validation_data: Location = option(
        Location("data/validation"), "data set that chooses the best model", group=DATA
    )
    test_data: Location = option(Location("data/test"), "data set that chooses nothing", group=DATA)
    shuffle: str = option(
        "global",
        "all examples by their number, or shards in a stream where random reads are slow",
        group=DATA,
        choices=("global", "stream"),
    )
    shuffle_buffer_mb: float = option(
        256, "size of the buffer of a stream, in megabytes", group=DATA, above=0
    )
    cache: str = option(
        "none",
        "where the training data is kept after it was read once: in memory, or on this disk",
        group=DATA,
        choices=("none", "memory", "file"),
    )
    cache_decoded: bool = option(
        False,
        "keep its pictures decoded: faster, 5 to 20 times as large, and not the same to the bit",
        group=DATA,
    )
    cache_dir: Path = option(Path("out/cache"), "folder of `cache: file`", group=DATA)
    limit_train_examples: int | None = option(
        None, "train on so many of the examples, for a quick look", group=DATA, minimum=1
    )

    hyperparameter_file: Path = option(
        Path("hyperparameters.yaml"), "YAML file with sets of hyperparameters", group=FILES
    )
    hyperparameter_set: str = option("default", "the set of it to use", group=FILES)
    model_dir: Path = option(Path("out/current"), "folder for checkpoints and logs", group=FILES)
    best_model_dir: Path = option(Path("out/best"), "folder for the best checkpoint", group=FILES)
    model: Path = option(
        Path("best"),
        "checkpoint for evaluate, predict and export",
        group=FILES,
        choices=("latest", "best"),
    )

    train_batch_size: int = option(32, "examples a training step", group=TRAINING, minimum=1)
    eval_batch_size: int = option(
        128, "examples a step of evaluation or prediction", group=TRAINING, minimum=1
    )
    train_epochs: float = option(
        30, "passes over the training data in all, over all starts", group=TRAINING, above=0
    )
    epochs_between_evals: float = option(
        1, "passes from evaluation to evaluation, each with a checkpoint", group=TRAINING, above=0
    )
    random_seed: int = option(
        0,
        "fixes the order, augmentation, initial weights and dropout",
        group=TRAINING,
        minimum=0,
        maximum=2**31 - 1,
    )

    warm_start_from: Path | None = option(
        None,
        "checkpoint, or folder of one, whose variables of the same name and shape a new run takes",
        group=TRAINING,
    )
    overfit: int | None = option(
        None,
        "only see whether the model can learn so many fixed examples by heart; nothing is kept",
        group=TRAINING,
        minimum=1,
    )
    deterministic: bool = option(
        True, "two runs give the same weights, and one that was killed too", group=TRAINING
    )
    max_time: float | None = option(
        None, "minutes after which training is saved and stops", group=TRAINING, above=0
    )
    early_stopping_evals: int | None = option(
        None,
        "evaluations in a row without a better loss that end training",
        group=TRAINING,
        minimum=1,
    )

    devices: int = option(
        1,
        "GPUs of this machine that share each batch; without one, parts of the CPU, to try it out",
        group=SPEED,
        choices=("all",),
        minimum=1,
    )
    sync_replicas: bool = option(
        False,
        "with parameter servers, workers share each batch, and wait for each other",
        group=SPEED,
    )
    xla: bool = option(False, "compile the network with XLA, but for the export", group=SPEED)
    mixed_precision: bool = option(
        False, "train in float16 on a GPU, in bfloat16 on a CPU; variables in float32", group=SPEED
    )
    num_parallel_calls: int = option(
        -1, "pictures decoded at the same time; -1: as many as pays", group=SPEED, minimum=-1
    )
    prefetch_size: int = option(2, "batches made ahead", group=SPEED, minimum=1)
    prefetch_to_device: str | None = option(
        None, "device that batches are copied to ahead, as /gpu:0", group=SPEED
    )

    log_steps: int = option(
        50, "steps from line to line of progress in a log", group=LOGGING, minimum=1
    )
    live_progress: bool = option(
        True, "on a terminal, one line that is written over; else lines, as in a log", group=LOGGING
    )
    save_summary_steps: int = option(
        100, "steps from point to point in TensorBoard", group=LOGGING, minimum=1
    )
    keep_checkpoint_max: int = option(
        5, "checkpoints kept in model_dir; 0: all", group=LOGGING, minimum=0
    )

    keep_best_max: int = option(
        1, "checkpoints kept in best_model_dir, the best ones", group=LOGGING, minimum=1
    )

    def __post_init__(self) -> None:
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


@dataclasses.dataclass(frozen=True)
class Hyperparameters:
    """What the model is, and how it learns: hyperparameters.yaml."""

    network: str = option(
        "cnn", "the network", group=NETWORK, choices=("cnn", "resnet", "hub"), shaping=True
    )
    resnet_layers: str = option(
        "18", "layers of a resnet", group=NETWORK, choices=("18", "34", "50"), shaping=True
    )
    hub_module: Location | None = option(
        None,
        "SavedModel of network hub: a folder, or the URL of a module of TensorFlow Hub",
        group=NETWORK,
        shaping=True,
    )
    hub_input_range: str = option(
        "0..1",
        "pixels that it takes, unless it takes uint8",
        group=NETWORK,
        choices=("0..1", "-1..1", "0..255"),
        shaping=True,
    )
    fine_tuning: bool = option(
        False, "train the module too, and not only the last layer behind it", group=NETWORK
    )
    fine_tuning_rate_factor: float = option(
        0.1, "the module's learning rate, as a share of learning_rate", group=NETWORK, above=0
    )
    image_size: int | None = option(
        64,
        "edge of its input, in pixels; null: as hub_module says",
        group=NETWORK,
        minimum=16,
        shaping=True,
    )
    input_dtype: str = option(
        "float32",
        "type of the pictures on their way to it: uint8 is a quarter of the bytes",
        group=NETWORK,
        choices=("float32", "uint8"),
    )
    antialias: bool = option(
        True, "average areas where pictures shrink, instead of picking points", group=NETWORK
    )
    dropout_rate: float = option(
        0.3,
        "share of features dropped before the last layer",
        group=NETWORK,
        minimum=0,
        maximum=0.9,
    )

    learning_rate: float = option(3e-3, "step size of Adam", group=OPTIMIZATION, above=0)
    learning_rate_schedule: str = option(
        "constant",
        "how it changes after the warm-up",
        group=OPTIMIZATION,
        choices=("constant", "cosine", "step", "exponential"),
    )
    warmup_epochs: float = option(
        0, "epochs in which it rises from 0", group=OPTIMIZATION, minimum=0
    )
    decay_epochs: float = option(
        10, "epochs until cosine is at 0, or from decay to decay", group=OPTIMIZATION, above=0
    )
    decay_rate: float = option(
        0.5, "factor of each step or exponential decay", group=OPTIMIZATION, above=0, maximum=1
    )
    gradient_accumulation: int = option(
        1,
        "parts of a batch, worked on in turn where all of it does not fit in memory",
        group=OPTIMIZATION,
        minimum=1,
    )
    clip_gradient_norm: float | None = option(
        None, "gradients are scaled down to this global norm", group=OPTIMIZATION, above=0
    )
    adam_beta1: float = option(
        0.9, "decay of the mean of gradients", group=OPTIMIZATION, minimum=0, maximum=0.999999
    )
    adam_beta2: float = option(
        0.999, "decay of the mean of their squares", group=OPTIMIZATION, minimum=0, maximum=0.999999
    )
    adam_epsilon: float = option(
        1e-8, "added to the denominator of Adam", group=OPTIMIZATION, above=0
    )
    l2_regularization: float = option(
        1e-5, "weight of half the kernels' squares in the loss", group=OPTIMIZATION, minimum=0
    )
    xentropy_label_smoothing: float = option(
        0.1,
        "share of the label spread over all classes",
        group=OPTIMIZATION,
        minimum=0,
        maximum=0.9,
    )

    min_crop_area: float = option(
        0.8,
        "smallest share of a picture in a training crop",
        group=AUGMENTATION,
        above=0,
        maximum=1,
    )
    random_flip: bool = option(True, "mirror every other training picture", group=AUGMENTATION)

    @property
    def input_size(self) -> int:
        """`image_size`, which `project.networks.prepared` fills in where it is null."""
        assert self.image_size is not None, "prepared comes first"
        return self.image_size

    def __post_init__(self) -> None:
        if self.network == "hub" and self.hub_module is None:
            raise UserError("hub_module: null: network hub needs a module")
        if self.network != "hub" and self.image_size is None:
            raise UserError(f"image_size: null: network {self.network} takes any size: choose one")
