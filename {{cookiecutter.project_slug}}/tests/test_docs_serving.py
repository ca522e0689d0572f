"""docs/serving.md: its programs run, and it names every file of an export."""

import json
import re
import subprocess
import sys

import pytest
from conftest import ROOT

from library.serve import export_model

pytestmark = pytest.mark.slow  # programs are run as processes


def test_the_page_runs(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    export_model(trained.replace(export_dir=tmp_path / "export", tflite=True))
    (export,) = (tmp_path / "export").iterdir()
    classes = trained.card("train_data").classes
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "\n".join(blocks)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    served, on_device = process.stdout.splitlines()
    assert served.split()[0] in classes
    assert on_device in classes
    for text in re.findall(r"^```json\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        json.loads(text)
    assert set(re.findall(r"assets\.extra/([a-z._A-Z]+)", page)) == {
        file.name for file in (export / "assets.extra").iterdir()
    }
