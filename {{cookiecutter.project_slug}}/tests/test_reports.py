"""Reports of evaluations: whole, on one page, whatever the numbers and names are."""

import csv
import html.parser
import math
import re
import warnings

import numpy as np
import pytest
import tensorflow as tf

from library.report import BINS, MISTAKES, Mistake, Tally, figures, reports

ODD_NAMES = ["cat", "a_$x_{1$ <b>&amp;</b>", "图像 \U0001f389 \udcff\n", "%s $title", "n" * 300]
RUNS = {"train": ([1, 2], [2.0, 1.0]), "validation": ([2], [1.5])}
CURVES = {"loss": RUNS}


@pytest.fixture(autouse=True)
def _no_warnings(caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    assert not [record for record in caplog.records if record.name.startswith("matplotlib")]


def tally_of(names: list[str], pairs: list[tuple[int, int]], shape: tuple[int, int] = (8, 8)):
    tally = Tally(names)
    pictures = np.random.default_rng(1).integers(0, 256, (len(pairs), *shape, 3), np.uint8)
    mistakes = [
        Mistake(f"{names[label]}/{i}.jpg", label, predicted, 0.9, picture)
        for i, ((label, predicted), picture) in enumerate(zip(pairs, pictures, strict=True))
        if label != predicted
    ]
    labels, predicted = np.array(pairs, int).reshape(-1, 2).T
    tally.add(labels, predicted, np.full(len(pairs), 0.9), mistakes)
    return tally


def report(folder, tally, *, metrics=None, curves=CURVES, facts=None, title="Report") -> str:
    metrics = {"accuracy": 0.5} if metrics is None else metrics
    facts = {} if facts is None else facts
    page = reports.write_report(
        folder,
        title=title,
        metrics=metrics,
        tally=tally,
        curves=curves,
        facts=facts,
        settings=facts,
    )
    return page.read_text(encoding="utf-8")


class Page(html.parser.HTMLParser):
    """The words of a page, its pictures, and whether every element is closed."""

    VOID = ("meta", "img", "link", "br")

    def __init__(self, text: str):
        super().__init__()
        self.words, self.images, self.open = "", [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.images.append(dict(attrs))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


def test_the_table_has_the_numbers_of_each_class(tmp_path):
    pairs = [(0, 0)] * 6 + [(0, 1)] * 3 + [(0, 2)] + [(1, 1)] * 5 + [(1, 0)] * 2
    page = report(tmp_path, tally_of(["cat", "dog", "none"], pairs))
    with open(tmp_path / "per_class.csv", newline="", encoding="utf-8") as file:
        cat, dog, none = csv.DictReader(file)
    assert (cat["examples"], cat["right"]) == ("10", "6")
    assert (cat["most often taken for"], cat["times"]) == ("dog", "3")
    assert float(cat["recall"]) == 0.6
    assert float(cat["precision"]) == 0.75
    assert float(cat["f1"]) == pytest.approx(2 * 0.6 * 0.75 / 1.35)
    assert (dog["most often taken for"], dog["times"]) == ("cat", "2")
    assert (none["examples"], none["recall"], none["precision"]) == ("0", "", "0.0")
    assert "60.0%" in page
    assert "no examples" in page


def test_the_page_needs_nothing_beside_it(tmp_path):
    text = report(tmp_path, tally_of(["cat", "dog"], [(0, 0), (0, 1), (1, 1)]))
    page = Page(text)
    assert page.open == []
    assert '<html lang="en">' in text
    assert not re.search(r"https?:|@import|<link|<script|url\(|\$", text)
    assert len(page.images) == 1 + 2 + 1  # curve, matrix and reliability, mistake
    assert all(image["src"].startswith("data:image/") and image["alt"] for image in page.images)
    assert {file.name for file in tmp_path.iterdir()} == {"report.html", *reports.FILES}
    for name in reports.FILES[1:]:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_names_may_hold_anything(tmp_path):
    tally = tally_of(ODD_NAMES, [(i, j) for i in range(5) for j in range(5)])
    words = '<i>"$x" & 100%</i> \udcff'
    runs = {ODD_NAMES[2]: ([1], [1.0])}
    text = report(
        tmp_path,
        tally,
        title=words,
        metrics={words: 1.0},
        curves={ODD_NAMES[1]: runs},
        facts={words: words},
    )
    page = Page(text)
    assert page.open == []
    assert "<i>" not in text
    assert "<b>&amp;" not in text
    assert page.words.count('<i>"$x" & 100%</i> ?') == 7  # twice the title, a tile, a fact
    assert "a_$x_{1$ <b>&amp;</b>, taken for cat" not in text
    assert "taken for a_$x_{1$ <b>&amp;</b>" in page.words


@pytest.mark.parametrize(
    ("tally", "words"),
    [
        (tally_of(["a", "b"], [(0, 0), (1, 1)]), "There are none."),
        (tally_of(["a", "b"], []), "no examples"),
        (tally_of(["only"], [(0, 0)]), "only"),
        (tally_of(["a", "b"], [(0, 1)] * 50), f"The {MISTAKES} of 50"),
        (tally_of(["a", "b"], [(0, 1)] * 2, (64, 200)), 'class="gallery broad"'),
        (tally_of([f"c{i}" for i in range(120)], [(5, 7)]), "These are 50 of 120"),
    ],
    ids=["no mistake", "no example", "one class", "many mistakes", "wide", "many classes"],
)
def test_every_tally_has_its_words(tmp_path, tally, words):
    metrics = {"accuracy": math.nan, "loss": math.inf}
    text = report(tmp_path, tally, metrics=metrics, curves={})
    assert words in text
    assert "not a number" in text
    assert "infinite" in text
    assert "Training" not in text
    assert all((tmp_path / name).stat().st_size < 150_000 for name in reports.FILES)


def test_a_model_without_classes_has_a_page_alone(tmp_path):
    report(tmp_path, tally_of(["cat", "dog"], [(0, 1)]))
    page = Page(report(tmp_path, None, metrics={"rmse": 0.123456, "global_step": 36000}))
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert page.open == []
    assert "0.1235" in page.words
    assert "36,000" in page.words
    assert "Training" in page.words
    assert "Confusion" not in page.words


def pixels(figure) -> tuple[int, int]:
    content = figures.png(figure, dpi=50)
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


@pytest.mark.parametrize("size", [1, 2, 10, 300])
def test_a_confusion_matrix_of_any_size_fits_a_page(size):
    confusion = np.random.default_rng(1).integers(0, 90, (size, size))
    names = [f"a class whose name is long {i}" for i in range(size)]
    assert max(pixels(figures.confusion_matrix(confusion, names))) < 10 * 50


@pytest.mark.parametrize(
    ("gap", "title"), [(0, "0.0%"), (0.1, "10.0%"), (None, "unknown")], ids=str
)
def test_the_calibration_error_is_the_mean_gap(gap, title):
    bins = np.zeros([BINS, 3])
    if gap is not None:
        bins[5], bins[8] = (10, 5.5, 5.5 + 10 * gap), (30, 25.5, 25.5 - 30 * gap)
    figure = figures.reliability(bins)
    assert figure.axes[0].get_title(loc="left") == f"Expected calibration error {title}"
    figures.png(figure)


@pytest.mark.parametrize("count", [0, 1, 7])
@pytest.mark.parametrize("shape", [(28, 28), (64, 200), (300, 40)])
def test_a_grid_has_room_for_pictures_of_any_shape(count, shape):
    pictures = [np.zeros([*shape, 3], np.uint8)] * count
    width, height = pixels(figures.picture_grid(pictures, ["two\nlines"] * count))
    assert width == 7 * 50
    assert height < width * 1.1


def test_a_curve_takes_many_points_and_what_is_no_number():
    values = [math.nan, math.inf, -math.inf, *range(500)]
    steps = list(range(len(values)))
    figures.png(figures.curve("loss", {"train": (steps, values), "validation": ([], [])}))
    figures.png(figures.curve("loss", {"train": ([1, 2], [math.nan, math.nan])}))


def write_events(folder, values: dict[int, float], *, tag: str = "loss", suffix: str = "") -> None:
    with tf.Graph().as_default():
        writer = tf.compat.v1.summary.FileWriter(str(folder), filename_suffix=suffix)
        for step, value in values.items():
            numbers = [tf.compat.v1.Summary.Value(tag=tag, simple_value=value)]
            writer.add_summary(tf.compat.v1.Summary(value=numbers), step)
        writer.close()


def test_curves_are_read_over_restarts_and_kills(tmp_path):
    write_events(tmp_path, {1: 3.0, 2: 2.0, 3: 9.0}, suffix=".1")
    (first,) = tmp_path.glob("events*")
    first.write_bytes(first.read_bytes()[:-5])  # step 3 is cut
    write_events(tmp_path, {2: 2.5, 4: 1.0}, suffix=".2")
    write_events(tmp_path, {1: 7.0}, tag="other", suffix=".3")
    with tf.summary.create_file_writer(str(tmp_path / "eval")).as_default():
        tf.summary.scalar("accuracy", 0.5, step=4)
        tf.summary.text("loss", "none", step=4)
    (tmp_path / "events.out.tfevents.0.empty").touch()
    assert reports.read_curves(tmp_path) == {
        "loss": {"train": ([1, 2, 4], [3.0, 2.5, 1.0])},
        "accuracy": {"validation": ([4], [0.5])},
    }
    assert list(reports.read_curves(tmp_path, metrics=["other"])) == ["loss", "other"]
    assert reports.read_curves(tmp_path / "none") == {}
