"""Writes the models that are measured: config, random weights, and a tokenizer made of letters.

    python -m benchmarks.cpu.models s DIRECTORY

A process of its own, so that the benchmark does not hold torch. What is there already is kept. Every token but the
256 bytes decodes to letters, so each of them is text that a server sends at once.
"""

from __future__ import annotations

import itertools
import json
import string
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SIZES = {"s": "135m", "m": "0.5b", "l": "1.1b", "tiny": "tiny"}
"""Names of models here, and in `random_models.SIZES` of the engine's benchmarks."""
END = "<|end|>"
_STAMP = "complete"


def config_of(name: str) -> dict[str, Any]:
    """Return the shape of a model as config.json has it."""
    sys.path.insert(0, str(ROOT / "engine-images/exo-engine/benchmarks"))
    from random_models import SIZES as CONFIGS

    config: dict[str, Any] = {**CONFIGS[SIZES[name]], "dtype": "bfloat16"}
    last = config["vocab_size"] - 1
    return {**config, "bos_token_id": last, "eos_token_id": last}


def ensure_model(name: str, directory: Path) -> None:
    """Write a model, unless the same is there; what was made of another one there is removed."""
    config = config_of(name)
    stamp = directory / _STAMP
    text = json.dumps(config, sort_keys=True)
    if stamp.exists() and stamp.read_text(encoding="utf-8") == text:
        return
    for old in (stamp, *directory.glob("*.gguf")):
        old.unlink(missing_ok=True)
    from random_models import write_model

    write_model(directory, config)
    write_tokenizer(directory, config["vocab_size"])
    stamp.write_text(text, encoding="utf-8")


def vocabulary(size: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Return so many tokens, 256 bytes first and `END` last, and the merges that make those between."""
    from tokenizers.pre_tokenizers import ByteLevel

    tokens, merges = sorted(ByteLevel.alphabet()), []
    for first, second in itertools.islice(_pairs(), size - len(tokens) - 1):
        tokens.append(first + second)
        merges.append((first, second))
    return [*tokens, END], merges


def _pairs() -> Iterator[tuple[str, str]]:
    """Yield what is merged: two letters, then words of one letter more with a letter."""
    for length in itertools.count(1):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            for last in string.ascii_lowercase:
                yield "".join(letters), last


def write_tokenizer(directory: Path, size: int) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, merges = vocabulary(size)
    tokenizer = Tokenizer(models.BPE({each: i for i, each in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "eos_token": END}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


if __name__ == "__main__":
    ensure_model(sys.argv[1], Path(sys.argv[2]))
