"""Prediction, export, LiteRT, comparison with the checkpoint."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.serve.answers import answer, compare, device_runner
    from library.serve.export import export_model
    from library.serve.files import FILES_PER_TASK, TASKS_AHEAD, InputFiles, find_files
    from library.serve.predict import check_output, predict_files, write_rows
else:
    __getattr__ = lazy(__name__, __file__)
