"""A page of documentation on all options of a project, from the dataclasses that define them.

python -m library.settings_page project/settings.py > docs/settings.md
"""

import dataclasses
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from library.config import REQUIRED, Option, Parser, options_of, plain
from library.util import UserError, run_main

HEAD = """# All settings

`python -m library.settings_page project/settings.py > docs/settings.md` writes this page: what
stands here stands in [project/settings.py](../project/settings.py), and a test says when the page
is behind it.

## Where a value comes from

The command line wins over the chosen set, and the set over the default. There are two files of
sets, [project.yaml](../project.yaml) for `Settings` and
[hyperparameters.yaml](../hyperparameters.yaml) for `Hyperparameters`; `--config_set` and
`--hyperparameter_set` choose in them, and take the set `default` otherwise. The second one is an
option itself, so that a set of project.yaml can name its hyperparameters.

```sh
python run.py --train_epochs 5 --print_config
```

shows all values, each with the place it came from: `command line`, the line and the set, or
`default`. What it prints can be saved as sets, and used again.

A set takes over another one, and overrides what it wants:

```yaml
default: &DEFAULT
  train_batch_size: 32
  train_epochs: 30

large:
  <<: *DEFAULT              # or: inherits: default
  train_batch_size: 256

night:
  inherits: [large, default]
  train_epochs: 300
```

- Of several, the first one wins; what a set says itself wins over all that it takes over.
- Numbers are those of YAML 1.2: `1e-4` is a number, `010` is ten. `null` is no value, where that is
  allowed.
- As a flag, each option is `--NAME VALUE`; what is true or false is `--NAME` or `--no-NAME`.
- Relative paths start from the folder of `run.py`; `~` and `$NAME` are resolved.
- All sets of both files are checked at each start, and each mistake is a line, with its place and
  the nearest name that exists; the exit status is 2.

An option that **shapes the model** cannot change from training to evaluation, prediction and
export, nor when a training goes on: another value is refused.
"""


def page_of(path: str | Path) -> str:
    """The page on the dataclasses of options in a Python file, in Markdown.

    Raises:
        UserError: there is no such file, or no options are in it.
    """
    classes = list(_classes_of(Path(path)))
    if not classes:
        raise UserError(f"{path}: no dataclass of options is in it")
    return "\n".join([HEAD, *(line for cls in classes for line in _section(cls))])


def _classes_of(path: Path) -> Iterator[type]:
    """The dataclasses that a Python file defines with `library.options.option`, in their order."""
    if not path.is_file() or path.suffix != ".py":
        raise UserError(f"{path}: not a Python file that is there")
    spec = importlib.util.spec_from_file_location(f"options_of_{path.stem}", path)
    assert spec is not None, "what ends in .py has a loader"
    assert spec.loader is not None, "what ends in .py has a loader"
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    for found in vars(module).values():
        if not isinstance(found, type) or found.__module__ != spec.name:
            continue
        if dataclasses.is_dataclass(found) and all(
            "group" in field.metadata for field in dataclasses.fields(found)
        ):
            yield found


def _section(cls: type) -> Iterator[str]:
    """The lines on a class: what it is, and a table for each of its groups."""
    yield f"## {cls.__name__}\n\n{(cls.__doc__ or '').strip()}\n"
    groups: dict[str, list[Option]] = {}
    for option in options_of(cls).values():
        groups.setdefault(option.group.__doc__, []).append(option)
    for group, options in groups.items():
        yield f"### {group.capitalize()}\n"
        yield "| option | allowed | default | effect |\n| --- | --- | --- | --- |"
        yield from map(_row, options)
        yield ""


def _row(option: Option) -> str:
    default = "required" if option.default is REQUIRED else f"`{_shown(option.default)}`"
    effect = option.rule["help"] + "; **shapes the model**" * option.rule["defines_architecture"]
    cells = (f"`{option.name}`", option.allowed, default, effect)
    line = " | ".join(cell.replace("|", "\\|") for cell in cells)
    return f"| {line} |"


def _shown(default: object) -> str:
    """A default as YAML has it."""
    words = {None: "null", True: "true", False: "false"}
    return words[default] if default is None or isinstance(default, bool) else str(plain(default))


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("file", help="the Python file with the dataclasses")
    file = parser.parse(sys.argv[1:])["file"]
    parser.raise_errors()
    print(page_of(file), end="")


if __name__ == "__main__":
    run_main(main)
