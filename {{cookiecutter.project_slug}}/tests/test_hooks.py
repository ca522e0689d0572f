"""Checkpoints at the steps of the run, wherever a process began; the other hooks: test_run.py."""

import pytest
import tensorflow as tf

from library.hooks import CheckpointHook


@pytest.mark.parametrize("late", [0, 1], ids=["stale", "late"])
@pytest.mark.parametrize("start", [0, 3, 5, 7, 10])
def test_checkpoints_are_written_at_multiples(tmp_path, start, late):
    """The hook is told a step that was read beside the one that runs: before it, or after."""
    saved = []

    class Listener(tf.compat.v1.train.CheckpointSaverListener):
        def after_save(self, session, step):
            saved.append(int(step))

    class Context:
        def __init__(self, session):
            self.session = session

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        step = tf.compat.v1.train.create_global_step()
        value = tf.compat.v1.placeholder(tf.int64, [])
        assign = step.assign(value)
        scaffold = tf.compat.v1.train.Scaffold()
        hook = CheckpointHook(tmp_path, 5)
        hook._listeners.append(Listener())
        hook.begin()
        scaffold.finalize()
        session.run(scaffold.init_op)
        session.run(assign, {value: start})
        hook.after_create_session(session, None)
        for now in range(start + 1, 23):
            session.run(assign, {value: now})
            seen = tf.compat.v1.train.SessionRunValues(now - 1 + late, None, None)
            hook.after_run(Context(session), seen)
        hook.end(session)
    assert saved == [start, *(m for m in (5, 10, 15, 20) if m > start), 22]
