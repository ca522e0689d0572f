"""convert_dataset.py on audio clips: what it writes, what it refuses, and nothing lost."""

import csv
import dataclasses
import hashlib
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import pytest
import soundfile
import tensorflow as tf
from conftest import convert, run_convert, run_signaled
from test_convert_dataset import files, verify

from library.audio import Archive, canonical_waveform, canonicalize
from library.audio.records import ShardOptions
from library.convert import near_duplicates
from library.data import Card

CLASSES = ["falling", "pulses", "rising", "siren", "steps", "tone"]


class Clip(NamedTuple):
    """One of an archive."""

    file: str
    label: int
    class_name: str
    waveform: np.ndarray
    chunk: int


def clips(path: Path) -> Iterator[Clip]:
    """All of the dataset `path`."""
    for shard in Card.load(f"{path}.json").shards:
        with h5py.File(path.with_name(shard.file)) as archive:
            for group in archive.values():
                waveform, attributes = group["waveform"], group.attrs
                named = [attributes[name] for name in ("file", "label", "class")]
                yield Clip(*named, waveform[:], *waveform.chunks)


def rows(table: Path) -> list[dict[str, str]]:
    with open(table, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_clip_is_in_one_set_sample_for_sample(samples, data):
    seen = []
    for name in ("train", "validation"):
        card = Card.load(data / f"{name}.json")
        assert card.classes == CLASSES
        found = list(clips(data / name))
        labels = [each.label for each in found]
        assert np.bincount(labels, minlength=6).tolist() == list(card.examples_per_class.values())
        for each in found:
            original, rate = soundfile.read(samples / "train" / each.file, dtype="int16")
            assert rate == 16000
            np.testing.assert_array_equal(each.waveform, original)
            assert each.chunk == min(16000, len(original))
            assert each.class_name == CLASSES[each.label] == Path(each.file).parent.name
            seen.append(each.file)
    assert sorted(seen) == sorted(
        path.relative_to(samples / "train").as_posix() for path in (samples / "train").rglob("*.*")
    )


def test_the_card_and_the_index_describe_the_archives(data):
    card, found = Card.load(data / "train.json"), list(clips(data / "train"))
    assert len(card.shards) == 3
    for shard in card.shards:
        content = (data / shard.file).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (shard.bytes, shard.sha256)
    assert card.options["validation_fraction"] == 0.25
    assert (card.options["sample_rate"], card.options["chunk_secs"]) == (16000, 1.0)
    index = np.load(data / "train.index")
    assert index["label"].tolist() == [each.label for each in found]
    assert index["length"].tolist() == [len(each.waveform) for each in found]
    assert not [path for path in data.iterdir() if path.name.startswith(".")]
    archive = Archive(data / "train")
    for number, each in enumerate(found):
        np.testing.assert_array_equal(archive.waveform(number), each.waveform)


def test_a_clip_stays_in_its_set_when_others_are_added(samples, tmp_path):
    shutil.copytree(samples / "train", tmp_path / "more")
    for path in (samples / "test").rglob("*.wav"):
        shutil.copy(path, tmp_path / "more" / path.parent.name / f"more-{path.name}")
    sets = {}
    for name, folder in (("before", samples / "train"), ("after", tmp_path / "more")):
        convert(folder, tmp_path / name, "train", "--validation_fraction", 0.25)
        sets[name] = {each.waveform.tobytes() for each in clips(tmp_path / name / "validation")}
    assert sets["before"] < sets["after"]


def sine(hertz: float, rate: int, secs: float) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate * secs)) / rate)


