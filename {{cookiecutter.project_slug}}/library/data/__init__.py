"""TFRecord shards by number or in order, shuffling, cache, stages, record and replay."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.data.card import UNLABELED, Card, Label, Shard, Target, expect_sizes
    from library.data.modality import EDGE, Examples, Modality
    from library.data.order import random_shard, shuffle_and_repeat
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
    from library.data.stages import cut_at, one_call, prefetch_to_device, stage, stages_of
    from library.data.tfrecord import (
        DamagedRecordError,
        Reader,
        find_records,
        index_of,
        read_frame,
        record_in,
        verify,
        write_index,
        write_shard,
    )
    from library.data.training import num_train_examples, train_records

__getattr__ = lazy(__name__, __file__)
