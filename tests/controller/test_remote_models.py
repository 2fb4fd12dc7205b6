"""What is known about models whose files are on a volume of a cluster, and which specifications are judged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from exo_inference.controller.admission import architectures as module
from exo_inference.controller.admission.architectures import Architectures
from exo_inference.errors import HubError
from exo_inference.hub.architecture import read_directory_async
from exo_inference.planner import Architecture, find_model
from exo_inference.resources import (
    DeploymentSpec,
    EngineRef,
    InferenceModel,
    ModelSpec,
    ModelStatus,
    ObjectMeta,
)


class Hub:
    """Named fake of the Hub: counts what it is asked, and may be away."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None, str | None]] = []
        self.is_away = False

    async def fetch(
        self, name: str, *, revision: str | None = None, token: str | None = None
    ) -> Architecture:
        self.asked.append((name, revision, token))
        if self.is_away:
            raise HubError("cannot reach the Hub")
        return find_model("meta-llama/Llama-3.1-8B-Instruct")


def model(
    source: str, revision: str | None = "c" * 40, *, path: str = "pvc:models/u"
) -> InferenceModel:
    return InferenceModel(
        metadata=ObjectMeta(name="m", uid="u"),
        spec=ModelSpec(source=source),
        status=ModelStatus(revision=revision, path=path),
    )


async def test_the_hub_is_asked_once_for_one_content_and_with_the_models_token() -> None:
    hub = Hub()
    architectures = Architectures(hub.fetch)
    for _ in range(2):
        known = await architectures.of_remote(model("org/gated"), token="hf_x")
        assert known.architecture is not None
        assert known.revision_pinned
    assert hub.asked == [("org/gated", "c" * 40, "hf_x")]


async def test_without_the_hub_the_catalogue_has_to_do_and_the_hub_is_asked_again() -> None:
    hub = Hub()
    hub.is_away = True
    now = [0.0]
    architectures = Architectures(hub.fetch, clock=lambda: now[0])
    for now[0] in (0.0, 59.0):
        unknown = await architectures.of_remote(model("org/unheard-of"))
        assert unknown.architecture is None
        assert "cannot reach the Hub" in unknown.reason
        assert len(hub.asked) == 1
    await architectures.of_remote(model("org/unheard-of"), token="another")
    assert len(hub.asked) == 2
    hub.is_away = False
    now[0] = 61.0
    assert (await architectures.of_remote(model("org/unheard-of"))).architecture is not None


async def test_many_who_ask_at_once_are_one_question_that_outlives_each_of_them() -> None:
    hub = Hub()
    architectures = Architectures(hub.fetch)
    asking = [
        asyncio.create_task(architectures.of_hub("org/m", revision="main")) for _ in range(50)
    ]
    await asyncio.sleep(0)
    asking[0].cancel()
    for known in await asyncio.gather(*asking[1:]):
        assert known.architecture is not None
        assert known.revision_pinned is False
    assert len(hub.asked) == 1


async def test_a_folder_that_cannot_be_read_is_read_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{")
    read = []

    async def count(directory: Path, name: str) -> Architecture:
        read.append(directory)
        return await read_directory_async(directory, name)

    monkeypatch.setattr(module, "read_directory_async", count)
    found = model(tmp_path.as_uri(), path=str(tmp_path))
    now = [0.0]
    architectures = Architectures(clock=lambda: now[0])
    for now[0], times in ((0.0, 1), (59.0, 1), (61.0, 2)):
        known = await architectures.of_model(found)
        assert known.architecture is None
        assert "config.json is not JSON" in known.reason
        assert len(read) == times
    (tmp_path / "config.json").write_text('{"model_type": "from-the-future"}')
    assert (await architectures.of_model(found)).architecture is not None


async def test_a_built_in_model_is_read_from_the_package() -> None:
    hub = Hub()
    known = await Architectures(hub.fetch).of_remote(model("exo/tiny-chat"))
    assert known.architecture is not None
    assert hub.asked == []


SPEC = DeploymentSpec(model="org/m", gpu_type="cpu")


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        pytest.param({"replicas": 7}, True, id="an autoscaler sets replicas"),
        pytest.param({"gpu_count": 1}, True, id="a default that is said"),
        pytest.param({"engine": EngineRef(name="exo")}, True, id="the engine that is the default"),
        pytest.param({"engine": EngineRef(name="vllm")}, False, id="engine"),
        pytest.param({"engine_parameters": ("--seed=1",)}, False, id="flags"),
        pytest.param({"gpu_type": "gpua5000"}, False, id="GPU"),
    ],
)
def test_a_specification_is_judged_again_only_for_what_matters(
    changes: dict[str, object], is_same: bool
) -> None:
    assert (SPEC.model_copy(update=changes).digest == SPEC.digest) is is_same


def test_digests_are_those_that_earlier_versions_wrote() -> None:
    exo = SPEC.model_copy(update={"engine": EngineRef(name="exo")})
    older = SPEC.model_copy(update={"engine": EngineRef(name="exo", version="0.25.0")})
    assert (exo.digest, older.digest) == ("ec562bf267439275", "816fc87b0265e90f")


async def test_weights_of_a_gguf_file_are_as_large_as_the_file_on_the_volume() -> None:
    class OfGguf(Hub):
        async def fetch(
            self, name: str, *, revision: str | None = None, token: str | None = None
        ) -> Architecture:
            return find_model(name)

    def sized(source: str, size: int) -> InferenceModel:
        found = model(source)
        return found.model_copy(
            update={"status": found.status.model_copy(update={"size_bytes": size})}
        )

    architectures = Architectures(OfGguf().fetch)
    one = "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M"
    for size in (4_920_739_232, 9_000_000_000):  # what its type explains, and more
        known = await architectures.of_remote(sized(one, size))
        assert known.architecture is not None
        assert known.architecture.checkpoint_bytes == size
    small = await architectures.of_remote(sized(one, 1_000_000))
    unknown = await architectures.of_remote(sized(one, 0))
    assert small == unknown
    assert unknown.architecture is not None
    assert unknown.architecture.checkpoint_bytes is None
    # Of a name without a type, the size is that of everything in the repository.
    plain = await architectures.of_remote(sized("meta-llama/Llama-3.1-8B-Instruct", 10**12))
    assert plain.architecture == find_model("meta-llama/Llama-3.1-8B-Instruct")
