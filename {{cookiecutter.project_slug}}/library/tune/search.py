"""The command tune: hyperparameters with fewer errors on the validation data, within a budget.

The journal of Optuna has all that is known of a search, which goes on after a kill as if nothing
had happened: the values of a trial follow from the seed, its number and the trials before it.
"""

import dataclasses
import hashlib
import math
import os
import shlex
import shutil
import time
from pathlib import Path
from typing import Any

import tensorflow as tf
import yaml

from library.config import PROJECT, Parser, plain
from library.data import num_train_examples
from library.report import figures, png, render
from library.train import Run, evaluated_with, start_training
from library.util import (
    RunError,
    UserError,
    attach_log,
    locked,
    remove_leftovers,
    replacing,
    shown_path,
    typed,
    write_text,
    written_here,
)

ETA, RUNGS = 3, 3
"""A trial is trained so many times, each ETA times longer than before; one of ETA goes on."""
FEWEST_STEPS = 100
"""Of a training that tells one trial from another: shorter ones are left out."""
DECADE = 10.0
"""How far a value without a range is searched, as a factor up and down."""
FILE = "tuned.yaml"
HEAD = "# Sets that `python run.py tune` has found, each with the name of its run.\n"


def tune(run: Run) -> None:
    """Search for `budget_minutes`; write the best settings as a set to FILE, and a page.

    A trial is the set of the run, or one of `tune_sets`, with other values of what the project's
    `Hyperparameters.searched` names and the command line does not give. By successive halving
    (Li et al. 2018, https://arxiv.org/abs/1810.05934), only the best go on to all epochs. What
    counts is the error of a training's best checkpoint on the validation data. The test data is
    never read.
    """
    try:
        import optuna
    except ImportError as error:
        raise UserError(f"tune: {error}: pip install optuna") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search = _Search(run.replace(overfit=None, print_model=False, model=Path("best")), optuna)
    with locked("run", search.folder):
        attach_log(search.folder)  # not to the folder of a trial, which is deleted
        search.go()
        done = [trial for trial in search.trials if trial.state.name == "COMPLETE"]
        if not done:
            minutes = f"{run.settings.budget_minutes:g} minutes"
            raise RunError(
                f"tune: no training came to the end of its epochs in {minutes}: give more of them, "
                "or, if all diverge, a smaller learning_rate"
            )
        search.report(min(done, key=_error_of))


