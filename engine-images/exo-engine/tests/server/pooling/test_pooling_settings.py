"""Every setting of the engine is used, refused or listed as harmless where a model embeds or scores."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from exo_engine.config import EngineConfig
from exo_engine.core.pooling.core import PoolingCore
from exo_engine.core.pooling.settings import HARMLESS, REFUSED
from exo_engine.errors import ConfigurationError

from .tiny_models import write_embedder

README = Path(__file__).parents[3] / "README.md"
USED = {
    "model_dir", "dtype", "quantization", "device", "max_model_len", "max_num_seqs",
    "max_num_batched_tokens", "scheduling_policy", "runner", "convert", "pooler", "num_threads", "simulation",
}  # fmt: skip
ASKED = {
    "async_scheduling": True, "attention_backend": "torch", "batch_invariant": True, "executor_backend": "mp",
    "kv_cache_dtype": "int8", "long_prefill_tokens": 8, "max_long_partial_prefills": 1,
    "max_partial_prefills": 2, "num_gpu_blocks_override": 9, "tensor_parallel_size": 2,
}  # fmt: skip


def test_every_setting_is_in_one_list() -> None:
    names = [each.name for each in fields(EngineConfig)]
    assert sorted([*USED, *REFUSED, *HARMLESS]) == sorted(names)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_done_is_refused_by_name(tmp_path: Path, name: str) -> None:
    write_embedder(tmp_path, "bert-mean")
    config = EngineConfig(tmp_path, device="cpu", **{name: ASKED[name]})
    with pytest.raises(ConfigurationError, match="embeds or scores") as caught:
        PoolingCore(config)
    assert caught.value.param == REFUSED[name]
    assert f"--{REFUSED[name]}" in caught.value.message


def test_what_is_harmless_is_taken(tmp_path: Path) -> None:
    write_embedder(tmp_path, "bert-mean")
    values = {"block_size": 32, "enable_prefix_caching": False, "enable_chunked_prefill": False}
    values |= {"enforce_eager": True, "gpu_memory_utilization": 0.5, "kv_cache_bytes": 2**20}
    values |= {"max_logprobs": 0, "seed": 7}
    assert values.keys() == HARMLESS.keys()
    PoolingCore(EngineConfig(tmp_path, device="cpu", async_scheduling=False, **values))


def test_the_page_lists_both() -> None:
    text = README.read_text()
    refused, _, rest = text.partition("Flags that ask for what")[2].partition("These are\ntaken")
    harmless = rest.partition("Vectors are")[0]
    for part, table in ((refused, REFUSED), (harmless, HARMLESS)):
        assert re.findall(r"`--([a-z-]+)`", part) == sorted(table.values())
