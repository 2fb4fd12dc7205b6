"""What a caller may ask of sampling, checked once on construction.

Used by the server (which builds it from an OpenAI request), by `LLM` and by the engine core. It holds
token ids and numbers only: stop strings, `n`, detokenizing and templates belong to the server side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exo_engine.errors import InvalidSamplingParams

MAX_SEED = 2**64 - 1
MOST_TEMPERATURE = 1e6
REPETITION_PENALTIES = 0.01, 100.0
"""The least and the most. Far beyond what changes an answer, and logits divided by them stay in float32."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token of one request is chosen, and when the request ends."""

    temperature: float = 1.0
    """0 picks the most likely token (greedy); otherwise logits are divided by it."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probabilities reach this sum; 1 keeps all."""
    top_k: int = 0
    """Keep this many most likely tokens; 0 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than this fraction of the likeliest one; 0 drops none."""
    seed: int | None = None
    """The same seed and prompt give the same tokens, whatever else is running; None: unrepeatable."""
    max_tokens: int | None = None
    """Most tokens to generate; None: as many as the model length leaves room for."""
    min_tokens: int = 0
    """End-of-sequence and stop tokens are held back until this many tokens are out."""
    stop_token_ids: tuple[int, ...] = ()
    """Further tokens that end the request, beside the model's own end-of-sequence."""
    ignore_eos: bool = False
    """Go on after the model's end-of-sequence token."""
    logprobs: int | None = None
    """Report the chosen token's log-probability and this many of the likeliest; None: no report."""
    prompt_logprobs: int | None = None
    """The same for each prompt token but the first; None: no report."""
    presence_penalty: float = 0.0
    """Subtracted once from tokens already generated; -2 to 2."""
    frequency_penalty: float = 0.0
    """Subtracted per occurrence from tokens already generated; -2 to 2."""
    repetition_penalty: float = 1.0
    """Divides the logits of tokens in prompt or output; above 1 discourages repeating; `REPETITION_PENALTIES`."""
    logit_bias: Mapping[int, float] | None = None
    """Added to the logits of these token ids; -100 to 100."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Only these tokens may come; None: all."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token ids of words: the last one of a word may not follow the others in the answer."""
    structured_outputs: str | None = None
    """A grammar that the answer keeps to, as `structured_output.grammars` makes it; None: any text.

    End-of-sequence comes only where the grammar accepts, and the answer ends where nothing may follow."""

    def __post_init__(self) -> None:
        _require_range("temperature", self.temperature, 0.0, MOST_TEMPERATURE)
        _require(0.0 < self.top_p <= 1.0, "top_p", self.top_p, "in (0, 1]")
        _require(self.top_k >= 0, "top_k", self.top_k, "0 (off) or more")
        _require_range("min_p", self.min_p, 0.0, 1.0)
        _require_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _require_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _require_range("repetition_penalty", self.repetition_penalty, *REPETITION_PENALTIES)
        _require(self.min_tokens >= 0, "min_tokens", self.min_tokens, "0 or more")
        if self.max_tokens is not None:
            _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "1 or more")
            _require(
                self.min_tokens <= self.max_tokens,
                "min_tokens",
                self.min_tokens,
                f"at most max_tokens ({self.max_tokens})",
            )
        if self.seed is not None:
            _require(-(2**63) <= self.seed <= MAX_SEED, "seed", self.seed, "a 64-bit integer")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _require(value >= 0, name, value, "0 or more")
        for token_id, bias in (self.logit_bias or {}).items():
            _require(-100.0 <= bias <= 100.0, "logit_bias", {token_id: bias}, "from -100 to 100")
        _require(self.allowed_token_ids != (), "allowed_token_ids", "none", "a token id or more")
        _require(self.structured_outputs != "", "structured_outputs", "empty", "a grammar")
        _require(() not in self.bad_words, "bad_words", "a word without", "a token or more each")

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken without drawing."""
        return self.temperature == 0.0

    @property
    def uses_penalties(self) -> bool:
        """Whether the tokens seen so far change the logits."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )


def _require(is_valid: bool, name: str, value: object, expected: str) -> None:
    if not is_valid:
        raise InvalidSamplingParams(f"{name} must be {expected}, got {value}", param=name)


def _require_range(name: str, value: float, low: float, high: float) -> None:
    _require(low <= value <= high, name, value, f"from {low:g} to {high:g}")
