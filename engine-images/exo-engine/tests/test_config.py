from __future__ import annotations

from pathlib import Path

import pytest
from exo_engine.config import EngineConfig, ModelLimits, default_cpu_kv_cache_bytes, resolve
from exo_engine.errors import ConfigurationError

LIMITS = ModelLimits(max_position_embeddings=2048, checkpoint_dtype="bfloat16")


def settle(*, has_cuda=False, is_fast_in_bfloat16=False, limits=LIMITS, **options):
    config = EngineConfig(Path("model"), **options)
    return resolve(
        config, limits, has_cuda=has_cuda, is_fast_in_bfloat16=lambda: is_fast_in_bfloat16
    )


def test_auto_on_a_cpu():
    resolved = settle()
    assert (resolved.device, resolved.dtype, resolved.max_model_len) == ("cpu", "float32", 2048)
    assert (resolved.max_num_seqs, resolved.max_num_batched_tokens) == (64, 1024)
    assert resolved.max_model_len // resolved.block_size == 128
    assert resolved.kv_cache_dtype == "float32"


def test_auto_on_cuda():
    resolved = settle(has_cuda=True)
    assert (resolved.device, resolved.dtype) == ("cuda", "bfloat16")
    assert (resolved.max_num_seqs, resolved.max_num_batched_tokens) == (256, 8192)


@pytest.mark.parametrize(
    ("checkpoint", "dtype"), [("float16", "float16"), ("float32", "bfloat16"), (None, "bfloat16")]
)
def test_auto_dtype_on_cuda_follows_the_checkpoint(checkpoint, dtype):
    assert settle(has_cuda=True, limits=ModelLimits(2048, checkpoint)).dtype == dtype


@pytest.mark.parametrize(
    ("checkpoint", "dtype"),
    [("bfloat16", "bfloat16"), ("float16", "float32"), ("float32", "float32"), (None, "float32")],
)
def test_auto_dtype_on_a_cpu_is_bfloat16_where_checkpoint_and_processor_have_it(checkpoint, dtype):
    limits = ModelLimits(2048, checkpoint)
    assert settle(limits=limits, is_fast_in_bfloat16=True).dtype == dtype
    assert settle(limits=limits).dtype == "float32"


@pytest.mark.parametrize("checkpoint", ["float16", "float32", None])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantized_layers_are_multiplied_in_bfloat16_where_that_is_fast(checkpoint, quantization):
    limits = ModelLimits(2048, checkpoint)
    fast = settle(limits=limits, quantization=quantization, is_fast_in_bfloat16=True)
    assert fast.dtype == "bfloat16"
    assert settle(limits=limits, quantization=quantization).dtype == "float32"
    explicit = settle(
        limits=limits, quantization=quantization, dtype="float32", is_fast_in_bfloat16=True
    )
    assert explicit.dtype == "float32"


def test_attention_of_a_cpu_is_refused_on_a_gpu():
    with pytest.raises(
        ConfigurationError, match="on a CPU alone, but the device is cuda"
    ) as caught:
        settle(has_cuda=True, attention_backend="cpu")
    assert caught.value.param == "attention-backend"
    assert settle(has_cuda=True, device="cpu", attention_backend="cpu").attention_backend == "cpu"


@pytest.mark.parametrize("threads", [0, -1, 257, 999_999_999_999])
def test_threads_that_no_machine_has_are_refused(threads):
    with pytest.raises(ConfigurationError, match=f"--cpu-threads must be .* got {threads}"):
        settle(num_threads=threads)


@pytest.mark.parametrize("sequences", [0, 65_537, 2**40])
def test_sequences_that_no_machine_holds_are_refused(sequences):
    with pytest.raises(ConfigurationError, match=f"--max-num-seqs must be .* got {sequences}"):
        settle(max_num_seqs=sequences)


@pytest.mark.parametrize(
    ("has_cuda", "dtype"), [(True, "auto"), (True, "float16"), (False, "float32")]
)
def test_the_processor_is_not_asked_where_it_does_not_matter(has_cuda, dtype):
    """As it may have been told to compute as it cannot, which is no matter of a GPU's."""

    def fail() -> bool:
        raise AssertionError

    config = EngineConfig(Path("model"), dtype=dtype)
    resolve(config, LIMITS, has_cuda=has_cuda, is_fast_in_bfloat16=fail)


def test_steps_are_scheduled_ahead_on_cuda_unless_somebody_says_otherwise():
    assert settle(has_cuda=True).async_scheduling
    assert not settle().async_scheduling
    assert settle(async_scheduling=True).async_scheduling
    assert not settle(has_cuda=True, async_scheduling=False).async_scheduling


@pytest.mark.parametrize(("word", "dtype"), [("half", "float16"), ("float", "float32")])
def test_short_names_of_dtypes(word, dtype):
    assert settle(dtype=word).dtype == dtype


def test_a_small_budget_bounds_the_default_number_of_sequences():
    assert settle(max_num_batched_tokens=8).max_num_seqs == 8


def test_many_sequences_raise_the_default_budget():
    assert settle(max_num_seqs=5000).max_num_batched_tokens == 5000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "--block-size must be 1 or more, got 0"),
        ({"num_gpu_blocks_override": 0}, "--num-gpu-blocks-override"),
        ({"max_model_len": 4096}, "--max-model-len is 4096, but .* at most 2048"),
        ({"gpu_memory_utilization": 1.5}, r"in \(0, 1\], got 1.5"),
        ({"dtype": "int8"}, "--dtype must be one of .*, got 'int8'"),
        ({"device": "cuda"}, "finds no CUDA device"),
        ({"device": "tpu"}, "--device must be one of"),
        ({"scheduling_policy": "lifo"}, "--scheduling-policy"),
        ({"long_prefill_tokens": 0}, "--long-prefill-token-threshold must be 1 or more"),
        ({"long_prefill_tokens": 9, "enable_chunked_prefill": False}, "chunked prefill is off"),
        ({"max_partial_prefills": 0}, "--max-num-partial-prefills must be 1 or more"),
        ({"max_partial_prefills": 2, "enable_chunked_prefill": False}, "chunked prefill is off"),
        ({"max_long_partial_prefills": 0}, "--max-long-partial-prefills must be 1 or more"),
        ({"max_long_partial_prefills": 1}, "not which prompts are long"),
        (
            {
                "max_long_partial_prefills": 3,
                "max_partial_prefills": 2,
                "long_prefill_tokens": 9,
            },
            "is 3, more than --max-num-partial-prefills 2",
        ),
        ({"attention_backend": "magic"}, "--attention-backend"),
        ({"max_logprobs": -1}, "--max-logprobs"),
        (
            {"max_num_seqs": 9, "max_num_batched_tokens": 8},
            "--max-num-batched-tokens is 8, but --max-num-seqs is 9",
        ),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 100}, "a whole prompt"),
    ],
)
def test_what_contradicts_itself_is_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        settle(**options)


def test_without_chunked_prefill_the_default_budget_holds_a_whole_prompt():
    assert settle(enable_chunked_prefill=False).max_num_batched_tokens == 2048


def test_the_default_cache_on_a_cpu_leaves_half_of_the_memory():
    assert default_cpu_kv_cache_bytes(2**40) == 2**30
    assert default_cpu_kv_cache_bytes(2**20) == 2**19
