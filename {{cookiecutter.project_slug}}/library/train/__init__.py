"""A run: plan, hooks, evaluation, best checkpoint, record of the run."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.train import run_record
    from library.train.checkpoints import SafeSaver, newest_checkpoint
    from library.train.errors import assert_finite, read_divergence, translate_errors
    from library.train.evaluation import evaluation_of, run_evaluation
    from library.train.evaluator import EvaluationTable, KeptEvaluation, evaluate_checkpoint
    from library.train.evaluator import evaluate_checkpoints
    from library.train.exporter import BestCheckpointExporter, find_checkpoint, global_step_of
    from library.train.exporter import read_best
    from library.train.hooks import CheckpointHook, EarlyStopHook, GracefulStopHook, XlaHook
    from library.train.hub import HUB_CARD, hub_card
    from library.train.model_card import MODEL_FILE, ModelCard
    from library.train.plan import Plan, check_batch
    from library.train.progress import ProgressHook
    from library.train.run import Run
    from library.train.run_record import evaluated_with, list_runs
    from library.train.spec import model_spec
    from library.train.training import start_training
    from library.train.warm_start import WarmStart
else:
    __getattr__ = lazy(__name__, __file__)
