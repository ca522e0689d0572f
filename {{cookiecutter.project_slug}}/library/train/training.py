"""The command train: a run from where it stands to its end."""

import contextlib
import math

import tensorflow as tf

from library.data import num_train_examples
from library.distribute import Cluster, Parallel, WatchHook, end_unless_there, serve
from library.estimator import EvalSpec, TrainSpec, train_and_evaluate
from library.report import EvaluationImagesHook, InputImagesHook, MeansHook, add_table
from library.train import run_record
from library.train.checkpoints import last_step, resume_from
from library.train.errors import translate_errors
from library.train.evaluator import (
    EvaluationTable,
    KeptEvaluation,
    evaluate_checkpoint,
    evaluate_checkpoints,
)
from library.train.exporter import BestCheckpointExporter, read_best
from library.train.hooks import (
    CheckpointHook,
    EarlyStopHook,
    GracefulStopHook,
    ThresholdsHook,
    XlaHook,
)
from library.train.model_card import MODEL_FILE, ModelCard
from library.train.model_table import print_model
from library.train.overfit import overfit
from library.train.plan import Plan, check_batch, description
from library.train.progress import ProgressHook
from library.train.run import Run
from library.train.warm_start import WarmStart
from library.util import StatusLine, check_folder, counted, locked, remove_leftovers


def start_training(run: Run) -> None:
    """Train for `train_epochs` in all, evaluate every `epochs_between_evals`, keep the best.

    With TF_CONFIG, this process does its part of that.
    """
    cluster = Cluster.from_environment()
    if cluster.job == "ps":
        serve(cluster)
        return
    settings = run.settings
    parallel = Parallel.of(cluster, settings.devices, sync_replicas=settings.sync_replicas)
    run = run.replace(parallel=parallel)
    check_batch(run)
    if cluster.all_reduce and not cluster.is_evaluator:
        run.for_training()  # its mistakes are told before anybody waits for the others
        end_unless_there(cluster.needed)
    strategy = parallel.strategy()
    run = run.for_training()
    if settings.print_model:
        print_model(run)
        return
    if settings.overfit:
        overfit(run, num_train_examples(settings, run.card("train_data")))
        return
    epoch_examples = num_train_examples(settings, run.train_card)
    remedy = "wait for it, or start a run of its own with --new or --run NAME"
    writes = {"model_dir": cluster.is_chief, "best_model_dir": run.keeps_best}
    with contextlib.ExitStack() as stack:
        for option, is_mine in writes.items():
            check_folder(option, getattr(settings, option))
            if is_mine:
                stack.enter_context(locked(option, getattr(settings, option), remedy=remedy))
        plan = Plan.of(run, epoch_examples)
        if plan.checkpoint:  # its numbers, such as the mean of the labels, are those of the run
            run = run.replace(model_card=ModelCard.load(settings.model_dir))
        _Training(run.replace(plan=plan), strategy).start()


