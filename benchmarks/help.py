"""The time of `--help` against that of a bare interpreter: python benchmarks/help.py

    python benchmarks/help.py [ROUNDS]

The two are started in turns, so that what else runs on the machine slows both.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

PROJECT = next(Path(__file__).parent.parent.glob("*/run.py")).parent
ROUNDS = int(sys.argv[1]) if sys.argv[1:] else 20


def seconds(*words: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, *words], cwd=PROJECT, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def main() -> None:
    for program in ("run.py", "convert_dataset.py"):
        pairs = [(seconds("-c", "pass"), seconds(program, "--help")) for _ in range(ROUNDS)]
        bare, answer = map(statistics.median, zip(*pairs, strict=True))
        print(
            f"python {program} --help: {answer:.3f} s, {answer / bare:.1f} times a bare "
            f"interpreter, {answer - bare:.3f} s more (medians of {ROUNDS})"
        )


if __name__ == "__main__":
    main()
