"""Helm's words, jobs in the background, and the cache of the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest

from exo_inference.errors import ConfigurationError, StoreError
from exo_inference.kubernetes_api.client import ApiRefusal
from exo_inference.kubernetes_api.informer import Informer
from exo_inference.platforms.kubernetes import KubernetesSettings
from exo_inference.platforms.kubernetes.helm import Helm, HelmFailed, form_of, read_failure
from exo_inference.platforms.kubernetes.jobs import Jobs


@pytest.mark.parametrize(
    ("said", "transient", "words"),
    [
        (
            "Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress",
            False,
            "another operation",
        ),
        (
            'Error: Kubernetes cluster unreachable: Get "https://x/version": dial tcp: connect: connection refused',
            True,
            "connection refused",
        ),
        ("Error: UPGRADE FAILED: context deadline exceeded", True, "deadline"),
        (
            "WARNING: Kubernetes configuration file is group-readable\n"
            "Error: values don't meet the specifications of the schema(s)\n- replicas: is wrong\n",
            False,
            "- replicas: is wrong",
        ),
        ("Error: INSTALLATION FAILED: services is forbidden", False, "services is forbidden"),
        ("", False, "without a word"),
        ("panic: x", False, "panic"),
    ],
)
def test_what_helm_says_is_read(said: str, transient: bool, words: str) -> None:
    found = read_failure(said)
    assert (found.transient, words in found.message) == (transient, True)
    assert "FAILED" not in found.message
    assert found.pending == ("another operation" in said)


def stub(tmp_path: Path, script: str) -> Helm:
    """Helm with a named stub as its program."""
    program = tmp_path / "helm-stub"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    settings = KubernetesSettings(tmp_path, tmp_path / "work", helm_seconds=0.5)
    helm = Helm(settings, "ns", {"PATH": "/usr/bin:/bin", "SECRET": "s"})
    helm._program = str(program)
    return helm


async def test_values_go_through_stdin_and_nothing_of_our_environment_leaks(tmp_path: Path) -> None:
    helm = stub(
        tmp_path, f'cat > {tmp_path}/stdin; echo "$@" > {tmp_path}/argv; env > {tmp_path}/env'
    )
    await helm.upgrade("r", "chart", {"a": "hunter2"})
    assert "hunter2" in (tmp_path / "stdin").read_text()
    assert "hunter2" not in (tmp_path / "argv").read_text()
    environment = (tmp_path / "env").read_text()
    assert "SECRET" not in environment
    assert f"HOME={tmp_path}/work" in environment


async def test_helm_has_all_values_when_it_starts(tmp_path: Path) -> None:
    """One that waits for a paused leader to write them would begin when another leads."""
    helm = stub(tmp_path, f"test ! -p /dev/stdin && cat > {tmp_path}/stdin")
    await helm.upgrade("r", "chart", {"a": "x" * 200_000})
    assert (tmp_path / "stdin").stat().st_size > 200_000


async def test_objects_are_compared_with_the_schemas_once_per_form(tmp_path: Path) -> None:
    helm = stub(
        tmp_path, f'cat > /dev/null; echo "$@" >> {tmp_path}/argv; test ! -e {tmp_path}/fail'
    )
    first = {"replicas": 1, "deployment": {"name": "a"}, "affinity": {"nodeAffinity": {}}}
    (tmp_path / "fail").touch()
    with pytest.raises(HelmFailed):
        await helm.upgrade("r", "chart", first)
    (tmp_path / "fail").unlink()
    await helm.upgrade("r", "chart", first)
    await helm.upgrade("s", "chart", {**first, "replicas": 2, "deployment": {"name": "b"}})
    await helm.upgrade("s", "chart", {**first, "affinity": {"nodeAfinity": {}}})
    await helm.upgrade("s", "chart", {"replicas": 2}, reuse=True)
    await helm.upgrade("s", "chart", {"replicas": 2}, reuse=True)
    lines = (tmp_path / "argv").read_text().splitlines()
    skipped = ["--disable-openapi-validation" in line for line in lines]
    assert skipped == [False, False, True, False, False, False]


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({"deployment": {"name": "b", "uid": "2"}}, True),
        ({"engine": {"name": "vllm", "parameters": ["--b"]}}, True),
        ({"model": {"subPath": "y"}}, True),
        ({"model": {"subPath": ""}}, False),
        ({"replicas": 0}, False),
        ({"deployment": {"name": "b"}}, False),
        ({"engine": {"name": "exo", "parameters": ["--a"]}}, False),
        ({"gpu": {"count": 0}}, False),
        ({"tolerations": [{"key": "a"}]}, False),
    ],
)
def test_values_have_a_form(change: dict[str, Any], is_same: bool) -> None:
    values = {
        "deployment": {"name": "a", "uid": "1"},
        "engine": {"name": "vllm", "parameters": ["--a"]},
        "model": {"subPath": "x"},
        "replicas": 1,
        "gpu": {"count": 1},
    }
    assert (form_of("chart", values) == form_of("chart", {**values, **change})) is is_same
    assert form_of("chart", values) != form_of("other", values)


async def test_a_helm_that_hangs_is_stopped(tmp_path: Path) -> None:
    helm = stub(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    with pytest.raises(HelmFailed, match="longer than") as failed:
        await helm.uninstall("r")
    assert failed.value.transient
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


async def test_a_helm_that_is_killed_is_tried_again(tmp_path: Path) -> None:
    with pytest.raises(HelmFailed, match="signal 9") as failed:
        await stub(tmp_path, "kill -9 $$").rollback("r", 1)
    assert failed.value.transient


def test_a_chart_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="inference-model"):
        stub(tmp_path, "").chart_version("inference-model")


async def test_a_release_has_one_job_at_a_time_and_its_failure_is_kept_for_the_same_change() -> (
    None
):
    done: list[str] = []
    jobs, release = Jobs(done.append), asyncio.Event()
    began: list[str] = []

    async def work(name: str) -> None:
        began.append(name)
        await release.wait()
        raise HelmFailed("no", transient=False)

    jobs.start("r", "upgrading", "h1", work("first"))
    jobs.start("r", "upgrading", "h2", work("second"))
    jobs.start("other", "upgrading", "h1", work("third"))
    await asyncio.sleep(0)
    assert jobs.running("r") == "upgrading"
    release.set()
    await jobs.wait("r")
    await jobs.wait("other")
    assert (began, done) == (["first", "third"], ["r", "other"])
    assert jobs.running("r") == ""
    assert jobs.failure("r", "h1") is not None
    assert 0 < jobs.wait_seconds("r", "h1") <= 10
    assert (jobs.failure("r", "h2"), jobs.wait_seconds("r", "h2")) == (None, 0.0)


async def test_a_bug_in_a_job_is_a_failure_and_stopping_cancels(
    caplog: pytest.LogCaptureFixture,
) -> None:
    jobs = Jobs()

    async def broken() -> None:
        raise ZeroDivisionError

    jobs.start("r", "x", "h", broken())
    await jobs.wait("r")
    found = jobs.failure("r", "h")
    assert found is not None
    assert "ZeroDivisionError" in found.error.message
    jobs.start("r", "x", "h", asyncio.sleep(60))
    await jobs.close()
    assert jobs.running("r") == ""


class FakeApi:
    """Named fake of an API server with one collection; events come from a queue."""

    namespace = "ns"

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.version = 1
        self.lists = 0
        self.events: asyncio.Queue[dict[str, Any] | Exception] = asyncio.Queue()

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        self.lists += 1
        metadata = {"resourceVersion": str(self.version)}
        return {"apiVersion": "v1", "items": list(self.items), "metadata": metadata}

    async def watch(
        self, path: str, query: Mapping[str, str]
    ) -> AsyncGenerator[dict[str, Any], None]:
        while True:
            event = await self.events.get()
            if isinstance(event, Exception):
                raise event
            yield event


def item(name: str, version: int, key: str = "k") -> dict[str, Any]:
    metadata = {"name": name, "resourceVersion": str(version), "labels": {"key": key}}
    return {"metadata": metadata}


def informer(api: FakeApi, **options: Any) -> Informer:
    return Informer(
        api,  # type: ignore[arg-type]
        "/things",
        key_of=lambda found: found["metadata"]["labels"]["key"],
        **options,
    )


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


async def test_an_informer_follows_what_comes_changes_and_goes() -> None:
    api, changed = FakeApi(), []
    api.items = [item("a", 1)]
    things = informer(api, on_change=lambda found: changed.append(found["metadata"]["name"]))
    await things.start()
    api.events.put_nowait({"type": "ADDED", "object": item("b", 2)})
    api.events.put_nowait({"type": "MODIFIED", "object": item("a", 3, key="other")})
    api.events.put_nowait({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "4"}}})
    await until(lambda: things.known_keys() == {"k", "other"})
    assert [found["metadata"]["name"] for found in things.by_key("k")] == ["b"]
    api.events.put_nowait({"type": "DELETED", "object": item("b", 5)})
    await until(lambda: things.get("b") is None)
    assert things.known_keys() == {"other"}
    assert changed == ["a", "b", "a", "b"]
    await things.close()


@pytest.mark.parametrize("how", ["status", "event", "break"])
async def test_a_watch_that_ends_goes_on_and_one_too_old_lists_again(how: str) -> None:
    api = FakeApi()
    api.items, api.version = [item("a", 1), item("gone", 1)], 1
    things = informer(api)
    await things.start()
    api.items, api.version = [item("a", 7), item("b", 8)], 8
    if how == "status":
        api.events.put_nowait(ApiRefusal("too old", status_code=410, reason="Expired"))
    elif how == "event":
        gone = {"code": 410, "message": "too old resource version"}
        api.events.put_nowait({"type": "ERROR", "object": gone})
    else:
        api.events.put_nowait(StoreError("the connection broke"))
        api.events.put_nowait({"type": "ADDED", "object": item("b", 8)})
        api.events.put_nowait({"type": "DELETED", "object": item("gone", 9)})
    await until(lambda: things.get("b") is not None and things.get("gone") is None)
    assert api.lists == (1 if how == "break" else 2)
    await things.close()


async def test_an_own_answer_counts_until_the_watch_has_told_more() -> None:
    api = FakeApi()
    api.items, api.version = [item("a", 1)], 1
    things = informer(api)
    await things.start()
    things.observe_answer(item("a", 5, key="new"))
    assert things.known_keys() == {"new"}
    api.events.put_nowait({"type": "MODIFIED", "object": item("a", 3)})  # older than the answer
    api.events.put_nowait({"type": "DELETED", "object": item("a", 6)})
    await until(lambda: things.get("a") is None)
    things.observe_answer(item("a", 5))  # an answer that came late does not bring it back
    assert things.get("a") is None
    await things.close()


async def test_what_the_role_does_not_permit_is_done_without_where_it_may_be() -> None:
    class Forbidden(FakeApi):
        async def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
            raise ApiRefusal("forbidden", status_code=403, reason="Forbidden")

    nodes = informer(Forbidden(), optional=True)
    await nodes.start()
    assert list(nodes.all()) == []
    await nodes.close()
    with pytest.raises(ApiRefusal):
        await informer(Forbidden()).start()
