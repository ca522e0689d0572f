"""The hyperparameters of this project: fields here are flags, and options of hyperparameters.yaml.

The settings of a run are those of library/config/settings.py.
"""

import dataclasses

from library import audio as modality  # noqa: F401  what this project learns from
from library.config import Settings, TrainingHyperparameters, architecture, option  # noqa: F401
from library.util import UserError


@dataclasses.dataclass(frozen=True)
class Network:
    """Network"""

    network: str = architecture("cnn", "network to train", choices=("cnn", "resnet"))
    resnet_layers: str = architecture("18", "layers of network: resnet", choices=("18", "34", "50"))


@dataclasses.dataclass(frozen=True)
class Spectrogram:
    """Input"""

    sample_rate: int | None = architecture(
        None, "samples per second of the audio clips; null: that of the training data", minimum=1000
    )
    window_secs: float = architecture(1.0, "length of the network's input", above=0, maximum=60)
    frame_secs: float = architecture(0.025, "length of each spectrum", above=0)
    hop_secs: float = architecture(0.01, "time between two spectra", above=0)
    mel_bands: int = architecture(40, "bands of the mel scale", minimum=8)
    min_hz: float = architecture(60, "lower edge of the first band", minimum=0)
    max_hz: float | None = architecture(
        None, "upper edge of the last band; null: 0.475 of sample_rate", above=0
    )
    range_db: float = architecture(
        40.0, "what is so many dB below the loudest band of a window counts as silence", above=0
    )

    @property
    def win_len(self) -> int:
        """Samples in a window."""
        return round(self.window_secs * self.rate)

    @property
    def rate(self) -> int:
        """The sample rate, given or of the training data."""
        assert self.sample_rate is not None, "resolve_hyperparameters comes first"
        return self.sample_rate


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Augmentation of training clips, each of them at random"""

    random_speed: float | None = option(
        None,
        "largest change of speed, and so of pitch and tempo: 0.25 is 1 / 1.25 to 1.25 times; "
        "null: 0.25 for classes, 0 for values",
        minimum=0,
        maximum=1,
    )
    random_gain_db: float = option(0.0, "largest change of loudness, in dB", minimum=0, maximum=60)
    random_noise: float = option(
        0.0, "largest standard deviation of white noise, as a share of the peak", minimum=0
    )
    time_mask: float = option(
        0.0, "largest share of a window's time that is masked", minimum=0, maximum=1
    )
    frequency_mask: float = option(
        0.0, "largest share of the mel bands that is masked", minimum=0, maximum=1
    )


@dataclasses.dataclass(frozen=True)
class Hyperparameters(Network, Spectrogram, Augmentation, TrainingHyperparameters):
    """What the model is and how it learns: the sets of hyperparameters.yaml."""

    searched = {
        **TrainingHyperparameters.searched,
        "time_mask": (0.0, 0.4),
        "frequency_mask": (0.0, 0.4),
    }

    def __post_init__(self) -> None:
        if self.frame_secs > self.window_secs:
            raise UserError(
                f"frame_secs: {self.frame_secs:g} is above window_secs, {self.window_secs:g}"
            )
        rate, max_hz = self.sample_rate, self.max_hz
        if rate is None:  # that of the data, with which it is checked again
            return
        if max_hz is not None and not self.min_hz < max_hz <= rate / 2:
            raise UserError(
                f"max_hz: {max_hz:g} is not above min_hz, {self.min_hz:g}, and at most half of "
                f"sample_rate, {rate / 2:g}"
            )
        if min(self.frame_secs, self.hop_secs) * rate < 1:
            raise UserError("hop_secs: frame_secs and hop_secs have to be at least a sample")
