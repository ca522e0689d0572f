"""What an evaluation finds: counted while it runs, in memory that does not grow with the data."""

import abc
import csv
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from library import report  # whose figures import matplotlib when one is drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORST = 24
"""Examples that are shown: the worst ones."""
EVAL_OUTPUTS = "eval_outputs"
"""The collection of a graph for what StatsHook fetches."""


class Example(NamedTuple):
    """One of the worst examples."""

    key: str  # the name of its file
    badness: float
    image: np.ndarray  # uint8 [height, width, 3]
    outputs: list[Any]  # what `count` gets of a batch, of this example
    heat: np.ndarray | None = None  # float32 [h, w], at least 0: where the network looked

    @property
    def is_hot(self) -> bool:
        """Whether the heat map shows anything."""
        return self.heat is not None and bool(self.heat.any())


class EvaluationStats(abc.ABC):
    """Counts of an evaluation. A subclass says what is counted, and what a report shows of it."""

    kind = ""
    """The part of report.html that is theirs."""

    def __init__(self) -> None:
        self.examples = self.mistakes = 0
        self.worst: list[Example] = []  # the worst one first

    def add(
        self,
        outputs: Sequence[np.ndarray],
        badness: np.ndarray,
        worst: Sequence[int] = (),
        images: Sequence[np.ndarray] = (),
        keys: Sequence[bytes] = (),
        maps: Sequence[np.ndarray] = (),
    ) -> None:
        """Count a batch: the outputs, how bad each example is, and which ones are shown.

        `images` and `maps` are those of the worst, `keys` those of all.
        """
        self.examples += len(badness)
        self.mistakes += int((badness >= 0).sum())
        self.count(*outputs)
        shown = [
            Example(os.fsdecode(keys[i]), float(badness[i]), image, [x[i] for x in outputs], heat)
            for i, image, heat in itertools.zip_longest(worst, images, maps)
            if badness[i] >= 0
        ]
        self.worst = sorted([*self.worst, *shown], key=lambda example: -example.badness)[:WORST]

    @abc.abstractmethod
    def count(self, *outputs: np.ndarray) -> None: ...

    @abc.abstractmethod
    def caption(self, example: Example) -> str:
        """What is written below the image, in two lines."""

    def columns(self, *outputs: np.ndarray) -> dict[str, Sequence[Any]]:
        """What per_example.csv says of a batch; runs are compared by the column `error`."""
        return {}

    def mistakes_figure(self) -> "Figure":
        """The worst examples, side by side."""
        return report.image_grid([x.image for x in self.worst], list(map(self.caption, self.worst)))

    def figures(self) -> Iterator[tuple[str, "Figure"]]:
        """By name; TensorBoard shows the first one."""
        return iter(())

    def rows(self) -> list[dict[str, Any]]:
        """A table of the classes."""
        return []


class Counted(Protocol):
    """What the hooks need of a head."""

    def stats(self) -> EvaluationStats | None: ...
    def caption(self, label: Any) -> str: ...


class StatsHook(tf.compat.v1.train.SessionRunHook):
    """Counts an evaluation in `stats`, which is None where the model has not collected outputs.

    hook = StatsHook(head)
    estimator.evaluate(input_fn, hooks=[hook])
    hook.stats

    A `table` is a file that gets a row for each example.
    """

    def __init__(self, head: Counted, table: IO[str] | None = None):
        self.head = head
        self.table = csv.writer(table, lineterminator="\n") if table else None
        self.stats: EvaluationStats | None = None

    def begin(self) -> None:
        self.tensors = tf.compat.v1.get_collection(EVAL_OUTPUTS)
        self.stats = self.head.stats() if self.tensors else None

    def before_run(self, run_context: Any) -> Any:
        return tf.compat.v1.train.SessionRunArgs(self.tensors)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self.stats:
            *outputs, badness, worst, images, maps, keys = run_values.results
            if self.table and (columns := self.stats.columns(*outputs)):
                if not self.stats.examples:
                    self.table.writerow(["file", *columns])
                rows = zip(map(os.fsdecode, keys), *columns.values(), strict=True)
                self.table.writerows(rows)
            self.stats.add(outputs, badness, worst, images, keys, maps)
