"""The run: what every command needs to know, in one object that is made once, in run.py."""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import tensorflow as tf

from library.config import URL, CommandLine, Settings
from library.data import Card, Modality
from library.distribute import Cluster, Parallel
from library.estimator import Estimator, EstimatorSpec, RunConfig
from library.estimator import export as estimator_export
from library.heads import Head, head_for
from library.train.exporter import find_checkpoint
from library.train.model_card import ModelCard
from library.train.plan import Plan
from library.train.warm_start import WarmStart
from library.util import UserError, attach_log, did_you_mean

Receiver: TypeAlias = estimator_export.ServingInputReceiver


class Inputs(Protocol):
    """The functions of project/input_fn.py."""

    def train_input(self, run: "Run") -> tf.data.Dataset: ...
    def evaluation_input(self, run: "Run", path: str) -> tf.data.Dataset: ...
    def overfit_input(self, run: "Run") -> tf.data.Dataset: ...
    def prediction_input(
        self, run: "Run", pairs: Iterable[tuple[bytes, bytes]]
    ) -> tf.data.Dataset: ...
    def serving_input(self, run: "Run") -> Receiver: ...
    def device_input(self, run: "Run") -> Receiver: ...
    def canonicalize(self, content: bytes, params: Any) -> bytes: ...
    def blank(self, params: Any) -> bytes: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Settings and hyperparameters, the project's own parts, and what follows from them."""

    settings: Settings
    hyperparameters: Any
    given: frozenset[str] = frozenset()  # names of the options that the command line gives
    modality: Modality  # `library.images` or `library.audio`
    inputs: Inputs  # project/input_fn.py
    networks: ModuleType  # project/networks.py: all but its networks
    model_fn: Callable[..., EstimatorSpec]  # of project/model_fn.py
    heads: Mapping[str, type[Head]]  # by the name that the hyperparameter `head` has for them
    parallel: Parallel = Parallel()
    model_card: ModelCard | None = None  # of its checkpoints: `for_training` or `trained` gives it
    plan: Plan | None = None  # how far a training goes

    @classmethod
    def of(cls, line: CommandLine, **parts: Any) -> "Run":
        """What a command line asks for, of a project with these parts."""
        options = {"settings": line.settings, "hyperparameters": line.hyperparameters}
        return cls(**options, given=line.given, **parts)

    @property
    def cluster(self) -> Cluster:
        return self.parallel.cluster

    @property
    def dir(self) -> Path:
        """The folder of all that the run leaves behind."""
        return self.settings.run_dir

    @property
    def seed(self) -> int:
        return self.settings.random_seed

    @property
    def start(self) -> int:
        """Examples that the run has seen before this start."""
        return self.plan.examples if self.plan else 0

    @property
    def batch_size(self) -> int:
        """Training examples of this replica in a step."""
        return self.settings.train_batch_size // self.parallel.batch_parts

    @property
    def keeps_best(self) -> bool:
        """Whether this process is the one that evaluates while training, and keeps the best."""
        return self.cluster.is_evaluator or not self.cluster.addresses

    @property
    def model(self) -> ModelCard:
        assert self.model_card is not None, "for_training or trained comes first"
        return self.model_card

    @functools.cached_property
    def head(self) -> Head:
        return self.heads[self.model.head](self.model.target, self.hyperparameters)

    @property
    def compute_dtype(self) -> str:
        """In which a training step computes."""
        if not self.settings.mixed_precision:
            return "float32"
        return "float16" if tf.config.list_physical_devices("GPU") else "bfloat16"

    def drawn(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """What is shown of examples: uint8 [batch, height, width, 3]."""
        return self.networks.drawn(features, self.hyperparameters)

    def replace(self, **changes: Any) -> "Run":
        """The same run with other settings, hyperparameters or fields."""
        for part in ("settings", "hyperparameters"):
            options = getattr(self, part)
            names = {field.name for field in dataclasses.fields(options)} & changes.keys()
            if names and part not in changes:
                changed = {name: changes.pop(name) for name in names}
                changes[part] = dataclasses.replace(options, **changed)
        return dataclasses.replace(self, **changes)

    # ---- data ----------------------------------------------------------------------------------

    def card(self, field: str, path: str | None = None) -> Card:
        """The card of the dataset that an option names, such as `train_data`, or one of several."""
        path = path or str(getattr(self.settings, field))
        if path.endswith(".json") and os.path.exists(path):
            raise UserError(f"{field}: {path} is a card: its dataset is {path[:-5]}")
        if not URL.match(path) and not os.path.exists(f"{path}.json"):
            how = f"python convert_dataset.py --dataset_dir DIR/{Path(path).name}"
            if field == "validation_data":
                how += ", or --validation_fraction 0.1 with the training data"
            there = ", ".join(sorted(file.stem for file in Path(path).parent.glob("*.json")))
            others = f" (there: {there})" * bool(there)
            raise UserError(f"{field}: there is no dataset {path}{others}: make one by {how}")
        return Card.load(f"{path}.json")

    @property
    def train_card(self) -> Card:
        """The card of all that the run trains on: `train_data` and `extra_data`."""
        card, extra = self.card("train_data"), list[Card]()
        for path in self.settings.extra_data:
            more = self.card("extra_data", path)
            more.files(path)
            if (more.label, more.classes) != (card.label, card.classes):
                raise UserError(
                    f"extra_data: {path} has {more.target}, but {self.settings.train_data} has "
                    f"{card.target}: convert it again with --classes_from "
                    f"{self.settings.train_data}.json"
                )
            extra.append(more)
        return card.joined(extra) if extra else card

    def for_training(self) -> "Run":
        """The run with its model: of the kind that the training data asks for."""
        card, validation = self.train_card, self.card("validation_data")
        self.card("train_data").files(self.settings.train_data)  # all have to be there
        validation.files(self.settings.validation_data)
        if card.label == "none":
            raise UserError(f"train_data: {self.settings.train_data} has no labels to learn")
        if self.settings.sampling != "natural" and card.label != "class":
            raise UserError(
                f"sampling: {self.settings.sampling} needs one class per file, but "
                f"{self.settings.train_data} has {card.target}"
            )
        params = self.networks.resolve_hyperparameters(self.hyperparameters, self.settings)
        params = dataclasses.replace(params, head=self._head_name(card))
        model = ModelCard.of(params.head, card.target, params)
        device = self._device_to_prefetch_to()
        run = self.replace(hyperparameters=params, model_card=model, prefetch_to_device=device)
        assert run.head  # which may refuse its options
        run.expect_target(validation, "validation_data", "training data")
        return run

    def _device_to_prefetch_to(self) -> str | None:
        """`prefetch_to_device`, where there is that device: a set for a GPU works without one."""
        device = self.settings.prefetch_to_device
        if device and "gpu" in device.lower() and not tf.config.list_physical_devices("GPU"):
            print(f"prefetch_to_device: ignored: there is no {device} here")
            return None
        if device and len(self.parallel.devices) > 1:
            print("prefetch_to_device: ignored: several devices have a prefetch of their own")
            return None
        return device

    def expect_target(self, card: Card, field: str, other: str) -> None:
        """Refuse the dataset that an option names, if its labels are not those of the model.

        The error says what has `other` ones.
        """
        path, target = getattr(self.settings, field), self.model.target
        if (card.label, tuple(card.classes)) != (target.label, target.classes):
            raise UserError(f"{field}: {path} has {card.target}, but the {other} has {target}")

    def _head_name(self, card: Card) -> str:
        name, fitting = self.hyperparameters.head, head_for(card.label)
        if name is None:
            return fitting
        if name not in self.heads:
            known = f"{', '.join(self.heads)}{did_you_mean(name, self.heads)}"
            raise UserError(f"head: {name} is not one of {known}")
        if card.label != self.heads[name].label:
            raise UserError(
                f"head: {name} learns {self.heads[name].label}, but the dataset "
                f"{self.settings.train_data} has {card.label}: use {fitting}"
            )
        return name

    # ---- the model -----------------------------------------------------------------------------

    def checkpoint(self, option: str) -> str:
        """The path of the checkpoint that an option names, such as `model`."""
        folders = {name: getattr(self.settings, name) for name in ("model_dir", "best_model_dir")}
        return find_checkpoint(getattr(self.settings, option), **folders, option=option)

    def trained(self) -> tuple["Run", str]:
        """The run with the model that the option `model` names, and the path of its checkpoint.

        What defines the architecture is taken from there; the command line must not contradict it.
        """
        settings = self.settings
        checkpoint = self.checkpoint("model")
        folder = os.path.dirname(checkpoint)
        model = ModelCard.load(folder)
        if model.head not in self.heads:
            raise UserError(f"head: the model in {folder} has {model.head}, which is none of HEADS")
        if model.target.label != self.heads[model.head].label:
            raise UserError(f"{folder}: the model's head does not fit {model.target.label}")
        params = model.applied_to(self.hyperparameters, self.given, folder)
        params = self.networks.resolve_hyperparameters(params, settings)
        return self.replace(hyperparameters=params, model_card=model), checkpoint

    def estimator(
        self, *, strategy: tf.distribute.Strategy | None = None, warm_start: WarmStart | None = None
    ) -> Estimator:
        """The Estimator of the run; a `strategy` and a `warm_start` are for training."""
        settings = self.settings
        attach_log(settings.model_dir)
        # CheckpointHook saves; workers that average would do so by the clock, each at another step.
        steps = {"save_checkpoints_steps": 1000} if self.cluster.all_reduce else {}
        config = RunConfig(
            model_dir=str(settings.model_dir),
            tf_random_seed=self.seed,
            keep_checkpoint_max=settings.keep_checkpoint_max,
            save_summary_steps=settings.save_summary_steps,
            log_step_count_steps=None,  # ProgressHook tells more
            train_distribute=strategy,
            session_config=self.parallel.session_config,
            **steps,
        )
        if self.cluster.has_servers and not self.cluster.is_evaluator:
            # For functions whose variables are on a server, such as those of a hub module.
            config.session_config.share_cluster_devices_in_session = True
        return Estimator(
            functools.partial(self.model_fn, run=self),
            config=config,
            params=self.hyperparameters,
            warm_start_from=warm_start and warm_start.settings,
        )
