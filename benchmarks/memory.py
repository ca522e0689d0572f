"""An epoch over 4 GB in a global shuffle, in how much memory: python benchmarks/memory.py

    python benchmarks/memory.py [GIGABYTES]

Fails when the process that trains is ever larger than 2 GB.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import PROJECT, make_dataset, make_jpeg

IMAGES, LIMIT_GB = 1000, 2.0


def main() -> None:
    gigabytes = float(sys.argv[1]) if sys.argv[1:] else 4
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        jpegs = [make_jpeg(seed) for seed in range(IMAGES)]
        size = sum(shard.bytes for shard in make_dataset(data / "validation", jpegs).shards)
        copies = -(-gigabytes * 2**30 // size)
        card = make_dataset(data / "train", jpegs, copies=int(copies))
        total = sum(shard.bytes for shard in card.shards)
        print(f"{card.num_examples:,} images, {total / 2**30:.2f} GB", flush=True)
        words = ["--train_data", data / "train", "--validation_data", data / "validation"]
        words += ["--model_dir", data / "checkpoints", "--best_model_dir", data / "best"]
        words += ["--train_epochs", 1, "--image_size", 32, "--log_steps", 200]
        begin = time.perf_counter()
        subprocess.run([sys.executable, PROJECT / "run.py", *map(str, words)], check=True)
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        print(f"an epoch in {time.perf_counter() - begin:.0f} s, at most {largest:.2f} GB resident")
        if largest > LIMIT_GB:
            sys.exit(f"more than {LIMIT_GB} GB")


if __name__ == "__main__":
    main()
