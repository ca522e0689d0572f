"""Audio clips: files, archives, windows, features, examples and sample data."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.audio import sample_data
    from library.audio.archives import Archive, write_archive
    from library.audio.files import read_sound, standard_waveform, wav_bytes
    from library.audio.ops import (
        covering_windows,
        dataset_from_dir,
        dataset_signal_slice_windows,
        log_mel,
        random_windows,
        to_float,
    )
    from library.audio.records import (
        HELP,
        SUFFIX,
        UNIT,
        ShardOptions,
        canonicalize,
        open_data,
        thumbnail,
        verify_shard,
        write_index,
        write_shard,
    )

__getattr__ = lazy(__name__, __file__)
