"""TFRecord shards by number or in order, shuffling, cache, stages, record and replay."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.data.cache import Convert, num_train_examples, train_records
    from library.data.card import UNLABELED, Card, Label, Shard, Target, content_of, expect_sizes
    from library.data.example import Example
    from library.data.modality import EDGE, Examples, Modality, Source
    from library.data.order import mix_and_repeat, random_shard, shuffle_and_repeat
    from library.data.recording import record_dataset, replay_dataset
    from library.data.remote import NO_CACHE, BlockCache, RemoteFiles, copy_file, names_in
    from library.data.remote import write_file
    from library.data.sources import Hdf5Rows, Joined, list_files, read_by_id, read_files
    from library.data.sources import read_generator, read_in_order, read_stream, read_strings
    from library.data.stages import one_call, prefetch_to_device, stage, stages_of
    from library.data.stages import without_autotuner
    from library.data.tfrecord import DamagedRecordError, Reader, find_records, index_of
    from library.data.tfrecord import read_record, verify, write_index, write_shard
else:
    __getattr__ = lazy(__name__, __file__)
