"""What the reconciler of a cluster's models makes of one that was ready and lost its volume."""

from __future__ import annotations

from exo_inference.resources import InferenceModel, find_condition, is_true
from exo_inference.resources.states import model_state
from exo_inference.wire import ModelState
from tests.controller.test_duplicate_models import Pair, pair

__all__ = ["pair"]

LOSS = "its volume is gone: there is no PersistentVolumeClaim exo-m-1"


async def test_a_model_whose_volume_is_gone_says_so_and_is_brought_again(pair: Pair) -> None:
    uid = await pair.create("m")
    await pair.look(uid)
    await pair.look(uid)
    assert pair.volumes.brought == ["m"]  # it is there, and is only looked for

    pair.volumes.loss = LOSS
    outcome = await pair.reconciler.reconcile(uid)
    assert outcome.again_after_seconds == 0.0
    model = await pair.store.get(InferenceModel, uid)
    ready = find_condition(model.status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason, ready.message) == ("False", "VolumeGone", LOSS)
    assert model_state(model) == (ModelState.DOWNLOADING, LOSS)
    told = [(event.type, event.reason) for event in await pair.store.list_events(uid)]
    assert ("Warning", "VolumeGone") in told

    pair.volumes.loss = ""
    assert is_true((await pair.look(uid)).status.conditions, "Ready")
    assert pair.volumes.brought == ["m", "m"]