class _Training:
    """A training that is planned, and the objects that its parts share."""

    def __init__(self, run: Run, strategy: tf.distribute.Strategy | None):
        assert run.plan is not None, "it is planned"
        settings = run.settings
        self.run, self.plan, self.strategy = run, run.plan, strategy
        self.line = StatusLine(live=settings.live_progress)
        self.exporter = BestCheckpointExporter(
            settings.best_model_dir,
            keep=settings.keep_best_max,
            assets=[settings.model_dir / MODEL_FILE],
            measured_with=run_record.evaluated_with(run),
        )
        self.early_stop = EarlyStopHook(self.exporter, settings.early_stopping_evals or math.inf)
        # A new run is written when its input is open, or cached: not before a mistake is found.
        self.begins_with_input = not (self.plan.checkpoint or run.cluster.is_evaluator)
        measured = self.exporter.evaluated_step == self.plan.step
        self.evaluated = measured or not self.plan.evaluation_due

    def start(self) -> None:
        """Go to the end of the plan, unless the run is there already."""
        run, plan, settings = self.run, self.plan, self.run.settings
        if self.evaluated and plan.step >= plan.steps:
            print(f"training is complete (step {plan.step}); raise --train_epochs to continue")
            return
        if self.evaluated and self.early_stop.due and not self.exporter.outdated:
            print(f"stopped early at step {plan.step}; raise --early_stopping_evals to continue")
            return
        if settings.deterministic and tf.config.list_physical_devices("GPU"):
            tf.config.experimental.enable_op_determinism()
        self.warm_start = WarmStart.of_run(run)
        if not self.begins_with_input:
            self._write_start()
        data = (settings.train_data, *settings.extra_data, settings.validation_data)
        with translate_errors(run, *data, plan=plan), self.line:
            self._train()
        if run.cluster.addresses and not run.cluster.is_evaluator:
            print(f"done: {run.cluster.name}")
        else:
            self._print_end()

    def _train(self) -> None:
        run, plan = self.run, self.plan
        estimator = run.estimator(strategy=self.strategy, warm_start=self.warm_start)
        estimator.evaluate = KeptEvaluation(estimator)
        minutes, saves = run.settings.max_minutes, run.cluster.is_chief
        stop = GracefulStopHook(run.settings.model_dir, max_minutes=minutes, saves=saves)
        train_spec, eval_spec = self._train_spec(stop), self._eval_spec(stop)
        if run.keeps_best:
            self.exporter.measure_again(
                lambda path: estimator.evaluate(eval_spec.input_fn, None, (), path, "best")
            )
        if run.cluster.is_evaluator:
            evaluate_checkpoints(estimator, eval_spec, steps=plan.steps, early_stop=self.early_stop)
            return
        if plan.checkpoint and not self.evaluated and not run.cluster.addresses:
            # The last start ended between this checkpoint and its evaluation.
            evaluate_checkpoint(estimator, eval_spec, plan.checkpoint)
        if plan.step < plan.steps and not self.early_stop.due:
            try:
                train_and_evaluate(estimator, train_spec, eval_spec)
            finally:
                stop.end(None)  # which TensorFlow calls only where nothing is raised

    def _train_spec(self, stop: GracefulStopHook) -> TrainSpec:
        run, plan, settings, cluster = self.run, self.plan, self.run.settings, self.run.cluster
        save = CheckpointHook(
            settings.model_dir, plan.steps_between_evals, keep=settings.keep_checkpoint_max
        )
        images = InputImagesHook(settings.model_dir, run.head, every=self._steps_between_images)
        scalars = ("loss", *run.head.metric_names)
        between = min(settings.save_summary_steps, plan.steps // 50)  # points of a curve, or more
        means = MeansHook(settings.model_dir, scalars, every=max(1, between))
        progress = ProgressHook(
            scalars,
            [save, images],
            every=settings.log_steps,
            steps=plan.steps,
            batch_size=plan.batch_size,
            epoch_of=plan.epoch_of,
            summary_dir=settings.model_dir if cluster.is_chief else None,
            line=self.line,
            shared=cluster.has_servers,
        )
        watch = WatchHook(
            cluster.needed,
            f"start all tasks again to resume from the last checkpoint in {settings.model_dir}",
            finished=lambda: last_step(settings.model_dir) >= plan.steps,
        )
        hooks = [
            *[watch] * bool(cluster.needed),
            *[XlaHook()] * settings.xla,
            progress,
            *[images, save, means] * cluster.is_chief,
            stop,
            *[self.early_stop] * bool(settings.early_stopping_evals),
        ]
        return TrainSpec(self._train_input, max_steps=plan.steps, hooks=hooks)

    def _eval_spec(self, stop: GracefulStopHook) -> EvalSpec:
        run, plan, every = self.run, self.plan, self._steps_between_images
        stops = [stop.in_evaluation] * (not run.cluster.is_evaluator)
        images = EvaluationImagesHook(
            run.settings.model_dir / "eval",
            run.head,
            due=lambda step: step % every == 0 or step >= plan.steps,
        )
        return EvalSpec(
            lambda: run.inputs.evaluation_input(run, run.settings.validation_data),
            steps=None,  # all of the dataset
            start_delay_secs=0,
            throttle_secs=0,  # after every checkpoint
            hooks=[*stops, images, ThresholdsHook(run, images)],
            exporters=[self.exporter, EvaluationTable(self.exporter, self.line, plan.epoch_of)],
        )

    @property
    def _steps_between_images(self) -> int:
        """Drawing takes longer than a short evaluation: rarer than summaries, four times a run."""
        between, least = self.plan.steps_between_evals, self.run.settings.save_summary_steps
        return between * math.ceil(max(least, self.plan.steps // 4) / between)

    def _train_input(self) -> tf.data.Dataset:
        dataset = self.run.inputs.train_input(self.run)
        if self.begins_with_input:
            self._write_start()
        return dataset

    def _write_start(self) -> None:
        """Bring the folders up to this start, each by the process that writes there; print it."""
        run, settings = self.run, self.run.settings
        if run.cluster.is_chief:
            record = run_record.describe(
                settings, run.hyperparameters, step=self.plan.step, examples=self.plan.examples
            )
            others = {**record["data"]}
            if others.pop("validation_data") in others.values():
                print("warning: validation_data is among the training data: it tells nothing")
            for change in run_record.append(settings.model_dir, record):
                print(f"changed since the last start: {change}")
            run.model.save(settings.model_dir)
            remove_leftovers(settings.model_dir)
            if self.plan.checkpoint:  # in the place of a newer one that cannot be read
                resume_from(self.plan.checkpoint)
            for name in ("settings", "hyperparameters"):
                values = run_record.options_used(getattr(run, name))
                add_table(settings.model_dir, name, values, self.plan.step)
            if self.warm_start:
                self.warm_start.save(settings.model_dir)
        if run.keeps_best:
            remove_leftovers(settings.best_model_dir)
        for text in description(run, self.plan):
            print(text)

    def _print_end(self) -> None:
        settings = self.run.settings
        if self.early_stop.due:
            evaluations = counted(settings.early_stopping_evals or 0, "evaluations")
            print(f"stopped early: {evaluations} without a better {self.exporter.metric}")
        if best := read_best(settings.best_model_dir):
            where = f"step {best['step']}, in {settings.best_model_dir}"
            print(f"best model: {best['metric']} {best['value']:.4f} at {where}")
