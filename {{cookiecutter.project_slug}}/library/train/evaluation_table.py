"""A row for each evaluation of a training, the best one marked."""

from collections.abc import Callable
from typing import Any

from library.estimator import Exporter
from library.train.exporter import BestCheckpointExporter
from library.util import StatusLine

WIDTH = 80
"""Of the table: metrics that do not fit are in TensorBoard."""

NUMBER_WIDTH = 8
"""Of a metric, as 123.4567."""


class EvaluationTable(Exporter):
    """Prints a row after each evaluation; among the exporters, it comes after the best one's.

    step  epoch      loss  accuracy
      92    2.0    0.9421    0.7143  best
     184    4.0    1.0113    0.6825
    """

    def __init__(
        self, best: BestCheckpointExporter, line: StatusLine, *, epoch_of: Callable[[int], float]
    ):
        """
        Args:
            best: knows whether the evaluation was the best one so far.
            line: the line of progress, above which the rows are printed.
            epoch_of: step -> epochs since the begin of the run.
        """
        self.best, self.line, self.epoch_of = best, line, epoch_of
        self.begun = False

    @property
    def name(self) -> str:
        return "evaluation_table"

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: dict[str, Any],
        is_the_final_export: bool,
    ) -> None:
        """Print the row of this evaluation."""
        step = int(eval_result["global_step"])
        header, row = f"{'step':>8}  {'epoch':>6}", f"{step:8}  {self.epoch_of(step):6.1f}"
        mark = "  best"
        metrics = sorted(eval_result, key=lambda name: (name != self.best.metric, name))
        for name in metrics:
            width = max(len(name), NUMBER_WIDTH)
            if name != "global_step" and len(header) + 2 + width + len(mark) <= WIDTH:
                header += "  " + name.rjust(width)
                row += "  " + f"{eval_result[name]:.4f}".rjust(width)
        if not self.begun:
            self.begun = True
            self.line.print(header)
        self.line.print(row + mark * (self.best.evaluations_without_improvement == 0))
