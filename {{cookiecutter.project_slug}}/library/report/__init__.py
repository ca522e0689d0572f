"""Curves, confusion matrix, calibration, worst mistakes, TensorBoard."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.report import figures
    from library.report.figures import image_grid, png
    from library.report.kinds import (
        LOGIT_BINS,
        LOGITS_PER_BIN,
        ClassificationStats,
        MultiLabelStats,
        RegressionStats,
        class_names,
        label_metrics,
        mistake_caption,
    )
    from library.report.page import FILES, PAGE, read_curves, write_report
    from library.report.stats import WORST, EvaluationStats, StatsHook, collect_eval_outputs
    from library.report.tensorboard import (
        EvaluationImagesHook,
        InputImagesHook,
        add_scalars,
        add_table,
        show_inputs,
    )

__getattr__ = lazy(__name__, __file__)
