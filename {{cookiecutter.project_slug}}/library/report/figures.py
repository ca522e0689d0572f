"""Figures of a report, drawn by matplotlib without a screen.

    png(confusion_matrix(counts, class_names))

The colors are those of Okabe and Ito, which color-blind people can tell apart.
"""

import contextlib
import functools
import io
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib import font_manager, ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from PIL import Image

from library.config import word_of
from library.report.rendering import DPI

BLUE, ORANGE, DARK, GREY, PALE = "#0072b2", "#d55e00", "#374151", "#6b7280", "#e5e7eb"
COLORS = {"train": BLUE, "validation": ORANGE}
CYCLE = (BLUE, ORANGE, "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""For curves of other names."""
MOST_COUNTS, MOST_NAMES, FEW_NAMES = 20, 40, 20
"""Classes whose counts are written, and whose names all are; of more, so many names are."""
NAME_LENGTH = 22  # letters of the name of a class, at most
MOST_MARKERS = 40  # points of a curve that are all marked
MANY_COLORS = 8192  # more than those of a drawing with smooth letters
WIDE = 1.6  # width by height of images of which fewer are side by side
DASHED: Any = {"color": GREY, "linewidth": 1, "linestyle": (0, (4, 3))}

FONTS = """
DejaVu Sans, Noto Sans CJK SC, Noto Sans CJK JP, Microsoft YaHei, Yu Gothic, Malgun Gothic,
PingFang SC, Hiragino Sans, Arial Unicode MS, WenQuanYi Micro Hei, Droid Sans Fallback,
Noto Sans, Noto Sans Arabic, Noto Sans Devanagari, Noto Sans Thai, Noto Emoji
"""
"""Those that are installed are used, each for the characters that the ones before it lack."""

STYLE = {"font.size": 9, "axes.titlesize": 10.5, "axes.titlelocation": "left", "text.color": DARK}
STYLE |= {"axes.labelcolor": DARK, "axes.edgecolor": GREY, "grid.color": PALE, "axes.grid": True}
STYLE |= {"axes.spines.top": False, "axes.spines.right": False, "text.usetex": False}
STYLE |= {"xtick.color": GREY, "ytick.color": GREY, "axes.axisbelow": True}
STYLE |= {"xtick.major.size": 0, "ytick.major.size": 0, "figure.constrained_layout.use": True}


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


def _shown(text: str, length: int = NAME_LENGTH) -> str:
    """Any text, as matplotlib can show it: a line of so many letters, in which `$` is a letter."""
    characters = _fonts()[1]
    text = "".join(c if c.isprintable() and ord(c) in characters else "□" for c in text)
    if len(text) > length:
        text = f"{text[: length // 2]}…{text[len(text) - (length - 1) // 2 :]}"
    return text.replace("$", r"\$")


@_style()
def confusion_matrix(confusion: np.ndarray, class_names: Sequence[str]) -> Figure:
    """Which classes are predicted as which others; `confusion` is [true class, predicted class]."""
    size = len(class_names)
    totals = np.broadcast_to(confusion.sum(axis=1, keepdims=True), confusion.shape)
    shares = np.ma.masked_array(confusion / np.maximum(totals, 1), totals == 0)
    edge = min(max(0.45 * size, 2), 6.5)
    figure = Figure((edge + 2.4, edge + 1.3))
    axes = figure.add_subplot(xlabel="predicted class", ylabel="true class")
    axes.grid(False)
    colors = matplotlib.colormaps["Blues"].with_extremes(bad="#f3f4f6")
    # By the root of the share: of many classes, few are predicted as the same other one.
    image = axes.imshow(shares, cmap=colors, norm=PowerNorm(0.5, vmin=0, vmax=1))
    bar = figure.colorbar(image, ax=axes, shrink=0.7, ticks=[0, 0.05, 0.2, 0.5, 1])
    bar.ax.yaxis.set_major_formatter(ticker.PercentFormatter(1))
    bar.outline.set_visible(False)
    bar.set_label("share of the true class")
    ticks = range(0, size, 1 if size <= MOST_NAMES else math.ceil(size / FEW_NAMES))
    names, font = [_shown(class_names[i]) for i in ticks], 9 if size <= MOST_COUNTS else 7
    slanted = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if size > 2 else {}
    axes.set_xticks(ticks, names, fontsize=font, **slanted)
    axes.set_yticks(ticks, names, fontsize=font)
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
    """How often the model is correct where it is so confident, and the calibration error.

    That is the mean over all examples of |accuracy - confidence| of their bin: Guo et al., On
    Calibration of Modern Neural Networks, 2017, https://arxiv.org/abs/1706.04599. `bins` are
    [bins, 3]: examples, sum of confidence, number correct.
    """
    used = bins[bins[:, 0] > 0]
    total = used[:, 0].sum()
    confidence, accuracy = used[:, 1] / used[:, 0], used[:, 2] / used[:, 0]
    error = (used[:, 0] * abs(accuracy - confidence)).sum()
    figure = Figure((4.6, 5))
    above, below = figure.subplots(2, sharex=True, height_ratios=[3, 1])
    words = format(error / total, ".1%") if total else "unknown"
    above.set_title(f"Expected calibration error {words}")
    above.plot([0, 1], [0, 1], **DASHED)
    above.vlines(confidence, confidence, accuracy, color=ORANGE, linewidth=4, alpha=0.6)
    above.plot(confidence, accuracy, color=BLUE, marker="o")
    quiet = {"color": GREY, "fontsize": 8, "transform": above.transAxes}
    above.text(0.03, 0.95, "underconfident", va="top", **quiet)
    above.text(0.97, 0.05, "overconfident", ha="right", **quiet)
    edges, shares = np.linspace(0, 1, len(bins) + 1), bins[:, 0] / max(total, 1)
    below.bar(edges[:-1], shares, 1 / len(bins), align="edge", color=BLUE, edgecolor="white")
    below.set_ylim(0, 1.1 * shares.max() or 1)
    above.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    below.set(xlabel="confidence", ylabel="share of examples")
    for axis in (above.yaxis, below.yaxis, below.xaxis):
        axis.set_major_formatter(ticker.PercentFormatter(1))
    below.grid(False)
    return figure


@_style()
def scatter(true: np.ndarray, predicted: np.ndarray) -> Figure:
    """Predicted values over true ones, with the diagonal."""
    figure = Figure((4.6, 4.6))
    axes = figure.add_subplot(xlabel="true value", ylabel="predicted value")
    axes.axline((0, 0), slope=1, **DASHED)
    axes.scatter(true, predicted, color=BLUE, s=12, alpha=0.4, linewidths=0)
    both = np.concatenate([true, predicted])
    low, high = (both.min(), both.max()) if len(both) else (0, 1)
    room = 0.04 * (high - low) or 1
    axes.set(xlim=(low - room, high + room), ylim=(low - room, high + room), aspect="equal")
    return figure


@_style()
def histogram(errors: np.ndarray) -> Figure:
    """How many errors are how large."""
    figure = Figure((4.6, 3))
    axes = figure.add_subplot(xlabel="predicted value less true value", ylabel="examples")
    axes.hist(errors, bins=40, color=BLUE, edgecolor="white", linewidth=0.5)
    axes.axvline(0, **DASHED)
    return figure


def aspect(images: Sequence[np.ndarray]) -> float:
    """Width by height of the one in the middle; 1 of none."""
    return float(np.median([image.shape[1] / image.shape[0] for image in images] or [1]))


@_style()
def image_grid(images: Sequence[np.ndarray], captions: Sequence[str]) -> Figure:
    """Images, uint8 [height, width, 3], side by side with captions of one line or two."""
    columns = 3 if aspect(images) > WIDE else 5
    rows = max(math.ceil(len(images) / columns), 1)
    width = 7 / columns  # inches
    tall = width / max(aspect(images), 1)
    height = tall + 0.45
    figure = Figure((7, rows * height), layout="none")
    if not images:
        figure.text(0.5, 0.5, "none", ha="center")
    # In one pair of axes, whose unit is the inch: a pair for each takes four times as long.
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 7), ylim=(rows * height, 0))
    axes.set_axis_off()
    for number, (image, caption) in enumerate(zip(images, captions, strict=False)):
        row, column = divmod(number, columns)
        middle, top = (column + 0.5) * width, row * height + 0.05
        scale = min((width - 0.1) / image.shape[1], (tall - 0.1) / image.shape[0])
        half, bottom = scale * image.shape[1] / 2, top + scale * image.shape[0]
        # Small ones are enlarged without blur.
        axes.imshow(image, extent=(middle - half, middle + half, bottom, top), aspect="auto")
        lines = [_shown(line, int(14 * width)) for line in caption.split("\n")]
        axes.text(middle, bottom + 0.05, "\n".join(lines), ha="center", va="top", fontsize=8.5)
    return figure


