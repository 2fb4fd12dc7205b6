"""Changes of API keys beside others who write the same object."""

from __future__ import annotations

from typing import Any

import pytest

from exo_inference.controller.stores.base import VersionConflict
from exo_inference.controller.stores.sqlite import SqliteStore
from exo_inference.resources import InferenceApiKey
from tests.controller.conftest import Controller


@pytest.mark.parametrize("num_conflicts", [1, 4, 1000])
def test_a_change_is_tried_again_when_somebody_wrote_in_between(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, num_conflicts: int
) -> None:
    body = {"name": "k", "scope": "public"}
    uid = controller.call("POST", "/v2/ai/api-key", json=body).json()["id"]
    left, update = [num_conflicts], SqliteStore.update

    async def interrupted(store: Any, obj: Any, *more: Any) -> Any:
        if isinstance(obj, InferenceApiKey) and left[0]:
            left[0] -= 1
            raise VersionConflict("somebody was quicker")
        return await update(store, obj, *more)

    monkeypatch.setattr(SqliteStore, "update", interrupted)
    answer = controller.call("PATCH", f"/v2/ai/api-key/{uid}", json={"name": "other"})
    found = controller.call("GET", f"/v2/ai/api-key/{uid}").json()
    is_bounded = num_conflicts == 1000
    assert answer.ok is not is_bounded, answer.text
    assert found["name"] == ("k" if is_bounded else "other")
    assert left[0] == (num_conflicts - 5 if is_bounded else 0)
