"""What a model that embeds or scores is, as far as computing it goes. No torch here.

`config_file` reads it; `encoder` and `model` compute it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from exo_engine.attention.layer import AttentionLayer
from exo_engine.models.spec import DecoderSpec
from exo_engine.weight_formats import PLAIN

EncoderActivation = Literal["gelu", "gelu_tanh", "relu"]
PoolingMethod = Literal["last", "mean", "cls"]
"""The last token's state, the mean of all, or the first one's."""
PoolingTask = Literal["embed", "score", "classify"]

# Of a classifier's or a language model's checkpoint, what a text's vector does not need; and a buffer.
_LEFT_OUT = ("pooler.", "embeddings.position_ids", "embeddings.token_type_ids", "cls.", "lm_head.")


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """An encoder of BERT's shape: all tokens see each other, norms follow, positions are a table."""

    architecture: str
    """As in config.json, such as `BertModel`."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    norm_eps: float
    num_positions: int
    """Rows of the table of positions."""
    first_position: int = 0
    """The row of a text's first token; RoBERTa's are those behind its padding's."""
    num_types: int = 2
    """Of texts: the first and the second of a pair."""
    activation: EncoderActivation = "gelu"
    prefix: str = ""
    """What the names of the encoder's tensors begin with."""
    checkpoint_dtype: str | None = None
    checkpoint_format: str = PLAIN

    @property
    def max_position_embeddings(self) -> int:
        """Tokens of the longest text."""
        return self.num_positions - self.first_position

    @property
    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        """What attention must know, per layer."""
        head_dim = self.hidden_size // self.num_heads
        layer = AttentionLayer(self.num_heads, self.num_heads, head_dim, scale=head_dim**-0.5)
        return (layer,) * self.num_layers

    def ignores(self, name: str) -> bool:
        """Whether a checkpoint may have this tensor although nothing here needs it."""
        return name.removeprefix(self.prefix).startswith(_LEFT_OUT)


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """From a text's vector to its score, or to one number per label."""

    output: str
    """Name of the last linear layer."""
    inner: str | None = None
    """Name of a linear layer before it, behind which is tanh."""
    has_bias: bool = True
    num_labels: int = 1


@dataclass(frozen=True, slots=True)
class PoolingSpec:
    """A body, and what makes a vector or a score of its tokens' states."""

    body: EncoderSpec | DecoderSpec
    method: PoolingMethod
    is_activated: bool
    """Unless a request says otherwise: vectors have length 1, scores pass a sigmoid or a softmax."""
    max_length: int
    """Tokens of the longest text, where nobody asks for less."""
    head: HeadSpec | None = None
    """Of a model that scores; None: it embeds."""
    dimensions: tuple[int, ...] | None = None
    """To which a vector may be cut; None: to any."""
    lowers_case: bool = False
    """Texts are to be made lower case before they are tokenized."""
    labels: tuple[str, ...] = ()
    """Of a model with a head: a score has one, a classifier several."""
    is_exclusive: bool = False
    """A text has one of the labels: their numbers pass a softmax in place of a sigmoid each."""

    @property
    def architecture(self) -> str:
        """As in config.json, or of the decoder that it is."""
        return self.body.architecture

    @property
    def vocab_size(self) -> int:
        """Token ids are below."""
        return self.body.vocab_size

    @property
    def task(self) -> PoolingTask:
        """What it is for."""
        if self.head is None:
            return "embed"
        return "score" if self.head.num_labels == 1 else "classify"

    @property
    def num_dimensions(self) -> int:
        """Of a vector, or how many labels there are."""
        return self.body.hidden_size if self.head is None else self.head.num_labels

    def ignores(self, name: str) -> bool:
        """See `EncoderSpec.ignores`."""
        return self.body.ignores(name)
