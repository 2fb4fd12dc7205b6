"""The file of --simulation is read strictly, and crosses to the core unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from exo_engine.arguments import ServeCommand, catalogue, parse
from exo_engine.config import EngineConfig
from exo_engine.errors import ConfigurationError
from exo_engine.server.messages import pack_config, unpack_config
from exo_engine.simulation import SimulatedFailure, parse_simulation

FAIL = {"phase": "loading weights", "error": "out of memory", "exit_code": 71}


def refusal(document: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parse_simulation(document)
    assert caught.value.exit_code == 78
    assert caught.value.hint
    return caught.value.message


def test_every_key_of_the_file_arrives(document):
    simulation = parse_simulation(document)
    assert simulation.num_kv_blocks == 312_500
    assert [phase.seconds for phase in simulation.phases] == [30.0, 12.5]
    assert simulation.phases[0].log == ("Loading weights took 30 s",)
    assert simulation.step_seconds[1].batch == 65
    assert simulation.title == "org/Big-8B on 4 x gpua5000 with vllm 0.19.0"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"fail": FAIL | {"log": ["torch.OutOfMemoryError: CUDA out of memory."]}},
        {"prompt_seconds": [], "prefill_seconds_per_token": 1e-4},
    ],
    ids=["prompts", "fail", "rate"],
)
def test_simulation_crosses_to_the_core_unchanged(document, changes):
    simulation = parse_simulation(document | changes)
    config = EngineConfig(Path("m"), simulation=simulation)
    assert unpack_config(json.loads(json.dumps(pack_config(config)))) == config


def test_start_that_fails_needs_neither_speed_nor_cache(document):
    for key in ("step_seconds", "prompt_seconds"):
        del document[key]
    simulation = parse_simulation(document | {"kv_capacity_tokens": 0, "fail": FAIL})
    assert simulation.fail == SimulatedFailure("loading weights", "out of memory", 71)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"gpus": 1}, "unknown key 'gpus' in the file, expected engine, "),
        ({"model": None}, "model in the file must be a string that is not empty, got None"),
        ({"gpu": " "}, "gpu in the file must be a string"),
        ({"gpu_count": "4"}, "gpu_count in the file must be a whole number from 1 to 4096"),
        ({"gpu_count": True}, "gpu_count"),
        ({"gpu_count": 0}, "gpu_count"),
        ({"max_num_seqs": 1.0}, "max_num_seqs"),
        ({"max_num_seqs": 9000}, "at most max_num_batched_tokens, 8192, got 9000"),
        ({"kv_capacity_tokens": -1}, "kv_capacity_tokens"),
        ({"kv_capacity_tokens": 100_000}, "what the KV cache holds, 100000 tokens, got 131072"),
        ({"kv_block_size": 1}, "at most 4194304 blocks, got 5000000"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"phases": {}}, "phases in the file must be a list of objects, got {}"),
        ({"phases": ["load"]}, "phases[0] of the file must be a JSON object, got 'load'"),
        ({"phases": [{"name": "x"}]}, "seconds in phases[0] of the file must be a number"),
        ({"phases": [{"name": "x", "seconds": 1, "log": "a"}]}, "a list of strings, got 'a'"),
        ({"phases": [{"name": "x", "seconds": 1, "log": [1]}]}, "a list of strings, got [1]"),
        ({"phases": [{"name": "x", "seconds": 1, "logs": []}]}, "unknown key 'logs' in phases[0]"),
        ({"phases": [{"name": "x", "seconds": 1}] * 2}, "names that differ, got x, x"),
        ({"step_seconds": []}, "step_seconds in the file must be at least one entry"),
        ({"step_seconds": [{"batch": 1, "seconds": float("nan")}]}, "got nan"),
        ({"step_seconds": [{"batch": 1, "seconds": -0.1}]}, "from 0 to 86400, got -0.1"),
        ({"step_seconds": [{"batch": b, "seconds": 1} for b in (2, 1)]}, "entries that rise"),
        (
            {"prompt_seconds": [{"tokens": t, "seconds": 9 - t} for t in (1, 2)]},
            "entries that rise",
        ),
        ({"prompt_seconds": []}, "given, or prefill_seconds_per_token, and not both"),
        ({"prefill_seconds_per_token": 1e-4}, "and not both"),
        ({"prefill_seconds_per_token": "fast"}, "a number of seconds"),
        ({"fail": "yes"}, "fail of the file must be a JSON object"),
        ({"fail": FAIL | {"phase": "warming"}}, "phase in fail of the file must be one of loading"),
        ({"fail": FAIL | {"exit_code": 0}}, "exit_code in fail of the file"),
        ({"fail": FAIL | {"hint": "x"}}, "unknown key 'hint' in fail of the file"),
        ({"engine_version": 19}, "engine_version in the file must be a string"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_its_key(document, changes, expected):
    assert expected in refusal(document | changes)


@pytest.mark.parametrize("key", ["model", "gpu", "gpu_count", "kv_block_size", "max_model_len"])
def test_missing_keys_are_named(document, key):
    del document[key]
    message = refusal(document)
    assert key in message
    assert message.endswith("got nothing")


@pytest.mark.parametrize("value", [None, [], "x", 3])
def test_file_must_hold_an_object(value):
    assert "the file must be a JSON object" in refusal(value)


def test_flag_reads_the_file_for_both_sides(document, tmp_path):
    path = tmp_path / "simulation.json"
    path.write_text(json.dumps(document))
    command = parse(["serve", "m", "--simulation", str(path)], {})
    assert isinstance(command, ServeCommand)
    assert command.engine.simulation == command.server.simulation == parse_simulation(document)


def test_flag_is_no_parameter_of_a_deployment():
    assert "simulation" not in {entry["name"] for entry in catalogue()}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "No such file or directory"),
        (b"{", "it is not JSON"),
        (b"\xff\xfe\x00", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b" " * (4 * 2**20 + 1), "more than 4194304 bytes"),
    ],
    ids=["missing", "broken", "binary", "deep", "large"],
)
def test_unreadable_file_is_a_wrong_flag(tmp_path, content, expected):
    path = tmp_path / "simulation.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=expected) as caught:
        parse(["serve", "m", "--simulation", str(path)], {})
    assert caught.value.param == "simulation"


def test_directory_is_no_simulation(tmp_path: Path) -> None:
    words: list[Any] = ["serve", "m", "--simulation", str(tmp_path)]
    with pytest.raises(ConfigurationError, match="Is a directory"):
        parse(words, {})