def test_all_rates_channels_and_kinds_are_brought_to_one(tmp_path):
    folder = tmp_path / "in" / "tone"
    folder.mkdir(parents=True)
    kinds = [("wav", 8000, 1, "PCM_16"), ("wav", 11025, 1, "PCM_U8"), ("wav", 48000, 6, "PCM_24")]
    kinds += [("flac", 44100, 2, "PCM_16"), ("ogg", 22050, 1, "VORBIS")]
    kinds += [("mp3", 32000, 2, "MPEG_LAYER_III"), ("aiff", 96000, 1, "FLOAT")]
    for number, (kind, rate, channels, subtype) in enumerate(kinds):
        tone = np.stack([sine(440, rate, 1.5)] * channels, axis=1)
        soundfile.write(folder / f"{number}.{kind}", tone, rate, subtype)
    more = ["--sample_rate", 8000, "--chunk_secs", 0.25]
    convert(tmp_path / "in", tmp_path / "out", "train", *more)
    assert Card.load(tmp_path / "out" / "train.json").options["sample_rate"] == 8000
    found = list(clips(tmp_path / "out" / "train"))
    assert len(found) == len(kinds)
    expected = 32768 * sine(440, 8000, 1.5)
    for each in found:
        data = (tmp_path / "in" / each.file).read_bytes()
        np.testing.assert_array_equal(each.waveform, canonical_waveform(data, sample_rate=8000))
        assert each.chunk == 2000
        assert abs(len(each.waveform) - 12000) <= 1
        middle = slice(2000, 10000)
        assert np.abs(each.waveform[middle] - expected[middle]).max() < 0.05 * 16384, each.file


