"""What the defaults render to, as text in `snapshots/`: a change of it shows in the review.

UPDATE_SNAPSHOTS=1 python -m pytest tests/charts/test_snapshots.py     # after a change on purpose
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.charts.rendering import template

FOLDER = Path(__file__).parent / "snapshots"
DEFAULTS = {
    "exo-inference": ("--set", "crds.install=false"),  # the CRDs have a generator of their own
    "inference-deployment": ("--set", "model.source=exo/tiny-chat,model.claimName=tiny-chat"),
    "inference-model": ("--set", "model.source=Qwen/Qwen3-0.6B,model.sizeBytes=1503300328"),
}


@pytest.mark.parametrize("chart", DEFAULTS)
def test_defaults_render_to_the_snapshot(chart: str) -> None:
    path = FOLDER / f"{chart}.yaml"
    rendered = template(chart, *DEFAULTS[chart])
    if os.environ.get("UPDATE_SNAPSHOTS"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(rendered, "utf-8")
    assert rendered == path.read_text("utf-8")
