"""Blocks: how many bytes one takes, how many a request needs, and what a pool of them holds.

`planning.py` builds a `KvLayout` per pipeline stage. Layers with the same cache form a bucket; models that
mix kinds share one pool in groups, as vLLM does it (`v1/core/kv_cache_utils.py`).
`tests/planner/test_kv_cache.py` has printed figures that these rules reproduce exactly. exo-engine shares
its pool by the same rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from exo_inference.planner.compressed_cache import BLOCK_TOKENS, compressed_groups, row_bytes
from exo_inference.planner.engine_rules import EngineRules
from exo_inference.planner.model.shapes import KvKind, KvSpec

_SPARSE_FP8_LATENT_BYTES = 656
"""`fp8_ds_mla`: what one token and layer takes when the sparse MLA of DeepSeek-V3.2 is in fp8."""


@dataclass(frozen=True, slots=True)
class KvSettings:
    """What the cache's size depends on, besides the layers."""

    rules: EngineRules
    tensor_parallel_size: int
    dtype_bytes: float
    state_bytes: int
    block_size: int = 16
    speculative_tokens: int = 0
    context_parallel_size: int = 1
    state_element_bytes: int | None = None
    """Asked for by `--mamba-ssm-cache-dtype`; None: what the checkpoint says."""
    unstated_state_bytes: int | None = None
    """Where neither says it; None: the run's type."""
    sparse_latent_bytes: int = _SPARSE_FP8_LATENT_BYTES
    workspace_layers: int = 0
    """Of keys and values in 8 bit that lie beside a cache in 4 bit, in pools of tokens (`planner/static`)."""
    scale_bytes: int = 0
    """Of each head's keys, and values, of a token, where the cache has them."""
    caches_states: bool = False
    """Prefix caching, asked for or by default: a request keeps its newest state and the one before."""
    window_share: float = 1.0
    """Tokens that a layer with a window keeps for each token of the others, in pools of tokens (`planner/static`)."""


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that are given blocks together: one block holds `block_size` tokens of each."""

    kind: KvKind
    block_size: int
    window: int
    count: int


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The cache of one pipeline stage on one GPU.

    Attributes:
        bytes_per_block: of the shared pool, over all layers that one block serves.
        block_size: tokens per block, the smallest of the groups.
        groups: with how many groups of each kind.
        num_groups: of all kinds.
        bytes_per_token: of one more token while no window is full, page padding included.
    """

    bytes_per_block: int
    block_size: int
    groups: tuple[KvGroup, ...]
    num_groups: int
    bytes_per_token: float
    states_per_request: int
    batches_in_flight: int
    context_parallel_size: int = 1
    bounds_by_length: bool = False
    """A request never has more blocks of a group than its tokens fill (exo-engine, core/block_demand.py)."""
    block_formula: str = ""
    """Where kinds are mixed: how the bytes of a block come about."""

    @property
    def is_uniform(self) -> bool:
        """Whether every layer caches every token the same way."""
        return self.num_groups <= 1 and all(g.window == 0 for g in self.groups)

    def blocks_for(self, num_tokens: int, batched_tokens: int) -> int:
        """Return the blocks that one request of this length needs at most."""
        total = 0
        in_flight = self.batches_in_flight * batched_tokens
        for group in self.groups:
            tokens, extra = num_tokens, 0
            if self.bounds_by_length:
                total += group.count * self._bounded(group, num_tokens, in_flight)
                continue
            if group.kind is KvKind.STATE:
                total += group.count * self.states_per_request
                continue
            if group.kind is KvKind.CROSS:
                total += group.count * -(-group.window // group.block_size)
                continue
            if group.kind is KvKind.SLIDING:
                tokens, extra = min(group.window - 1 + in_flight, num_tokens), 1
            elif group.kind is KvKind.CHUNKED:
                tokens = min(group.window + in_flight, num_tokens)
            per_rank = -(-tokens // self.context_parallel_size)
            total += group.count * (-(-per_rank // group.block_size) + extra)
        return total

    def _bounded(self, group: KvGroup, num_tokens: int, in_flight: int) -> int:
        """Return exo-engine's blocks: a window wherever it begins, a state to read and one to write."""
        whole = -(-num_tokens // group.block_size)
        if group.kind is KvKind.STATE:
            return min(whole, 2)
        if group.kind not in (KvKind.SLIDING, KvKind.CHUNKED):
            return whole
        reached = group.window - 1 + in_flight
        return min(whole, (reached + group.block_size - 2) // group.block_size + 1)

    def longest_request(self, num_blocks: int, batched_tokens: int, limit: int) -> int:
        """Return the longest request that fits into a pool of `num_blocks`, at most `limit`."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_for(middle, batched_tokens) <= num_blocks:
                low = middle
            else:
                high = middle - 1
        return low


def token_bytes(spec: KvSpec, settings: KvSettings) -> float:
    """Return what one token adds to one layer on one GPU."""
    if spec.kind in (KvKind.STATE, KvKind.CROSS):
        return 0.0
    if spec.kind is KvKind.LATENT:
        if spec.is_sparse and settings.dtype_bytes == 1:
            return settings.sparse_latent_bytes + spec.index_bytes
        padding = settings.rules.latent_padding
        width = -(-spec.key_dim // padding) * padding
        return width * settings.dtype_bytes + spec.index_bytes
    if spec.kind is KvKind.COMPRESSED:
        row = row_bytes(spec, settings.dtype_bytes)
        kept = (row + spec.index_bytes) / spec.compress_ratio if spec.compress_ratio else 0.0
        return row + kept
    heads = spec.heads_per_rank(settings.tensor_parallel_size)
    row = (spec.key_dim + spec.value_dim) * settings.dtype_bytes
    return heads * (row + 2 * settings.scale_bytes)


def _position_bytes(spec: KvSpec, settings: KvSettings) -> float:
    """Return what one position takes in one layer on one GPU, an encoder's included."""
    if spec.kind is KvKind.CROSS:
        return token_bytes(replace(spec, kind=KvKind.FULL), settings)
    return token_bytes(spec, settings)


def state_page_bytes(spec: KvSpec, settings: KvSettings) -> int:
    """Return the bytes of one request's state in one layer on one GPU."""
    ranks = settings.tensor_parallel_size
    positions = spec.conv_positions + settings.speculative_tokens
    conv = positions * -(-spec.conv_elements // ranks) * settings.state_bytes
    unstated = settings.unstated_state_bytes or settings.state_bytes
    width = settings.state_element_bytes or spec.state_bytes_per_element or unstated
    return conv + -(-spec.state_elements // ranks) * width


def build_layout(specs: Iterable[KvSpec], settings: KvSettings) -> KvLayout | None:
    """Return the layout of a stage's caches, or None where no layer has one."""
    buckets = Counter(specs)
    if not buckets:
        return None
    rules = settings.rules
    attention = {spec: count for spec, count in buckets.items() if spec.kind is not KvKind.STATE}
    per_token = sum(token_bytes(spec, settings) * count for spec, count in attention.items())
    kinds = {spec.kind for spec in buckets}
    if KvKind.COMPRESSED in kinds:
        return _compressed(buckets, settings, per_token)
    is_simple = not rules.groups_hybrids or kinds <= {KvKind.FULL, KvKind.LATENT}
    if is_simple and attention:
        group = KvGroup(KvKind.FULL, settings.block_size, 0, 1)
        size = int(per_token * settings.block_size)
        return _layout(size, settings.block_size, (group,), 1, per_token, settings)
    return _grouped(buckets, settings, per_token)


def _layout(
    size: int,
    block: int,
    groups: tuple[KvGroup, ...],
    count: int,
    per_token: float,
    settings: KvSettings,
) -> KvLayout:
    states = 1 + settings.speculative_tokens + (1 if settings.caches_states else 0)
    rules, ranks = settings.rules, settings.context_parallel_size
    return KvLayout(
        max(1, size), block, groups, count, per_token, states, rules.batches_in_flight, ranks,
        rules.bounds_blocks_by_length,
    )  # fmt: skip


def _grouped(buckets: Counter[KvSpec], settings: KvSettings, per_token: float) -> KvLayout:
    """Share one pool among layers of different kinds."""
    block, states = settings.block_size, [spec for spec in buckets if spec.kind is KvKind.STATE]
    attention = [spec for spec in buckets if spec.kind is not KvKind.STATE]
    if states and attention:
        block = _block_for_states(states, attention, settings)
    pages = {spec: int(block * _position_bytes(spec, settings)) for spec in attention}
    page = max([*pages.values(), *(state_page_bytes(spec, settings) for spec in states)])
    merged = _merge_buckets(buckets)
    group_size = _group_size([count for _, count in merged], settings.rules.group_tolerance)
    groups = []
    for spec, count in merged:
        size = block
        if spec.kind is not KvKind.STATE and 0 < pages[spec] < page and page % pages[spec] == 0:
            size = block * (page // pages[spec])
        num_groups = -(-count // group_size)
        groups.append(KvGroup(spec.kind, size, spec.window, num_groups))
    total = sum(group.count for group in groups)
    smallest = min((g.block_size for g in groups if g.kind is not KvKind.STATE), default=block)
    layout = _layout(page * group_size, smallest, tuple(groups), total, per_token, settings)
    return replace(
        layout, block_formula=f"a page of {page:,} bytes x {group_size} layers per group"
    )


def _compressed(buckets: Counter[KvSpec], settings: KvSettings, per_token: float) -> KvLayout:
    """Lay out DeepSeek-V4's windows, compressed entries and running states."""
    size, pages = compressed_groups(buckets, settings.dtype_bytes, settings.rules)
    groups = tuple(KvGroup(each.kind, each.block_tokens, each.window, 1) for each in pages)
    layout = _layout(size, BLOCK_TOKENS, groups, len(groups), per_token, settings)
    widest = ", ".join(f"{each.num_bytes:,}" for each in pages)
    return replace(layout, block_formula=f"room for any of the groups, whose pages take {widest}")


def _merge_buckets(buckets: Counter[KvSpec]) -> list[tuple[KvSpec, int]]:
    """Put layers that are handled alike (kind and window) together."""
    merged: dict[tuple[KvKind, int], tuple[KvSpec, int]] = {}
    for spec, count in buckets.items():
        key = (spec.kind, spec.window)
        first, before = merged.get(key, (spec, 0))
        largest = max(
            first, spec, key=lambda each: each.num_heads * (each.key_dim + each.value_dim)
        )
        merged[key] = (largest, before + count)
    return list(merged.values())


def _group_size(counts: list[int], tolerance: float) -> int:
    smallest, largest = min(counts), max(counts)
    return largest if largest < tolerance * smallest else smallest


def _block_for_states(states: list[KvSpec], attention: list[KvSpec], settings: KvSettings) -> int:
    """Raise the attention block until its page holds a state ("Setting attention block size to N")."""
    need = max(state_page_bytes(spec, settings) for spec in states)
    per_token = max(token_bytes(spec, settings) for spec in attention)
    step = settings.block_size
    return max(step, step * -int(-need // (step * per_token)))
