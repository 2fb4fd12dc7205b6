"""`gpus.toml`: what a user says of GPUs counts, and a wrong file stops the start with its reason."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from exo_inference.controller.local.server import open_context
from exo_inference.controller.settings import ControllerSettings
from exo_inference.controller.user_gpus import read_user_gpus
from exo_inference.errors import ConfigurationError
from exo_inference.planner import find_gpu
from exo_inference.platforms.base import InstanceTypeInfo
from exo_inference.state_dir import StateDir
from tests.controller.fakes import FakePlatform, FakeSource

CARD = "[frobnicator]\nmemory-mib = 20480\nbandwidth-gbps = 700\n"


def test_no_file_is_no_gpus(tmp_path: Path) -> None:
    assert read_user_gpus(tmp_path / "gpus.toml") == {}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[frobnicator\n", "not valid TOML"),
        (b"[frobnicator]\nmemory-mib = 20480\n", "bandwidth-gbps"),
        (b"[frobnicator]\nmemory = 20480\n", "unknown field 'memory'"),
        (b"\xff\xfe", "cannot read"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "gpus.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=words) as caught:
        read_user_gpus(path)
    assert str(path) in caught.value.message
    assert caught.value.hint


def test_the_controller_does_not_start_with_a_wrong_file(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    state.create()
    (state.root / "gpus.toml").write_text("[x]\n")

    async def start() -> None:
        settings = ControllerSettings(state=state)
        async with open_context(settings, platform=FakePlatform(), find_source=FakeSource().find):
            pass

    with pytest.raises(ConfigurationError, match=r"gpus\.toml"):
        asyncio.run(start())
    (state.root / "gpus.toml").write_text(CARD)
    asyncio.run(start())


def test_a_family_that_the_user_describes_is_planned_by_that(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    state.create()
    (state.root / "gpus.toml").write_text(CARD)
    unknown = replace(find_gpu("gpua5000"), key="frobnicator")
    platform = FakePlatform(families=(InstanceTypeInfo("frobnicator", 1, 1, gpu=unknown),))

    async def gpu_bandwidth() -> float:
        settings = ControllerSettings(state=state)
        source = FakeSource().find
        async with open_context(settings, platform=platform, find_source=source) as context:
            (family,) = await context.families()
            assert family.gpu is not None
            return family.gpu.bandwidth

    assert asyncio.run(gpu_bandwidth()) == 700e9
