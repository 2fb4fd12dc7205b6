"""The nouns of a model's memory: weights, what a layer caches, layers.

Built by `layers.py` and `vision.py` from a config, held by `Architecture`, read by `memory.py` and
`kv_cache.py`. Everything is frozen and counts elements; bytes come in with the run's dtypes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from exo_inference.planner.model.quantization import WeightFormat


class Shard(StrEnum):
    """How a weight is spread over the ranks of tensor parallelism."""

    SPLIT = "split"
    """Each rank holds 1/tp."""
    KV_HEADS = "kv-heads"
    """Split by KV heads, which are replicated once there are more ranks than heads."""
    REPLICATED = "replicated"
    """Each rank holds all of it."""
    EXPERTS = "experts"
    """Split inside each expert, or by whole experts under expert parallelism."""


@dataclass(frozen=True, slots=True)
class Weight:
    """One matrix, or `copies` equal ones (experts, blocks of an encoder).

    Attributes:
        path: module path below the layer, or the whole path outside the layers.
        part: what it belongs to (attention, mlp, routed_experts, norm, embedding, vision, …).
        heads: KV heads, for `Shard.KV_HEADS`.
        format: the checkpoint's quantized format; None: the run's dtype.
    """

    path: str
    part: str
    out_features: int
    in_features: int = 1
    copies: int = 1
    shard: Shard = Shard.SPLIT
    heads: int = 1
    format: WeightFormat | None = None

    @property
    def num_elements(self) -> int:
        """Parameters in it."""
        return self.out_features * self.in_features * self.copies


def vector(path: str, size: int) -> Weight:
    """Return a vector that every rank holds: norms, biases, coefficients."""
    return Weight(path, "norm", size, 1, shard=Shard.REPLICATED)


class KvKind(StrEnum):
    """What a layer keeps of the tokens it has seen."""

    FULL = "full"
    SLIDING = "sliding"
    CHUNKED = "chunked"
    LATENT = "latent"
    """MLA: one compressed vector per token, the same on every rank."""
    STATE = "state"
    """Mamba or linear attention: a state of fixed size per request."""
    CROSS = "cross"
    """Keys and values of an encoder's output: as many positions for every request."""
    COMPRESSED = "compressed"
    """DeepSeek-V4: one vector per token for a window, and one per several tokens for good."""


@dataclass(frozen=True, slots=True)
class KvSpec:
    """The cache of one layer.

    Attributes:
        num_heads: KV heads (1 for a latent).
        key_dim, value_dim: elements per head and token; a latent has no values.
        window: tokens that a sliding or chunked layer looks back; of a cross layer the encoder's positions.
        index_bytes: bytes per token (or compressed entry) of the sparse-attention index beside it.
        is_sparse: the model attends by an index, though perhaps another layer's.
        compress_ratio: tokens per compressed entry, 0 for a window alone.
        index_elements: elements of the index per compressed entry.
        conv_elements: elements of the convolution state per position it looks back.
        conv_positions: positions that the convolution looks back.
        state_elements: elements of the recurrent state.
        state_bytes_per_element: None: as the run's dtype.
    """

    kind: KvKind
    num_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    window: int = 0
    index_bytes: int = 0
    conv_elements: int = 0
    conv_positions: int = 0
    state_elements: int = 0
    state_bytes_per_element: int | None = None
    is_sparse: bool = False
    compress_ratio: int = 0
    index_elements: int = 0

    @property
    def elements_per_token(self) -> int:
        """Elements that one token adds to the whole layer (all ranks); 0 for a state or an encoder."""
        if self.kind is KvKind.CROSS:
            return 0
        if self.kind is KvKind.COMPRESSED:
            kept = self.key_dim + self.index_elements if self.compress_ratio else 0
            return self.key_dim + kept // max(1, self.compress_ratio)
        return self.num_heads * (self.key_dim + self.value_dim)

    def heads_per_rank(self, tensor_parallel_size: int) -> int:
        """Return the KV heads that one rank holds: vLLM replicates them beyond one per rank."""
        if self.kind in (KvKind.LATENT, KvKind.COMPRESSED):
            return 1
        return max(1, self.num_heads // tensor_parallel_size)


_FEED_FORWARD = frozenset({"mlp", "routed_experts", "shared_experts"})


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer: its weights, and its cache (None: it has none of its own)."""

    weights: tuple[Weight, ...]
    kv: KvSpec | None
    is_windowed: bool = False
    uses_moe: bool = False
    unstored: tuple[Weight, ...] = ()
    """Rows of fused projections that an engine has though no checkpoint fills them, in the format of the queries'."""

    def count_halves(self) -> int:
        """Return 2 for attention (or states) and a feed-forward, 1 for a layer that is one of them."""
        parts = {weight.part for weight in self.weights}
        has_feed_forward, has_mixer = bool(parts & _FEED_FORWARD), bool(parts - _FEED_FORWARD)
        return max(
            1, has_feed_forward + (self.kv is not None or (has_mixer and not has_feed_forward))
        )


@dataclass(frozen=True, slots=True)
class MoeShape:
    """The routed experts, for activations and speed."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    hidden_size: int
    shared_intermediate_size: int = 0


@dataclass(frozen=True, slots=True)
class VisionShape:
    """The image encoder, for its weights and the profiled activation peak."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    max_tokens: int
    """Patches of the largest image the profile run encodes."""
    sizes_in_config: tuple[int, int] | None = None
    """Layers and hidden size as `vision_config` names them in most configs, 24 and 1,024 where it does not; None without
    one: what engines go by that know no families."""
