"""Prediction, export, LiteRT, comparison with the checkpoint."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.serve.predictions import (
        FILES_A_TASK,
        STANDARD,
        TASKS_AHEAD,
        Inputs,
        WorstMistakes,
        columns_of,
        find_files,
        rows_of,
        writer_of,
    )
    from library.serve.serving import EXTRA, TFLITE, Agreement, Request

__getattr__ = lazy(__name__, __file__)
