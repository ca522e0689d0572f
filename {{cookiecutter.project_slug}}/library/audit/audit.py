"""The command audit: labels of the training data that are probably wrong, and a page of them."""

import csv
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from library.audit.confident import Issues, cross_validate, label_issues
from library.config import FOLDS
from library.convert import equal_files, near_duplicates, read_seen
from library.data import num_train_examples
from library.distribute import Cluster, Parallel
from library.estimator import ModeKeys
from library.nn import FEATURES
from library.report import WORST, render
from library.train import Run, evaluated_with, start_training, translate_errors
from library.util import UserError, attach_log, counted, locked, replacing, shown_path

NEIGHBORS = 5
"""Examples beside a suspicious one on the page."""
COLUMNS = ("file", "label", "suggested", "score")

Outputs = dict[str, np.ndarray]
"""Of examples: `key`, bytes [n]; `label`, int [n]; `features`, float16 [n, size]; `probabilities`,
float32 [n, classes]."""


def audit_labels(run: Run) -> None:
    """Write suspects.csv, scores.csv and audit.html to the folder audit of the run.

    Each example is judged by a model that was not trained on it: a linear layer on the features of
    a frozen network, or else a training of its own for each fold. What is done when it is stopped
    is kept, and the same command resumes.
    """
    # Devices are divided before TensorFlow is used for anything else.
    Parallel.of(Cluster(), run.settings.devices, sync_replicas=False).strategy()
    run = run.replace(overfit=None, print_model=False, fold=None, model=Path("best"))
    resolved, folder, path = run.for_training(), run.dir / "audit", run.settings.train_data
    if resolved.head.label != "class":
        has = resolved.model.target
        raise UserError(f"train_data: audit looks for wrong classes, but {path} has {has}")
    card = run.card("train_data")
    known = repr((card, resolved.train_card, run.settings, evaluated_with(resolved)))
    parts = folder / f"parts-{hashlib.sha256(known.encode()).hexdigest()[:16]}"
    with locked("run", folder), translate_errors(run, path):
        attach_log(folder)  # not to the folder of a fold, which is deleted
        for other in {*folder.glob("parts-*")} - {parts}:  # of other data, code or settings
            shutil.rmtree(other)
        parts.mkdir(exist_ok=True)
        files, found = out_of_sample(run, resolved, parts, num_train_examples(run.settings, card))
        issues = label_issues(found["label"], found["probabilities"])
        names = [os.fsdecode(key) for key in found["key"]]
        order = np.argsort(issues.scores, kind="stable")
        suspects = order[issues.suspicious[order]]
        words = [[card.classes[i] for i in each] for each in (found["label"], issues.suggested)]
        rows = list(zip(names, *words, (f"{score:.4f}" for score in issues.scores), strict=True))
        for name, ids in (("scores.csv", order), ("suspects.csv", suspects)):
            _write_table(folder / name, [COLUMNS, *(rows[i] for i in ids)])
        _write_page(folder / "audit.html", resolved, files, names, found, issues, suspects)
    print(f"{counted(len(suspects), 'suspicious labels')} among {len(names):,} examples")
    print(f"wrote suspects.csv, scores.csv and audit.html to {shown_path(folder)}")
    if not len(suspects):
        return
    table = shown_path(folder / "suspects.csv")
    print(f"next: look at audit.html, delete from {table} what is right, and convert again")
    print(f"      with --leave_out {table} or --relabel {table}")


# ---- probabilities of what a model has not seen --------------------------------------------------


def out_of_sample(run: Run, resolved: Run, parts: Path, count: int) -> tuple[list[Path], Outputs]:
    """What models say of the first `count` training examples that they were not trained on.

    Args:
        run: what each fold trains; `resolved` is the same `for_training`.
        parts: the folder for what is kept: the outputs for all examples of each model.

    Returns:
        The files of the outputs, that of an example by its number modulo theirs; the outputs.
    """
    if _is_frozen(resolved):
        print("the network is frozen: one pass, and a linear layer for each fold", flush=True)
        files = [parts / "frozen.npz"]
        found = _kept(files[0], resolved, None, count)
        x, classes = found["features"].astype(np.float32), len(resolved.model.target.classes)
        return files, {**found, "probabilities": cross_validate(x, found["label"], classes)}
    files, every = [parts / f"fold-{fold}.npz" for fold in range(FOLDS)], []
    for fold, file in enumerate(files):
        folder = file.with_suffix("")
        if not file.exists():
            print(f"fold {fold + 1} of {FOLDS}", flush=True)
            places = {"model_dir": folder / "checkpoints", "best_model_dir": folder / "best"}
            trained = run.replace(**places, fold=fold)
            start_training(trained)
            _kept(file, *trained.trained(), count)
        tf.compat.v1.summary.FileWriterCache.clear()  # which would keep its deleted files open
        shutil.rmtree(folder, ignore_errors=True)
        every.append(np.load(file)["probabilities"])
    with np.load(files[0]) as first:
        found = {name: first[name] for name in ("key", "label")}
    return files, {**found, "probabilities": np.choose(np.arange(count)[:, None] % FOLDS, every)}


def _kept(file: Path, run: Run, checkpoint: str | None, count: int) -> Outputs:
    """The outputs of a model for the first examples, from a file that keeps them."""
    if not file.exists():
        batches = list(_batches(run, checkpoint))
        found = {name: np.concatenate([each[name] for each in batches]) for name in batches[0]}
        with replacing(file) as temporary, open(temporary, "wb") as opened:
            arrays: dict[str, Any] = {name: each[:count] for name, each in found.items()}
            np.savez(opened, **arrays)
    with np.load(file) as found:
        return dict(found)


