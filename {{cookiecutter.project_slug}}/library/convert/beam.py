"""A conversion on Apache Beam: the same shards, written wherever Beam runs.

The folder of the files and that of the dataset have to be the same for all workers, as on a network
file system, and `library` has to be installed on those of other machines: Beam's option
`--setup_file` does that.
"""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from library.convert.jobs import ShardJob
from library.util import UserError


def run_with_beam(jobs: Sequence[ShardJob], runner: str, beam_options: str) -> None:
    """Do jobs as a pipeline of their own, on DirectRunner, FlinkRunner, SparkRunner, ...

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
    with pipeline:  # reshuffled, or Beam may do all jobs in one worker
        pipeline | beam.Create(list(jobs)) | beam.Reshuffle() | beam.Map(_do)


def _do(job: ShardJob) -> None:
    job({}, lambda number, size: None)
