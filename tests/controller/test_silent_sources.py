"""A source that takes a connection and says nothing: who asks it is told in time, and nobody else waits."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from exo_inference.controller.admission import model as admission
from exo_inference.controller.reconcile import cluster_model
from exo_inference.controller.stores.base import ObjectNotFound
from exo_inference.hub import huggingface
from exo_inference.hub.base import ModelGated, ResolvedModel, SourceUnreachable
from exo_inference.hub.huggingface import HuggingFaceSource
from exo_inference.resources import InferenceModel, find_condition, is_true
from tests.controller.fakes import FakeSource
from tests.controller.test_duplicate_models import Pair, pair
from tests.hub.hub_server import HubServer, Repo, safetensors

__all__ = ["pair"]

STALLED = "stalled/model"


def reason_of(model: InferenceModel) -> tuple[str, str]:
    resolved = find_condition(model.status.conditions, "Resolved")
    assert resolved is not None
    return resolved.reason, resolved.message


async def test_no_worker_waits_for_a_source_that_is_silent(pair: Pair) -> None:
    for index in range(20):
        uid = await pair.create(f"s{index}", f"stalled/{index}")
        for _ in range(2):
            outcome = await asyncio.wait_for(pair.reconciler.reconcile(uid), 20)
            assert outcome.again_after_seconds
        assert reason_of(await pair.store.get(InferenceModel, uid))[0] == "Resolving"
    other = await pair.look(await pair.create("other"))
    assert is_true(other.status.conditions, "Ready")
    await pair.reconciler.close()


async def test_source_that_is_silent_is_given_up_and_asked_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_model, "LONGEST_RESOLVE_SECONDS", 0.05)
    found = await pair.look(await pair.create("s", STALLED))
    assert reason_of(found) == (
        "SourceUnreachable",
        "the source did not answer within 0 s; trying again in 0 s",
    )


async def test_model_that_is_deleted_is_not_asked_for_any_more(pair: Pair) -> None:
    uid = await pair.create("s", STALLED)
    await pair.reconciler.reconcile(uid)
    _, task = pair.reconciler._resolving[uid]
    await pair.store.delete(InferenceModel, uid)
    await pair.reconciler.reconcile(uid)
    await asyncio.wait([task])
    assert task.cancelled()
    with pytest.raises(ObjectNotFound):
        await pair.store.get(InferenceModel, uid)


async def test_failure_of_before_is_told_while_the_source_is_asked_again(pair: Pair) -> None:
    source = FakeSource(unreachable=True)
    pair.find = lambda name: source  # type: ignore[method-assign]
    pair.reconciler._find_source = pair.find
    uid = await pair.create("s", STALLED)
    before = reason_of(await pair.look(uid))
    assert before[0] == "SourceUnreachable"
    source.unreachable = False
    await asyncio.sleep(0.06)  # the wait until it is asked again
    for _ in range(2):
        await pair.reconciler.reconcile(uid)
    assert reason_of(await pair.store.get(InferenceModel, uid)) == before
    await pair.reconciler.close()


async def test_slow_answer_after_a_change_is_awaited_though_what_was_before_failed_for_good(
    pair: Pair,
) -> None:
    source, answer = FakeSource(), asyncio.Event()
    asked = source.resolve

    async def resolve(name: str, *, revision: str | None, token: str | None) -> ResolvedModel:
        if revision is None:
            raise ModelGated("its licence is to be accepted")
        await answer.wait()
        return await asked(name, revision=revision, token=token)

    source.resolve = resolve  # type: ignore[method-assign]
    pair.reconciler._find_source = lambda name: source
    uid = await pair.create("g", "acme/gated")
    refused = await pair.look(uid)
    assert is_true(refused.status.conditions, "Failed")
    spec = refused.spec.model_copy(update={"revision": "main"})
    await pair.store.update(refused.model_copy(update={"spec": spec}))
    for _ in range(3):
        await pair.reconciler.reconcile(uid)
    waiting = await pair.store.get(InferenceModel, uid)
    assert reason_of(waiting)[0] == "Resolving"
    assert not is_true(waiting.status.conditions, "Failed")
    answer.set()
    assert is_true((await pair.look(uid)).status.conditions, "Ready")


async def test_questions_that_the_hub_leaves_open_are_bounded_and_leave_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub, held = HubServer(), asyncio.Event()
    files = {"config.json": b"{}", "model.safetensors": safetensors(10)}
    hub.repos = {"org/silent": Repo(files, silent=held), "org/well": Repo(files)}
    await hub.start()
    source = HuggingFaceSource(endpoint=hub.url)
    threads = ThreadPoolExecutor(huggingface._NUM_RESOLVING)
    monkeypatch.setattr(huggingface, "_resolving", threads)

    async def ask(name: str) -> object:
        return await admission.resolve_in_time(source, name, revision=None, token=None, seconds=0.3)

    try:
        silent = await asyncio.gather(
            *(ask("org/silent") for _ in range(20)), return_exceptions=True
        )
        assert {type(each) for each in silent} == {SourceUnreachable}
        found = await source.resolve("org/well", revision=None, token=None)
        assert found.source == "org/well"
        assert len(threads._threads) <= huggingface._NUM_RESOLVING
    finally:
        held.set()
        await asyncio.to_thread(threads.shutdown)  # they ask on, and none may while the Hub goes
        await hub.stop()
