"""Runs programs in processes that have TensorFlow already: its import takes most of their time."""

import atexit
import multiprocessing
import os
import runpy
import sys
import tempfile
from pathlib import Path
from subprocess import CompletedProcess

AVAILABLE = sys.platform == "linux"
CONTEXT = multiprocessing.get_context("forkserver" if AVAILABLE else None)
if AVAILABLE:
    CONTEXT.set_forkserver_preload(["tensorflow", "tf_keras", "numpy", "psutil", "yaml"])


def run(
    command: list[str], cwd: Path, environment: dict[str, str], timeout: float
) -> CompletedProcess:
    """Run `python COMMAND`: a process begins as a copy of one that has imported TensorFlow only."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [os.path.join(folder, name) for name in ("stdout", "stderr")]
        arguments = (command, str(cwd), environment, outputs)
        process = CONTEXT.Process(target=_run, args=arguments)
        process.start()
        process.join(timeout)
        process.kill()
        process.join()
        printed = [Path(output).read_text() for output in outputs]
    return CompletedProcess(command, process.exitcode, *printed)


def _run(command: list[str], cwd: str, environment: dict[str, str], outputs: list[str]) -> None:
    """What the process does."""
    for number, output in enumerate(outputs, start=1):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = command
    sys.path.insert(0, os.path.dirname(command[0]))
    try:
        runpy.run_path(command[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()
