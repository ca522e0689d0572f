"""Errors, atomic files, files below a folder, progress: what every program needs."""

import contextlib
import errno
import io
import json
import os
import platform
import threading
import time

import pytest

from library.util import (
    LINK_OUT,
    Progress,
    RunError,
    StatusLine,
    UserError,
    check_folder,
    did_you_mean,
    files_below,
    locked,
    remove_leftovers,
    replacing,
    run_main,
    write_json,
    write_text,
)

# ---- files -------------------------------------------------------------------------------------


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "file"
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with contextlib.suppress(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_of_a_file_do_not_meet(tmp_path, monkeypatch):
    """In two containers that share a disk, both may have the process id 1."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with replacing(tmp_path / "file") as one, replacing(tmp_path / "file") as other:
        assert one != other
        one.write_text("one")
        other.write_text("other")
    assert (tmp_path / "file").read_text() == "one"


def test_text_and_json_end_with_one_newline_and_are_utf_8(tmp_path):
    for text in ("ä", "ä\n"):
        write_text(tmp_path / "text", text)
        assert (tmp_path / "text").read_bytes() == "ä\n".encode()
    write_json(tmp_path / "json", {"ä": [1, None]})
    content = (tmp_path / "json").read_text(encoding="utf-8")
    assert content.startswith('{\n  "ä"')
    assert content.endswith("}\n")
    assert json.loads(content) == {"ä": [1, None]}


# ---- locks -------------------------------------------------------------------------------------


def without_locks(*_):
    """As flock on a disk that has none."""
    raise OSError(errno.ENOTSUP, "Operation not supported")


@pytest.fixture(params=["locks", "none"])
def disk(request, monkeypatch, tmp_path):
    """A folder on a disk with locks, or without; a process that shows no life is soon gone."""
    monkeypatch.setattr("library.util.lock.HEARTBEAT_SECS", 0.02)
    if request.param == "none":
        monkeypatch.setattr("library.util.lock.fcntl.flock", without_locks)
    return tmp_path / "new" / "folder"


def test_a_lock_keeps_a_second_one_out_until_it_ends(disk, monkeypatch):
    monkeypatch.setattr("library.util.lock.HEARTBEAT_SECS", 0.2)  # its owner lives
    owner = f"process {os.getpid()} on {platform.node()}, since 20"
    for _ in range(2):
        refused = pytest.raises(UserError, match=f"^model_dir: {disk} is in use by {owner}")
        with locked("model_dir", disk), refused, locked("model_dir", disk):
            raise AssertionError
        assert not disk.parent.exists(), "nothing is left of what it made"


@pytest.mark.parametrize("host", ["another", platform.node()])
def test_a_lock_of_a_process_that_is_gone_needs_no_hand(disk, host, capsys):
    """Left by a kill, a power cut, or a machine that was taken away."""
    disk.mkdir(parents=True)
    (disk / ".lock").write_text(f"process 1 on {host}, since 2026-01-01 10:00\n7\n")
    with locked("model_dir", disk):
        assert f"process {os.getpid()} on" in (disk / ".lock").read_text()
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\0\n" * 99, b"x" * 10**6])
def test_a_lock_that_nobody_wrote_needs_no_hand(disk, content):
    disk.mkdir(parents=True)
    (disk / ".lock").write_bytes(content)
    with locked("model_dir", disk):
        pass


def test_a_process_of_another_machine_that_lives_is_named(disk, monkeypatch):
    """The system's lock may be known on one machine only."""
    monkeypatch.setattr("library.util.lock.HEARTBEAT_SECS", 0.2)
    disk.mkdir(parents=True)
    content, ended = b"process 1 on another, since 2026-01-01 10:00\n", threading.Event()
    (disk / ".lock").write_bytes(content)

    def live():
        with (disk / ".lock").open("r+b", buffering=0) as file:
            while not ended.wait(0.1):
                file.seek(len(content))
                file.write(b"%f\n" % time.monotonic())

    heart = threading.Thread(target=live)
    heart.start()
    try:
        refused = "model_dir: .* is in use by process 1 on another, since 2026-01-01 10:00$"
        with pytest.raises(UserError, match=refused), locked("model_dir", disk):
            raise AssertionError
    finally:
        ended.set()
        heart.join()


def test_a_lock_that_ends_while_it_is_refused_has_no_owner(disk, monkeypatch):
    def refuse(*_):
        raise BlockingIOError

    monkeypatch.setattr("library.util.lock._acquire", refuse)
    with pytest.raises(UserError, match="is in use by another process$"), locked("x", disk):
        raise AssertionError


def test_an_error_within_a_lock_is_that_error(tmp_path):
    with pytest.raises(BlockingIOError), locked("model_dir", tmp_path):
        raise BlockingIOError


# ---- folders -----------------------------------------------------------------------------------


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    with replacing(tmp_path / "file") as temporary:
        temporary.write_text("half")
        for name in ("model.tempstate123", "kept", ".kept"):
            (tmp_path / name).touch()
        remove_leftovers(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {"kept", ".kept"}
        temporary.write_text("whole")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    check_folder("place", tmp_path / "not" / "yet" / "there")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"place: .*file is a file, not a folder"):
        check_folder("place", tmp_path / "file" / "below")


def test_files_below_a_folder_are_sorted_and_without_junk(tmp_path):
    names = ["b/2", "b/1", "a", ".hidden", ".git/x", "__MACOSX/y", "b/Thumbs.db", "c"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [(path.relative_to(tmp_path).as_posix(), why) for path, why in files_below(tmp_path)]
    assert found == [("a", ""), ("b/1", ""), ("b/2", ""), ("c", "")]


def test_links_are_followed_but_not_in_a_circle_nor_out(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside / "a", outside):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    (inside / "circle").symlink_to(inside)
    (inside / "gone").symlink_to(inside / "nothing")
    (inside / "link").symlink_to(inside / "a")
    (inside / "out").symlink_to(outside)

    def reasons(**words: bool) -> dict[str, str]:
        found = files_below(inside, **words)
        return {path.relative_to(inside).as_posix(): why for path, why in found}

    assert reasons() == {
        "a/file": "",
        "circle": "a link to a folder that it is in",
        "gone": "not a file, or a link to nothing",
        "link/file": "",
        "out": LINK_OUT,
    }
    assert reasons(follow_links=True)["out/file"] == ""


# ---- errors ------------------------------------------------------------------------------------


def test_a_console_may_lack_letters_of_a_name(monkeypatch):
    console = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    monkeypatch.setattr("sys.stdout", console)
    run_main(lambda: print("the class 图 é"))
    console.flush()
    assert console.buffer.getvalue() == b"the class \\u56fe \xe9\n"


class ProjectError(Exception):
    lines = ("one", "two")


@pytest.mark.parametrize(
    ("error", "status", "printed"),
    [
        (None, 0, ""),
        (UserError("a\nb", "c"), 2, "error: a b\nerror: c\n"),
        (ProjectError(), 2, "error: one\nerror: two\n"),
        (RunError("it diverged"), "error: it diverged", ""),
        (FileExistsError(17, "File exists", "x/y"), 2, "error: x/y: File exists\n"),
        (OSError(30, "Read-only file system", "x/y"), 2, "error: x/y: Read-only file system\n"),
        (OSError(28, "No space left on device"), 2, "error: No space left on device\n"),
        (KeyboardInterrupt("saved at step 3"), 130, "interrupted: saved at step 3\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_a_program_ends_with_the_status_of_its_error(error, status, printed, capsys, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)

    def main() -> None:
        if error:
            raise error

    with contextlib.ExitStack() as stack:
        exit = stack.enter_context(pytest.raises(SystemExit)) if error else None
        run_main(main)
    assert (exit.value.code if exit else 0) == status
    assert capsys.readouterr().err == printed


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(ZeroDivisionError):
        run_main(lambda: 1 / 0)


@pytest.mark.parametrize(
    ("word", "answer"),
    [("trian", " (did you mean train?)"), ("ev", " (did you mean evaluate?)"), ("xyz", "")],
)
def test_the_nearest_name_is_proposed(word, answer):
    assert did_you_mean(word, ["train", "evaluate", "predict"]) == answer


# ---- progress ----------------------------------------------------------------------------------


def test_a_log_has_a_line_of_progress_now_and_then(capsys, monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Progress(1000, "files") as progress:
        progress.update(1, 10**6)
        now += 20
        progress.update(399, 39 * 10**6)
        progress.update(1, 10**6)
    assert capsys.readouterr().out == "400 of 1,000 files, 20/s, 2.0 MB/s, 0:30 left\n"


def test_of_an_unknown_total_no_time_is_left(capsys, monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Progress(None, "elements") as progress:
        now += 10
        progress.update(2000, 0)
    assert capsys.readouterr().out == "2,000 elements, 200/s, 0.0 MB/s\n"


def test_a_terminal_has_one_line_that_is_overwritten(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Progress(4, "files") as progress:
        for _ in range(4):
            now += 0.15
            progress.update(1, 0)
    shown = [text.rstrip() for text in capsys.readouterr().out.split("\r")]
    assert [text.partition(" files")[0] for text in shown] == ["", "2 of 4", "4 of 4", "4 of 4"]


def test_lines_are_not_overwritten_unless_live(capsys):
    with StatusLine(live=False) as line:
        line.update("one")
        line.print("two")
    assert capsys.readouterr().out == "one\ntwo\n"
