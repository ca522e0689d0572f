"""Limits, peers and ours: each an input of random crops of the same JPEGs, in float32 batches.

    python systems.py NAME FOLDER EXAMPLES SIZE

draws so many examples from the data that peers.py made in FOLDER, cropped to SIZE x SIZE, and
prints what that took as a line of JSON. Each system reads its own favourite format, shuffles as it
does, and crops as torchvision's RandomResizedCrop; JPEG decoders may do what makes them fast.
"""

import io
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import psutil

BATCH, WARM_UP, PROCESSES = 64, 6, 2
Batches = Iterable[object]


def cpu_seconds() -> float:
    """Of this process and those that it started."""
    me = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in (me, *me.children(recursive=True)))


# ---- what those in Python share ----------------------------------------------------------------


def random_window(random: np.random.Generator, height: int, width: int) -> tuple[int, ...]:
    """Top, left, height, width: 8 to 100 % of the area, 3:4 to 4:3, as torchvision draws it."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1)
        ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            return random.integers(height - h + 1), random.integers(width - w + 1), h, w
    edge = min(height, width)
    return (height - edge) // 2, (width - edge) // 2, edge, edge


def crop(
    encoded: bytes, random: np.random.Generator, *, size: int, decoder: str, area: bool = False
) -> np.ndarray:
    """uint8 [size, size, 3], by OpenCV or Pillow; `area`: averaged where it shrinks."""
    if decoder == "pillow":
        from PIL import Image

        image = Image.open(io.BytesIO(encoded)).convert("RGB")
        top, left, h, w = random_window(random, image.height, image.width)
        box = left, top, left + w, top + h
        pixels = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))
    else:
        import cv2

        cv2.setNumThreads(1)
        if decoder == "simplejpeg":
            import simplejpeg

            pixels = simplejpeg.decode_jpeg(encoded, fastdct=True, fastupsample=True)
        else:
            pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR_RGB)
        top, left, h, w = random_window(random, *pixels.shape[:2])
        how = cv2.INTER_AREA if area else cv2.INTER_LINEAR
        pixels = cv2.resize(pixels[top : top + h, left : left + w], (size, size), interpolation=how)
    return np.ascontiguousarray(pixels[:, ::-1] if random.random() < 0.5 else pixels)


class Files:
    """The JPEGs of a folder per class, as datasets of torch and sources of grain want them."""

    def __init__(self, folder: Path):
        self.files = sorted(folder.glob("files/*/*.jpg"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> bytes:
        return self.files[number].read_bytes()


# ---- limits ------------------------------------------------------------------------------------


def bare_loop(folder: Path, examples: int, size: int, *, area: bool = False) -> dict[str, float]:
    """Decode, crop and resize what is in memory, and nothing else, in two processes."""
    work = partial(_bare_loop, folder=folder, count=examples, size=size, area=area)
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        found = pool.map(work, range(PROCESSES), chunksize=1)
    begins, ends, cpu = zip(*found, strict=True)
    return {"wall": max(ends) - min(begins), "cpu": sum(cpu)}


def _bare_loop(
    process: int, *, folder: Path, count: int, size: int, area: bool
) -> tuple[float, float, float]:
    files, random = Files(folder), np.random.default_rng(process)
    encoded = [files[number] for number in range(process, len(files), PROCESSES)]
    function = partial(crop, size=size, decoder="simplejpeg", area=area)
    for each in encoded[:20]:
        function(each, random)
    time.sleep(1)  # the other one is there as well
    begin, cpu = time.time(), time.process_time()
    for number in range(count // PROCESSES):
        function(encoded[number % len(encoded)], random)
    return begin, time.time(), time.process_time() - cpu


# ---- TensorFlow --------------------------------------------------------------------------------


def ours(folder: Path, size: int, **hyperparameters: object) -> Batches:
    """The input of the project, from TFRecords by id in a global shuffle, checksums checked."""
    from common import train_batches

    shape = {"train_batch_size": BATCH, "image_size": size, "min_crop_area": 0.08}
    return train_batches(folder / "images", **shape, **hyperparameters)


def tutorial(folder: Path, size: int, *, auto: bool) -> Batches:
    """As in tutorials: the whole image is decoded, cropped and resized."""
    import tensorflow as tf

    keys = {"image/encoded": tf.io.FixedLenFeature([], tf.string)}
    keys["image/class/label"] = tf.io.FixedLenFeature([], tf.int64)
    whole = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])

    def example(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features = tf.io.parse_single_example(record, keys)
        image = tf.io.decode_jpeg(features["image/encoded"], channels=3)
        image = tf.image.convert_image_dtype(image, tf.float32)
        begin, window, _ = tf.image.sample_distorted_bounding_box(
            tf.shape(image), whole, area_range=(0.08, 1.0), aspect_ratio_range=(3 / 4, 4 / 3)
        )
        image = tf.image.resize(tf.slice(image, begin, window), [size, size])
        return tf.image.random_flip_left_right(image), features["image/class/label"]

    calls = tf.data.AUTOTUNE if auto else None
    records = tf.data.TFRecordDataset(sorted(map(str, folder.glob("images-*.tfrecord"))))
    batches = records.shuffle(1000).repeat().map(example, num_parallel_calls=calls).batch(BATCH)
    return batches.prefetch(tf.data.AUTOTUNE) if auto else batches


def keras_directory(folder: Path, size: int, *, augmented: bool) -> Batches:
    import keras
    import tensorflow as tf

    edge = size * 8 // 7 if augmented else size
    batches = keras.utils.image_dataset_from_directory(
        folder / "files", image_size=(edge, edge), batch_size=BATCH, verbose=False
    ).repeat()
    if not augmented:
        return batches
    layers = [keras.layers.RandomCrop(size, size), keras.layers.RandomFlip("horizontal")]
    augment = keras.Sequential(layers)
    return batches.map(
        lambda images, labels: (augment(images, training=True), labels),
        num_parallel_calls=tf.data.AUTOTUNE,
    ).prefetch(2)


# ---- others ------------------------------------------------------------------------------------


def torch(folder: Path, size: int, *, decoder: str) -> Batches:
    import torch
    from torch.utils.data import DataLoader, Dataset

    torch.set_num_threads(1)

    class Crops(Files, Dataset):
        def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
            random = np.random.default_rng([number, torch.initial_seed() % 2**32])
            pixels = crop(super().__getitem__(number), random, size=size, decoder=decoder)
            return torch.from_numpy(pixels.copy()), number % 2

    workers = {"num_workers": PROCESSES, "persistent_workers": True, "prefetch_factor": 4}
    loader = DataLoader(Crops(folder), BATCH, shuffle=True, drop_last=True, **workers)
    while True:
        for images, labels in loader:
            yield images.float(), labels


def webdataset(folder: Path, size: int, *, decoder: str) -> Batches:
    import tarfile

    import webdataset as wds

    files, shards = Files(folder).files, folder / "tar"
    if not shards.exists():
        shards.mkdir()
        for number in range(8):
            with tarfile.open(shards / f"{number}.tar", "w") as tar:
                for file in files[number::8]:
                    tar.add(file, file.name)
    function = partial(crop, random=np.random.default_rng(), size=size, decoder=decoder)
    dataset = (
        wds.WebDataset(sorted(map(str, shards.iterdir())), shardshuffle=8)
        .shuffle(500)
        .to_tuple("jpg")
        .map_tuple(function)
        .batched(BATCH, partial=False)
        .repeat()
    )
    for (images,) in wds.WebLoader(dataset, batch_size=None, num_workers=PROCESSES):
        yield np.asarray(images, np.float32)


def grain(folder: Path, size: int, *, decoder: str) -> Batches:
    import grain as library

    dataset = (
        library.MapDataset.source(Files(folder))
        .seed(1)
        .shuffle()
        .repeat()
        .random_map(partial(_grain_crop, size=size, decoder=decoder))
        .batch(BATCH)
        .to_iter_dataset(library.ReadOptions(num_threads=1, prefetch_buffer_size=2))
        .mp_prefetch(library.MultiprocessingOptions(PROCESSES, per_worker_buffer_size=4))
    )
    for images in dataset:
        yield images.astype(np.float32)


def _grain_crop(encoded: bytes, random: np.random.Generator, **options: object) -> np.ndarray:
    return crop(encoded, random, **options)


def dali(folder: Path, size: int, *, antialias: bool) -> Batches:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH, num_threads=PROCESSES, device_id=None, prefetch_queue_depth=2)
    def pipeline() -> tuple:
        encoded, labels = fn.readers.file(file_root=str(folder / "files"), random_shuffle=True)
        window = {"random_aspect_ratio": [3 / 4, 4 / 3], "random_area": [0.08, 1.0]}
        decoder = {"device": "cpu", "output_type": types.RGB, "use_fast_idct": True}
        images = fn.decoders.image_random_crop(encoded, **decoder, **window)
        images = fn.resize(images, size=[size, size], antialias=antialias)
        return fn.flip(images, horizontal=fn.random.coin_flip()), labels

    pipe = pipeline()
    pipe.build()
    while True:
        yield pipe.run()[0].as_array().astype(np.float32)


SYSTEMS: dict[str, tuple[str, Callable]] = {
    "limit: bare loop, bilinear": ("peers", bare_loop),
    "limit: bare loop, area": ("peers", partial(bare_loop, area=True)),
    "ours, bilinear": ("project", partial(ours, antialias=False)),
    "ours, area (default)": ("project", ours),
    "ours, bilinear, uint8": ("project", partial(ours, antialias=False, input_dtype="uint8")),
    "TensorFlow, tutorial with AUTOTUNE": ("project", partial(tutorial, auto=True)),
    "TensorFlow, sequential tutorial": ("project", partial(tutorial, auto=False)),
    "Keras directory, no random crop": ("project", partial(keras_directory, augmented=False)),
    "Keras directory, crop and flip layers": ("project", partial(keras_directory, augmented=True)),
    "torch DataLoader, simplejpeg": ("peers", partial(torch, decoder="simplejpeg")),
    "torch DataLoader, OpenCV": ("peers", partial(torch, decoder="opencv")),
    "torch DataLoader, Pillow": ("peers", partial(torch, decoder="pillow")),
    "grain, simplejpeg": ("peers", partial(grain, decoder="simplejpeg")),
    "grain, OpenCV": ("peers", partial(grain, decoder="opencv")),
    "webdataset, simplejpeg": ("peers", partial(webdataset, decoder="simplejpeg")),
    "webdataset, OpenCV": ("peers", partial(webdataset, decoder="opencv")),
    "DALI on the CPU": ("peers", partial(dali, antialias=False)),
    "DALI on the CPU, antialiased": ("peers", partial(dali, antialias=True)),
}
"""By name: the environment that it runs in, and the input; or the limit, which times itself."""


def drain(batches: Iterator[object], count: int) -> dict[str, float]:
    for _ in range(WARM_UP):
        next(batches)
    begin, cpu = time.perf_counter(), cpu_seconds()
    for _ in range(count):
        next(batches)
    return {"wall": time.perf_counter() - begin, "cpu": cpu_seconds() - cpu}


def main() -> None:
    name, folder, examples, size = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
    _, function = SYSTEMS[name]
    if name.startswith("limit"):
        found = function(folder, examples, size)
    else:
        found = drain(iter(function(folder, size)), -(-examples // BATCH))
    print(json.dumps({**found, "examples": -(-examples // BATCH) * BATCH}), flush=True)
    os._exit(0)  # workers of some peers do not end by themselves


if __name__ == "__main__":
    main()
