"""What a decoder-only model is, as far as computing it goes.

The family files translate config.json into a `DecoderSpec`; `decoder` computes it, `weights` derives
from it which tensors a checkpoint must have. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from exo_engine.attention.layer import AttentionLayer, CachedLayer, Reach, StateLayer
from exo_engine.errors import ConfigurationError
from exo_engine.weight_formats import PLAIN

RopeKind = Literal["default", "linear", "llama3", "yarn", "proportional"]
Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class ClampSpec:
    """Gates of gpt-oss: g sigmoid(alpha g) (v + 1), with gates and values clamped before."""

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding: the base, and how it is stretched to longer contexts."""

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    """llama3: wavelengths longer than original length / this are stretched by `factor`."""
    high_freq_factor: float = 4.0
    """llama3: wavelengths shorter than original length / this are left alone."""
    beta_fast: float = 32.0
    """yarn: dimensions that turn more often than this over the original length are left alone."""
    beta_slow: float = 1.0
    """yarn: dimensions that turn less often than this are stretched by `factor`."""
    truncate: bool = True
    """yarn: round the borders of the two ranges to whole dimensions."""
    attention_factor: float = 1.0
    """Multiplies cosine and sine."""
    rotary_part: float = 1.0
    """Share of each head's dimensions, from the first on, that are turned at all."""


@dataclass(frozen=True, slots=True)
class RoutingSpec:
    """How scores of experts become a choice."""

    scoring: Literal["softmax", "sigmoid"] = "softmax"
    """Of the router's numbers; a sigmoid is of each alone."""
    num_groups: int = 1
    """Experts are chosen from the best groups only, as DeepSeek-V2 does; groups follow one another."""
    num_groups_chosen: int = 1
    num_judging: int = 1
    """A group is as good as the sum of its so many best scores."""
    has_bias: bool = False
    """A number per expert is added to its score for the choice, not for its weight."""
    scale: float = 1.0
    """Multiplies the weights."""
    is_float32: bool = False
    """The router computes in float32, whatever the model's type."""


@dataclass(frozen=True, slots=True)
class MixtureSpec:
    """Experts in place of the MLP of some layers."""

    num_experts: int
    num_chosen: int
    """Experts that compute a token."""
    intermediate_size: int
    """Of one expert."""
    normalizes: bool
    """The weights of the chosen ones are made to add up to 1."""
    layers: frozenset[int]
    routing: RoutingSpec = RoutingSpec()
    shared_size: int = 0
    """Inner size of an MLP that computes every token beside the chosen experts; 0: none."""
    gates_shared: bool = False
    """What that one gives is multiplied by a number of the token's."""
    clamp: ClampSpec | None = None
    """Of the experts' gates; None: they are SiLU."""
    is_transposed: bool = False
    """As in gpt-oss, a checkpoint has all experts in one tensor, inputs by outputs, with gates and values
    in turns, and with biases of experts and router."""


@dataclass(frozen=True, slots=True)
class HeadsSpec:
    """Key/value heads of a layer, and what turns them."""

    num_kv_heads: int
    head_dim: int
    rope: RopeSpec
    has_values: bool = True
    """It has a matrix for values; otherwise they are the keys before norm and rotation."""

    @property
    def num_turned(self) -> int:
        """Numbers of a query or key that the rotary embedding turns."""
        is_partial = self.rope.kind != "proportional"
        return int(self.head_dim * self.rope.rotary_part) if is_partial else self.head_dim


@dataclass(frozen=True, slots=True)
class LayerInputSpec:
    """Embeddings of each layer's own (Gemma 3n, Gemma 4): added through a gate behind the MLP."""

    size: int
    """Numbers of one layer."""
    vocab_size: int


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Multi-head latent attention in all layers."""

    num_latent: int
    """Numbers that keys and values of all heads are made of."""
    query_rank: int | None
    """Likewise of queries; None: they are made of hidden states."""
    plain_dim: int
    """Numbers of a query or key that are not turned, of one head."""
    turned_dim: int
    """Those that are; a token's heads share them."""
    value_dim: int
    """Of one head."""
    scale: float
    """Multiplies every product of a query and a key."""
    turns_neighbours: bool = True
    """Numbers turned together are neighbours, rather than half a head apart."""

    def cached(self, num_heads: int) -> AttentionLayer:
        """What cache and backend see of a layer."""
        size = self.num_latent + self.turned_dim
        return AttentionLayer(num_heads, 1, size, scale=self.scale, num_latent=self.num_latent)


