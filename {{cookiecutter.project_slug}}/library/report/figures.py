"""What a report shows, drawn by matplotlib without a screen.

    figures.png(figures.confusion_matrix(tally.confusion, tally.class_names))

The colors are those of Okabe and Ito, which color-blind people can tell apart.
"""

import contextlib
import functools
import io
import math
from collections.abc import Iterator, Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter
from PIL import Image

BLUE, ORANGE, DARK, GREY, PALE = "#0072b2", "#d55e00", "#374151", "#6b7280", "#e5e7eb"
DPI = 144
COLORS = {"train": BLUE, "validation": ORANGE}
"""Of the curves of a run."""
MOST_COUNTS = 20
"""Classes of a confusion matrix that has its counts in the cells."""
MOST_NAMES = 40
"""Classes that are all named."""
FEW_NAMES = 20
"""Classes that are named of more than these."""
NAME_LENGTH = 22
"""Letters of the name of a class, at most."""
MOST_MARKERS = 40
"""Points of a curve that are all marked."""
WIDE = 1.6
"""Width by height of pictures of which fewer are side by side."""

FONTS = """
DejaVu Sans, Noto Sans CJK SC, Noto Sans CJK JP, Microsoft YaHei, Yu Gothic, Malgun Gothic,
PingFang SC, Hiragino Sans, Arial Unicode MS, WenQuanYi Micro Hei, Droid Sans Fallback,
Noto Sans, Noto Sans Arabic, Noto Sans Devanagari, Noto Sans Thai, Noto Emoji
"""
"""Those that are installed are used, each for the characters that the ones before it lack."""

STYLE = {
    "text.usetex": False,
    "font.size": 9,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": DARK,
    "text.color": DARK,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "grid.color": PALE,
}


@functools.cache
def _fonts() -> tuple[list[str], set[int]]:
    """The names of the fonts, and the characters that one of them has."""
    installed = set(font_manager.get_font_names())
    names = [name for name in FONTS.strip().replace("\n", " ").split(", ") if name in installed]
    files = [font_manager.findfont(name) for name in names]
    return names, {code for file in files for code in font_manager.get_font(file).get_charmap()}


@contextlib.contextmanager
def _style() -> Iterator[None]:
    with matplotlib.rc_context({**STYLE, "font.family": _fonts()[0]}):
        yield


def shown(text: str, length: int = NAME_LENGTH) -> str:
    """Any text, as matplotlib can show it: a line of so many letters, in which `$` is a letter."""
    characters = _fonts()[1]
    text = "".join(c if c.isprintable() and ord(c) in characters else "□" for c in text)
    if len(text) > length:
        text = f"{text[: length // 2]}…{text[len(text) - (length - 1) // 2 :]}"
    return text.replace("$", r"\$")


@_style()
def confusion_matrix(confusion: np.ndarray, class_names: Sequence[str]) -> Figure:
    """Which classes are taken for which others.

    Args:
        confusion: int [true class, predicted class], counts.
        class_names: in the order of the labels.
    """
    size = len(class_names)
    totals = np.broadcast_to(confusion.sum(axis=1, keepdims=True), confusion.shape)
    shares = np.ma.masked_array(confusion / np.maximum(totals, 1), totals == 0)
    edge = min(max(0.45 * size, 2), 6.5)
    figure = Figure((edge + 2.4, edge + 1.3), layout="constrained")
    axes = figure.add_subplot()
    colors = matplotlib.colormaps["Blues"].with_extremes(bad="#f3f4f6")
    # By the root of the share: of many classes, few are taken for the same other one.
    image = axes.imshow(shares, cmap=colors, norm=PowerNorm(0.5, vmin=0, vmax=1))
    bar = figure.colorbar(image, ax=axes, shrink=0.7, ticks=[0, 0.05, 0.2, 0.5, 1])
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1))
    bar.ax.tick_params(length=0)
    bar.outline.set_visible(False)
    bar.set_label("of the examples of a true class")
    ticks = range(0, size, 1 if size <= MOST_NAMES else math.ceil(size / FEW_NAMES))
    labels = [shown(class_names[i]) for i in ticks]
    font = {"fontsize": 9 if size <= MOST_COUNTS else 7}
    slanted = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(ticks, labels, **font, **(slanted if size > 2 else {}))
    axes.set_yticks(ticks, labels, **font)
    axes.set(xlabel="predicted class", ylabel="true class")
    axes.tick_params(length=0 if size <= MOST_NAMES else 3)
    axes.spines[:].set_visible(False)
    if size <= MOST_COUNTS:
        room = 72 * edge / size / len(str(confusion.max()))  # points for each digit
        center = {"ha": "center", "va": "center", "fontsize": min(9, 1.4 * room)}
        for row, column in np.argwhere(confusion):
            color = "white" if shares[row, column] > 0.35 else DARK
            axes.text(column, row, str(confusion[row, column]), color=color, **center)
    return figure


