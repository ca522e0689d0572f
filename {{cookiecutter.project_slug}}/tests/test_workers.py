"""Workers that crash, hang or fail: the job is done again without the item that did it."""

import ctypes
import functools
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from library.convert import run_jobs


def write_items(path, words, bad, tell):
    """Write words to a file, some of which do harm."""
    written = []
    for number, word in enumerate(words):
        if number in bad:
            written.append(f"{word}: {bad[number]}")
            continue
        tell(number, len(word))
        if word == "crash":
            ctypes.string_at(0)
        elif word == "hang":
            while True:
                pass
        elif word == "pause":
            wake = f"sleep 2; kill -CONT {os.getpid()}"
            subprocess.Popen(["sh", "-c", wake])
            os.kill(os.getpid(), signal.SIGSTOP)
        elif word == "full":
            raise OSError(28, "No space left on device", path)
        elif word == "mistake":
            raise KeyError("what")
        written.append(word)
    Path(path).write_text("\n".join(written))


def jobs(folder: Path, *lists: list[str]) -> list[functools.partial]:
    return [
        functools.partial(write_items, folder / str(number), words)
        for number, words in enumerate(lists)
    ]


def contents(folder: Path, count: int) -> list[list[str]]:
    return [(folder / str(number)).read_text().splitlines() for number in range(count)]


@pytest.mark.slow
def test_a_crash_or_a_hang_costs_one_item(tmp_path):
    words = [["a", "crash", "b", "hang", "c"], ["d"], ["crash", "crash"], ["e", "f"]]
    counted = list(run_jobs(jobs(tmp_path, *words), 2, seconds_per_item=1.0))
    assert sum(count for count, _ in counted) == 10
    assert sum(size for _, size in counted) == len("".join(sum(words, [])))
    crashed = "crash: the decoder crashed"
    assert contents(tmp_path, 4) == [
        ["a", crashed, "b", "hang: the decoder hung", "c"],
        ["d"],
        [crashed, crashed],
        ["e", "f"],
    ]


@pytest.mark.slow
def test_a_pause_costs_nothing(tmp_path):
    begin = time.monotonic()
    list(run_jobs(jobs(tmp_path, ["a", "pause", "b"]), 1, seconds_per_item=0.5))
    assert time.monotonic() - begin > 2
    assert contents(tmp_path, 1) == [["a", "pause", "b"]]


@pytest.mark.slow
def test_other_errors_end_it(tmp_path):
    with pytest.raises(OSError, match="No space left") as error:
        list(run_jobs(jobs(tmp_path, ["full"]), 1))
    assert (error.value.errno, error.value.filename) == (28, tmp_path / "0")
    with pytest.raises(RuntimeError, match="KeyError: 'what'"):
        list(run_jobs(jobs(tmp_path, ["mistake"]), 1))


def test_no_jobs_are_done_at_once():
    assert list(run_jobs([], 4)) == []


def test_jobs_are_done_in_this_process_without_workers(tmp_path):
    assert list(run_jobs(jobs(tmp_path, ["a", "bcd"], ["e"]), 0)) == [(2, 4), (1, 1)]
    assert contents(tmp_path, 2) == [["a", "bcd"], ["e"]]
    assert not children()


@pytest.mark.slow
def test_workers_end_with_the_loop(tmp_path):
    running = run_jobs(jobs(tmp_path, *[["a"] * 50] * 4), 2)
    next(running)
    before = children()
    assert len(before) >= 2
    running.close()
    assert not [pid for pid in before if os.path.exists(f"/proc/{pid}/exe")]


def children() -> list[str]:
    pids = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
