"""What a checkpoint needs to be used again: the names of its classes, and what shapes it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from library.config import URL, Location
from library.util import UserError, replacing

FILE = "model.json"


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """Lies beside the checkpoints, and goes with them to the best model and the export."""

    class_names: list[str]  # in the order of the labels
    hyperparameters: dict[str, Any]  # option(..., defines_architecture=True)

    @classmethod
    def of(cls, class_names: list[str], hyperparameters: Any) -> "ModelCard":
        """The card of a model, its hyperparameters a dataclass of options."""
        fields = dataclasses.fields(hyperparameters)
        shaping = [field.name for field in fields if field.metadata["defines_architecture"]]
        return cls(
            class_names, {name: _lasting(getattr(hyperparameters, name)) for name in shaping}
        )

    @classmethod
    def load(cls, folder: str | Path) -> "ModelCard":
        """Read the card in a folder with checkpoints.

        Raises:
            UserError: there is none.
        """
        path = Path(folder) / FILE
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}; it belongs to the checkpoint") from error
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}: not the card of a model") from error

    def save(self, folder: str | Path) -> Path:
        path = Path(folder) / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            text = json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False)
            temporary.write_text(text + "\n", encoding="utf-8")
        return path

    def must_equal(self, other: "ModelCard", folder: str | Path) -> None:
        """Refuse to go on with a model that was made differently.

        Args:
            other: the card that was found in `folder`.

        Raises:
            UserError: with a line for each difference.
        """
        mine, found = dataclasses.asdict(self), dataclasses.asdict(other)
        mine |= mine.pop("hyperparameters")
        found |= found.pop("hyperparameters")
        lines = [
            f"{name}: {mine.get(name)}, but the model in {folder} has {found.get(name)}: "
            "use that value, or another folder"
            for name in sorted(mine.keys() | found.keys())
            if mine.get(name) != found.get(name)
        ]
        if lines:
            raise UserError(*lines)


def _lasting(value: Any) -> Any:
    """A value as it is when the project was moved: of a path, its last part."""
    return Path(value).name if isinstance(value, Location) and not URL.match(value) else value
