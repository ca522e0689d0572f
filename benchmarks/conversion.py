"""Conversion of JPEGs, against a limit and other programs: python benchmarks/conversion.py

    python benchmarks/conversion.py [--rounds 3] [--share 1]

JPEGs of 3000 x 2000 become JPEGs of at most 384 pixels, quality 95: by a bare loop of libjpeg-turbo
and OpenCV, by ours from start to end (TFRecords, checksums, reports), and by others, each in two
processes. JPEGs of 500 x 375 keep their bytes, against `tar cf`. Last come 100,000 small files: how
much memory, and whether it slows down. `--share 0.01` takes a hundredth of all files. The others
live in build/peers; mogrify has to be installed.
"""

import argparse
import functools
import io
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

LARGE, MEDIUM, SMALL, DIFFERENT = 1000, 4000, 100_000, 40
EDGE, PROCESSES, LOOK_SECS = 384, 2, 0.02
PROJECT = next(Path(__file__).parent.parent.glob("*/run.py")).parent


# ---- in the peers' environment: a file to JPEG bytes -------------------------------------------


def bare_loop(data: bytes) -> bytes:
    import cv2
    import simplejpeg

    cv2.setNumThreads(1)
    height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    scale = min(1, EDGE / max(height, width))
    size = round(width * scale), round(height * scale)
    pixels = simplejpeg.decode_jpeg(
        data, fastdct=True, fastupsample=True, min_width=size[0], min_height=size[1]
    )
    pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    return simplejpeg.encode_jpeg(pixels, quality=95, colorsubsampling="420")


def pillow_thumbnail(data: bytes) -> bytes:
    from PIL import Image

    image, buffer = Image.open(io.BytesIO(data)), io.BytesIO()
    image.thumbnail((EDGE, EDGE))
    image.save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def vips_thumbnail(data: bytes) -> bytes:
    import pyvips

    image = pyvips.Image.thumbnail_buffer(data, EDGE, height=EDGE, size="down")
    return image.jpegsave_buffer(Q=95)


