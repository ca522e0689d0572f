"""A new run that starts from the variables of another one."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from library.estimator import ModeKeys, WarmStartSettings
from library.nn import AVERAGE
from library.util import UserError, write_json

if TYPE_CHECKING:
    from library.train.run import Run

FILE = "warm_start.json"
SHOWN = 6
"""Names in a line."""
OF_OPTIMIZERS = re.compile(r"(^|/)(average|Adam(_1)?|Momentum|beta[12]_power|global_step)$")


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """What a model takes from a checkpoint, and what it does not."""

    checkpoint: str
    taken: list[str]
    not_taken: dict[str, str]  # variables of the model, with the reason
    left: list[str]  # variables of the checkpoint that no variable of the model asks for

    @classmethod
    def of_run(cls, run: "Run") -> "WarmStart | None":
        """What a new run takes of another one; printed, too."""
        settings = run.settings
        if not settings.warm_start_from:
            return None
        if run.plan and run.plan.checkpoint:
            print(f"warm_start_from: ignored: the run continues from {run.plan.checkpoint}")
            return None
        checkpoint = run.checkpoint("warm_start_from")

        def build() -> None:
            dataset = run.inputs.evaluation_input(run, settings.validation_data)
            batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
            run.model_fn(*batch, ModeKeys.EVAL, run.hyperparameters, run=run)

        warm_start = cls.of(checkpoint, build)
        print("\n".join(warm_start.lines))
        return warm_start

    @classmethod
    def of(cls, checkpoint: str, build: Callable[[], Any]) -> "WarmStart":
        """Compare a checkpoint with a model, whose variables `build` makes in the default graph."""
        with tf.Graph().as_default():
            build()
            wanted = {v.op.name: v.shape.as_list() for v in tf.compat.v1.global_variables()}
        wanted.pop(tf.compat.v1.GraphKeys.GLOBAL_STEP, None)
        found = dict(tf.train.list_variables(checkpoint))
        not_taken = {
            name: f"of shape {found[name]} there, {shape} here"
            if name in found
            else "not in the checkpoint"
            for name, shape in wanted.items()
            if found.get(name) != shape
        }
        taken = [name for name in wanted if name not in not_taken]
        if not taken:
            raise UserError(f"warm_start_from: no variable of {checkpoint} fits this model")
        left = [name for name in found if name not in wanted and not OF_OPTIMIZERS.search(name)]
        return cls(checkpoint, taken, not_taken, left)

    @property
    def settings(self) -> WarmStartSettings:
        """For an Estimator."""
        names = [f"{re.escape(name)}:0$" for name in self.taken]
        there = {name for name, _ in tf.train.list_variables(self.checkpoint)}
        averages = {name: name + AVERAGE for name in self.taken if name + AVERAGE in there}
        return WarmStartSettings(
            self.checkpoint, vars_to_warm_start=names, var_name_to_prev_var_name=averages
        )

    @property
    def lines(self) -> list[str]:
        """A summary; the file has all names."""
        reasons: dict[str, list[str]] = {}
        for name, reason in self.not_taken.items():
            reasons.setdefault(reason, []).append(name)
        return [
            f"warm start: {len(self.taken)} variables from {self.checkpoint}",
            *(f"not taken, {reason}: {_some(names)}" for reason, names in reasons.items()),
            *[f"not used: {_some(self.left)}"] * bool(self.left),
        ]

    def save(self, folder: str | Path) -> None:
        write_json(Path(folder) / FILE, dataclasses.asdict(self))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more: see {FILE}" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
