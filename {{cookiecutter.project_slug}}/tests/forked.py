"""Runs programs in processes that have TensorFlow already: its import takes most of their time."""

import atexit
import contextlib
import multiprocessing
import os
import runpy
import subprocess
import sys
from pathlib import Path

AVAILABLE = sys.platform == "linux"
CONTEXT = multiprocessing.get_context("forkserver" if AVAILABLE else None)
if AVAILABLE:
    packages = ["tensorflow", "tf_keras", "numpy", "psutil", "yaml", "PIL.Image", "jinja2"]
    CONTEXT.set_forkserver_preload([*packages, "matplotlib.backends.backend_agg"])


class Forked(CONTEXT.Process):
    """A process that runs `python COMMAND`; to be used like a `subprocess.Popen`.

    It begins as a copy of one that has imported packages only, nothing of a project.
    """

    def __init__(self, command: list[str], cwd: Path, env: dict[str, str], outputs: list[Path]):
        super().__init__(target=_run, args=(command, str(cwd), env, [*map(str, outputs)]))
        self.start()
        atexit.register(self.kill)  # before all processes are waited for

    @property
    def returncode(self) -> int | None:
        return self.exitcode

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self.join(timeout)
        if self.exitcode is None:
            raise subprocess.TimeoutExpired("python", timeout)
        return self.exitcode

    def send_signal(self, number: int) -> None:
        if self.exitcode is None:
            os.kill(self.pid, number)


Process = Forked | subprocess.Popen


def start(command: list[str], cwd: Path, env: dict[str, str], outputs: list[Path]) -> Process:
    """Start `python COMMAND`; its standard output and error are appended to two files, or one.

    `env` is what its environment has beside that of the tests.
    """
    env = {**os.environ, **env}
    if AVAILABLE:
        return Forked(command, cwd, env, outputs)
    with contextlib.ExitStack() as stack:
        stdout, stderr = (stack.enter_context(open(output, "ab")) for output in outputs)
        command = [sys.executable, *command]
        return subprocess.Popen(command, cwd=cwd, env=env, stdout=stdout, stderr=stderr)


def _run(command: list[str], cwd: str, environment: dict[str, str], outputs: list[str]) -> None:
    """What the process does."""
    for number, output in enumerate(outputs, start=1):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout.reconfigure(line_buffering="PYTHONUNBUFFERED" in environment)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = command
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [os.path.dirname(command[0]), *filter(None, paths)]
    try:
        sys.modules.pop("sitecustomize", None)
        with contextlib.suppress(ModuleNotFoundError):
            import sitecustomize  # noqa: F401
        runpy.run_path(command[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()
