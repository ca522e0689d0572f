"""Reports of evaluations: whole, on one page, whatever the numbers and names are."""

import base64
import csv
import html.parser
import io
import itertools
import math
import re
import warnings

import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT, summaries
from PIL import Image

from library.report import (
    FILES,
    WORST,
    ClassificationStats,
    EvaluationImagesHook,
    EvaluationStats,
    InputImagesHook,
    MultiLabelStats,
    RegressionStats,
    add_table,
    figures,
    image_grid,
    png,
    read_curves,
    show_inputs,
    write_report,
)

ODD = "a_$x_{1$ <b>&amp;</b> {{ 1 }}"
ODD_NAMES = ["cat", ODD, "图像 \U0001f389 \udcff\n", "%s $title", "n" * 300]
RUNS = {"train": ([1, 2], [2.0, 1.0]), "validation": ([2], [1.5])}
CURVES = {"loss": RUNS}


@pytest.fixture(autouse=True)
def _no_warnings(caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    assert not [record for record in caplog.records if record.name.startswith("matplotlib")]


def add(stats: EvaluationStats, outputs, badness, *, shape=(8, 8), keys=None) -> None:
    """Count a batch, of which all may be shown."""
    size = len(badness)
    images = np.random.default_rng(1).integers(0, 256, (size, *shape, 3), np.uint8)
    keys = keys or [f"{i}.jpg".encode() for i in range(size)]
    stats.add(list(map(np.asarray, outputs)), np.asarray(badness, float), range(size), images, keys)


def stats_of(names: list[str], pairs: list[tuple[int, int]], shape=(8, 8)) -> ClassificationStats:
    """Of a classification, by true and predicted class."""
    stats = ClassificationStats(names)
    labels, predicted = np.array(pairs, int).reshape(-1, 2).T
    badness = np.where(labels == predicted, -1, 0.9)
    keys = [f"{names[i]}/{n}.jpg".encode(errors="surrogateescape") for n, i in enumerate(labels)]
    add(stats, (labels, predicted, np.full(len(pairs), 0.9)), badness, shape=shape, keys=keys)
    return stats


def report(folder, stats, *, metrics=None, curves=CURVES, facts=None, title="Report") -> str:
    metrics = {"accuracy": 0.5} if metrics is None else metrics
    facts = {} if facts is None else facts
    page = write_report(
        folder,
        title=title,
        metrics=metrics,
        stats=stats,
        curves=curves,
        facts=facts,
        settings=facts,
    )
    return page.read_text(encoding="utf-8")


class Page(html.parser.HTMLParser):
    """The words of a page, its pictures, and whether every element is closed."""

    VOID = ("meta", "img", "link", "br", "input")

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
    page = report(tmp_path, stats_of(["cat", "dog", "none"], pairs))
    with open(tmp_path / "per_class.csv", newline="", encoding="utf-8") as file:
        cat, dog, none = csv.DictReader(file)
    assert (cat["examples"], cat["correct"]) == ("10", "6")
    assert (cat["most often predicted as"], cat["times"]) == ("dog", "3")
    assert float(cat["recall"]) == 0.6
    assert float(cat["precision"]) == 0.75
    assert float(cat["f1"]) == pytest.approx(2 * 0.6 * 0.75 / 1.35)
    assert (dog["most often predicted as"], dog["times"]) == ("cat", "2")
    assert (none["examples"], none["recall"], none["precision"]) == ("0", "", "0.0")
    assert "60.0%" in page
    assert "no examples" in page


def test_accuracy_has_its_interval_and_that_of_guessing_beside_it(tmp_path):
    pairs = [(0, 0)] * 60 + [(1, 1)] * 30 + [(1, 0)] * 10
    page = Page(report(tmp_path, stats_of(["cat", "dog"], pairs), metrics={"accuracy": 0.9}))
    assert "95% interval: 82.6% to 94.5%; always cat: 60.0%" in page.words


def test_a_confidence_that_is_no_number_is_none():
    stats = ClassificationStats(["cat", "dog"])
    add(stats, ([0, 1], [0, 0], np.array([np.nan, 0.9])), [-1, 0.9])
    assert stats.bins[0].tolist() == [1, 0, 1]


def test_paths_are_shown_as_seen_from_the_project(tmp_path):
    facts = {"data": f"{ROOT}/x/../data/test", "checkpoint": "/other/model", "url": "gs://a/b"}
    page = Page(report(tmp_path, stats_of(["a", "b"], []), facts=facts))
    assert str(ROOT) not in page.words
    assert all(word in page.words for word in ("data/test", "/other/model", "gs://a/b"))


def test_the_page_needs_nothing_beside_it(tmp_path):
    text = report(tmp_path, stats_of(["cat", "dog"], [(0, 0), (0, 1), (1, 1)]))
    page = Page(text)
    assert page.open == []
    assert '<html lang="en">' in text
    assert not re.search(r"https?:|@import|<link|<script|url\(|\{\{|\{%", text)
    assert len(page.images) == 1 + 2 + 1  # curve, matrix and reliability, mistake
    assert all(image["src"].startswith("data:image/") and image["alt"] for image in page.images)
    names = ["confusion_matrix.png", "mistakes.png", "reliability.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *names[:2],
        "per_class.csv",
        names[2],
        "report.html",
    ]
    for name in names:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_mistakes_that_can_be_heard_are_played(tmp_path):
    stats = stats_of(["cat", "dog"], [(0, 0), (0, 1), (1, 0)])
    options = {"title": "", "metrics": {}, "curves": {}, "facts": {}, "settings": {}}
    page = write_report(tmp_path, stats=stats, sounds={"cat/1.jpg": b"fLaC"}, **options)
    (player,) = re.findall("<audio .*>", page.read_text(encoding="utf-8"))
    assert 'src="data:audio/flac;base64,ZkxhQw=="></audio>' in player
    assert Page(page.read_text(encoding="utf-8")).open == []


def test_heat_maps_cover_the_mistakes_that_have_one(tmp_path):
    stats, maps = ClassificationStats(["cat", "dog"]), np.zeros((3, 4, 4), np.float32)
    maps[0, 1, 2] = 0.5  # nothing speaks for the second, and the third is no mistake
    outputs = [np.array([0, 0, 1]), np.array([1, 1, 1]), np.array([0.9, 0.8, 0.7])]
    images, keys = np.zeros((3, 8, 8, 3), np.uint8), [b"a.jpg", b"b.jpg", b"c.jpg"]
    stats.add(outputs, np.array([0.9, 0.8, -1.0]), range(3), images, keys, maps)
    page = Page(report(tmp_path, stats, curves={}))
    (cover,) = [each for each in page.images if each.get("class") == "heat"]
    with Image.open(io.BytesIO(base64.b64decode(cover["src"].partition(",")[2]))) as image:
        alpha = np.asarray(image)[..., 3]
    assert (alpha.shape, alpha[1, 2]) == ((4, 4), 0)
    assert np.all(np.delete(alpha.ravel(), 6) == alpha.max())
    assert "Grad-CAM" in page.words


def test_names_may_hold_anything(tmp_path):
    stats = stats_of(ODD_NAMES, [(i, j) for i in range(5) for j in range(5)])
    words = '<i>"$x" & 100%</i> \udcff'
    runs = {ODD_NAMES[2]: ([1], [1.0])}
    text = report(
        tmp_path,
        stats,
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
    assert f"{ODD}, predicted as cat" not in text
    assert f"predicted as {ODD}" in page.words
    with open(
        tmp_path / "per_class.csv", newline="", encoding="utf-8", errors="surrogateescape"
    ) as file:
        assert [row["name"] for row in csv.DictReader(file)][1] == ODD_NAMES[1]


@pytest.mark.parametrize(
    ("stats", "words"),
    [
        (stats_of(["a", "b"], [(0, 0), (1, 1)]), "There are none."),
        (stats_of(["a", "b"], []), "no examples"),
        (stats_of(["only"], [(0, 0)]), "only"),
        (stats_of(["a", "b"], [(0, 1)] * 50), f"{WORST} of 50 mistakes, most confident first."),
        (stats_of(["a", "b"], [(0, 1)] * 2, (64, 200)), 'class="gallery broad"'),
        (stats_of([f"c{i}" for i in range(120)], [(5, 7)]), "Lowest F1 first: 50 of 120;"),
    ],
    ids=["no mistake", "no example", "one class", "many mistakes", "wide", "many classes"],
)
def test_every_evaluation_has_its_words(tmp_path, stats, words):
    metrics = {"accuracy": math.nan, "loss": math.inf}
    text = report(tmp_path, stats, metrics=metrics, curves={})
    assert words in text
    assert "not a number" in text
    assert "infinite" in text
    assert "Training" not in text
    assert all(path.stat().st_size < 150_000 for path in tmp_path.iterdir() if path.name in FILES)


def test_a_head_without_stats_has_a_page_alone(tmp_path):
    report(tmp_path, stats_of(["cat", "dog"], [(0, 1)]))
    page = Page(report(tmp_path, None, metrics={"rmse": 0.123456, "global_step": 36000}))
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert page.open == []
    assert "0.1235" in page.words
    assert "36,000" in page.words
    assert "Training" in page.words
    assert "Confusion" not in page.words


def pixels(figure) -> tuple[int, int]:
    content = png(figure, dpi=50)
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


def multi_label_stats(thresholds=()) -> tuple[MultiLabelStats, np.ndarray, np.ndarray]:
    """Of 60 examples of three labels, of which one never occurs; and their labels and bins."""
    random = np.random.default_rng(0)
    labels = (random.random([60, 3]) < [0.5, 0.2, 0]).astype(int)
    logits = random.normal(size=[60, 3]) + 2 * labels - [0, 4, 0]
    bins = np.floor(logits / 0.02).astype(int) + 500
    stats = MultiLabelStats(["red", "<blue>", "none"], thresholds)
    wrong = (bins >= 500) != labels
    badness = np.where(wrong, 0.7, -1).max(axis=1)
    add(stats, (labels, bins), badness)
    return stats, labels, bins


def test_labels_have_a_page_of_thresholds_and_precision(tmp_path):
    stats, labels, bins = multi_label_stats()
    text = report(tmp_path, stats, metrics={"f1_micro": 0.25})
    page = Page(text)
    assert page.open == []
    assert "<blue>" not in text
    assert "<blue>" in page.words
    assert "25%" in page.words
    assert "Labels" in page.words
    assert f"{min(stats.mistakes, WORST)} of {stats.mistakes} mistakes" in page.words
    names = ["mistakes.png", "per_class.csv", "report.html"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    with open(tmp_path / "per_class.csv", newline="", encoding="utf-8") as file:
        red, blue, none = csv.DictReader(file)
    predicted = bins >= 500
    for i, row in enumerate((red, blue)):
        correct = (labels[:, i] & predicted[:, i]).sum()
        assert float(row["recall"]) == correct / labels[:, i].sum()
        order = np.argsort(-bins[:, i], kind="stable")
        hits = labels[order, i]
        precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
        average = (precision * hits).sum() / hits.sum()
        assert float(row["average precision"]) == pytest.approx(average, abs=0.02)
        assert float(row["threshold"]) == 0.5
    assert (none["recall"], none["average precision"]) == ("", "")
    caption = stats.caption(stats.worst[0])
    assert re.fullmatch(r"[\w<>, ]+\npredicted as [\w<>, ]+, 70%", caption)


def test_the_threshold_of_a_label_has_the_best_f1():
    stats, labels, bins = multi_label_stats()
    *both, none = stats.thresholds
    assert none == 0.5
    for i, threshold in enumerate(both):

        def f1(limit, i=i):
            predicted = bins[:, i] >= limit
            return 2 * (predicted & labels[:, i]).sum() / (predicted.sum() + labels[:, i].sum())

        limit = 500 + np.log(threshold / (1 - threshold)) / 0.02
        assert f1(round(limit)) == max(map(f1, range(1000)))
    again, *_ = multi_label_stats(stats.thresholds)
    assert [row["threshold"] for row in again.rows()] == pytest.approx(stats.thresholds)
    assert again.rows()[1]["f1"] > stats.rows()[1]["f1"]


def test_the_threshold_lies_between_examples_with_a_label_and_the_others():
    stats = MultiLabelStats(["red"])
    add(stats, ([[0], [0], [1], [1]], [[100], [400], [800], [900]]), [-1] * 4)
    assert 500 + np.log(stats.thresholds[0] / (1 - stats.thresholds[0])) / 0.02 == pytest.approx(
        601
    )


def regression_stats(count: int) -> RegressionStats:
    stats = RegressionStats()
    random = np.random.default_rng(0)
    true = random.normal(100, 10, count).astype(np.float32)
    predicted = true + random.normal(0, 1, count).astype(np.float32)
    for part in np.array_split(np.arange(count), 7):
        add(stats, (true[part], predicted[part]), abs(predicted - true)[part])
    return stats


@pytest.mark.parametrize("count", [0, 1, 20_000])
def test_values_have_a_page_of_errors(tmp_path, count):
    stats = regression_stats(count)
    report(tmp_path, stats_of(["cat", "dog"], [(0, 1)]))  # its files go
    page = Page(report(tmp_path, stats, metrics={"r_squared": 0.5}))
    assert page.open == []
    names = ["errors.png", "mistakes.png", "predictions.png", "report.html"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert len(stats.points) <= 4000
    some = f"{min(count, WORST)} of {count:,} examples, largest error first."
    assert (some if count else "There are none.") in page.words
    assert "0.5" in page.words
    errors = [example.badness for example in stats.worst]
    assert errors == sorted(errors, reverse=True)
    if count == 20_000:
        assert stats.points[:, 0].mean() == pytest.approx(100, abs=1)
        assert errors[0] > 3.5


def figure_of(stats: EvaluationStats, number: int):
    return list(stats.figures())[number][1]


@pytest.mark.parametrize("size", [1, 2, 10, 300, 10_000])
def test_a_confusion_matrix_of_any_size_fits_a_page(size):
    pairs = np.random.default_rng(1).integers(0, size, (90, 2)).tolist()
    stats = ClassificationStats([f"a class whose name is long {i}" for i in range(size)])
    labels, predicted = np.array(pairs).T
    add(stats, (labels, predicted, np.full(90, 0.5)), [-1] * 90)
    assert max(pixels(figure_of(stats, 0))) < 10 * 50
    assert sum(row["correct"] for row in stats.rows()) == (labels == predicted).sum()


@pytest.mark.parametrize(("gap", "title"), [(0, "0.0%"), (0.1, "10.0%"), (None, "unknown")])
def test_the_calibration_error_is_the_mean_gap(gap, title):
    stats = ClassificationStats(["a", "b"])
    if gap is not None:  # 20 of a confidence of 0.5, and 20 of 0.8
        correct = np.arange(20) < [[10 + 20 * gap], [16 - 20 * gap]]
        confidence = np.repeat([0.5, 0.8], 20)
        add(stats, (np.zeros(40, int), 1 - correct.ravel(), confidence), [-1] * 40)
    figure = figure_of(stats, 1)
    assert figure.axes[0].get_title(loc="left") == f"Expected calibration error {title}"
    png(figure)


@pytest.mark.parametrize("count", [0, 1, 7])
@pytest.mark.parametrize("shape", [(28, 28), (64, 200), (300, 40)])
def test_a_grid_has_room_for_pictures_of_any_shape(count, shape):
    pictures = [np.zeros([*shape, 3], np.uint8)] * count
    width, height = pixels(image_grid(pictures, ["two\nlines"] * count))
    assert width == 7 * 50
    assert height < width * 1.1


def test_a_curve_takes_many_points_and_what_is_no_number(tmp_path):
    values = [math.nan, math.inf, -math.inf, *range(500)]
    curves = {"loss": {"train": (list(range(len(values))), values), "validation": ([], [])}}
    curves["none"] = {"train": ([1, 2], [math.nan, math.nan])}
    assert len(Page(report(tmp_path, None, curves=curves)).images) == 2


@pytest.mark.parametrize(
    "values",
    [[0.03, 0.3, 0.8], [6e-5, 0.2, 0.6], [0.1, 0.2, 0.3], [*"ab", "n" * 300], [True, False]],
)
def test_the_ticks_below_trials_do_not_overlap(values):
    count = len(values)
    figure = figures.trials("option", values, [0.1, 0.2, 0.3][:count], [True] * count)
    png(figure)
    labels = figure.axes[0].get_xticklabels(which="both")
    boxes = [each.get_window_extent() for each in labels if each.get_text()]
    boxes = sorted((box for box in boxes if box.width > 1), key=lambda box: box.x0)
    assert len(boxes) > 1
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


class Head:
    """What the hooks need."""

    def stats(self):
        return None

    def caption(self, label) -> str:
        return f"label {label}"


def values_of(folder) -> dict[str, list]:
    """The values in TensorBoard's files, by tag, with their steps."""
    found: dict[str, list] = {}
    for step, value in summaries(folder):
        found.setdefault(value.tag, []).append((step, value))
    return found


def test_tensorboard_shows_inputs_and_kernels_now_and_then(tmp_path):
    kernels = np.random.default_rng(0).normal(size=[3, 5, 1, 18]).astype(np.float32)
    with tf.Graph().as_default():
        step = tf.compat.v1.train.create_global_step()
        tf.compat.v1.get_variable("kernel", initializer=kernels)
        show_inputs(tf.zeros([20, 8, 8, 3], tf.uint8), tf.range(20))
        train_op = step.assign_add(1)
        hook = InputImagesHook(tmp_path, Head(), every=3)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            for _ in range(7):
                session.run(train_op)
    assert hook.seconds > 0
    tf.compat.v1.summary.FileWriterCache.get(str(tmp_path)).flush()
    shown = values_of(tmp_path)
    assert [step for step, _ in shown["inputs"]] == [1, 3, 6]
    mosaic = np.asarray(Image.open(io.BytesIO(shown["kernels"][0][1].image.encoded_image_string)))
    assert mosaic.shape == ((2 * 4 + 1) * 8, (16 * 6 + 1) * 8, 3)
    value = shown["kernels"][0][1].image
    assert (value.height, value.width) == mosaic.shape[:2]
    tile = mosaic[::8, ::8][5:8, 7:12, 0]  # the second of the second row
    low, high = kernels[..., 17].min(), kernels[..., 17].max()
    expected = 255 * (kernels[:, :, 0, 17] - low) / (high - low)
    assert np.abs(tile - expected).max() <= 1
    assert (mosaic[::8, ::8][5:8, 13:, 0] == 255).all()  # there are 18


def test_tensorboard_shows_evaluations_that_are_due(tmp_path):
    def evaluate(step: int) -> None:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            number = tf.compat.v1.train.create_global_step()
            session.run(number.assign(step))
            hook = EvaluationImagesHook(tmp_path, Head(), due=lambda step: step == 4)
            hook.begin()
            hook.stats = stats_of(["cat", "dog"], [(0, 1), (0, 0)])
            hook.end(session)

    for step in (2, 4):
        evaluate(step)
    add_table(tmp_path, "settings", {"train_batch_size": 16, "cache": None}, 4)
    tf.compat.v1.summary.FileWriterCache.get(str(tmp_path)).flush()
    shown = values_of(tmp_path)
    assert [step for step, _ in shown["confusion_matrix"]] == [4]
    assert [step for step, _ in shown["mistakes"]] == [4]
    value = shown["settings"][0][1]
    assert value.metadata.plugin_data.plugin_name == "text"
    assert b"| train_batch_size | 16 |" in value.tensor.string_val[0]


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
    assert read_curves(tmp_path) == {
        "loss": {"train": ([1, 2, 4], [3.0, 2.5, 1.0])},
        "accuracy": {"validation": ([4], [0.5])},
    }
    assert list(read_curves(tmp_path, metrics=["other"])) == ["loss", "other"]
    write_events(tmp_path, {2: 2.25, 4: 1.125}, tag="mean_loss", suffix=".4")
    write_events(tmp_path, {2: 0.1, 4: 0.1}, tag="learning_rate", suffix=".5")
    assert read_curves(tmp_path, metrics=[]) == {"loss": {"train": ([2, 4], [2.25, 1.125])}}
    write_events(tmp_path, {6: 0.01}, tag="learning_rate", suffix=".6")
    assert list(read_curves(tmp_path)) == ["loss", "accuracy", "learning_rate"]
    assert read_curves(tmp_path / "none") == {}
