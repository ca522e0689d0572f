"""model.json: what a checkpoint needs to be used again."""

import dataclasses
import os
import re
import shlex
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from library.config import URL, options_of, plain, word_of
from library.data import Target
from library.util import UserError, read_card, write_json

MODEL_FILE = "model.json"
FORMAT_VERSION = 4


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """Head, target and architecture of a model.

    It lies beside the checkpoints, and goes with them to the best model and the export.
    """

    head: str
    target: Target
    hyperparameters: dict[str, Any]  # those that define the architecture, as YAML knows them
    format_version: int = FORMAT_VERSION

    @classmethod
    def of(cls, head: str, target: Target, hyperparameters: Any) -> "ModelCard":
        """The card of a model, its hyperparameters a dataclass of options."""
        fields = [f for f in dataclasses.fields(hyperparameters) if f.name != "head"]
        names = [field.name for field in fields if field.metadata["defines_architecture"]]
        return cls(head, target, {name: plain(getattr(hyperparameters, name)) for name in names})

    @classmethod
    def load(cls, folder: str | Path) -> "ModelCard":
        """Read the card in a folder with checkpoints; UserError: it cannot be read."""
        path, what = Path(folder) / MODEL_FILE, "the card of a model"
        remedy = "use the version of the project that wrote it"
        try:
            text = path.read_bytes()
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}; it belongs to the checkpoint") from error
        return read_card(cls, text, place=path, what=what, remedy=remedy, prepare=_upgraded)

    def save(self, folder: str | Path) -> Path:
        path = Path(folder) / MODEL_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, dataclasses.asdict(self))
        return path

    def applied_to(self, hyperparameters: Any, given: Collection[str], folder: str | Path) -> Any:
        """The hyperparameters, a dataclass of options, with the architecture of this card.

        One that is `given` on the command line must not differ from that of the card in `folder`;
        null, which stands for what follows from others, does not.
        """
        kind: type = type(hyperparameters)
        options, changes, lines = options_of(kind), {}, []
        for name, found in self.hyperparameters.items():
            mine = plain(getattr(hyperparameters, name, None))
            if name not in options or _last_part(mine) == _last_part(found):
                continue
            try:
                changes[name] = options[name].value(word_of(found), Path())
            except ValueError as error:
                raise UserError(f"{Path(folder) / MODEL_FILE}: {error}") from error
            if name in given and mine is not None:
                lines.append(f"{_difference(name, mine, found, folder)}: leave --{name} out")
        if lines:
            raise UserError(*lines)
        return dataclasses.replace(hyperparameters, **changes)

    def must_equal(self, other: "ModelCard", folder: str | Path) -> None:
        """Refuse to continue with a model that was made differently: the `other` one of `folder`.

        The numbers of a target (mean, std, thresholds) may differ: they follow from the data. Of a
        hyperparameter that is newer than the other model, nothing is known.
        """
        mine, found = self.hyperparameters, other.hyperparameters
        pairs = {name: (mine.get(name), found[name]) for name in sorted(found)}
        if self.target.label == other.target.label:
            pairs["head"] = self.head, other.head
        lines = [
            f"{_difference(name, *pair, folder)}: pass {_flag(name, pair[1])}"
            for name, pair in pairs.items()
            if _last_part(pair[0]) != _last_part(pair[1])
        ]
        if (self.target.label, self.target.classes) != (other.target.label, other.target.classes):
            lines.append(
                f"train_data: the dataset has {self.target}, but the model in {folder} has "
                f"{other.target}: pass data with these"
            )
        if lines:
            new = shlex.join(["python", os.path.basename(sys.argv[0]), *sys.argv[1:], "--new"])
            raise UserError(*(f"{line}, or start a new run: {new}" for line in lines))


def _upgraded(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a card in the newest format; an error where it is none."""
    version, hyperparameters = content["format_version"], dict(content["hyperparameters"])
    if version < 4 and "image_size" in hyperparameters:  # and the whole of an image was seen
        hyperparameters |= {"min_crop_area": 1.0}
    if version < 3:  # whose checkpoints hold no averages of the weights
        hyperparameters |= {"average_decay": 0.0}
    if version == 1:  # which knew classes only
        target = {"label": "class", "classes": content["class_names"]}
        hyperparameters |= {"optimizer": "adam"}
        content = {"head": "classification", "target": target}
    return content | {"hyperparameters": hyperparameters}


def _difference(name: str, mine: Any, found: Any, folder: str | Path) -> str:
    return f"{name}: {word_of(mine)}, but the model in {folder} has {word_of(found)}"


def _flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {word_of(value)}"


def _last_part(value: Any) -> Any:
    """Of a path, what stays when the project is moved."""
    is_path = isinstance(value, str) and not URL.match(value)
    return re.split(r"[/\\]", value.rstrip("/\\"))[-1] if is_path else value
