"""Speed has a band: what published figures say of the estimates."""

from __future__ import annotations

import json

from tests.cli.conftest import Exo


def test_every_estimate_lies_within_its_band(exo: Exo) -> None:
    flags = (
        "--model-name",
        "mistralai/Ministral-3-8B-Instruct-2512",
        "--gpu-type",
        "h100",
        "-O",
        "json",
    )
    speed = json.loads(exo("ai", "deployment", "plan", *flags, "--offline").out)["speed"]
    for prompt in speed["prompts"]:
        assert prompt["ttft_seconds_low"] < prompt["ttft_seconds"] < prompt["ttft_seconds_high"]
    for batch in speed["batches"]:
        low, high = batch["inter_token_seconds_low"], batch["inter_token_seconds_high"]
        assert low < batch["inter_token_seconds"] < high < 3 * low
