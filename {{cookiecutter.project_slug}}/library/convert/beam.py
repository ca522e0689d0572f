"""A conversion on Apache Beam: the same shards, written wherever Beam runs.

The folder of the files and that of the data set have to be the same for all workers, as on a
network file system, and `library` has to be installed on those of other machines: Beam's option
`--setup_file` does that.
"""

import functools
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from library.convert.conversion import Task
from library.util import UserError


def run_with_beam(
    function: Callable, tasks: Sequence[Task], runner: str, beam_options: str
) -> None:
    """Do tasks as a pipeline of their own.

    Args:
        function: of `library.conversion`, which writes a report for each task.
        tasks: what is not done yet.
        runner: as Beam knows it: DirectRunner, FlinkRunner, SparkRunner, DataflowRunner, ...
        beam_options: Beam's own flags, in one line.

    Raises:
        UserError: Beam is not installed, or knows no such runner or flag.
    """
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError as error:
        raise UserError(f"runner: {error}: pip install apache-beam, or leave it out") from error
    here = str(Path(__file__).parents[2])  # for the processes of DirectRunner
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.getenv("PYTHONPATH")])])
    try:
        options = PipelineOptions([f"--runner={runner}", *shlex.split(beam_options)])
        pipeline = beam.Pipeline(options=options)
    except (ValueError, SystemExit) as error:
        raise UserError(f"runner: {runner} {beam_options}: {error}") from error
    with pipeline:
        (
            pipeline
            | beam.Create(list(tasks))
            | beam.Reshuffle()  # or Beam may do them all in one worker
            | beam.Map(functools.partial(_do, function=function))
        )


def _do(task: Task, function: Callable) -> None:
    function(task, {}, lambda number, size: None)
