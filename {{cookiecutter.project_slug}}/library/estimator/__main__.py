"""Run a program for TensorFlow 2.15 as it is: python -m library.estimator script.py ARGS"""

import os
import runpy
import sys

from . import UnsupportedTensorFlowError, install


def main() -> None:
    """Run the script, or after -m the module, that the command line names, as Python does."""
    is_module = sys.argv[1:2] == ["-m"]
    del sys.argv[: 1 + is_module]
    if not sys.argv or sys.argv[0].startswith("-"):
        print(f"usage: python -m {__package__} [-m MODULE | SCRIPT] [ARGS]", file=sys.stderr)
        sys.exit(2)
    if not (is_module or os.path.exists(sys.argv[0])):
        print(f"error: there is no {sys.argv[0]}", file=sys.stderr)
        sys.exit(2)
    install()
    try:
        if is_module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
            runpy.run_path(sys.argv[0], run_name="__main__")
    except UnsupportedTensorFlowError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
