"""Flags in, flags out, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exo_inference.planner import EngineParameters, find_gpu, find_model, plan
from exo_inference.planner.parameters import WrongSetting
from exo_inference.planner.written_flags import WrittenFlag
from tests.planner.flags import settings_of

counts = st.integers(1, 10**6)
parameters = st.builds(
    EngineParameters,
    max_model_len=st.none() | counts | st.just("auto"),
    gpu_memory_utilization=st.none() | st.floats(0.01, 1.0),
    kv_cache_dtype=st.sampled_from([None, "auto", "fp8", "fp8_e5m2", "bfloat16"]),
    kv_cache_memory_bytes=st.none() | st.integers(1, 2**40),
    dtype=st.sampled_from([None, "auto", "bfloat16", "float16"]),
    quantization=st.sampled_from([None, "fp8", "awq"]),
    tensor_parallel_size=st.none() | st.integers(1, 16),
    pipeline_parallel_size=st.none() | st.integers(1, 4),
    enable_expert_parallel=st.sampled_from([None, True, False]),
    max_num_seqs=st.none() | counts,
    max_num_batched_tokens=st.none() | counts,
    enforce_eager=st.sampled_from([None, True, False]),
    cpu_offload_gb=st.none() | st.floats(0, 1000),
    enable_lora=st.sampled_from([None, True]),
    speculative_config=st.sampled_from(
        [None, {"method": "ngram", "num_speculative_tokens": 4}, {"method": "eagle3"}]
    ),
    others=st.sampled_from(
        [
            (),
            (WrittenFlag("seed", ("--seed=7",)),),
            (WrittenFlag("tokenizer", ("--tokenizer", "a")), WrittenFlag("seed", ("--seed", "7"))),
        ]
    ),
)


@settings(max_examples=150, deadline=None)
@given(parameters)
def test_a_plan_of_what_was_written_and_read_back_is_the_same(asked: EngineParameters) -> None:
    again = settings_of(asked.format())
    assert again == asked
    model, gpu = find_model("Qwen/Qwen3-30B-A3B"), find_gpu("H100")
    assert plan(model, gpu, 2, again) == plan(model, gpu, 2, asked)


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        (["--max-model-len", "32k"], "max_model_len", 32000),
        (["--max-model-len=32K"], "max_model_len", 32768),
        (["--max-model-len=-1"], "max_model_len", "auto"),
        (["--max_num_seqs=8"], "max_num_seqs", 8),
        (["-tp", "4"], "tensor_parallel_size", 4),
        (["--no-enable-prefix-caching"], "enable_prefix_caching", False),
        (["--kv-cache-memory-bytes=1.5g"], "kv_cache_memory_bytes", 1_500_000_000),
        (["-O0"], "records_full_graphs", False),
        (["-cc.cudagraph_mode=PIECEWISE"], "records_full_graphs", False),
    ],
)
def test_a_flag_is_read_as_the_engine_reads_it(flags: list[str], name: str, value: object) -> None:
    assert getattr(settings_of(flags), name) == value


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_model_len", "long", "a whole number of 1 or more"),
        ("max_model_len", -2, "a whole number of 1 or more"),
        ("max_num_seqs", 0, "a whole number of 1 or more"),
        ("max_num_seqs", 1.5, "a whole number of 1 or more"),
        ("max_num_seqs", True, "a whole number of 1 or more"),
        ("gpu_memory_utilization", 1.2, "above 0 and at most 1"),
        ("gpu_memory_utilization", float("nan"), "above 0 and at most 1"),
        ("cpu_offload_gb", -3, "a number"),
        ("speculative_config", [], "a JSON object"),
        ("enforce_eager", "perhaps", "true or false"),
        ("kv_cache_dtype", "", "a word"),
    ],
)
def test_a_wrong_value_names_the_flag_and_a_next_step(
    name: str, value: object, expected: str
) -> None:
    with pytest.raises(WrongSetting) as caught:
        EngineParameters.of({name: value})
    flag = f"--{name.replace('_', '-')}"
    assert caught.value.message == f"{flag} is {value!r}, expected {expected}"
    assert caught.value.hint
    assert caught.value.name == name


def test_flags_without_bearing_are_kept() -> None:
    items = ["--seed", "7", "--trust-remote-code", "--max-num-seqs=3"]
    asked = settings_of(items)
    assert asked.max_num_seqs == 3
    assert asked.others == (
        WrittenFlag("seed", ("--seed", "7")),
        WrittenFlag("trust-remote-code", ("--trust-remote-code",)),
    )


def test_a_flag_that_is_set_anew_takes_the_place_of_every_spelling_of_it() -> None:
    asked = settings_of(["-cc.mode=3", "--attention_backend", "FLASH_ATTN", "--seed=7"])
    after = asked.with_values({"attention_backend": "TRITON_ATTN", "max_num_seqs": 3})
    assert after.format() == [
        "--max-num-seqs=3",
        "-cc.mode=3",
        "--seed=7",
        "--attention-backend=TRITON_ATTN",
    ]
