"""Curves, confusion matrix, calibration, worst mistakes, TensorBoard."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.report.figures import picture_grid, png
    from library.report.stats import (
        LOGIT_BINS,
        LOGITS_PER_BIN,
        ClassificationStats,
        EvaluationStats,
        MultiLabelStats,
        RegressionStats,
        StatsHook,
        class_names,
        collect_eval_outputs,
        label_metrics,
        mistake_caption,
    )
    from library.report.tally import BINS, MISTAKES, Mistake, Tally, TallyHook, caption_of, tell
    from library.report.tensorboard import (
        EvaluationPicturesHook,
        PicturesHook,
        add_scalars,
        add_table,
        kernel_mosaic,
        show_inputs,
    )

__getattr__ = lazy(__name__, __file__)
