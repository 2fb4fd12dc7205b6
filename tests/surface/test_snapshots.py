"""What users and programs rely on, as text in `snapshots/`: a change of it shows in the review.

UPDATE_SNAPSHOTS=1 python -m pytest tests/surface     # after a change on purpose

Held the same way elsewhere: help of every command in `docs/reference/cli.md` and the methods of the clients in
`docs/reference/sdk.md` (both `make docs`), custom resources and manifests in `charts/exo-inference/files/crds`
(`python scripts/generate_crds.py`), flags of exo-engine in `exo_inference/engines/catalog/exo.json`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from . import describing

FOLDER = Path(__file__).parent / "snapshots"
SURFACES = {
    "http_api.yaml": describing.http_api,
    "command_line.txt": describing.command_line,
    "python_names.txt": describing.python_names,
}


@pytest.mark.parametrize(("name", "describe"), SURFACES.items(), ids=SURFACES)
def test_what_others_rely_on_is_as_written_down(name: str, describe: Callable[[], str]) -> None:
    path, wanted = FOLDER / name, describe()
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(wanted, "utf-8")
    assert wanted == path.read_text("utf-8")
