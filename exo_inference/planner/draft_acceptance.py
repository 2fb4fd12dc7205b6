"""What speculative decoding does to a decode step: tokens expected of it, and the work of drafting.

`speculation.py` says what drafts, `speed/estimate.py` adds the times up. How often a drafted token is accepted depends
on text, temperature and draft; nothing in a config tells it. The rates below are stated assumptions with
wide bands, never measurements of the model at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The share of drafted tokens that the model accepts, each after all before it were."""

    rate: float
    low: float
    high: float
    source: str


NGRAM, DRAFT_MODEL, EAGLE, MTP = "n-gram", "draft model", "EAGLE", "MTP"

ACCEPTANCE: Mapping[str, Acceptance] = {
    NGRAM: Acceptance(
        0.2, 0.05, 0.8,
        "bigrams of Leviathan et al. 2023, table 3: 0.2 in translation, 0.05 in dialogue; text that is copied "
        "from the prompt is accepted far more often",
    ),
    DRAFT_MODEL: Acceptance(
        0.7, 0.5, 0.85, "Leviathan et al. 2023, table 3: 0.53 to 0.82 for drafts 10 to 150 times smaller",
    ),
    EAGLE: Acceptance(
        0.7, 0.5, 0.8,
        "EAGLE-3 (arXiv 2503.01840, acceptance on MT-bench); lower on long reasoning",
    ),
    MTP: Acceptance(
        0.8, 0.6, 0.9, "DeepSeek-V3 (arXiv 2412.19437 section 5.4.3): 0.85 to 0.9 for one drafted token",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Drafting:
    """How one step drafts.

    Attributes:
        method: a key of `ACCEPTANCE`.
        num_tokens: drafted tokens per sequence and step; each takes a pass, except for n-grams.
        read_bytes: dense weights that a pass reads on one GPU.
        expert_bytes: weights of routed experts, of which it reads those that are chosen.
        num_parameters: parameters that a drafted token passes through.
        kv_bytes_per_token: of the draft's own cache on one GPU.
        num_layers: decoder layers of the draft.
    """

    method: str
    num_tokens: int
    read_bytes: float = 0.0
    expert_bytes: float = 0.0
    num_parameters: float = 0.0
    kv_bytes_per_token: float = 0.0
    num_layers: int = 0

    @property
    def expected_tokens(self) -> float:
        """Tokens that a step comes to with the assumed acceptance."""
        return expected_tokens(ACCEPTANCE[self.method].rate, self.num_tokens)

    def describe(self) -> str:
        """Return the assumption in words, for notes."""
        assumed = ACCEPTANCE[self.method]
        low, high = (expected_tokens(each, self.num_tokens) for each in (assumed.low, assumed.high))
        return (
            f"speed with speculative decoding ({self.method}, {self.num_tokens} tokens): {assumed.rate:g} of the "
            f"drafted tokens are assumed accepted, which makes {self.expected_tokens:.2f} tokens per step; it depends "
            f"on the text: {low:.2f} to {high:.2f} with {assumed.low:g} to {assumed.high:g} ({assumed.source})"
        )


def expected_tokens(acceptance: float, num_tokens: int) -> float:
    """Return the tokens that one step yields, the model's own included.

    Leviathan et al. 2023 (arXiv 2211.17192), equation 1: (1 - a^(k+1)) / (1 - a).
    """
    return (1 - acceptance ** (num_tokens + 1)) / (1 - acceptance)
