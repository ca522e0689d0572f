"""The hyperparameters of this project: fields here are flags, and options of hyperparameters.yaml.

The settings of a run are those of library/config/settings.py.
"""

import dataclasses

from library import images as modality  # noqa: F401  what this project learns from
from library.config import Location, TrainingHyperparameters, option
from library.util import UserError


@dataclasses.dataclass(frozen=True)
class Network:
    """Network"""

    network: str = option(
        "cnn",
        "network to train",
        choices=("cnn", "resnet", "efficientnet_lite0", "hub"),
        defines_architecture=True,
    )
    resnet_layers: str = option(
        "18", "layers of network: resnet", choices=("18", "34", "50"), defines_architecture=True
    )
    hub_module: Location | None = option(
        None,
        "SavedModel of network: hub, a folder or a TensorFlow Hub URL",
        defines_architecture=True,
    )
    hub_input_range: str = option(
        "0..1",
        "pixel values that hub_module expects, unless it takes uint8",
        choices=("0..1", "-1..1", "0..255"),
        defines_architecture=True,
    )
    fine_tuning: bool = option(
        False,
        "train a pretrained network, too; else only the last layer",
        defines_architecture=True,
    )
    fine_tuning_rate_factor: float = option(
        0.1, "learning rate of the pretrained network, as a share of learning_rate", above=0
    )
    fine_tuned_blocks: int | None = option(
        None,
        "train only the last N of 16 blocks of efficientnet_lite0; null: all",
        minimum=1,
        defines_architecture=True,  # of checkpoints, which hold averages of what is trained
    )
    record_features: bool = option(
        False, "compute the features of a frozen efficientnet_lite0 once, without augmentation"
    )
    image_size: int | None = option(
        64,
        "edge of the network's input, in pixels; null: that of hub_module",
        minimum=16,
        defines_architecture=True,
    )


@dataclasses.dataclass(frozen=True)
class Input:
    """Input and augmentation"""

    input_dtype: str = option(
        "float32",
        "type of images on their way to the device; uint8 is a quarter of the bytes",
        choices=("float32", "uint8"),
    )
    antialias: bool = option(True, "average pixels when images shrink; else sample them")
    min_crop_area: float = option(
        0.8, "smallest share of an image in a training crop", above=0, maximum=1
    )
    random_flip: bool = option(True, "flip training images with probability 0.5")
    test_augmentation: str = option(
        "none",
        "views of an image whose outputs are averaged, except in training",
        choices=("none", "flip", "flip_and_crop"),
    )


@dataclasses.dataclass(frozen=True)
class Hyperparameters(Network, Input, TrainingHyperparameters):
    """What the model is and how it learns: the sets of hyperparameters.yaml."""

    @property
    def input_size(self) -> int:
        """`image_size`, which `networks.resolve_hyperparameters` fills in where it is null."""
        assert self.image_size is not None, "resolve_hyperparameters comes first"
        return self.image_size

    def __post_init__(self) -> None:
        if self.network == "hub" and self.hub_module is None:
            raise UserError("hub_module: null: network hub needs a module")
        if self.record_features and (self.network != "efficientnet_lite0" or self.fine_tuning):
            raise UserError("record_features: needs network: efficientnet_lite0, no fine_tuning")
        if self.network != "hub" and self.image_size is None:
            raise UserError(f"image_size: null: network {self.network} takes any size: choose one")
