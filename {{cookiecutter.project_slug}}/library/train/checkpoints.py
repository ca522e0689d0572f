"""The checkpoints of a folder: safe on the disk before they are named, and which can be read."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

from library.util import UserError, moving_into, write_text

NAME = re.compile(r"model\.ckpt-(\d+)")


class SafeSaver(tf.compat.v1.train.Saver):
    """A Saver that survives a power cut.

    A checkpoint's files get their names when they are on the disk, and `checkpoint` names it when
    these are; only then older ones are deleted.
    """

    def __init__(self, *, max_to_keep: int):
        super().__init__(
            sharded=True, max_to_keep=max_to_keep, defer_build=True, save_relative_paths=True
        )

    def save(self, sess: Any, save_path: str, global_step: Any = None, **options: Any) -> str:
        folder, name = Path(save_path).parent, Path(save_path).name
        with moving_into(folder) as temporary:
            # The state is written below; a graph with each checkpoint takes long, and is not read.
            options |= {"write_state": False, "write_meta_graph": False}
            path = super().save(sess, str(temporary / name), global_step, **options)
        new = os.path.basename(path)
        names = [each for each in named_checkpoints(folder) if each != new] + [new]
        name_checkpoints(folder, names[-self.saver_def.max_to_keep :])
        return str(folder / new)


def named_checkpoints(folder: str | Path) -> list[str]:
    """The checkpoints that `checkpoint` names and that are there, the newest last."""
    state = _state(folder)
    paths = [*state.all_model_checkpoint_paths, state.model_checkpoint_path] if state else []
    names = [*dict.fromkeys(map(os.path.basename, reversed(paths)))][::-1]
    return [name for name in names if os.path.exists(os.path.join(folder, f"{name}.index"))]


def last_step(folder: str | Path) -> int:
    """The step of the newest checkpoint that `checkpoint` names; 0: there is none."""
    return int(("-0", *named_checkpoints(folder))[-1].rpartition("-")[2])


def _state(folder: str | Path) -> Any:
    """The content of `checkpoint`; None: there is none, or it is damaged."""
    try:
        return tf.train.get_checkpoint_state(str(folder))
    except ValueError:  # not UTF-8
        return None


def name_checkpoints(folder: str | Path, names: list[str]) -> None:
    """Write `checkpoint`, which names these, the newest last; delete all other checkpoints."""
    state = tf.compat.v1.train.generate_checkpoint_state_proto(
        str(Path(folder).absolute()), names[-1], all_model_checkpoint_paths=names
    )
    write_text(Path(folder) / "checkpoint", str(state))
    for file in Path(folder).glob("model.ckpt-*"):
        if NAME.fullmatch(file.stem) and file.stem not in names:
            file.unlink()


def resume_from(checkpoint: str) -> None:
    """Let `checkpoint` name this one last, where it names a newer one that cannot be read."""
    folder, name = os.path.split(checkpoint)
    state = _state(folder)
    if state is None or state.model_checkpoint_path != checkpoint:
        names = named_checkpoints(folder)
        older = names[: names.index(name)] if name in names else []
        name_checkpoints(folder, [*older, name])


def damage(checkpoint: str) -> str | None:
    """Why a checkpoint cannot be read; None: every tensor of it can, by its checksum."""
    try:
        reader = tf.train.load_checkpoint(checkpoint)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
        return None
    except Exception as error:  # of C++, which has many names for what is no checkpoint
        return str(error).partition("\n")[0]


def newest_checkpoint(option: str, folder: str | Path) -> str | None:
    """The newest checkpoint of a folder that can be read; None: there is no checkpoint.

    A line on standard error says why it is not the last one. UserError: none can be read.
    """
    named = named_checkpoints(folder)
    others = {file.stem for file in Path(folder).glob("model.ckpt-*.index")} - {*named}
    steps = {name: int(found[1]) for name in others if (found := NAME.fullmatch(name))}
    damaged = ""
    for name in [*named[::-1], *sorted(steps, key=lambda name: -steps[name])]:
        checkpoint = str(Path(folder) / name)
        reason = damage(checkpoint)
        if not reason:
            if damaged:
                print(f"{damaged}: {checkpoint} is used", file=sys.stderr)
            return checkpoint
        damaged = damaged or f"{option}: {checkpoint} cannot be read: {reason}"
    if damaged:
        raise UserError(f"{damaged}; nor can an older one of this folder")
    return None
