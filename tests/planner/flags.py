"""Settings of the planner, written as flags, for the rules of whatever release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from exo_inference.engines.flags.catalogue import listed_releases
from exo_inference.planner import EngineParameters
from exo_inference.planner.parameters import LATEST_VLLM
from exo_inference.preflight import read_flags, read_settings


def settings_of(
    flags: Sequence[str], *, engine: str = "vllm", engine_version: str = LATEST_VLLM
) -> EngineParameters:
    """Return what flags set, read by the newest release that takes them all."""
    items, releases = tuple(flags), listed_releases()[::-1]
    taking = (each for each in releases if _takes(items, engine, each))
    read = read_settings(items, engine, next(taking, releases[0]))
    return replace(read, engine_version=engine_version)


def _takes(items: tuple[str, ...], engine: str, release: str) -> bool:
    problems = read_flags(items, engine, release).problems
    return all(problem.reason == "duplicate" for problem in problems)
