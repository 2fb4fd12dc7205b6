"""The command line: vLLM's spellings, clear refusals, and a catalogue that says the same."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from exo_engine import __version__
from exo_engine.arguments import PrintCommand, ServeCommand, catalogue, parse
from exo_engine.config import EngineConfig
from exo_engine.errors import ConfigurationError
from exo_engine.flags import FLAGS
from exo_engine.vllm_flags import REFUSED


def serve(*words: str, **environment: str) -> ServeCommand:
    command = parse(["serve", "model-dir", *words], environment)
    assert isinstance(command, ServeCommand)
    return command


def refused(*words: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        parse(list(words), {})
    assert caught.value.exit_code == 78
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4096", 4096),
        ("32k", 32_000),
        ("32K", 32_768),
        ("1m", 1_000_000),
        ("1M", 2**20),
        ("25.6k", 25_600),
        ("auto", None),
        ("-1", None),
    ],
)
def test_max_model_len_takes_human_numbers(text: str, number: int | None) -> None:
    assert serve("--max-model-len", text).engine.max_model_len == number
    assert serve(f"--max_model_len={text}").engine.max_model_len == number


@pytest.mark.parametrize("text", ["", "k", "25.6K", "1.5", "0", "-2", "1e3", "32 k", "x", "١٢"])
def test_wrong_numbers_are_refused_with_the_flag(text: str) -> None:
    error = refused("serve", "m", f"--max-model-len={text}")
    assert error.param == "max-model-len"
    assert "--max-model-len" in error.message


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("kv-cache-memory-bytes", "99999999999T"),
        ("block-size", "9" * 20),
        ("seed", "-" + "9" * 5000),
        ("max-model-len", "1000000000000000000"),
    ],
)
def test_integers_beyond_64_bits_are_refused_with_the_flag(flag: str, text: str) -> None:
    error = refused("serve", "m", f"--{flag}={text}")
    assert (error.param, error.exit_code) == (flag, 78)
    assert "of at most 18 digits" in error.message
    assert serve("--seed", "9" * 18).engine.seed == 10**18 - 1


def test_values_reach_both_sides() -> None:
    command = serve(
        *("--served-model-name", "a", "b/c", "--uds", "run/engine_1.sock"),
        *("--dtype=bfloat16", "--block_size", "32", "--gpu-memory-utilization", "0.5"),
        *("--kv-cache-memory-bytes", "4G", "--num-gpu-blocks-override", "77"),
        *("--max-num-seqs", "3", "--max_num_batched_tokens=2k", "--seed", "9"),
        *("--scheduling-policy", "priority", "--async-scheduling", "--batch-invariant"),
        *("--long-prefill-token-threshold", "300", "--max-num-partial-prefills", "4"),
        *("--max-long-partial-prefills", "2"),
        *("--distributed-executor-backend", "mp", "--device", "cpu", "--cpu-threads", "2"),
        *("--tensor-parallel-size", "2"),
        *("--max-logprobs", "5", "--shutdown-timeout", "7", "--max-num-queued-reqs", "11"),
        *("--override-generation-config", '{"temperature": 0}', "--log-level", "warning"),
        *(
            "--runner",
            "pooling",
            "--convert",
            "embed",
            "--pooler-config",
            '{"pooling_type": "MEAN"}',
        ),
    )
    assert command.engine == EngineConfig(
        model_dir=Path("model-dir"),
        dtype="bfloat16",
        block_size=32,
        gpu_memory_utilization=0.5,
        kv_cache_bytes=4 * 2**30,
        num_gpu_blocks_override=77,
        max_num_seqs=3,
        max_num_batched_tokens=2000,
        seed=9,
        long_prefill_tokens=300,
        max_partial_prefills=4,
        max_long_partial_prefills=2,
        async_scheduling=True,
        batch_invariant=True,
        executor_backend="mp",
        tensor_parallel_size=2,
        scheduling_policy="priority",
        device="cpu",
        num_threads=2,
        runner="pooling",
        convert="embed",
        pooler={"pooling_type": "MEAN"},
        max_logprobs=5,
    )
    assert command.server.served_model_names == ("a", "b/c")
    assert command.server.uds == "run/engine_1.sock"
    assert command.server.shutdown_timeout_seconds == 7
    assert command.server.max_num_queued_requests == 11
    assert command.server.generation_overrides == {"temperature": 0}
    assert command.server.log_level == "warning"


def test_nothing_given_means_the_engine_s_own_defaults() -> None:
    command = serve()
    assert command.engine == EngineConfig(model_dir=Path("model-dir"))
    assert command.server.served_model_names == ("model-dir",)
    assert command.server.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("words", "is_on"),
    [
        ([], True),
        (["--enable-prefix-caching"], True),
        (["--no-enable-prefix-caching"], False),
        (["--no_enable_prefix_caching"], False),
        (["--enable-prefix-caching=false"], False),
        (["--enable_prefix_caching=True"], True),
    ],
)
def test_switches_have_a_negative_and_take_words(words: list[str], is_on: bool) -> None:
    assert serve(*words).engine.enable_prefix_caching is is_on


def test_switch_does_not_swallow_the_model() -> None:
    command = parse(["serve", "--enforce-eager", "model-dir"], {})
    assert isinstance(command, ServeCommand)
    assert command.engine.model_dir == Path("model-dir")


def test_model_may_be_a_flag_but_not_two_models() -> None:
    command = parse(["serve", "--model", "m"], {})
    assert isinstance(command, ServeCommand)
    assert command.engine.model_dir == Path("m")
    assert "two models" in refused("serve", "a", "--model", "b").message
    assert "no model" in refused("serve").message


def test_flags_are_not_abbreviated_and_typos_get_a_guess() -> None:
    error = refused("serve", "m", "--max-model", "4")
    assert "unknown flag --max-model" in error.message
    assert "--max-model-len" in (error.hint or "")


def test_flags_of_vllm_that_are_missing_here_say_why() -> None:
    for name, reason in REFUSED.items():
        error = refused("serve", "m", f"--{name.replace('-', '_')}=1")
        assert f"--{name} is a vLLM flag" in error.message
        assert error.message.endswith(reason)
        assert error.param == name


def test_negative_of_a_refused_flag_is_refused_as_well() -> None:
    assert "adapters" in refused("serve", "m", "--no-enable-lora").message


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--pipeline-parallel-size", "2"], "only 1 is supported"),
        (["-pp", "4"], "more replicas"),
        (["-tp", "65"], "at most 64"),
        (["--kv-cache-dtype", "fp4"], "one of auto, float32"),
        (["--dtype", "int8"], "one of auto, half"),
        (["--gpu-memory-utilization", "0"], "above 0"),
        (["--gpu-memory-utilization", "1.1"], "at most 1"),
        (["--gpu-memory-utilization", "nan"], "a number"),
        (["--override-generation-config", "[1]"], "a JSON object"),
        (["--override-generation-config", "{"], "a JSON object"),
        (["--enable-prefix-caching=perhaps"], "true or false"),
        (["--port", "70000"], "at most 65535"),
        (["--seed"], "expected one argument"),
        (["other-model"], "unexpected word"),
    ],
)
def test_values_that_cannot_be_served_say_what_can(words: list[str], expected: str) -> None:
    error = refused("serve", "m", *words)
    assert expected in error.message


def test_single_device_flags_are_accepted_with_one() -> None:
    assert serve("-tp", "1", "--pipeline-parallel-size=1", "-dp", "1", "--kv-cache-dtype", "auto")


def test_key_comes_from_the_flag_or_the_environment_and_is_not_shown() -> None:
    assert serve(EXO_ENGINE_API_KEY="k").server.api_keys == ("k",)
    assert serve("--api-key", "a", "b", EXO_ENGINE_API_KEY="k").server.api_keys == ("a", "b")
    assert "secret" not in repr(serve("--api-key", "secret"))


@pytest.mark.parametrize(
    "flag", ["--disable-log-requests", "--no-enable-log-requests", "--disable-uvicorn-access-log"]
)
def test_request_log_can_be_switched_off_in_every_way_that_vllm_has(flag: str) -> None:
    assert serve().server.is_request_log_on
    assert not serve(flag).server.is_request_log_on


def test_catalogue_describes_every_flag_a_deployment_may_set() -> None:
    entries = {entry["name"]: entry for entry in catalogue()}
    owned = {"model", "host", "port", "uds", "served-model-name", "api-key", "simulation"}
    assert set(entries) == {flag.name for flag in FLAGS} - owned
    for entry in entries.values():
        assert set(entry) - {"allowed-values", "suffixed", "auto", "bounds"} == {
            "name", "flags", "type", "default", "section", "description",
        }  # fmt: skip
        assert entry["type"] in {"integer", "float", "string", "boolean", "enum", "json"}
        assert isinstance(entry["default"], str)
        assert len(entry["description"]) > 20
        assert f"--{entry['name']}" in entry["flags"]
        assert ("allowed-values" in entry) >= (entry["type"] == "enum")
    assert entries["enable-prefix-caching"]["flags"] == [
        "--enable-prefix-caching",
        "--no-enable-prefix-caching",
    ]
    assert entries["enforce-eager"]["flags"] == ["--enforce-eager", "--no-enforce-eager"]
    assert entries["gpu-memory-utilization"]["bounds"] == {"gt": 0, "le": 1}


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_every_default_of_the_table_is_a_value_that_is_accepted(flag: Any) -> None:
    if flag.default is None:
        return
    text = json.dumps(flag.default) if flag.kind == "boolean" else str(flag.default)
    assert serve(f"--{flag.name}={text}") == serve()


def test_no_flag_is_both_supported_and_refused() -> None:
    assert not {flag.name for flag in FLAGS} & set(REFUSED)


def test_commands_that_only_print() -> None:
    def text(*words: str) -> str:
        command = parse(words, {})
        assert isinstance(command, PrintCommand)
        return command.text

    assert text("--version") == f"exo-engine {__version__}"
    assert json.loads(text("parameters", "--json")) == catalogue()
    for flag in FLAGS:
        assert f"--{flag.name}" in text("serve", "--help")
    assert "serve MODEL" in text("--help")
    assert "serve MODEL" in text()
    assert "only --json" in refused("parameters", "--yaml").message


def test_engine_config_has_no_field_that_the_command_line_forgets() -> None:
    given = serve("--max-model-len", "1").engine
    assert {each.name for each in dataclasses.fields(given)} == {
        "model_dir", "dtype", "quantization", "device", "block_size", "num_gpu_blocks_override",
        "gpu_memory_utilization", "kv_cache_bytes", "max_model_len", "max_num_seqs",
        "max_num_batched_tokens", "seed", "enable_prefix_caching", "enable_chunked_prefill",
        "async_scheduling", "executor_backend", "long_prefill_tokens", "max_partial_prefills",
        "max_long_partial_prefills", "scheduling_policy", "max_logprobs", "num_threads", "simulation",
        "kv_cache_dtype", "attention_backend", "enforce_eager", "batch_invariant",
        "tensor_parallel_size",
        "runner", "convert", "pooler",
    }  # fmt: skip


def test_http_side_imports_neither_torch_nor_a_validation_library() -> None:
    """The API process must answer before torch is loaded, and run where pydantic is missing."""
    code = (
        "import sys, exo_engine.server.main, exo_engine.server.lifecycle\n"
        "print([m for m in ('torch', 'transformers', 'pydantic', 'fastapi', 'numpy') "
        "if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "[]"


def test_a_reader_that_has_enough_ends_the_help_page_without_a_word():
    """As in `exo-engine serve --help | head`."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "exo_engine.server.main", "serve", "--help"],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")
