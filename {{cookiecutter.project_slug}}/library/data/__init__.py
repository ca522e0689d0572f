"""TFRecord shards by number or in order, shuffling, cache, record and replay."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.data.cache import cached
    from library.data.card import UNLABELED, Card, Label, Shard, Target, expect_sizes
    from library.data.modality import EDGE, Modality
    from library.data.order import POSITIONS_PER_CALL, random_shard, shuffle_and_repeat
    from library.data.pipeline import Pipeline
    from library.data.recording import record_dataset, replay_dataset
    from library.data.sources import (
        Hdf5Rows,
        Source,
        list_files,
        read_by_id,
        read_files,
        read_generator,
        read_in_order,
        read_stream,
        read_strings,
    )
    from library.data.tfrecord import (
        FOOTER,
        HEADER,
        INDEX,
        DamagedRecordError,
        Reader,
        index_of,
        length_in,
        masked_crc,
        verify,
        write_index,
        write_shard,
    )

__getattr__ = lazy(__name__, __file__)