class _Search:
    """A search: its space, its study, and what is done with them."""

    def __init__(self, run: Run, optuna: Any):
        self.run, self.optuna, self.folder = run, optuna, run.dir / "tune"
        settings = run.settings
        if not run.for_training().head.metric_names:
            raise UserError("tune: the head has no metric_names, the first of which is improved")
        names = settings.tune_sets or (settings.hyperparameter_set,)
        self.bases = {name: _set_of(run, name) for name in names}
        steps_per_epoch = num_train_examples(settings, run.train_card) / settings.train_batch_size
        self.rungs = [
            rung
            for rung in range(RUNGS)
            if rung == RUNGS - 1 or self._epochs(rung) * steps_per_epoch >= FEWEST_STEPS
        ]
        self.space: dict[str, Any] = {
            name: values
            for name, values in type(run.hyperparameters).searched.items()
            if name not in run.given
            and (values or all(getattr(base, name) for base in self.bases.values()))
        }
        of_search = run.replace(budget_minutes=1.0, tune_trials=None).settings  # more continue it
        known = (run.train_card, evaluated_with(run), of_search, self.bases)
        self.name = hashlib.sha256(repr((*known, self.space)).encode()).hexdigest()[:16]

    @property
    def trials(self) -> list[Any]:
        """All but those that were killed before they had all their values."""
        return [trial for trial in self.study.trials if trial.state.name != "FAIL"]

    @property
    def minutes_left(self) -> float:
        """Of the budget of all starts."""
        return self.run.settings.budget_minutes - self.study.user_attrs.get("minutes", 0.0)

    def go(self) -> None:
        """Try settings until the time is over, or there are `tune_trials`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.folder)
        mine = {*self.folder.glob(f"trial-*-{self.name}")}
        for other in {*self.folder.glob("trial-*")} - mine:  # of other data, code or settings
            shutil.rmtree(other)
        journal = self.folder / "journal.log"
        if journal.exists():  # the last line is cut off where a disk was full
            os.truncate(journal, journal.read_bytes().rfind(b"\n") + 1)
        backend = self.optuna.storages.journal.JournalFileBackend(str(journal))
        self.study = self.optuna.create_study(
            storage=self.optuna.storages.JournalStorage(backend),
            study_name=self.name,
            load_if_exists=True,
        )
        if not self.study.trials:  # the first one changes nothing
            name, base = next(iter(self.bases.items()))
            values = {n: getattr(base, n) if space else 1.0 for n, space in self.space.items()}
            self.study.enqueue_trial({"set": name, **values})
        most = self.run.settings.tune_trials or math.inf
        while self.minutes_left > 0:
            known = [trial for trial in self.trials if trial.state.name != "WAITING"]
            begun = [trial for trial in known if trial.state.name == "RUNNING"]
            if len(known) - len(begun) >= most:
                return
            if begun and len(begun[0].params) <= len(self.space):  # killed in between
                self.study.tell(begun[0].number, state=self.optuna.trial.TrialState.FAIL)
                continue
            number = len(known) - len(begun)
            self.study.sampler = self.optuna.samplers.TPESampler(seed=self.run.seed + number)
            trial = begun and self.optuna.trial.Trial(self.study, begun[0]._trial_id)
            self._try(trial or self.study.ask(), number)

    def _try(self, trial: Any, number: int) -> None:
        """Train with the values of a trial, longer and longer while it is among the best."""
        params, state, value = self._params(trial), self.optuna.trial.TrialState, math.inf
        for rung in self.rungs:
            if rung not in self.trials[number].intermediate_values:
                name = f"trial-{number}-{rung}-{self.name}"
                error = self._error(params, self._epochs(rung), name)
                if error is None:
                    return  # the time is over
                trial.report(error, rung)
                print(f"trial {number}, {self._epochs(rung):.3g} epochs: error {error:.4f}")
            rivals = [each.intermediate_values for each in self.trials[: number + 1]]
            values = [each[rung] for each in rivals if rung in each]
            value = values[-1]
            beaten = sorted(values).index(value) >= max(1, len(values) // ETA)
            if value == math.inf or (rung + 1 < RUNGS and beaten):  # diverged, or not best
                self.study.tell(trial, state=state.PRUNED)
                return
        self.study.tell(trial, value)

    def _epochs(self, rung: int) -> float:
        return self.run.settings.train_epochs / ETA ** (RUNGS - 1 - rung)

    def _params(self, trial: Any) -> Any:
        """The hyperparameters of a trial."""
        base = self.bases[trial.suggest_categorical("set", [*self.bases])]
        values = {}
        for name, space in self.space.items():
            if space is None:
                factor = trial.suggest_float(name, 1 / DECADE, DECADE, log=True)
                values[name] = float(f"{getattr(base, name) * factor:.3g}")
            elif isinstance(space[0], float):
                values[name] = float(f"{trial.suggest_float(name, *space):.3g}")
            else:
                values[name] = trial.suggest_categorical(name, space)
        return dataclasses.replace(base, **values)

    def _error(self, params: Any, epochs: float, name: str) -> float | None:
        """The validation error of a training, infinite if it diverges; None: the time is over."""
        folder, settings, left = self.folder / name, self.run.settings, self.minutes_left
        part = self.run.replace(
            hyperparameters=params,
            model_dir=folder / "checkpoints",
            best_model_dir=folder / "best",
            train_epochs=epochs,
            epochs_between_evals=min(epochs, settings.epochs_between_evals),
            max_minutes=left,
        )
        begin, value = time.monotonic(), math.inf
        try:
            start_training(part)
            part, checkpoint = part.trained()
            metrics = part.estimator().evaluate(
                lambda: part.inputs.evaluation_input(part, settings.validation_data),
                checkpoint_path=checkpoint,
            )
            value = float(metrics[part.head.metric_names[0]])
            value = value if part.head.label == "value" else 1 - value
        except KeyboardInterrupt:
            if time.monotonic() - begin < 60 * left:
                raise
            return None
        except RunError:
            if not (folder / "checkpoints" / "divergence.json").exists():
                raise
        finally:
            left -= (time.monotonic() - begin) / 60
            self.study.set_user_attr("minutes", settings.budget_minutes - left)
        tf.compat.v1.summary.FileWriterCache.clear()  # which would keep its deleted files open
        ended = folder.rename(self.folder / f".{name}.tmp")  # a part of it would be no run
        shutil.rmtree(ended)
        return value if math.isfinite(value) else math.inf

    def report(self, best: Any) -> None:
        """Write the best settings as a set, and all trials to a page; say how to use them."""
        settings, params = self.run.settings, self._params(best)
        file = settings.hyperparameter_file.with_name(FILE)
        with written_here(file, yaml.YAMLError):
            text = file.read_text("utf-8") if file.exists() else ""
            sets = typed(dict[str, Any], yaml.safe_load(text) or {})
        names = [field.name for field in dataclasses.fields(params)]
        sets[settings.run] = {name: plain(getattr(params, name)) for name in names}
        write_text(file, HEAD + yaml.safe_dump(sets, sort_keys=False, allow_unicode=True))
        trials = [trial for trial in self.trials if trial.intermediate_values]
        trials.sort(key=lambda trial: (-trial.last_step, _error_of(trial)))
        rows: list[dict[str, Any]] = []
        for trial in trials:
            row = {"trial": trial.number, "epochs": f"{self._epochs(trial.last_step):.3g}"}
            row |= {"error": f"{_error_of(trial):.4f}", "set": trial.params["set"]}
            tried = self._params(trial)
            rows.append(row | {name: getattr(tried, name) for name in self.space})
        whole = [trial.last_step == RUNGS - 1 for trial in trials]
        errors, drawn = [*map(_error_of, trials)], {}
        for name in ("set", *self.space):
            values = [row[name] for row in rows]
            drawn[f"error by {name}"] = png(figures.trials(name, values, errors, whole))
        pair = {"validation error": best.value, "before": self.trials[0].value}
        tiles = {name: f"{value:.4f}" for name, value in pair.items()}
        page = render(
            Path(__file__).with_name("tune.html"),
            title="Search for settings",
            tiles=tiles,
            rows=rows,
            drawn=drawn,
        )
        with replacing(self.folder / "tune.html") as temporary:
            temporary.write_bytes(page)
        change = " -> ".join(reversed([*tiles.values()]))
        print(f"validation error {change} by trial {best.number}")
        print(f"wrote {shown_path(file)} and {shown_path(self.folder / 'tune.html')}")
        words = ["--hyperparameter_file", shown_path(file), "--hyperparameter_set", settings.run]
        print(f"next: python run.py {shlex.join(words)} --new")
        print("      with the other flags of this command, such as --config_set")


def _error_of(trial: Any) -> float:
    """The error after the most epochs."""
    return float(trial.intermediate_values[trial.last_step])


def _set_of(run: Run, name: str) -> Any:
    """A set of hyperparameters, with what the command line gives."""
    cls = type(run.hyperparameters)
    if name == run.settings.hyperparameter_set:
        return run.hyperparameters
    parser = Parser("", cls, root=PROJECT)
    resolved = parser.resolve(cls, run.settings.hyperparameter_file, name)
    parser.raise_errors()
    given = {n: getattr(run.hyperparameters, n) for n in run.given & resolved.values.keys()}
    return dataclasses.replace(resolved.options, **given)
