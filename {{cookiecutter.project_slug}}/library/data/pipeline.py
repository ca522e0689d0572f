"""The training input: what happens to an example, in the order that is fastest."""

import dataclasses
from collections.abc import Callable, Mapping

import tensorflow as tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Records become batches, by stages that can also be looked at one by one.

        Pipeline(records=records, maps={"decode": decode, "augment": augment}, ...).dataset()

    The stages are `read`, the names of `maps`, and `batch`.

    Attributes:
        records: what is read, in the order in which it is used: light, and shuffled already.
        maps: functions of one example each; the first takes what `records` has, each other one
            what the one before gave.
        batch_size: examples in a batch; a last partial one is dropped.
        num_parallel_calls: examples worked on at the same time; -1: as many as pays.
        prefetch_size: batches made ahead.
        deterministic: whether examples stay in their order when a later one is ready sooner.
        device: that batches are copied to ahead, as "/gpu:0"; None: none.
    """

    records: tf.data.Dataset
    maps: Mapping[str, Callable]
    batch_size: int
    num_parallel_calls: int
    prefetch_size: int
    deterministic: bool
    device: str | None = None

    def dataset(self) -> tf.data.Dataset:
        """Batches, for training."""
        dataset = (
            self.up_to(list(self.maps)[-1])
            .batch(self.batch_size, drop_remainder=True)
            # The next batches are made while the network works on this one.
            .prefetch(self.prefetch_size)
        )
        if self.device:  # last, or the copy to the device is not ahead of the step
            to_device = tf.data.experimental.prefetch_to_device(self.device)
            dataset = dataset.apply(to_device)
        return dataset

    def up_to(self, stage: str) -> tf.data.Dataset:
        """Examples one by one, as they are after `read` or one of the maps."""
        functions: list[Callable] = []
        for name, function in self.maps.items() if stage != "read" else ():
            functions.append(function)
            if name == stage:
                break

        def one_call(*example: tf.Tensor) -> tuple:
            for function in functions:
                example = function(*example)
            return example

        options = tf.data.Options()
        options.deterministic = self.deterministic
        records = self.records.with_options(options)
        if not functions:
            return records
        # One example a call: several are decoded at the same time, and none waits for a batch. All
        # maps are one call: an example that goes from call to call also goes from core to core.
        return records.map(one_call, num_parallel_calls=self.num_parallel_calls)
