"""The cache of DeepSeek-V4 as vLLM lays it out: five groups of layers in one pool of blocks.

`kv_cache.py` calls `compressed_groups`. A block serves 256 tokens of all compressed entries, or 64 of the
window, or 4 or 8 of the compressors' running states, whichever group takes it. Pages are those of
v1/kv_cache_interface.py, models/deepseek_v4 (attention.py, compressor.py) and
v1/attention/backends/mla/sparse_swa.py; grouping is `_get_kv_cache_groups_uniform_groups` in
v1/core/kv_cache_utils.py. Checked on a start of 0.22 (vllm issue 44376): 6.66 GiB for 30,000 tokens and
13,528 tokens from 5.44 GiB come out exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from exo_inference.planner.engine_rules import EngineRules
from exo_inference.planner.model.shapes import KvKind, KvSpec

BLOCK_TOKENS = 256
"""Tokens per block of compressed entries: what the backends prefer."""
_WINDOW_TOKENS = 64
_STATE_TOKENS = {4: 4, 128: 8}
"""Tokens per block of a compressor's state, chosen so that both have pages of 32 KiB."""
_FP8_ROW = 584
"""`fp8_ds_mla`: 448 values in fp8, 64 rotary ones in 16 bit, 8 bytes of scales."""
_ALIGNMENT = 576


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Layers that take blocks together: tokens per block, window (0: none) and pages in one block."""

    kind: KvKind
    block_tokens: int
    window: int
    pages: int
    num_bytes: int


def row_bytes(spec: KvSpec, dtype_bytes: float) -> float:
    """Return the bytes of one entry, of the window or compressed."""
    return _FP8_ROW if dtype_bytes == 1 else spec.key_dim * dtype_bytes


def compressed_groups(
    buckets: Counter[KvSpec], dtype_bytes: float, rules: EngineRules
) -> tuple[int, list[PageGroup]]:
    """Return the bytes of one block of the shared pool, and the groups that take blocks from it."""
    spec = max(buckets, key=lambda each: each.compress_ratio)
    counts = dict.fromkeys((0, 4, 128), 0)
    for each, count in buckets.items():
        counts[each.compress_ratio] += count
    index = max((each.index_elements for each in buckets), default=0)
    pages = _Pages(spec, index, dtype_bytes)
    total, quarter, large = sum(counts.values()), counts[4], counts[128]
    tuples = [size for size in (max(quarter, large), total, quarter, large) if size]
    width = _tuple_width(tuples)
    dense = quarter * (pages.main(4) + pages.index) + large * pages.main(128)
    groups = [PageGroup(KvKind.FULL, BLOCK_TOKENS, 0, 1, dense)] if quarter + large else []
    for count, tokens, window, page in (
        (total, _WINDOW_TOKENS, spec.window, pages.window),
        (quarter, _STATE_TOKENS[4], 8, pages.state(4) + pages.index_state),
        (large, _STATE_TOKENS[128], 128, pages.state(128)),
    ):
        parts = -(-count // width)
        groups += [
            PageGroup(KvKind.SLIDING, tokens, window, 1, page * len(range(part, count, parts)))
            for part in range(parts)
        ]
    if rules.version >= (0, 26, 0):  # groups overlay each other; read at 0.27.1
        return max(group.num_bytes for group in groups), groups
    # Before, every page size of the first group had a slot per tuple, states being padded to the largest.
    return width * (pages.window + pages.index + pages.main(128)), groups


@dataclass(frozen=True, slots=True)
class _Pages:
    """Bytes of one layer's page of each kind."""

    spec: KvSpec
    index_dim: int
    dtype_bytes: float

    def _aligned(self, size: float) -> int:
        is_packed = self.dtype_bytes == 1
        return -(-int(size) // _ALIGNMENT) * _ALIGNMENT if is_packed else int(size)

    def main(self, ratio: int) -> int:
        """Compressed entries of one block."""
        return self._aligned(BLOCK_TOKENS // ratio * row_bytes(self.spec, self.dtype_bytes))

    @property
    def window(self) -> int:
        """Rows of the window."""
        return self._aligned(_WINDOW_TOKENS * row_bytes(self.spec, self.dtype_bytes))

    @property
    def index(self) -> int:
        """Index vectors, fp8 with a 4-byte scale per 128."""
        return self._aligned(BLOCK_TOKENS // 4 * (self.index_dim + -(-self.index_dim // 128) * 4))

    def state(self, ratio: int) -> int:
        """Running keys and scores of a compressor in 32 bit; ratio 4 overlaps and keeps two of each."""
        wide = self.spec.key_dim * (2 if ratio == 4 else 1)
        return self._aligned(_STATE_TOKENS[ratio] * 2 * wide * 4)

    @property
    def index_state(self) -> int:
        """The same for the indexer's own compressor."""
        return self._aligned(_STATE_TOKENS[4] * 2 * 2 * self.index_dim * 4)


@dataclass(frozen=True, slots=True)
class Workspaces:
    """What DeepSeek-V4's attention takes beside the cache, in bytes on one GPU.

    Attributes:
        kept: the shared buffer that entries of earlier tokens are gathered into, for attention or for the indexer.
        step: what is alive at most while one layer attends in the profile run.
    """

    kept: int
    step: int


_GATHERED_REQUESTS = 4
"""`PREFILL_CHUNK_SIZE`: prompts whose entries are gathered at once."""
_INDEX_ROWS = 40
"""Index rows for each token of the context (v1/attention/backends/mla/indexer.py, `get_max_prefill_buffer_size`)."""
_INDEX_LOGITS = 512 * 2**20
"""envs.py, `VLLM_SPARSE_INDEXER_MAX_LOGITS_MB`: what the profile run sets aside for the indexer's logits."""
_STREAMS = 4
"""Residual streams of 16 bit (`hc_mult`)."""


def attention_workspaces(
    specs: Iterable[KvSpec],
    hidden_size: int,
    heads: int,
    max_model_len: int,
    num_tokens: int,
) -> Workspaces:
    """Return the workspaces of a model with compressed attention.

    Read in models/deepseek_v4 (attention.py, nvidia/flashmla.py), model_executor/layers/sparse_attn_indexer.py and
    v1/worker/workspace.py of vLLM 0.22.0, 0.23.0 and 0.32.0: FlashMLA's path, of Hopper. Queries and output are padded to
    64 or 128 heads and alive beside the residual streams while the indexer runs.

    Args:
        specs: of the layers.
        hidden_size: numbers per token and stream.
        heads: query heads of one rank.
        max_model_len: of the start.
        num_tokens: max-num-batched-tokens.
    """
    layers = list(specs)
    widest = max(layers, key=lambda each: each.key_dim)
    ratios = [each.compress_ratio for each in layers if each.compress_ratio]
    entries = -(-max_model_len // min(ratios)) if ratios else 0
    gathered = (entries + widest.window + num_tokens) * widest.key_dim * 2 * _GATHERED_REQUESTS
    indexed = max(
        (
            max_model_len * _INDEX_ROWS // each.compress_ratio * each.index_bytes
            for each in layers
            if each.index_elements
        ),
        default=0,
    )
    padded = 64 if heads <= 64 else 128
    streams = (_STREAMS + 1) * hidden_size
    alive = num_tokens * 2 * (streams + 2 * padded * widest.key_dim)
    return Workspaces(max(gathered, indexed), alive + (_INDEX_LOGITS if indexed else 0))


def _tuple_width(tuples: list[int]) -> int:
    """Return the group width, at least the first bucket's, that pads the buckets least; ties: the larger."""
    widths = range(max(1, tuples[0]), max(tuples) + 1)
    return min(widths, key=lambda width: (sum(-size % width for size in tuples), -width))
