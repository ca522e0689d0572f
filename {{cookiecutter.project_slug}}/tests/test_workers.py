"""Workers that crash, hang or fail: the task is done again without the item that did it."""

import ctypes
import os
import time
from pathlib import Path

import pytest

from library.convert import run_tasks, workers


def write_items(task, bad, tell):
    """A task is a file and words to write to it, some of which do harm."""
    path, words = task
    written = []
    for number, word in enumerate(words):
        if number in bad:
            written.append(f"{word}: {bad[number]}")
            continue
        tell(number, len(word))
        if word == "crash":
            ctypes.string_at(0)
        elif word == "hang":
            time.sleep(100)
        elif word == "full":
            raise OSError(28, "No space left on device", path)
        elif word == "mistake":
            raise KeyError("what")
        written.append(word)
    Path(path).write_text("\n".join(written))


def test_a_crash_or_a_hang_costs_one_item(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "SECONDS_PER_ITEM", 1.0)
    words = [["a", "crash", "b", "hang", "c"], ["d"], ["crash", "crash"], ["e", "f"]]
    tasks = [(str(tmp_path / str(number)), each) for number, each in enumerate(words)]
    begin = time.monotonic()
    counted = list(run_tasks(write_items, tasks, 2))
    assert time.monotonic() - begin < 30
    assert sum(count for count, _ in counted) == 10
    assert sum(size for _, size in counted) == len("".join(sum(words, [])))
    contents = [(tmp_path / str(number)).read_text().splitlines() for number in range(4)]
    crashed = "crash: the decoder crashed"
    assert contents == [
        ["a", crashed, "b", "hang: not done in 1 s", "c"],
        ["d"],
        [crashed, crashed],
        ["e", "f"],
    ]


def test_other_errors_end_it(tmp_path):
    tasks = [(str(tmp_path / "0"), ["full"])]
    with pytest.raises(OSError, match="No space left") as error:
        list(run_tasks(write_items, tasks, 1))
    assert error.value.errno == 28
    with pytest.raises(RuntimeError, match="KeyError: 'what'"):
        list(run_tasks(write_items, [(str(tmp_path / "0"), ["mistake"])], 1))


def test_no_tasks_are_done_at_once():
    assert list(run_tasks(write_items, [], 4)) == []


def test_workers_end_with_the_loop(tmp_path):
    tasks = [(str(tmp_path / str(number)), ["a"] * 50) for number in range(4)]
    running = run_tasks(write_items, tasks, 2)
    next(running)
    before = children()
    assert len(before) >= 2
    running.close()
    assert not [pid for pid in before if os.path.exists(f"/proc/{pid}/exe")]


def children() -> list[str]:
    pids = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
