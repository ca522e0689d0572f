"""Limits, peers and ours on the same images, in turns: python benchmarks/peers.py

    python benchmarks/peers.py [--rounds 5] [--large] [--images FOLDER] [--only WORD ...]

Prints a table for a README: images/s, CPU time and ratios to the bare loop, medians over the
rounds. The peers live in an environment of their own, build/peers, which is made at the first time.
`--large` takes images of 6 MP; `--images` takes yours, in a folder per class; `--only` leaves
out all systems whose names hold none of the words.
"""

import argparse
import datetime
import subprocess
import sys
import tempfile
from pathlib import Path

from common import make_dataset, make_jpeg, medians, output_of, system_name
from systems import SYSTEMS

HERE = Path(__file__).parent
PEERS = HERE.parent / "build" / "peers"
REQUIREMENTS = HERE / "peers.txt"
LIMIT = "limit: bare loop, bilinear"


def peers_python() -> str:
    """The interpreter of the peers' environment."""
    python = PEERS / "bin" / "python"
    if not (PEERS / "installed").exists():
        print(f"installing {', '.join(REQUIREMENTS.read_text().split())}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", PEERS], check=True)
        words = ["-m", "pip", "install", "--quiet", "--requirement", REQUIREMENTS]
        subprocess.run([python, *words], check=True)
        # Only its resizer is called, which needs little of what the package asks for.
        words = ["-m", "pip", "install", "--quiet", "--no-deps", "img2dataset"]
        subprocess.run([python, *words], check=True)
        (PEERS / "installed").touch()
    return str(python)


def make_data(folder: Path, images: str | None, large: bool) -> None:
    """The same JPEGs in a file each, and in TFRecords."""
    if images:
        files = sorted(path for path in Path(images).rglob("*") if path.suffix == ".jpg")
        jpegs = [file.read_bytes() for file in files]
    elif large:
        jpegs = [make_jpeg(seed, 3000, 2000) for seed in range(60)]
    else:
        jpegs = [make_jpeg(seed) for seed in range(1600)]
    for number, jpeg in enumerate(jpegs):
        file = folder / "files" / "ab"[number % 2] / f"{number:05}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg)
    make_dataset(folder / "images", jpegs)
    print(f"{len(jpegs)} JPEGs, {sum(map(len, jpegs)) / len(jpegs) / 1e3:.0f} KB each", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--images", metavar="FOLDER")
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD")
    options = parser.parse_args()
    names = [name for name in SYSTEMS if any(word in name for word in options.only)]
    examples, size = (480, 224) if options.large else (2560, 224)
    pythons = {"project": sys.executable, "peers": peers_python()}
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONDONTWRITEBYTECODE": "1"}
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder), options.images, options.large)
        for _ in range(options.rounds):
            for name in names:
                python = pythons[SYSTEMS[name][0]]
                words = [python, HERE / "systems.py", name, folder, examples, size]
                drawn = output_of(*words, **environment)
                count = drawn["examples"]
                runs[name].append((count / drawn["wall"], 1e3 * drawn["cpu"] / count))
                print(".", end="", flush=True)
    print()
    found = {name: medians(pairs) for name, pairs in runs.items()}
    limit_speed, limit_cpu = found.get(LIMIT, next(iter(found.values())))
    print(f"{datetime.date.today()}, {system_name()}, medians of {options.rounds} rounds\n")
    print("| system | images/s | x of the loop | CPU ms/image | x of the loop |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, (speed, cpu) in sorted(found.items(), key=lambda item: -item[1][0]):
        shown = f"**{name}**" if name.startswith("ours") else name
        ratios = f"{speed / limit_speed:.2f} | {cpu:.2f} | {cpu / limit_cpu:.2f}"
        print(f"| {shown} | {speed:,.0f} | {ratios} |")


if __name__ == "__main__":
    main()