@functools.cache
def _resizer() -> object:
    """That of img2dataset, whose package needs much that this does not."""
    import importlib.util
    import sysconfig

    file = Path(sysconfig.get_path("purelib")) / "img2dataset" / "resizer.py"
    spec = importlib.util.spec_from_file_location("resizer", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    options = {"resize_mode": "keep_ratio_largest", "resize_only_if_bigger": True}
    return module.Resizer(image_size=EDGE, encode_quality=95, **options)


def img2dataset(data: bytes) -> bytes:
    found = _resizer()(io.BytesIO(data))
    if found[-1]:
        raise RuntimeError(found[-1])
    return found[0]


FUNCTIONS: dict[str, Callable[[bytes], bytes]] = {
    "limit: bare loop": bare_loop,
    "Pillow thumbnail": pillow_thumbnail,
    "pyvips thumbnail": vips_thumbnail,
    "img2dataset's resizer": img2dataset,
}


def convert_files(function: Callable[[bytes], bytes], output: Path, files: list[Path]) -> None:
    for file in files:
        (output / file.name).write_bytes(function(file.read_bytes()))


def run_function(name: str, folder: Path, output: Path) -> None:
    files = sorted(folder.rglob("*.jpg"))
    work = functools.partial(convert_files, FUNCTIONS[name], output)
    with multiprocessing.Pool(PROCESSES) as pool:
        pool.map(work, [files[number::PROCESSES] for number in range(PROCESSES)], chunksize=1)


# ---- whole programs ----------------------------------------------------------------------------


def ours(folder: Path, output: Path, *more: str) -> list[str]:
    words = ["--dataset_dir", folder, "--tfrecord_dir", output, "--tfrecord_filename", "x", *more]
    program = [sys.executable, PROJECT / "convert_dataset.py", "--num_workers", PROCESSES]
    return [str(word) for word in (*program, *words)]


def mogrify(folder: Path, output: Path) -> tuple[list[str], str]:
    """Its words, and the files for its standard input; with the hint that lets libjpeg scale."""
    files = map(str, sorted(folder.rglob("*.jpg")))
    size = ["-define", f"jpeg:size={2 * EDGE}x{2 * EDGE}"]
    words = [*size, "-resize", f"{EDGE}x{EDGE}>", "-quality", "95", "-path", str(output)]
    return ["xargs", "-0", "-P", str(PROCESSES), "-n", "20", "mogrify", *words], "\0".join(files)


def timed(
    words: list[str], output: Path, text: str = "", forget: Path | None = None
) -> tuple[float, float]:
    """Seconds, and those of CPU, of a program that writes to a folder of its own.

    The files below `forget` are read from the storage, and not from memory.
    """
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    for file in forget.rglob("*.jpg") if forget else ():
        with open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before, begin = os.times(), time.perf_counter()
    process = subprocess.run(words, input=text, capture_output=True, text=True)
    seconds, after = time.perf_counter() - begin, os.times()
    if process.returncode:
        sys.exit(f"{words}:\n{process.stderr}")
    return seconds, sum(after[2:4]) - sum(before[2:4])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1, help="of the files")
    parser.add_argument("--function", nargs=3, help="only this one, here, once")
    options = parser.parse_args()
    if options.function:
        name, folder, output = options.function
        run_function(name, Path(folder), Path(output))
        return

    from common import in_turns, make_jpeg, show_rates, system_name, write_files
    from peers import peers_python

    print(system_name(), flush=True)
    python = peers_python()
    large_count, medium_count, small_count = (
        max(DIFFERENT, round(options.share * count)) for count in (LARGE, MEDIUM, SMALL)
    )
    with tempfile.TemporaryDirectory() as place:
        large, medium, small, output = (
            Path(place) / name for name in ("large", "medium", "small", "output")
        )
        for folder, count, size in (
            (large, large_count, (3000, 2000)),
            (medium, medium_count, (500, 375)),
        ):
            write_files(folder / "x", [make_jpeg(n, *size) for n in range(DIFFERENT)], count)

        runs = {
            name: functools.partial(
                timed, [python, __file__, "--function", name, str(large), str(output)], output
            )
            for name in FUNCTIONS
        }
        runs["ours"] = functools.partial(timed, ours(large, output), output)
        if shutil.which("mogrify"):
            words, text = mogrify(large, output)
            runs["mogrify with a size hint"] = functools.partial(timed, words, output, text)
        show_rates(in_turns(options.rounds, runs), large_count, "images")

        tar = ["tar", "cf", str(output / "x.tar"), str(medium)]
        keep = ours(medium, output, "--max_edge", "500")
        for where, forget in (("from memory", None), ("from the storage", medium)):
            again = functools.partial(timed, output=output, forget=forget)
            runs = {
                f"tar cf, {where}": functools.partial(again, tar),
                f"ours, bytes kept, {where}": functools.partial(again, keep),
            }
            show_rates(in_turns(options.rounds, runs), medium_count, "images")

        many_small_files(small, output, make_jpeg(0, 32, 24), small_count)


def many_small_files(folder: Path, output: Path, image: bytes, count: int) -> None:
    """Memory, and the speed of the first and the last tenth, of a conversion."""
    import psutil

    for number in range(count):
        file = folder / str(number % 100) / f"{number:06}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(image + str(number).encode())
    shutil.rmtree(output)
    process = psutil.Popen(ours(folder, output), stdout=subprocess.DEVNULL)
    begin, largest, finished = time.perf_counter(), 0, []
    while process.poll() is None:
        with_children = [process, *process.children(recursive=True)]
        try:
            largest = max(largest, sum(each.memory_info().rss for each in with_children))
        except psutil.NoSuchProcess:
            continue
        done = len(list((output / ".x.partial").glob("x-*.npz")))
        if not finished or done > finished[-1][0]:
            finished.append((done, time.perf_counter() - begin))
        time.sleep(LOOK_SECS)
    seconds = time.perf_counter() - begin
    whole = finished[-1][0]
    shares = (0.02, 0.1, 0.9, 0.98)  # of the shards: before and after, processes start and end
    at = [next(t for done, t in finished if done >= share * whole) for share in shares]
    spans = (max(after - before, LOOK_SECS) for before, after in (at[:2], at[2:]))
    rates = [0.08 * count / span for span in spans]
    print(
        f"{count:,} small files: {seconds:.0f} s, at most {largest / 2**20:,.0f} MB resident in "
        f"all; {rates[0]:,.0f} a second in the first tenth, {rates[1]:,.0f} in the last one"
    )


if __name__ == "__main__":
    main()
