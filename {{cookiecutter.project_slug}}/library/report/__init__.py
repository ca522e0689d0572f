"""Curves, confusion matrix, calibration, worst mistakes, TensorBoard."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.report import figures
    from library.report.examples import EXAMPLES, LEVEL, MEASURES, mean_intervals, measure
    from library.report.examples import measure_words, read_column
    from library.report.figures import image_grid, png
    from library.report.kinds import LOGIT_BINS, LOGITS_PER_BIN, ClassificationStats
    from library.report.kinds import MultiLabelStats, RegressionStats, class_names, label_metrics
    from library.report.kinds import mistake_caption
    from library.report.page import FILES, PAGE, Curves, read_curves, write_report
    from library.report.rendering import render
    from library.report.stats import EVAL_OUTPUTS, WORST, EvaluationStats, StatsHook
    from library.report.tensorboard import EvaluationImagesHook, InputImagesHook, MeansHook
    from library.report.tensorboard import add_scalars, add_table, show_inputs
else:
    __getattr__ = lazy(__name__, __file__)