@dataclass(frozen=True, slots=True)
class DeltaSpec:
    """Gated DeltaNet (Yang et al. 2024) in place of the attention of some layers."""

    num_key_heads: int
    num_value_heads: int
    """A multiple of the key heads."""
    key_dim: int
    """Of one head."""
    value_dim: int
    """Of one head."""
    kernel_size: int
    """Tokens that the causal convolution sees."""
    layers: frozenset[int]
    is_merged: bool = False
    """A checkpoint has two projections, with what belongs to a key head side by side, rather than four."""

    @property
    def channels(self) -> int:
        """What the convolution mixes over time: queries, keys and values."""
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim

    @property
    def conv_numbers(self) -> int:
        """Of a sequence: the convolution's last inputs."""
        return (self.kernel_size - 1) * self.channels

    @property
    def state_numbers(self) -> int:
        """Of a sequence, all that a layer keeps."""
        return self.conv_numbers + self.num_value_heads * self.key_dim * self.value_dim


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A pre-norm decoder with grouped-query attention, rotary positions and a gated MLP."""

    architecture: str
    """As in config.json, such as `LlamaForCausalLM`."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeSpec
    window_heads: HeadsSpec | None = None
    """Of layers with a window; None: as the others."""
    has_values: bool = True
    """Of layers without a window, see `HeadsSpec`."""
    has_value_norm: bool = False
    """Values are normalised per head, without weights."""
    kv_layers: tuple[int | None, ...] = ()
    """Per layer, the earlier one whose keys and values it reads; None: its own. Empty: all None."""
    shared_width: int = 1
    """The MLP of a layer that reads another's keys and values is so many times as wide."""
    layer_inputs: LayerInputSpec | None = None
    has_layer_scale: bool = False
    """What a layer gives is multiplied by a number of its own."""
    ties_embeddings: bool = False
    """The output projection is the embedding matrix."""
    has_head: bool = True
    """Whether there is an output projection: a model that embeds or scores texts has none, and ties nothing."""
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    """Of the attention's output projection."""
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    """Queries and keys are normalised per head before the rotary embedding."""
    has_output_gate: bool = False
    """Queries bring a gate of their size, which attention's result passes."""
    norm_offset: float = 0.0
    """Added to the weights of all norms but a Gated DeltaNet's."""
    has_post_norms: bool = False
    """What attention and MLP give is normalised before it is added, as in Gemma 2."""
    activation: Activation = "silu"
    """Of the gates of MLPs."""
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    """Multiplies every product of a query and a key; None: one over the root of the head size."""
    soft_cap: float | None = None
    """Of attention's scores."""
    has_sinks: bool = False
    """Each head has a score that takes weight and gives no value."""
    logit_cap: float | None = None
    """Logits x become cap * tanh(x / cap)."""
    latent: LatentSpec | None = None
    """In place of the attention that the numbers of heads describe."""
    delta: DeltaSpec | None = None
    mixture: MixtureSpec | None = None
    windows: tuple[int | None, ...] = ()
    """Per layer: a token sees this many tokens including itself; None: all before it."""
    eos_token_ids: tuple[int, ...] = ()
    checkpoint_dtype: str | None = None
    checkpoint_format: str = PLAIN
    """How linear layers are stored, a name of `weight_formats`."""
    beside: tuple[str, ...] = ()
    """How names begin of what checkpoints have beside the model, such as what guesses tokens ahead."""
    num_ranks: int = 1
    """Processes that share each layer."""

    def shared_by(self, num_ranks: int) -> DecoderSpec:
        """Return the model as one of so many ranks has it.

        Raises:
            ConfigurationError: they cannot share it; with what cannot be shared.
        """
        param = "tensor-parallel-size"
        if num_ranks > 1 and self.delta is not None:
            raise ConfigurationError(
                f"{self.architecture} has layers with states, which ranks cannot share in this version",
                param=param,
                hint="Leave --tensor-parallel-size out.",
            )
        parts = {
            "attention heads": self.num_heads,
            "inner numbers of an MLP": self.intermediate_size,
        }
        if self.latent is None:
            for each in {self.heads(layer) for layer in range(self.num_layers)}:
                parts[f"key/value heads of {each.head_dim}"] = each.num_kv_heads
        if self.mixture is not None:
            parts["inner numbers of an expert"] = self.mixture.intermediate_size
            parts["inner numbers of shared experts"] = self.mixture.shared_size
        for name, size in parts.items():
            if size % num_ranks:
                raise ConfigurationError(
                    f"--tensor-parallel-size is {num_ranks}, which does not divide the {size} {name} "
                    f"of {self.architecture}",
                    param=param,
                    hint="Use a number that divides all of them.",
                )
        return replace(self, num_ranks=num_ranks)

    @property
    def shared_inputs(self) -> dict[str, int]:
        """Inputs of the matrices whose inputs ranks share, by what they are."""
        if self.latent is None:
            dims = {self.heads(layer).head_dim for layer in range(self.num_layers)}
        else:
            dims = {self.latent.value_dim}
        sizes = {
            f"numbers of {self.num_heads} heads of {dim}": self.num_heads * dim for dim in dims
        }
        mixed = self.mixture
        if mixed is None or len(mixed.layers) < self.num_layers:
            sizes["inner numbers of an MLP"] = self.intermediate_size
        if mixed is not None:
            sizes["inner numbers of an expert"] = mixed.intermediate_size
            sizes["inner numbers of shared experts"] = mixed.shared_size
        return sizes

    def ignores(self, name: str) -> bool:
        """Whether a checkpoint may have this tensor although nothing here needs it."""
        is_tied = name == "lm_head.weight" and self.ties_embeddings
        return is_tied or name.startswith((*self.beside, *self._unread()))

    def _unread(self) -> Iterator[str]:
        """Yield how names begin of what checkpoints have in layers that read another's keys and values."""
        for index, source in enumerate(self.kv_layers):
            if source is not None:
                for part in ("k_proj", "v_proj", "k_norm", "v_norm"):
                    yield f"model.layers.{index}.self_attn.{part}."

    def heads(self, layer: int) -> HeadsSpec:
        """Return the heads of one layer."""
        if self.latent is not None:
            return HeadsSpec(1, self.latent.turned_dim, self.rope)
        if self.window_heads is not None and self.windows[layer] is not None:
            return self.window_heads
        return HeadsSpec(self.num_kv_heads, self.head_dim, self.rope, self.has_values)

    def kv_layer(self, layer: int) -> int | None:
        """Return the earlier layer whose keys and values one reads; None: its own."""
        return self.kv_layers[layer] if self.kv_layers else None

    @property
    def attention_layers(self) -> tuple[CachedLayer, ...]:
        """What cache and attention backend of a rank must know, per layer."""
        num_heads = self.num_heads // self.num_ranks
        if self.latent is not None:
            return (self.latent.cached(num_heads),) * self.num_layers
        return tuple(
            StateLayer(4 * self.delta.state_numbers)  # float32
            if self.delta is not None and index in self.delta.layers
            else AttentionLayer(
                num_heads,
                self.heads(index).num_kv_heads // self.num_ranks,
                self.heads(index).head_dim,
                scale=self.attention_scale or self.heads(index).head_dim ** -0.5,
                reach=Reach(window),
                soft_cap=self.soft_cap,
                has_sinks=self.has_sinks,
                kv_layer=self.kv_layer(index),
            )
            for index, window in enumerate(self.windows)
        )
