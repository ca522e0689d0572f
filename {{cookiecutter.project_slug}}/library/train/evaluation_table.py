"""A row for each evaluation of a training, the best one marked."""

from collections.abc import Callable
from typing import Any

from library.estimator import Exporter
from library.train.exporter import BestCheckpointExporter
from library.util import StatusLine

WIDTH = 80
"""Columns of the table: metrics that do not fit are in TensorBoard."""


class EvaluationTable(Exporter):
    """Prints a row after each evaluation; it comes after `best` among the exporters.

    step   epoch      loss  accuracy
      92     2.0    0.9421    0.7143  best
     184     4.0    1.0113    0.6825
    """

    def __init__(
        self, best: BestCheckpointExporter, line: StatusLine, *, epoch_of: Callable[[int], float]
    ):
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
        step = int(eval_result["global_step"])
        header, row = "    step   epoch", f"{step:8}  {self.epoch_of(step):6.1f}"
        mark = "  best"
        for name in sorted(eval_result, key=lambda name: (name != self.best.metric, name)):
            width = max(len(name), 8)
            if name != "global_step" and len(header) + 2 + width + len(mark) <= WIDTH:
                header += f"  {name:>{width}}"
                row += f"  {eval_result[name]:{width}.4f}"
        if not self.begun:
            self.line.print(header)
        self.begun = True
        self.line.print(row + mark * (self.best.evaluations_without_improvement == 0))
