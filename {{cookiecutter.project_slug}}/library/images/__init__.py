"""Images: files, records, tensors and sample data."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.images import sample_data
    from library.images.examples import FrozenFeatures, classes_of, decoded_examples
    from library.images.examples import encoded_examples, features_of, parse_example, playable
    from library.images.examples import train_keys
    from library.images.files import Jpeg, ShardOptions, blank_image, canonical_bytes, canonicalize
    from library.images.files import measures, preview, resolve_options
    from library.images.ops import FLOAT_OPS, central_crop, central_square, decode_window, normalize
    from library.images.ops import random_window, resize, to_dtype, views_of
    from library.images.records import HELP, SUFFIX, UNIT, check_shard, open_data, to_example
    from library.images.records import write_shard
else:
    __getattr__ = lazy(__name__, __file__)
