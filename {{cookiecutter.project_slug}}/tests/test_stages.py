"""Chains of tf.data: marks change nothing, and a chain is cut at each; nothing is autotuned."""

import pytest
import tensorflow as tf
from conftest import make_run

from library.data import one_call, prefetch_to_device, stage, stages_of


def double(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return number, 2 * number


def add(number: tf.Tensor, doubled: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"sum": number + doubled}


def build(device: str | None = None) -> tf.data.Dataset:
    return (
        tf.data.Dataset.range(10)
        .apply(stage("read"))
        .apply(one_call(double, add, num_parallel_calls=2))
        .batch(4, drop_remainder=True)
        .prefetch(1)
        .apply(stage("batch"))
        .apply(prefetch_to_device(device))
    )


def elements(dataset: tf.data.Dataset) -> list:
    return tf.nest.map_structure(lambda each: each.tolist(), list(dataset.as_numpy_iterator()))


WHOLE = [{"sum": [0, 3, 6, 9]}, {"sum": [12, 15, 18, 21]}]


def test_a_chain_with_marks_is_the_chain():
    assert elements(build()) == WHOLE


def test_the_stages_are_listed_in_their_order():
    assert [*stages_of(build)] == ["read", "double", "add", "batch"]
    assert [*stages_of(lambda: build("/cpu:0"))] == ["read", "double", "add", "batch", "device"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("read", list(range(10))),
        ("double", [(number, 2 * number) for number in range(10)]),
        ("add", [{"sum": 3 * number} for number in range(10)]),
        ("batch", WHOLE),
        ("device", WHOLE),
    ],
)
def test_it_is_cut_at_each_stage(name, expected):
    assert elements(stages_of(lambda: build("/cpu:0"))[name]) == expected
    assert elements(build()) == WHOLE, "the cut is over"


def test_it_is_cut_in_a_graph_too():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dataset = stages_of(build)["double"].skip(3)
        assert session.run(tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()) == (3, 6)


def test_all_functions_are_one_map():
    with tf.Graph().as_default() as graph:
        build()
    kinds = [operation.type for operation in graph.get_operations()]
    assert len([kind for kind in kinds if "Map" in kind]) == 1


def test_a_mark_behind_any_dataset_does_no_harm():
    """`apply` writes its input into what it gets back, which concatenate reads again."""
    both = tf.data.Dataset.range(2).concatenate(tf.data.Dataset.range(1)).apply(stage("read"))
    options = tf.data.Options()
    options.deterministic = False
    assert elements(both.with_options(options).map(lambda number: number + 1)) == [1, 2, 1]


def test_what_goes_wrong_in_a_chain_is_raised():
    with pytest.raises(ZeroDivisionError):
        stages_of(lambda: stage("read")(build()) and 1 / 0)
    assert elements(build()) == WHOLE


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": "stream"}, {"sampling": "balanced"}, {"cache": "memory"}, {"cache": "file"}],
    ids=str,
)
def test_no_input_waits_for_the_autotuner_when_it_ends(data, tmp_path, options):
    run = make_run(data, tmp_path, cache_dir=str(tmp_path / "cache"), **options).for_training()
    (content,) = run.modality.encoded_examples(run.settings.train_data, [0])
    for dataset in (
        run.inputs.train_input(run),
        run.inputs.evaluation_input(run, run.settings.validation_data),
        run.inputs.overfit_input(run.replace(overfit=4)),
        run.inputs.prediction_input(run, [(b"key", content)]),
    ):
        assert dataset.options().autotune.enabled is False
