"""Two small tokenizers of the kinds that models use, trained here on a few sentences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from exo_engine.tokenizer import Tokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = [
    "The quick brown fox jumps over the lazy dog, again and again.",
    "Ein Täßchen Kaffee kostet 3,50 € — naïve Größe, 日本語のテキスト, emoji 🙂🚀 end.",
    "def f(x):\n    return x + 1\n\n\tprint('hello')  # ok",
] * 3
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def _write(directory: Path, tokenizer: tokenizers.Tokenizer, config: dict[str, object]) -> Path:
    directory.mkdir()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="session")
def byte_level_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like Llama 3 and Qwen: BPE over bytes."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_tokens(["<tool>", "größe und"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"content": "<|im_end|>", "__type": "AddedToken"},
    }
    return _write(tmp_path_factory.mktemp("tokenizers") / "byte-level", tokenizer, config)


@pytest.fixture(scope="session")
def byte_fallback_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like Llama 2 and Mistral: SentencePiece's blanks, and raw bytes for unknown characters."""
    words = sorted({"\u2581" + word for line in TEXT for word in line.split() if word.isascii()})
    letters = sorted({letter for word in words for letter in word} | {"é", "日"})
    names = ["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    vocab = {name: index for index, name in enumerate(dict.fromkeys(names))}
    merges: list[tuple[str, str]] = []
    for word in words[:60]:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocab:
                vocab[word[:end]] = len(vocab)
                merges.append((word[: end - 1], word[end - 1]))
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.add_special_tokens(["<unk>", *SPECIAL])
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    return _write(tmp_path_factory.mktemp("tokenizers") / "byte-fallback", tokenizer, config)


@pytest.fixture(params=["byte_level", "byte_fallback"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Both kinds, one after the other."""
    return Tokenizer(request.getfixturevalue(f"{request.param}_dir"))