@_style()
def reliability(bins: np.ndarray) -> Figure:
    """How often the model is right where it is so certain, and its expected calibration error.

    The error is the mean over all examples of |accuracy - confidence| of their bin: Guo et al.,
    On Calibration of Modern Neural Networks, 2017, https://arxiv.org/abs/1706.04599.

    Args:
        bins: float [bins, 3], as of a Tally: examples, sum of probabilities, number right.
    """
    used = bins[bins[:, 0] > 0]
    total = used[:, 0].sum()
    confidence, accuracy = used[:, 1] / used[:, 0], used[:, 2] / used[:, 0]
    error = (used[:, 0] * abs(accuracy - confidence)).sum()
    words = format(error / total, ".1%") if total else "unknown"
    figure = Figure((4.6, 5), layout="constrained")
    above, below = figure.subplots(2, sharex=True, height_ratios=[3, 1])
    above.set_title(f"Expected calibration error {words}")
    above.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    above.vlines(confidence, confidence, accuracy, color=ORANGE, linewidth=4, alpha=0.6)
    above.plot(confidence, accuracy, color=BLUE, marker="o")
    quiet = {"color": GREY, "fontsize": 8, "transform": above.transAxes}
    above.text(0.03, 0.95, "not certain enough", va="top", **quiet)
    above.text(0.97, 0.05, "too certain", ha="right", **quiet)
    edges = np.linspace(0, 1, len(bins) + 1)
    shares, look = bins[:, 0] / max(total, 1), {"color": BLUE, "edgecolor": "white"}
    below.bar(edges[:-1], shares, 1 / len(bins), align="edge", **look)
    below.set_ylim(0, 1.1 * shares.max() or 1)
    above.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    below.set(xlabel="probability of the predicted class", ylabel="share of examples")
    for axis in (above.yaxis, below.yaxis, below.xaxis):
        axis.set_major_formatter(PercentFormatter(1))
        axis.set_tick_params(length=0)
    above.grid()
    return figure


def aspect(pictures: Sequence[np.ndarray]) -> float:
    """Width by height of the one in the middle; 1 of none."""
    return float(np.median([each.shape[1] / each.shape[0] for each in pictures] or [1]))


@_style()
def picture_grid(pictures: Sequence[np.ndarray], captions: Sequence[str]) -> Figure:
    """Pictures side by side, small ones enlarged without blur.

    Args:
        pictures: uint8 [height, width, 3] each, of any size.
        captions: of one line or two each.
    """
    columns = 3 if aspect(pictures) > WIDE else 5
    rows = max(math.ceil(len(pictures) / columns), 1)
    width = 7 / columns  # inches
    height = width / max(aspect(pictures), 1) + 0.45
    figure = Figure((7, rows * height), layout="constrained")
    if not pictures:
        figure.text(0.5, 0.5, "none", ha="center")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid:
        axes.set_axis_off()
    for axes, picture, caption in zip(grid, pictures, captions, strict=False):
        axes.imshow(picture)
        lines = [shown(line, int(14 * width)) for line in caption.split("\n")]
        axes.set_title("\n".join(lines), y=0, pad=-3, va="top", fontsize=8.5, fontweight="normal")
    return figure


@_style()
def curve(title: str, runs: Mapping[str, tuple[Sequence[int], Sequence[float]]]) -> Figure:
    """One metric over the steps; where it has many points, they are pale below their running mean.

    Args:
        title: the name of the metric.
        runs: by name, such as train and validation: the steps, and the value at each.
    """
    figure = Figure((4.6, 3), layout="constrained")
    axes = figure.add_subplot()
    for name, (steps, values) in runs.items():
        color = COLORS.get(name, GREY)
        look = {"marker": "o", "markersize": 3.5}
        if len(steps) > MOST_MARKERS:
            axes.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
            window = np.ones(len(steps) // MOST_MARKERS * 2 + 1)
            values = np.convolve(values, window / window.size, "valid").tolist()
            steps, look = steps[window.size // 2 :][: len(values)], {}
        axes.plot(steps, values, color=color, label=shown(name), **look)
    axes.set_title(shown(title, 2 * NAME_LENGTH))
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.tick_params(length=0)
    axes.grid()
    if runs:
        axes.legend(frameon=False)
    return figure


def png(figure: Figure, *, dpi: int = DPI) -> bytes:
    """The figure as a file, so many pixels an inch, in a palette of 256 colors, for its size."""
    buffer, small = io.BytesIO(), io.BytesIO()
    with _style():
        figure.savefig(buffer, format="png", dpi=dpi)
    Image.open(buffer).convert("RGB").quantize(256).save(small, "png", optimize=True)
    return small.getvalue()


def precision_recall(recall: np.ndarray, precision: np.ndarray) -> Figure:
    return Figure()


def scatter(true: np.ndarray, predicted: np.ndarray) -> Figure:
    return Figure()


def histogram(values: np.ndarray, name: str) -> Figure:
    return Figure()