def _batches(run: Run, checkpoint: str | None) -> Iterator[Outputs]:
    """The outputs for all training examples; without a checkpoint, by the initial weights."""
    with tf.Graph().as_default():
        outputs, scaffold = _build(run)
        creator = tf.compat.v1.train.ChiefSessionCreator(
            scaffold, checkpoint_filename_with_path=checkpoint
        )
        with tf.compat.v1.train.MonitoredSession(creator) as session:
            while not session.should_stop():
                found = session.run(outputs)
                yield {**found, "key": found["key"].astype(bytes)}  # of objects before


def _build(run: Run) -> tuple[dict[str, tf.Tensor], tf.compat.v1.train.Scaffold]:
    """The graph of an evaluation of the training data: its outputs, and what restores it."""
    tf.compat.v1.train.create_global_step()
    dataset = run.inputs.evaluation_input(run, run.settings.train_data)
    iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
    tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    features, labels = iterator.get_next()
    spec = run.model_fn(features, labels, ModeKeys.PREDICT, run.hyperparameters, run=run)
    probabilities = spec.predictions["probabilities"]
    x = [*tf.compat.v1.get_collection(FEATURES), probabilities][0]
    if "clip" in features:  # several windows of each
        x = tf.math.segment_mean(x, features["clip"])
    outputs = {"key": features["key"], "label": labels, "features": tf.cast(x, tf.float16)}
    scaffold = spec.scaffold or tf.compat.v1.train.Scaffold()
    return {**outputs, "probabilities": probabilities}, scaffold


def _is_frozen(run: Run) -> bool:
    """Whether training changes no more than the last layer."""
    with tf.Graph().as_default():
        _build(run)
        trained = [variable.op.name for variable in tf.compat.v1.trainable_variables()]
    return all(name.startswith("logits/") for name in trained)


# ---- what is written -----------------------------------------------------------------------------


def _write_table(file: Path, rows: Sequence[Sequence[str]]) -> None:
    """Write a CSV file, the first row of which is its header."""
    with (
        replacing(file) as temporary,
        open(temporary, "w", newline="", encoding="utf-8", errors="surrogateescape") as opened,
    ):
        csv.writer(opened, lineterminator="\n").writerows(rows)


def _write_page(
    file: Path,
    run: Run,
    files: Sequence[Path],
    names: Sequence[str],
    found: Outputs,
    issues: Issues,
    suspects: np.ndarray,
) -> None:
    """Write the page: the most suspicious examples, each with its neighbors; duplicates."""
    path, classes, labels = run.settings.train_data, run.model.target.classes, found["label"]
    shown, conflicts = suspects[:WORST].tolist(), _conflicts(path, labels)
    beside: dict[int, list[int]] = {}
    for number, outputs in enumerate(files):
        mine = [i for i in shown if i % len(files) == number]
        beside |= _neighbors(np.load(outputs)["features"], mine) if mine else {}
    wanted = {*shown, *(i for few in (*beside.values(), *conflicts[:WORST]) for i in few)}
    confidence = found["probabilities"][np.arange(len(labels)), issues.suggested]
    page = render(
        Path(__file__).with_name("audit.html"),
        title="Suspicious labels",
        facts={"data": shown_path(path), "suspects": shown_path(file.with_name("suspects.csv"))},
        examples=len(labels),
        suspects=len(suspects),
        correct=float((issues.suggested == labels).mean()),
        shown={i: beside[i] for i in shown},
        conflicts=conflicts,
        most=WORST,
        names=names,
        labels=[classes[label] for label in labels],
        suggested=[classes[label] for label in issues.suggested],
        confidence=confidence,
        images=_images(run, sorted(wanted)),
        sounds=run.modality.playable(path, {names[i] for i in shown}),
    )
    with replacing(file) as temporary:
        temporary.write_bytes(page)


def _neighbors(features: np.ndarray, ids: Sequence[int]) -> dict[int, list[int]]:
    """The examples whose features are most like those of each of these, by their cosine."""
    x = features.astype(np.float32)
    x -= x.mean(0)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-6)
    nearest = np.argsort(-(x[ids] @ x.T), axis=1, kind="stable")[:, : NEIGHBORS + 1].tolist()
    return {i: [j for j in row if j != i][:NEIGHBORS] for i, row in zip(ids, nearest, strict=True)}


def _conflicts(path: str, labels: np.ndarray) -> list[list[int]]:
    """Groups of duplicates with different labels: the first one of each label.

    There are none where the dataset does not know its files.
    """
    if not os.path.exists(f"{path}.sha256"):
        return []
    checksums, thumbnails = read_seen(Path(path))
    groups = near_duplicates(thumbnails) if thumbnails.shape[1] else equal_files(checksums)
    groups = groups[: len(labels)]
    low, high = labels.copy(), labels.copy()
    np.minimum.at(low, groups, labels)
    np.maximum.at(high, groups, labels)
    alike = [np.flatnonzero(groups == root) for root in np.flatnonzero(low < high)]
    return [ids[np.unique(labels[ids], return_index=True)[1]].tolist() for ids in alike]


def _images(run: Run, ids: Sequence[int]) -> dict[int, Any]:
    """What the network sees of examples: uint8 [height, width, 3] each."""
    images: dict[int, Any] = {}
    contents = run.modality.encoded_examples(run.settings.train_data, ids)
    pairs = ((str(i).encode(), content) for i, content in zip(ids, contents, strict=True))
    for features in run.inputs.prediction_input(run, pairs) if ids else ():
        keys = map(int, features["key"].numpy())
        images |= zip(keys, run.drawn(features).numpy(), strict=True)
    return images
