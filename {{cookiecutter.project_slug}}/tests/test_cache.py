"""Caches: the same examples from memory and from a file, a refusal where there is no room."""

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace

import fsspec
import numpy as np
import pytest
import tensorflow as tf
from conftest import write_records

from library.config import Settings
from library.data import train_records
from library.data.cache import free_memory
from library.util import UserError

COUNT = 30


def write(path: Path, prefix: str = "") -> list[bytes]:
    """A dataset of three shards."""
    records = [f"{prefix}{number}".encode() * 100 for number in range(COUNT)]
    write_records(path, *[records[n : n + 10] for n in range(0, COUNT, 10)])
    return records


@pytest.fixture
def settings(tmp_path) -> Settings:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "train")
    return Settings(train_data=str(tmp_path / "data" / "train"), cache_dir=tmp_path / "kept")


def samples(settings: Settings, *, start: int = 0, count: int = COUNT, to_cache=None) -> list:
    """(number, id, record) of the first samples of a run."""
    records = train_records(settings, start, to_cache=to_cache).take(count)
    return list(records.as_numpy_iterator())


def contents(settings: Settings, to_cache=None) -> list[bytes]:
    """All that training reads, in the order of the ids."""
    found = {int(key): record for _, key, record in samples(settings, to_cache=to_cache)}
    return [found[key] for key in range(COUNT)]


def twice(records: tf.data.Dataset) -> list[bytes]:
    return [2 * record for record in records.as_numpy_iterator()]


@pytest.mark.parametrize("start", [0, 47])
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_cache_changes_nothing_of_what_is_seen(settings, kind, start):
    before = samples(settings, start=start, count=3 * COUNT)
    kept = dataclasses.replace(settings, cache=kind)
    for _ in range(2):  # filled, and used again
        assert samples(kept, start=start, count=3 * COUNT) == before


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_cache_is_filled_where_an_estimator_builds_its_graph(settings, kind):
    kept = dataclasses.replace(settings, cache=kind)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        records = train_records(kept)
        (_, key, record) = tf.compat.v1.data.make_one_shot_iterator(records).get_next()
        found = [session.run((key, record)) for _ in range(COUNT)]
    assert found == [(key, record) for _, key, record in samples(settings)]


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_what_is_kept_can_be_made_of_the_records(settings, kind):
    before = contents(settings)
    kept = dataclasses.replace(settings, cache=kind)
    assert contents(kept, twice) == [2 * record for record in before]
    assert contents(kept) == before, "which is another cache"


def test_a_file_is_filled_once_and_read_without_the_original(settings, capsys):
    kept = dataclasses.replace(settings, cache="file")
    before = contents(kept)
    assert "cache: writing" in capsys.readouterr().out
    for shard in Path(settings.train_data).parent.glob("train-*.tfrecord"):
        shard.unlink()
    assert contents(kept) == before
    assert "cache: writing" not in capsys.readouterr().out


def test_a_file_that_is_not_whole_is_filled_again(settings):
    kept = dataclasses.replace(settings, cache="file")
    before = contents(kept)
    (card,) = settings.cache_dir.glob("*.json")
    card.unlink()  # as after a kill: the card comes last
    next(settings.cache_dir.glob("*-00001-of-*")).write_bytes(b"half")
    assert contents(kept) == before == contents(settings)


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_another_dataset_of_that_name_is_another_cache(settings, kind):
    kept = dataclasses.replace(settings, cache=kind)
    before = contents(kept)
    records = write(Path(settings.train_data), "another ")
    assert contents(kept) == records != before


@pytest.fixture
def free(monkeypatch):
    """The machine as it is, except for the memory and the disk that are said to be free."""

    def set_free(size: float) -> None:
        memory = SimpleNamespace(available=size)
        monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
        monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=size))

    return set_free


@pytest.mark.parametrize("kind", ["memory", "file"])
@pytest.mark.parametrize(("share", "fits"), [(1.2, True), (1.0, False)])
def test_a_cache_without_room_is_refused_with_the_numbers(settings, kind, free, share, fits):
    """All of it fits where a tenth is left free for the training."""
    total = sum(map(len, contents(settings)))
    free(total * share)
    kept = dataclasses.replace(settings, cache=kind)
    if fits:
        assert contents(kept)
        return
    with pytest.raises(
        UserError, match=rf"cache: {kind} has no room for .*train: 30 examples take about 0.00 GB"
    ):
        contents(kept)
    assert not list(settings.cache_dir.glob("*.json"))


def test_memory_that_is_free_is_that_of_the_container(settings, tmp_path, monkeypatch, free):
    free(2**40)
    monkeypatch.setattr("library.data.cache.CONTAINER", tmp_path)
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.stat").write_text("anon 900\ninactive_file 100\n")
    kept = dataclasses.replace(settings, cache="memory")
    with pytest.raises(UserError, match="no room"):
        contents(kept)
    (tmp_path / "memory.max").write_text("max\n")
    assert contents(kept)
    (tmp_path / "memory.max").write_text(f"{2**30}\n")
    (tmp_path / "memory.current").write_text(f"{2**30}\n")  # full of files that were read
    (tmp_path / "memory.stat").write_text(f"anon 900\ninactive_file {2**29}\n")
    assert free_memory() == 2**29


def test_a_dataset_from_elsewhere_is_kept(settings):
    folder = Path(settings.train_data).parent
    for file in folder.iterdir():
        fsspec.filesystem("memory").put(str(file), f"cache/{file.name}")
    elsewhere = dataclasses.replace(settings, train_data="memory://cache/train", cache="memory")
    assert contents(elsewhere) == contents(settings)


def test_one_dataset_is_in_memory_at_a_time(settings, tmp_path, capsys):
    kept = dataclasses.replace(settings, cache="memory")
    shutil.copytree(Path(settings.train_data).parent, tmp_path / "copy")
    write(tmp_path / "copy" / "train", "another ")
    another = dataclasses.replace(kept, train_data=str(tmp_path / "copy" / "train"))
    for each in (kept, kept, another, kept):
        contents(each)
    assert capsys.readouterr().out.count("into memory") == 3


def test_workers_share_the_samples(settings):
    kept = dataclasses.replace(settings, cache="memory", random_seed=3)
    whole = samples(kept, start=5, count=60)
    for worker in range(3):
        share = train_records(kept, 5, num_workers=3, worker=worker).take(20)
        assert list(share.as_numpy_iterator()) == whole[worker::3]
    assert [int(number) for number, _, _ in whole] == list(np.arange(5, 65))
