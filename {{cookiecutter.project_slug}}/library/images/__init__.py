"""Images: files, ops, examples and sample data."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.images import sample_data
    from library.images.example import to_example
    from library.images.files import Jpeg, blank_picture, standard_bytes, standard_jpeg
    from library.images.ops import (
        central_crop,
        central_square,
        decode_window,
        decoded_examples,
        encoded_examples,
        normalize,
        parse_example,
        random_window,
        resize,
        to_dtype,
    )
    from library.images.records import (
        HELP,
        SUFFIX,
        UNIT,
        ShardOptions,
        open_data,
        standard,
        thumbnail,
        verify_shard,
        write_index,
        write_shard,
    )

__getattr__ = lazy(__name__, __file__)
