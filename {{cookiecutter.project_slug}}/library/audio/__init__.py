"""Audio clips: files, archives, windows, features, sample data."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.audio import sample_data
    from library.audio.archives import Archive
    from library.audio.augmentation import change, mask
    from library.audio.examples import encoded_examples, labels_of, playable, read_clips
    from library.audio.examples import train_keys, train_windows
    from library.audio.files import canonical_waveform, measures, preview, read_audio, wav_bytes
    from library.audio.ops import FLOAT_OPS, covering_windows, log_mel, random_windows, to_float
    from library.audio.records import HELP, SUFFIX, UNIT, ShardOptions, canonicalize, check_shard
    from library.audio.records import open_data, rate_of, resolve_options, write_shard
    from library.audio.signals import dataset_from_dir, dataset_signal_slice_windows
else:
    __getattr__ = lazy(__name__, __file__)
