"""The hyperparameters of this project: fields here are flags, and options of hyperparameters.yaml.

The settings of a run are those of library/config/settings.py.
"""

import dataclasses

from library import audio as modality  # noqa: F401  what this project learns from
from library.config import Settings, TrainingHyperparameters, option  # noqa: F401
from library.util import UserError


@dataclasses.dataclass(frozen=True)
class Network:
    """Network"""

    network: str = option(
        "cnn", "network to train", choices=("cnn", "resnet"), defines_architecture=True
    )
    resnet_layers: str = option(
        "18", "layers of network: resnet", choices=("18", "34", "50"), defines_architecture=True
    )


@dataclasses.dataclass(frozen=True)
class Spectrogram:
    """Input"""

    sample_rate: int = option(
        16000, "samples per second of the audio clips", minimum=1000, defines_architecture=True
    )
    window_secs: float = option(
        1.0, "length of the network's input", above=0, maximum=60, defines_architecture=True
    )
    frame_secs: float = option(0.025, "length of each spectrum", above=0, defines_architecture=True)
    hop_secs: float = option(0.01, "time between two spectra", above=0, defines_architecture=True)
    mel_bands: int = option(64, "bands of the mel scale", minimum=8, defines_architecture=True)
    min_hz: float = option(60, "lower edge of the first band", minimum=0, defines_architecture=True)
    max_hz: float = option(7600, "upper edge of the last band", above=0, defines_architecture=True)


@dataclasses.dataclass(frozen=True)
class Hyperparameters(Network, Spectrogram, TrainingHyperparameters):
    """What the model is and how it learns: the sets of hyperparameters.yaml."""

    def __post_init__(self) -> None:
        if self.frame_secs > self.window_secs:
            raise UserError(
                f"frame_secs: {self.frame_secs:g} is above window_secs, {self.window_secs:g}"
            )
        if not self.min_hz < self.max_hz <= self.sample_rate / 2:
            raise UserError(
                f"max_hz: {self.max_hz:g} is not above min_hz, {self.min_hz:g}, and at most half "
                f"of sample_rate, {self.sample_rate / 2:g}"
            )
        if min(self.frame_secs, self.hop_secs) * self.sample_rate < 1:
            raise UserError("hop_secs: frame_secs and hop_secs have to be at least a sample")
