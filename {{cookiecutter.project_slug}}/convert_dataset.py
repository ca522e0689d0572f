"""Convert files into a dataset: shards, an index and a card.

python convert_dataset.py --dataset_dir dataset/train

The files are in a folder for each class, named like the class; or in any folder, and --labels is a
CSV file with the columns file and label (a class), labels (classes, separated by ;) or value (a
number). Rejected files are listed, with the reason, in <name>.rejected.csv. A conversion that was
stopped resumes when you give the same command again.
"""

import sys
from collections.abc import Sequence

from library.config import Parser
from library.convert import ConvertOptions, convert, verify
from library.util import run_main
from project.settings import modality


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(__doc__ + modality.HELP, ConvertOptions, modality.ShardOptions)
    parser.parse(sys.argv[1:] if argv is None else argv)
    resolved, of_shards = parser.resolve(ConvertOptions), parser.resolve(modality.ShardOptions)
    parser.raise_errors()
    if resolved.options.verify:
        verify(resolved.options, modality)
    else:
        convert(resolved.options, of_shards.options, modality)


if __name__ == "__main__":
    run_main(main)
