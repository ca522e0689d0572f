"""Audio clips as files: what they hold, and what they become for a dataset or a prediction."""

import io
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
import soxr

from library.util import BadFileError

MAX_SAMPLES = 2**29
"""Of a clip, all channels together: a small file can claim more than any memory has."""
UNKNOWN_LENGTH = 0x7FFFF000
"""From here on, the length in the header of a WAV says that it was written into a pipe."""
UNKNOWN_FRAMES = 2**63 - 1
"""What libsndfile reports for a FLAC that was written into a pipe."""
SPARE_FRAMES = 1152
"""One frame of MP3: decoders do not agree whether the first and the last one count."""
PREVIEW_RATE, PREVIEW_SECS = 16_000, 2
CHUNKED: dict[bytes, tuple[Literal["little", "big"], bytes]] = {
    b"RIFF": ("little", b"data"),
    b"FORM": ("big", b"SSND"),
}
"""First bytes of WAV and AIFF: the byte order, and the chunk of the samples."""


def read_audio(data: bytes, dtype: str = "float32") -> tuple[np.ndarray, int]:
    """The samples of an audio file.

    Args:
        data: the content of a file: WAV of 8 to 32 bit or float, FLAC, OGG, MP3 and what else
            libsndfile detects from the content.
        dtype: float32, in [-1, 1] where the file keeps to it; or int32, which has all bits of
            integer samples, from the top on.

    Returns:
        [samples, channels], and samples per second.

    Raises:
        BadFileError: the file cannot be used.
    """
    if not data:
        raise BadFileError("empty file")
    missing = _missing_bytes(data)
    if missing:
        raise BadFileError(f"truncated: {missing:,} bytes are missing")
    try:
        with soundfile.SoundFile(_Seekable(io.BytesIO(data))) as file:
            frames, rate = file.frames, file.samplerate
            if frames == UNKNOWN_FRAMES:
                raise BadFileError("broken audio file: its header does not say how long it is")
            if frames * file.channels > MAX_SAMPLES:
                raise BadFileError(f"too long: {frames:,} samples of {file.channels} channels")
            integer = dtype == "int32" and "PCM" in file.subtype
            samples = file.read(frames, "int32" if integer else "float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        known = "Format not recognised" not in error.error_string
        reason = f"broken audio file: {error.error_string}" if known else "not an audio file"
        raise BadFileError(reason) from error
    missing = frames - len(samples)
    if not len(samples):
        raise BadFileError("no samples")
    if missing > SPARE_FRAMES:
        raise BadFileError(f"truncated: {missing:,} of {frames:,} samples are missing")
    if not integer and not np.isfinite(samples).all():
        raise BadFileError("broken audio file: a sample is not a finite number")
    if dtype == "int32" and not integer:
        scaled = np.rint(samples.astype(np.float64) * 2**31)
        samples = np.clip(scaled, -(2**31), 2**31 - 1).astype(np.int32)
    return samples, rate


class _Seekable(io.BufferedReader):
    """An open file; in broken ones, libsndfile seeks to places before their beginning."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        try:
            return super().seek(offset, whence)
        except (OSError, ValueError):
            return super().seek(0)


def _missing_bytes(data: bytes) -> int:
    """How many bytes a WAV, W64, AU or AIFF lacks; libsndfile takes what there is.

    Sources: Multimedia Programming Interface and Data Specifications 1.0, IBM and Microsoft 1991;
    Audio Interchange File Format 1.3, Apple 1989.
    """
    wide = {b"RF64": (20, 8), b"riff": (16, 0)}.get(data[:4])  # RIFF of 64 bit: EBU 3306, Wave64
    if wide:
        size = int.from_bytes(data[wide[0] : wide[0] + 8], "little") + wide[1]
        return 0 if size >= UNKNOWN_FRAMES else max(0, size - len(data))
    if data[:4] == b".snd" and (size := int.from_bytes(data[8:12], "big")) < UNKNOWN_LENGTH:
        return max(0, int.from_bytes(data[4:8], "big") + size - len(data))
    if data[:4] not in CHUNKED or data[8:12] not in (b"WAVE", b"AIFF", b"AIFC"):
        return 0
    order, samples = CHUNKED[data[:4]]
    position = 12
    while position + 8 <= len(data):
        kind = data[position : position + 4]
        size = int.from_bytes(data[position + 4 : position + 8], order)
        position += 8 + size
        if kind == samples:
            return 0 if size >= UNKNOWN_LENGTH else max(0, position - len(data))
        position += size % 2
    return 0


def canonical_waveform(data: bytes, *, sample_rate: int) -> np.ndarray:
    """An audio file at one sample rate, its channels averaged: int16 [samples].

    A file of one channel, 16 bit and this rate stays as it is; others are resampled by the SoX
    Resampler; BadFileError if it cannot be used.
    """
    samples, rate = read_audio(data)
    waveform = samples.mean(axis=1)
    if rate != sample_rate:
        if len(waveform) * sample_rate > MAX_SAMPLES * rate:
            raise BadFileError(f"too long: {len(waveform):,} samples, {rate} per second")
        waveform = soxr.resample(waveform, rate, sample_rate)
        if not len(waveform):
            raise BadFileError("no samples at this rate")
    return np.clip(np.rint(waveform * 32768), -32768, 32767).astype(np.int16)


def measures(path: Path) -> dict[str, float]:
    """Length and sample rate of a file, by its header: see `library.data.Modality`."""
    try:
        with _Seekable(path.open("rb")) as file:
            found = soundfile.info(file)
    except (OSError, BadFileError, soundfile.LibsndfileError):
        return {}
    return {"seconds": found.duration, "samples per second": found.samplerate}


def preview(data: bytes) -> tuple[str, bytes]:
    """The beginning of a clip as a FLAC file: see `library.data.Modality`."""
    beginning = canonical_waveform(data, sample_rate=PREVIEW_RATE)[: PREVIEW_SECS * PREVIEW_RATE]
    return "audio/flac", wav_bytes(beginning, sample_rate=PREVIEW_RATE, kind="FLAC")


def wav_bytes(waveform: np.ndarray, *, sample_rate: int, kind: str = "WAV") -> bytes:
    """A WAV file of 16 bit, which TensorFlow decodes, or "FLAC": int16 [samples] -> bytes."""
    buffer = io.BytesIO()
    soundfile.write(buffer, waveform, sample_rate, format=kind, subtype="PCM_16")
    return buffer.getvalue()
