"""The hyperparameters of this project: fields here are flags, and options of hyperparameters.yaml.

The settings of a run are those of library/config/settings.py.
"""

import dataclasses
import math

from library import images as modality  # noqa: F401  what this project learns from
from library.config import Location, TrainingHyperparameters, architecture, option
from library.util import UserError


@dataclasses.dataclass(frozen=True)
class Network:
    """Network"""

    network: str = architecture(
        "cnn", "network to train", choices=("cnn", "resnet", "efficientnet_lite0", "hub")
    )
    resnet_layers: str = architecture("18", "layers of network: resnet", choices=("18", "34", "50"))
    hub_module: Location | None = architecture(
        None, "SavedModel of network: hub, a folder or a TensorFlow Hub URL"
    )
    hub_input_range: str = architecture(
        "0..1",
        "pixel values that hub_module expects, unless it takes uint8",
        choices=("0..1", "-1..1", "0..255"),
    )
    fine_tuning: bool = architecture(
        False, "train a pretrained network, too; else only the last layer"
    )
    fine_tuning_rate_factor: float = option(
        0.1, "learning rate of the pretrained network, as a share of learning_rate", above=0
    )
    # Checkpoints hold averages of what is trained.
    fine_tuned_blocks: int | None = architecture(
        None,
        "with fine_tuning, train only the last N of 16 blocks of efficientnet_lite0; null: all",
        minimum=1,
        maximum=16,
    )
    record_features: bool = option(
        False, "compute the features of a frozen efficientnet_lite0 once, without augmentation"
    )
    image_size: int | None = architecture(
        64, "edge of the network's input, in pixels; null: that of hub_module", minimum=16
    )


@dataclasses.dataclass(frozen=True)
class Input:
    """Input and augmentation"""

    input_dtype: str = option(
        "float32",
        "type of images on their way to the device; uint8 is a quarter of the bytes",
        choices=("float32", "uint8"),
    )
    antialias: bool = architecture(True, "average pixels when images shrink; else sample them")
    min_crop_area: float = architecture(
        0.8,
        "smallest share of an image in a training crop; of the central crop in evaluation",
        above=0,
        maximum=1,
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

    searched = {
        **TrainingHyperparameters.searched,
        "min_crop_area": (0.2, 1.0),
        "random_flip": (True, False),
    }

    @property
    def input_size(self) -> int:
        """`image_size`, which `networks.resolve_hyperparameters` fills in where it is null."""
        assert self.image_size is not None, "resolve_hyperparameters comes first"
        return self.image_size

    @property
    def central_share(self) -> float:
        """Edge of the crop that is seen except in training, as a share of the image's.

        It is that of the smallest training crop, and at least the usual 7/8: in the whole image,
        things are smaller than in training (Touvron et al. 2019, https://arxiv.org/abs/1906.06423).
        """
        return max(7 / 8, math.sqrt(self.min_crop_area))

    def __post_init__(self) -> None:
        if self.network == "hub" and self.hub_module is None:
            raise UserError("hub_module: null: network hub needs a module")
        if self.record_features and (self.network != "efficientnet_lite0" or self.fine_tuning):
            raise UserError("record_features: needs network: efficientnet_lite0, no fine_tuning")
        if self.network != "hub" and self.image_size is None:
            raise UserError(f"image_size: null: network {self.network} takes any size: choose one")