def test_the_commonest_rate_is_that_of_the_dataset_and_of_those_made_for_it(tmp_path):
    """Up to 16,000 samples per second; a test set has the rate of its training set."""
    made = {
        "train": [8000] * 3 + [22050] * 2,
        "test": [16000] * 2,
        "music": [44100] * 2 + [8000],
        "given": [8000],
    }
    for name, rates in made.items():
        (tmp_path / name / "tone").mkdir(parents=True)
        for number, rate in enumerate(rates):
            soundfile.write(tmp_path / name / "tone" / f"{number}.wav", sine(440, rate, 0.5), rate)
    (tmp_path / "train" / "tone" / "broken.wav").write_bytes(b"RIFF")
    expected = {
        "train": (
            8000,
            {"8000": 3, "22050": 2},
            "of 6 files: 8000 (3), 22050 (2); the dataset has 8000",
        ),
        "test": (8000, {"16000": 2}, "of 2 files: 16000 (2); the dataset has 8000"),
        "music": (
            16000,
            {"44100": 2, "8000": 1},
            "of 3 files: 44100 (2), 8000 (1); the dataset has 16000",
        ),
        "given": (11000, {"8000": 1}, "of 1 file: 8000 (1); the dataset has 11000"),
    }
    for name, (rate, source_rates, line) in expected.items():
        more = ["--max_rejected", 0.5] + ["--sample_rate", 11000] * (name == "given")
        folder = tmp_path / ("data" if name in ("train", "test") else f"data-{name}")
        outcome = convert(tmp_path / name, folder, name, *more)
        assert line in outcome.stdout
        options = Card.load(folder / f"{name}.json").options
        assert (options["sample_rate"], options["source_rates"]) == (rate, source_rates)
        lengths = [len(each.waveform) for each in clips(folder / name)]
        assert set(lengths) == {rate // 2}


def break_files(samples: Path, folder: Path) -> dict[str, str]:
    """A folder with good files, and some that are not; their reasons, by the name."""
    shutil.copytree(samples / "test", folder)
    whole = next((samples / "train" / "tone").iterdir()).read_bytes()
    flac, floats = folder / "tone" / "cut.flac", folder / "tone" / "nan.wav"
    soundfile.write(flac, sine(440, 16000, 1), 16000)
    flac.write_bytes(flac.read_bytes()[:-100])
    soundfile.write(floats, np.append(sine(440, 16000, 1), np.nan), 16000, "FLOAT")
    soundfile.write(folder / "siren" / "nothing.wav", np.zeros(0), 16000)
    (folder / "siren" / "notes.txt").write_text("no sound")
    (folder / "steps" / "empty.wav").write_bytes(b"")
    (folder / "steps" / "cut.wav").write_bytes(whole[:-1000])
    (folder / "steps" / "header.wav").write_bytes(whole[:30])
    (folder / "readme.md").write_text("about it")
    return {
        "readme.md": "not in the folder of a class",
        "siren/nothing.wav": "no samples",
        "siren/notes.txt": "not an audio file",
        "steps/cut.wav": "truncated: 1,000 bytes are missing",
        "steps/empty.wav": "empty file",
        "steps/header.wav": "broken audio file: Error in WAV file. No 'data' chunk marker.",
        "tone/cut.flac": "broken audio file: Error : flac decoder lost sync.",
        "tone/nan.wav": "broken audio file: a sample is not a finite number",
    }


def test_broken_clips_are_listed_with_their_reasons(samples, tmp_path):
    reasons = break_files(samples, tmp_path / "in")
    process = convert(tmp_path / "in", tmp_path / "out", "test", status=2)
    assert "max_rejected: 8 of 32 files rejected, above the limit of 1 % (" in process.stderr
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [".test.partial", "test.rejected.csv"], "kept for a look, or more patience"

    process = convert(tmp_path / "in", tmp_path / "out", "test", "--max_rejected", 0.25)
    assert "24 audio clips of 6 classes" in process.stdout
    found = rows(tmp_path / "out" / "test.rejected.csv")
    assert {row["file"]: row["reason"] for row in found} == reasons
    assert Archive(tmp_path / "out" / "test").num_examples == 24

    for name in reasons:
        (tmp_path / "in" / name).unlink()
    convert(tmp_path / "in", tmp_path / "out", "test", "--overwrite")
    assert not (tmp_path / "out" / "test.rejected.csv").exists(), "it was of the earlier one"


def test_images_are_not_taken_for_clips(tmp_path):
    (tmp_path / "in" / "cat").mkdir(parents=True)
    pixels = tf.cast(tf.random.stateless_uniform([40, 40, 3], [0, 0], 0, 256, tf.int32), tf.uint8)
    (tmp_path / "in" / "cat" / "1.png").write_bytes(tf.io.encode_png(pixels).numpy())
    (tmp_path / "in" / "cat" / "2.jpg").write_bytes(tf.io.encode_jpeg(pixels).numpy())
    process = convert(tmp_path / "in", tmp_path / "out", "train", status=2)
    (line,) = [line for line in process.stderr.splitlines() if line.startswith("error: ")]
    assert "max_rejected: 2 of 2 files rejected" in line
    assert "(2 not an audio file)" in line
    process = convert(tmp_path / "in", tmp_path / "out", "train", "--max_rejected", 1, status=2)
    assert f"all files of train in {tmp_path}/in were rejected" in process.stderr
    assert not (tmp_path / "out" / "train.json").exists()


def test_file_names_need_not_be_text(samples, tmp_path):
    shutil.copytree(samples / "test" / "tone", tmp_path / "in" / "käse")
    (first, *_) = (tmp_path / "in" / "käse").iterdir()
    first.rename(first.with_name("not\udcfftext, or so.wav"))
    (tmp_path / "in" / "käse" / "no\udcffsound.wav").write_bytes(b"no sound")
    convert(tmp_path / "in", tmp_path / "out", "train", "--max_rejected", 1)
    rejected = (tmp_path / "out/train.rejected.csv").read_bytes()
    assert "käse/no".encode() + b"\xffsound.wav,not an audio file" in rejected
    found = {each.file for each in clips(tmp_path / "out/train")}
    assert "käse/not\udcfftext, or so.wav" in found
    archive = Archive(tmp_path / "out/train")
    assert "käse/not\ufffdtext, or so.wav" in [*map(archive.name, range(archive.num_examples))]
    assert {each.class_name for each in clips(tmp_path / "out/train")} == {"käse"}


# ---- stops -------------------------------------------------------------------------------------


def make_noise(folder: Path, count: int, secs: float) -> None:
    random = np.random.default_rng(0)
    for number in range(count):
        file = folder / "ab"[number % 2] / f"{number:04}.wav"
        file.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(file, random.uniform(-1, 1, [int(44100 * secs), 2]), 44100)


WORDS = ["--dataset_dir", "in", "--tfrecord_filename", "train", "--tfrecord_dir", "out"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_conversion_that_is_stopped_goes_on_to_the_same_bytes(tmp_path, number):
    make_noise(tmp_path / "in", 60, 2)
    more = ["--num_shards", 30, "--validation_fraction", 0.2]
    words = [*WORDS, *more, "--num_workers", 1]
    moment = {"signals": [number], "at_files": "out/.train.partial/train-*.npz 3"}
    process = run_signaled("convert_dataset.py", *words, cwd=tmp_path, **moment)
    assert not [path for path in (tmp_path / "out").iterdir() if path.name[0] != "."]
    if number != signal.SIGKILL:
        assert "finished shards are kept: the same command resumes" in process.stderr
        assert "Traceback" not in process.stderr
    process = convert(tmp_path / "in", tmp_path / "out", "train", *more)
    assert re.search("resuming: [0-9]+ of [0-9]+ shards already done", process.stdout)
    convert(tmp_path / "in", tmp_path / "again", "train", *more)
    assert files(tmp_path / "out") == files(tmp_path / "again")


@pytest.mark.slow
def test_ten_kills_change_nothing(tmp_path):
    make_noise(tmp_path / "in", 600, 0.25)
    more = ["--validation_fraction", 0.2, "--num_shards", 100, "--num_workers", 2]
    convert(tmp_path / "in", tmp_path / "whole", "train", *more)
    random = np.random.default_rng(1)

    def finished() -> int:
        """Parts: 2 that look at 500 files each, then 125 shards."""
        return len(list(tmp_path.glob("out/.train.partial/*.npz")))

    for _ in range(10):
        parts = finished() + random.integers(1, 5)
        moment = {"signals": [signal.SIGKILL], "at_files": f"out/.train.partial/*.npz {parts}"}
        run_signaled("convert_dataset.py", *WORDS, *more, cwd=tmp_path, **moment)
        assert not [path for path in (tmp_path / "out").glob("*") if path.name[0] != "."]
    process = convert(tmp_path / "in", tmp_path / "out", "train", *more)
    assert "shards already done" in process.stdout
    assert files(tmp_path / "out") == files(tmp_path / "whole")


# ---- the same clip twice ------------------------------------------------------------------


def test_versions_of_a_clip_stay_on_one_side(samples, tmp_path):
    """Copies, other formats, rates and levels: none is on both sides of a split."""
    folder = tmp_path / "in" / "all"
    folder.mkdir(parents=True)
    originals = sorted((samples / "train").rglob("*-000[0-3].wav"))
    for file in originals:
        waveform, rate = soundfile.read(file)
        shutil.copy(file, folder / file.name)
        shutil.copy(file, folder / f"{file.stem}-copy.wav")
        soundfile.write(folder / f"{file.stem}-flac.flac", waveform, rate)
        soundfile.write(folder / f"{file.stem}-quiet.wav", waveform / 2, rate)
        soundfile.write(folder / f"{file.stem}-ogg.ogg", waveform, rate)
    convert(tmp_path / "in", tmp_path / "out", "train", "--validation_fraction", 0.5)
    sides: dict[str, set[str]] = {file.stem: set() for file in originals}
    for name in ("train", "validation"):
        for each in clips(tmp_path / "out" / name):
            sides["-".join(Path(each.file).stem.split("-")[:2])].add(name)
    assert all(len(names) == 1 for names in sides.values())
    assert set.union(*sides.values()) == {"train", "validation"}
    found = rows(tmp_path / "out" / "train.duplicates.csv")
    kinds = [row["kind"] for row in found]
    assert kinds.count("exact") == len(originals), "those that are equal byte for byte"
    assert kinds.count("near") == 3 * len(originals)


def test_different_clips_are_not_taken_for_versions_of_one(samples):
    options = ShardOptions()
    found = [canonicalize(file.read_bytes(), options) for file in samples.rglob("*.wav")]
    tiny = [np.frombuffer(clip.thumbnail, np.uint8) for clip in found]
    groups = near_duplicates(np.array(tiny))
    assert len(set(groups)) > 0.9 * len(groups)


def test_a_test_set_has_known_labels_and_leaks_are_reported(samples, data, tmp_path):
    out = tmp_path / "data"
    shutil.copytree(data, out)
    shutil.copytree(samples / "test", tmp_path / "in")
    shutil.rmtree(tmp_path / "in" / "rising")
    some = sorted((samples / "train" / "tone").iterdir())[:3]
    for file in some:
        shutil.copy(file, tmp_path / "in" / "tone" / f"again-{file.name}")
    from_train = ["--classes_from", out / "train.json"]
    process = convert(tmp_path / "in", out, "more", *from_train)
    card = Card.load(out / "more.json")
    assert card.classes == CLASSES
    assert card.examples_per_class["rising"] == 0
    assert {each.label for each in clips(out / "more")} == {0, 1, 3, 4, 5}
    same_as = [row["same as"].split("/")[0] for row in rows(out / "more.duplicates.csv")]
    assert set(same_as) <= {"train: tone", "validation: tone"}
    assert "leak: 3 more files are also in train or validation" in process.stdout
    assert f"{out / 'more'}: no examples of rising" in process.stdout
    (tmp_path / "in" / "buzzing").mkdir()
    shutil.copy(some[0], tmp_path / "in" / "buzzing" / "1.wav")
    process = convert(tmp_path / "in", out, "third", *from_train, status=2)
    assert "the class buzzing is not in classes_from" in process.stderr


# ---- verification ------------------------------------------------------------------------------


def flip(*positions: int) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        content = bytearray(file.read_bytes())
        for position in positions:
            content[position] ^= 1
        file.write_bytes(content)

    return change


def edit(change: Callable[[h5py.File], object]) -> Callable[[Path], None]:
    """Change an archive by a program of HDF5, as if it had been written so."""

    def edit_file(file: Path) -> None:
        with h5py.File(file, "r+") as archive:
            change(archive)
        path = file.with_name("train.json")
        card = Card.load(path)
        content = file.read_bytes()
        card.shards[1] = dataclasses.replace(
            card.shards[1], bytes=len(content), sha256=hashlib.sha256(content).hexdigest()
        )
        card.save(path)

    return edit_file


def label(value: int) -> Callable[[h5py.File], object]:
    return lambda archive: archive["000003"].attrs.modify("label", value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (flip(-5000), "00001-of-00003.h5: its SHA-256 is not that of the card"),
        (flip(0), "faults, the first one: .*00001-of-00003.h5: not a readable HDF5 file"),
        (Path.unlink, "00001-of-00003.h5: No such file or directory"),
        (
            lambda file: file.write_bytes(file.read_bytes()[:-9]),
            "00003.h5: not a readable HDF5",
        ),
        (
            edit(lambda archive: archive.__delitem__("000003/waveform")),
            "faults, the first one: .*00001-of-00003.h5: clip 000003 has no dataset waveform",
        ),
        (edit(label(6)), "00001-of-00003.h5: clip 3 has no label from 0 to 5"),
        (edit(label(-1)), "00001-of-00003.h5: clip 3 has no label from 0 to 5"),
        (
            edit(lambda archive: label((archive["000003"].attrs["label"] + 1) % 6)(archive)),
            "2 faults, the first one: [0-9]+ examples of [a-z]+, but the card says [0-9]+",
        ),
    ],
    ids=["bit", "header", "missing", "cut", "no-waveform", "label", "no-label", "other-label"],
)
def test_faults_are_named_and_counted(data, tmp_path, change, message):
    shutil.copytree(data, tmp_path / "data")
    change(tmp_path / "data" / "train-00001-of-00003.h5")
    process = verify(tmp_path / "data", "train", status=2)
    assert re.search(message, process.stderr), process.stderr
    assert len(process.stderr.splitlines()) <= 2, "one of progress"


# ---- wrong turns -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prepare", "flags", "message"),
    [
        (lambda f: None, [], "dataset_dir: HERE/in is neither a folder nor"),
        (lambda f: f.mkdir(), [], "dataset_dir: HERE/in contains no class folders; give their"),
        (
            lambda f: (f / "yes").mkdir(parents=True),
            [],
            "dataset_dir: there are no files in HERE/in",
        ),
        (
            lambda f: None,
            ["--sample_rate", "999"],
            "sample_rate: 999 is not a whole number at lea",
        ),
        (lambda f: None, ["--chunk_secs", "0"], "chunk_secs: 0 is not a number above 0"),
        (lambda f: None, ["--sample_rates", "9"], "unknown argument --sample_rates=9 (did you mea"),
        (lambda f: None, ["--max_edge", "9"], "unknown argument --max_edge=9"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path, prepare, flags, message):
    prepare(tmp_path / "in")
    words = ["--dataset_dir", "in", "--tfrecord_filename", "train", "--tfrecord_dir", "out"]
    process = run_convert(*words, *flags, cwd=tmp_path, status=2)
    (line,) = process.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line.replace(str(tmp_path), "HERE")
    assert not (tmp_path / "out").exists()
