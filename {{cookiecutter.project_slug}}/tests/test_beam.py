"""A conversion on Apache Beam writes the same bytes."""

import sys
from pathlib import Path

import pytest
from conftest import convert


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.slow
def test_beam_writes_what_processes_write(samples, tmp_path):
    pytest.importorskip("apache_beam")
    more = ["--num_shards", 3, "--validation_fraction", 0.25]
    convert(samples / "train", tmp_path / "ours", "train", *more)
    beam = ["--runner", "DirectRunner", "--beam_options"]
    options = "--direct_num_workers=2 --direct_running_mode=multi_processing"
    convert(samples / "train", tmp_path / "beam", "train", *more, *beam, options)
    assert files(tmp_path / "beam") == files(tmp_path / "ours")
    process = convert(samples / "train", tmp_path / "no", "train", "--runner", "Nobody", status=2)
    assert "error: runner: Nobody" in process.stderr


def test_without_beam_it_is_told_how_to_get_it(samples, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    words = ["--runner", "DirectRunner"]
    process = convert(samples / "test", tmp_path / "out", "test", *words, status=2)
    assert process.stderr.startswith("error: runner: import of apache_beam")
    assert "pip install apache-beam, or leave it out" in process.stderr
