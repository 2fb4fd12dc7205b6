"""How much text one token can stand for at most, where that can be proven.

With it a text that can never fit into the model is refused before any work is spent on it. The
bound holds only while no step of the tokenizer throws text away, so it is derived from what
tokenizer.json says and is absent for every step that is not known here: then nothing is refused
early. Called by `Tokenizer` once; knows nothing of limits or of HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_NORMALIZER_SHRINK: Final = {
    # The most bytes that become one byte. Longest: NFC joins Hangul (9 to 3) and Greek (8 to 3);
    # NFKC also turns a styled letter of 4 bytes into one. Lower case: the Kelvin sign (3 to 1).
    "NFC": 4.0,
    "NFD": 4.0,
    "NFKC": 16.0,
    "NFKD": 16.0,
    "Lowercase": 4.0,
    "ByteLevel": 1.0,
    "Prepend": 1.0,
}
_KEEPING_SPLITS: Final = frozenset(
    {"Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"}
)
_KEEPING_PRE_TOKENIZERS: Final = frozenset({"ByteLevel", "Metaspace", "Digits"})
_FIRST_BYTES: Final = 256


def most_bytes_per_token(state: Mapping[str, Any]) -> float | None:
    """Return how many bytes of UTF-8 one token stands for at most; None if nothing can be said.

    Args:
        state: the contents of tokenizer.json.
    """
    shrink = _shrink(state.get("normalizer"))
    added = state.get("added_tokens") or []
    swallows_blanks = any(each.get("lstrip") or each.get("rstrip") for each in added)
    model = state.get("model") or {}
    if shrink is None or swallows_blanks or not _keeps_all(state.get("pre_tokenizer")):
        return None
    vocabulary = model.get("vocab")
    if model.get("type") != "BPE" or not vocabulary or not _knows_all_bytes(state, vocabulary):
        return None
    words = [*vocabulary, *(each.get("content", "") for each in added)]
    return shrink * max(len(word.encode(errors="replace")) for word in words)


def _shrink(normalizer: Mapping[str, Any] | None) -> float | None:
    if normalizer is None:
        return 1.0
    kind = str(normalizer.get("type"))
    if kind == "Sequence":
        total = 1.0
        for step in normalizer.get("normalizers", ()):
            factor = _shrink(step)
            if factor is None:
                return None
            total *= factor
        return total
    if kind == "Replace":
        pattern = normalizer.get("pattern", {}).get("String")
        content = normalizer.get("content")
        if not pattern or not content:
            return None
        return max(1.0, len(pattern.encode()) / len(content.encode()))
    return _NORMALIZER_SHRINK.get(kind)


def _keeps_all(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    if pre_tokenizer is None:
        return True
    kind = pre_tokenizer.get("type")
    if kind == "Sequence":
        return all(_keeps_all(step) for step in pre_tokenizer.get("pretokenizers", ()))
    if kind == "Split":
        return pre_tokenizer.get("behavior") in _KEEPING_SPLITS
    return kind in _KEEPING_PRE_TOKENIZERS


def _knows_all_bytes(state: Mapping[str, Any], vocabulary: Mapping[str, int]) -> bool:
    """Say whether no character is unknown; unknown ones are dropped, or many become one token."""
    if state["model"].get("byte_fallback"):
        return all(f"<0x{byte:02X}>" in vocabulary for byte in range(_FIRST_BYTES))
    steps = [state.get("normalizer"), state.get("pre_tokenizer")]
    kinds: set[Any] = set()
    while steps:
        step = steps.pop() or {}
        kinds.add(step.get("type"))
        steps += [*step.get("normalizers", ()), *step.get("pretokenizers", ())]
    return "ByteLevel" in kinds and sum(len(word) == 1 for word in vocabulary) >= _FIRST_BYTES
