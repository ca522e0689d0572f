"""Audio clips at a URL: those of local files, whatever fails on the way."""

import gc
from pathlib import Path

import fsspec
import numpy as np
import pytest
import tensorflow as tf
from made_audio import WAVEFORMS, noises, write_set
from storage_server import Server

from library.audio import Archive, train_windows
from library.config import Settings
from library.data import BlockCache, DamagedRecordError
from library.util import UserError


@pytest.fixture(scope="module", autouse=True)
def no_other_files() -> None:
    """Archives of other tests are closed: HDF5 looks at all that is open when it closes a file."""
    tf.compat.v1.reset_default_graph()  # which holds what was called in tf.data
    gc.collect()


@pytest.fixture
def stored(tmp_path) -> str:
    """The dataset of WAVEFORMS, in three shards."""
    return write_set(tmp_path / "data" / "train", WAVEFORMS, 3)


@pytest.fixture
def remote(stored, tmp_path, monkeypatch) -> str:
    """The same dataset elsewhere, of which no page of 64 bytes stays in memory."""
    monkeypatch.setattr("library.audio.remote.PAGE", 64)
    monkeypatch.setattr("library.audio.remote.MOST_PAGES", 1)
    monkeypatch.setattr("library.data.remote.FIRST_PAUSE_SECS", 0.001)
    files = fsspec.filesystem("memory")
    for file in Path(stored).parent.iterdir():
        files.pipe(f"memory://{tmp_path}/{file.name}", file.read_bytes())
    return f"memory://{tmp_path}/train"


def read_all(path, *cache) -> list:
    """Of all that an archive gives."""
    archive, random = Archive(path, *cache), np.random.default_rng(0)
    numbers = random.integers(0, archive.num_examples, 60)
    windows = archive.read_windows(numbers, random.integers(-60, 1000, 60), 50)
    names = [archive.name(number) for number in range(archive.num_examples)]
    return [names, archive.read(numbers[:20]).tolist(), windows.tolist(), archive.sizes.tolist()]


def test_clips_at_a_url_are_those_of_local_files(stored, remote, tmp_path):
    expected = read_all(stored)
    assert read_all(remote) == expected, "without a cache"
    assert read_all(remote, BlockCache(tmp_path, 1)) == expected, "cold"
    for block in (tmp_path / "blocks").glob("*-*"):
        block.write_bytes(block.read_bytes()[:-9])
    assert read_all(remote, BlockCache(tmp_path, 1)) == expected, "of a cache that was cut off"
    both = Archive.of(stored, remote)
    np.testing.assert_array_equal(both.waveform(2), both.waveform(9))
    assert both.name(13) == expected[0][6]


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": "stream", "shuffle_buffer_mb": 0.002}, {"cache": "memory"}]
)
def test_a_training_from_a_url_has_the_windows_of_local_files(stored, remote, tmp_path, options):
    def windows(path: str) -> list:
        settings = Settings(train_data=path, cache_dir=tmp_path, **options)
        archive = Archive(path, BlockCache.of(settings))
        found = train_windows(settings, archive, 40, 5).take(30).as_numpy_iterator()
        return [(number, example, window.tobytes()) for number, example, window in found]

    assert windows(remote) == windows(stored)


def test_a_damaged_archive_at_a_url_is_named(remote, tmp_path):
    path = f"memory://{tmp_path}/train-00001-of-00003.h5"
    content = fsspec.filesystem("memory").cat_file(path)
    fsspec.filesystem("memory").pipe(path, bytes(len(content)))
    with pytest.raises(DamagedRecordError, match=f"{path}: not a readable HDF5 file"):
        Archive(remote).waveform(4)
    fsspec.filesystem("memory").pipe(f"{remote}.index", b"")
    with pytest.raises(UserError, match=r"train.index: does not fit the shards: copy the dataset"):
        Archive(remote)


@pytest.mark.slow
def test_windows_through_a_server_that_fails_are_those_of_local_files(
    stored, tmp_path, monkeypatch
):
    monkeypatch.setattr("library.audio.remote.PAGE", 500)
    monkeypatch.setattr("library.data.remote.BLOCK", 1000)
    monkeypatch.setattr("library.data.remote.STALL_SECS", 1.0)
    monkeypatch.setattr("library.data.remote.FIRST_PAUSE_SECS", 0.01)
    waveforms = noises(*range(400, 1000, 3))
    path = write_set(tmp_path / "many" / "train", waveforms, 3)
    limit = sum(file.stat().st_size for file in (tmp_path / "many").iterdir()) // 10
    with Server(tmp_path, failing=0.05, hanging=0.01) as server:
        url = f"http://127.0.0.1:{server.port}/many/train"
        assert read_all(url, BlockCache(tmp_path, limit / 1e9)) == read_all(path)
        assert server.faults > 20
        assert server.hangs > 2
    assert 0 < sum(file.stat().st_size for file in tmp_path.glob("blocks/*-*")) <= limit
