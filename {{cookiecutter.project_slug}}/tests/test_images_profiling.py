"""The profiler on damaged images."""

import pytest
from conftest import damaged, make_run

from library.profile import profile_training
from library.util import UserError


def test_a_damaged_record_is_one_line(data, tmp_path):
    shard = damaged(data, tmp_path)
    run = make_run(tmp_path, tmp_path / "run")
    with pytest.raises(UserError, match=f"{shard.name}: .*(damaged|record)"):
        profile_training(run, seconds=0.2)