@_style()
def curve(title: str, runs: Mapping[str, Sequence], *, best_step: int | None = None) -> Figure:
    """One metric over the steps, by run: steps and values; many are pale below a running mean."""
    figure = Figure((4.6, 3))
    axes = figure.add_subplot(title=_shown(title, 2 * NAME_LENGTH), xlabel="step")
    for (name, (steps, values)), other in zip(runs.items(), itertools.cycle(CYCLE), strict=False):
        color = COLORS.get(name, other)
        look = {"marker": "o", "markersize": 3.5}
        if len(steps) > MOST_MARKERS:
            axes.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
            window = np.ones(len(steps) // MOST_MARKERS * 2 + 1)
            values = np.convolve(values, window / window.size, "valid").tolist()
            steps, look = steps[window.size // 2 :][: len(values)], {}
        axes.plot(steps, values, color=color, label=_shown(name), **look)
    if best_step is not None:
        axes.axvline(best_step, **DASHED, label="best")
    axes.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    if runs:
        axes.legend(frameon=False)
    return figure


@_style()
def intervals(title: str, rows: Mapping[str, Sequence[float]], *, shares: bool) -> Figure:
    """By name a value, and where its interval begins and ends, one below the other."""
    figure = Figure((4.6, 0.8 + 0.3 * len(rows)))
    axes = figure.add_subplot(xlabel=title)
    for row, (value, *ends) in enumerate(rows.values()):
        axes.plot(ends, [row, row], color=BLUE, linewidth=3, alpha=0.4)
        axes.plot(value, row, color=BLUE, marker="o")
    axes.set_yticks(range(len(rows)), [_shown(name) for name in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)  # the first one on top
    axes.xaxis.set_major_locator(ticker.MaxNLocator(5))
    if shares:
        axes.xaxis.set_major_formatter(ticker.PercentFormatter(1))
    return figure


@_style()
def trials(
    option: str, values: Sequence[Any], errors: Sequence[float], filled: Sequence[bool]
) -> Figure:
    """The error of each trial over its value of an option."""
    figure, there = Figure((4.6, 3)), np.isfinite(errors)
    axes = figure.add_subplot(title=_shown(option, 2 * NAME_LENGTH), ylabel="validation error")
    numbers = not any(isinstance(value, str | bool) for value in values)
    shown = np.array(values if numbers else [_shown(word_of(value)) for value in values])[there]
    if not numbers and len("".join({*shown})) > 2 * NAME_LENGTH:
        axes.tick_params("x", rotation=20)
    colors = [BLUE if each else "none" for each in np.array(filled)[there]]
    axes.scatter(shown, np.array(errors)[there], c=colors, edgecolors=BLUE, s=28)
    if numbers and 0 < 20 * min(values) < max(values):
        decades = math.log10(max(values) / min(values))
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if decades < 2 else (1,)))
        axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    return figure


def png(figure: Figure, *, dpi: int = DPI) -> bytes:
    """The figure as a file of so many pixels an inch, with a palette of 256 colors for its size."""
    figure.set_dpi(dpi)
    canvas, file = FigureCanvasAgg(figure), io.BytesIO()
    with _style():
        canvas.draw()
    pixels = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    # The finer method takes a second for the colors of photos.
    fine = pixels.getcolors(MANY_COLORS) is not None
    method = Image.Quantize.MEDIANCUT if fine else Image.Quantize.FASTOCTREE
    pixels.quantize(256, method).save(file, "png")
    return file.getvalue()
