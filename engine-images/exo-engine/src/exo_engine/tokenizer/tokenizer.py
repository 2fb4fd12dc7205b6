"""One model's tokenizer: tokenizer.json with what the files beside it say about special tokens.

Reads tokenizer.json (by the `tokenizers` library), tokenizer_config.json, special_tokens_map.json,
config.json and generation_config.json once; afterwards it only computes. Thread-safe, as the HTTP
side encodes long prompts in worker threads. Slow or custom tokenizers are refused, not emulated.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import tokenizers

from exo_engine.errors import ModelUnusable
from exo_engine.foreign_files import (
    MAX_TOKENIZER_BYTES,
    MissingFile,
    parse_object,
    read_regular,
    shown,
)
from exo_engine.tokenizer.decoding_bound import check_texts
from exo_engine.tokenizer.detokenizer import ByteLevelDetokenizer, Detokenizer, WindowDetokenizer
from exo_engine.tokenizer.size_bound import most_bytes_per_token
from exo_engine.tokenizer.wrapping import Wrapping, check_wrapping, wrapping_of

_SPECIAL_NAMES: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_OWN: Final = frozenset({"9d716a944f1e1797702e9022a15d19041d7ee426fbe4fb9454dc25eb310d40f3"})
"""SHA-256 of the tokenizer.json of `exo/tiny-chat` and `exo/tiny-draft`."""
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """Text to token ids and back for one model."""

    def __init__(self, tokenizer_dir: Path, *, model_dir: Path | None = None) -> None:
        """Read the tokenizer.

        Args:
            tokenizer_dir: where tokenizer.json lies.
            model_dir: where config.json and generation_config.json lie, if elsewhere.

        Raises:
            ModelUnusable: a file is missing or cannot be read.
        """
        model_dir = model_dir or tokenizer_dir
        path = tokenizer_dir / "tokenizer.json"
        data = _read(path)
        self.fingerprint = hashlib.sha256(data).hexdigest()
        """Of tokenizer.json."""
        self._backend = _load_backend(path, data)
        state = parse_object(data, path)
        self._path, self._post_processor = path, state.get("post_processor")
        check_texts(state, path)
        self.config: Mapping[str, Any] = read_json(tokenizer_dir / "tokenizer_config.json")
        legacy_map = read_json(tokenizer_dir / "special_tokens_map.json")
        self.special_tokens = _special_tokens(self.config, legacy_map)
        """Names such as `bos_token` to the token's text, as chat templates see them."""
        added = self._backend.get_added_tokens_decoder()
        self._special_ids = frozenset(key for key, token in added.items() if token.special)
        self.eos_token_ids = self._find_eos_ids(
            read_json(model_dir / "generation_config.json"), read_json(model_dir / "config.json")
        )
        """Tokens that end an answer, in the order in which the files name them."""
        decoder = json.loads(self._backend.decoder.__getstate__()) if self._backend.decoder else {}
        steps = [step["type"] for step in decoder.get("decoders", [decoder]) if "type" in step]
        self._is_byte_level = steps == ["ByteLevel"]
        self._has_byte_fallback = "ByteFallback" in steps
        self._bytes_by_id: dict[int, bytes] = {}
        self.most_bytes_per_token = most_bytes_per_token(state)
        """Bytes of text that one token stands for at most; None where nothing can be said."""

    @cached_property
    def wrapping(self) -> Wrapping:
        """What it puts around one text, and between two; in the API process, so that it is bounded first.

        Raises:
            ModelUnusable: it is more than any tokenizer in use puts there.
        """
        check_wrapping(self._post_processor, self._path)
        return wrapping_of(self._backend)

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids, added tokens included."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the token ids of `text`; with BOS or the like if the model wants it and asked."""
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_all(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Return the token ids of each text; other threads go on meanwhile.

        Of the library's calls, those for a batch release the interpreter; `encode` holds it.
        """
        encodings = self._backend.encode_batch_fast(
            list(texts), add_special_tokens=add_special_tokens
        )
        return [each.ids for each in encodings]

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool) -> str:
        """Return the text of all tokens at once."""
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """Return a fresh streaming decoder for one answer."""
        kind = ByteLevelDetokenizer if self._is_byte_level else WindowDetokenizer
        return kind(self, skip_special_tokens=skip_special_tokens)

    def token_id(self, text: str) -> int | None:
        """Return the id of the token that is written exactly so, if there is one."""
        return self._backend.token_to_id(text)

    def token_text(self, token_id: int) -> str:
        """Return one token as readable text, with a mark where its bytes are half a character."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for, by itself; nothing for an unknown id."""
        found = self._bytes_by_id.get(token_id)
        if found is None:
            found = self._bytes_by_id[token_id] = self._find_bytes(token_id)
        return found

    def is_special(self, token_id: int) -> bool:
        """Say whether a token is left out of text shown to people."""
        return token_id in self._special_ids

    def is_byte_fallback(self, token_id: int) -> bool:
        """Say whether a token stands for one raw byte of a character outside the vocabulary."""
        if not self._has_byte_fallback:
            return False
        return _BYTE_TOKEN.fullmatch(self._backend.id_to_token(token_id) or "") is not None

    def _find_bytes(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            values = [_BYTE_OF_CHARACTER.get(character) for character in token]
            # A token with any other character is text as it stands (most added tokens are).
            known = [value for value in values if value is not None]
            return bytes(known) if len(known) == len(values) else token.encode()
        byte = _BYTE_TOKEN.fullmatch(token) if self._has_byte_fallback else None
        return bytes([int(byte[1], 16)]) if byte else token.replace("\u2581", " ").encode()

    def _find_eos_ids(self, *configs: Mapping[str, Any]) -> tuple[int, ...]:
        found: list[int] = []
        for config in configs:
            value = config.get("eos_token_id")
            if value is None and isinstance(config.get("text_config"), dict):
                value = config["text_config"].get("eos_token_id")
            found += [each for each in _as_list(value) if isinstance(each, int)]
        by_name = self._backend.token_to_id(self.special_tokens.get("eos_token", ""))
        if by_name is not None:
            found.append(by_name)
        return tuple(dict.fromkeys(found))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from one of the model's files; an absent file is an empty object.

    Raises:
        ModelUnusable: the file is there, but is not a JSON object.
    """
    try:
        return parse_object(read_regular(path, MAX_TOKENIZER_BYTES), path)
    except MissingFile:
        return {}


def is_own(tokenizer_dir: Path) -> bool:
    """Say whether tokenizer.json is one that comes with this project, by its content."""
    return hashlib.sha256(_read(tokenizer_dir / "tokenizer.json")).hexdigest() in _OWN


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, MAX_TOKENIZER_BYTES)
    except MissingFile as exc:
        raise ModelUnusable(
            f"cannot load the tokenizer: there is no {path}",
            hint="Models with a tokenizer.model only must be converted: load the tokenizer with "
            "transformers and save it again.",
        ) from exc


def _load_backend(path: Path, data: bytes) -> tokenizers.Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_buffer(data)
        # Some damage shows only in use: the library panics then, which no request may meet.
        backend.decode(backend.encode("a", add_special_tokens=True).ids)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as exc:  # bare Exception for every kind of bad file, a panic for some
        raise ModelUnusable(
            f"cannot load the tokenizer {path}: {shown(exc)}", hint="Download the model again."
        ) from exc
    backend.no_truncation()
    backend.no_padding()
    return backend


def _special_tokens(*configs: Mapping[str, Any]) -> dict[str, str]:
    """Collect named special tokens; earlier files win, a token is a string or {"content": ...}."""
    found: dict[str, str] = {}
    for config in configs:
        for name in _SPECIAL_NAMES:
            value = config.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str) and name not in found:
                found[name] = _checked_text(name, text)
    return found


def _checked_text(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise ModelUnusable(
            f"cannot use the tokenizer's {name}: {shown(text)} holds half of a surrogate pair",
            hint="Download the model again.",
        ) from exc
    return text


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's printable stand-in for each byte, inverted.

    Bytes that are printable in Latin-1 stand for themselves; the others take the characters from
    U+0100 on, in order. Source: bytes_to_unicode in github.com/openai/gpt-2, src/encoder.py.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHARACTER: Final = _byte_alphabet()
