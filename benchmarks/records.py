"""What the parent of a conversion does for many files: python benchmarks/records.py 1000000 2000000

It finds the near duplicates, splits, plans the shards, writes index, card and lists, of made-up
files, without what the workers do. A tenth of the thumbnails is near another one; a tenth is pale.
Each number of files is a process of its own.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

LOOK_SECS = 0.02
PROJECT = next(Path(__file__).parent.parent.glob("*/run.py")).parent


def main() -> None:
    if len(sys.argv) == 2:
        parents_work(int(sys.argv[1]))
        return
    for count in sys.argv[1:]:
        subprocess.run([sys.executable, __file__, count], check=True)


def parents_work(count: int) -> None:
    """Split and finish a dataset of made-up files; print CPU seconds and anonymous memory."""
    sys.path.insert(0, str(PROJECT))
    from library import images
    from library.convert import ConvertOptions, FileListing, Files
    from library.convert.finish import finish
    from library.convert.plan import FILES_PER_SCAN, Plan
    from library.data import Target

    names = [f"class {n % 100:02}/image-{n:09}.jpg" for n in range(count)]
    target = Target("class", tuple(f"class {n:02}" for n in range(100)))
    listing = FileListing(target, Files(names, [n % 100 for n in range(count)]), [])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = ConvertOptions(
            dataset_dir=folder, tfrecord_dir=name, tfrecord_filename="train", num_shards=500
        )
        plan = Plan(options, images.ShardOptions(), images, listing)
        plan.partial.mkdir()
        (plan.partial / "plan").touch()
        for number, begin in enumerate(range(0, count, FILES_PER_SCAN)):
            seen = made_up(number, min(FILES_PER_SCAN, count - begin))
            np.savez(plan.partial / f"scan-{number:06}.npz", **seen)
        memory = Memory()
        begin = time.process_time()
        parts = plan.split()
        split = time.process_time()
        jobs = {name: plan.shard_jobs(name, files) for name, files in parts.items()}
        for number, job in enumerate(job for of_set in jobs.values() for job in of_set):
            made_up_shard(job, number)
        planned = time.process_time()
        finish(plan, jobs)
        seconds = split - begin, time.process_time() - planned
    print(
        f"{count:,} files: {seconds[0]:.0f} s of CPU to split them ({seconds[0] / count * 1e6:.1f} "
        f"us each), {seconds[1]:.0f} s to finish ({seconds[1] / count * 1e6:.1f}); at most "
        f"{memory.most:,.0f} MB of memory that is not a file's",
        flush=True,
    )


def made_up(seed: int, count: int) -> dict[str, np.ndarray]:
    """What is seen of files: like photos; a tenth pale, a tenth as the one before."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, [count, 4, 4]).repeat(4, 1).repeat(4, 2).reshape(count, 256)
    brightness = (coarse + random.integers(-40, 41, coarse.shape)).clip(0, 255)
    brightness[::10] = 250 + random.integers(-3, 4, brightness[::10].shape)
    thumbnails = np.concatenate([brightness, random.integers(90, 160, [count, 384])], axis=1)
    copies = thumbnails[5::10][: len(thumbnails[6::10])]
    thumbnails[6::10] = (copies + random.integers(-1, 2, copies.shape)).clip(0, 255)
    checksums = random.integers(0, 256, [count, 32], np.uint8)
    seen = {"checksums": checksums.ravel(), "thumbnails": thumbnails.astype(np.uint8).ravel()}
    return seen | {"numbers": np.arange(count), "rejected": np.array("[]")}


def made_up_shard(job: object, seed: int) -> None:
    """What a worker leaves of a shard, but for the content of the shard."""
    from library.data.tfrecord import INDEX

    count = len(job.files)
    shard = {"file": job.output.name, "examples": count, "bytes": 1, "sha256": ""}
    rows = {"rows": np.zeros(count, INDEX), "shard": np.array(json.dumps(shard))}
    np.savez(job.report, **made_up(10**6 + seed, count), **rows)
    job.output.write_bytes(b"x")


class Memory:
    """The largest anonymous memory of this process so far, in MB, by looking often."""

    def __init__(self) -> None:
        self.most = 0.0
        threading.Thread(target=self.look, daemon=True).start()

    def look(self) -> None:
        while True:
            lines = Path("/proc/self/status").read_text().splitlines()
            (kb,) = (line.split()[1] for line in lines if line.startswith("RssAnon"))
            self.most = max(self.most, int(kb) / 1024)
            time.sleep(LOOK_SECS)


if __name__ == "__main__":
    main()
