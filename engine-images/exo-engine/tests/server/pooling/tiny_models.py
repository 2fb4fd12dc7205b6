"""Tiny random models that embed or score, written to disk by `transformers`, and the same in `transformers`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import models, normalizers, pre_tokenizers, processors

WORDS = [f"w{index}" for index in range(90)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", *WORDS]
_ENCODER = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 130,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
_DECODER = {
    **_ENCODER,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_ROBERTA = {"type_vocab_size": 1, "pad_token_id": 1}
_ONE_LABEL = {"num_labels": 1}

# Name -> (transformers class, configuration over the common one, pooling that the files ask for).
EMBEDDERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert-cls": ("BertModel", {}, "cls"),
    "bert-mean": ("BertModel", {"hidden_act": "relu"}, "mean"),
    "bert-last": ("BertModel", {"hidden_act": "gelu_new"}, "lasttoken"),
    "roberta-mean": ("RobertaModel", _ROBERTA, "mean"),
    "xlm-roberta-cls": ("XLMRobertaModel", _ROBERTA, "cls"),
    "qwen3-last": ("Qwen3Model", {"head_dim": 16}, "lasttoken"),
    "qwen3-causal-last": ("Qwen3ForCausalLM", {"head_dim": 16}, "lasttoken"),
    "qwen2-windowed": (
        "Qwen2Model",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
        "lasttoken",
    ),
    "llama-mean": ("LlamaModel", {"tie_word_embeddings": True}, "mean"),
    "mistral-last": ("MistralModel", {"sliding_window": 13, "head_dim": 12}, "lasttoken"),
}
SCORERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForSequenceClassification", _ONE_LABEL),
    "roberta": ("RobertaForSequenceClassification", {**_ROBERTA, **_ONE_LABEL}),
    "xlm-roberta": ("XLMRobertaForSequenceClassification", {**_ROBERTA, **_ONE_LABEL}),
    "qwen3": ("Qwen3ForSequenceClassification", {"head_dim": 16, **_ONE_LABEL}),
}


@dataclass(frozen=True)
class TinyPooling:
    """A random model on disk, and the same in `transformers`."""

    path: Path
    oracle: Any
    method: str

    def states(self, token_ids: Sequence[int], second_from: int | None = None) -> torch.Tensor:
        """What `transformers` makes of one text's tokens: (T, E)."""
        options = self._types(token_ids, second_from)
        body = getattr(self.oracle, "model", self.oracle)
        return body(torch.tensor([token_ids]), **options).last_hidden_state[0]

    def vector(self, token_ids: Sequence[int]) -> torch.Tensor:
        """What sentence-transformers makes of these states, before normalisation."""
        states = self.states(token_ids)
        if self.method == "mean":
            return states.mean(dim=0)
        return states[0 if self.method == "cls" else -1]

    def logit(self, token_ids: Sequence[int], second_from: int | None = None) -> float:
        """What a classifier of `transformers` gives for its one label."""
        options = self._types(token_ids, second_from)
        return float(self.oracle(torch.tensor([token_ids]), **options).logits)

    def _types(self, token_ids: Sequence[int], second_from: int | None) -> dict[str, torch.Tensor]:
        if second_from is None:
            return {}
        types = [int(at >= second_from) for at in range(len(token_ids))]
        return {"token_type_ids": torch.tensor([types])}


def write_embedder(path: Path, name: str, *, normalizes: bool = True) -> TinyPooling:
    """Write one of `EMBEDDERS` with sentence-transformers' files."""
    kind, overrides, method = EMBEDDERS[name]
    oracle = _write(path, kind, overrides)
    modules = ["Transformer", "Pooling", *(["Normalize"] if normalizes else [])]
    listed = [
        {"idx": index, "name": str(index), "path": f"{index}_{each}" if index else "",
         "type": f"sentence_transformers.models.{each}"}
        for index, each in enumerate(modules)
    ]  # fmt: skip
    (path / "modules.json").write_text(json.dumps(listed))
    (path / "1_Pooling").mkdir()
    key = {"cls": "cls_token", "mean": "mean_tokens", "lasttoken": "lasttoken"}[method]
    modes = {
        f"pooling_mode_{each}": each == key
        for each in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    }
    settings = {"word_embedding_dimension": 48, **modes, "include_prompt": True}
    (path / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    return TinyPooling(path, oracle, method)


def write_scorer(path: Path, name: str, **config: Any) -> TinyPooling:
    """Write one of `SCORERS`."""
    kind, overrides = SCORERS[name]
    return TinyPooling(path, _write(path, kind, {**overrides, **config}), "cls")


def _write(path: Path, kind: str, overrides: dict[str, Any]) -> Any:
    import transformers  # by the process that runs the tests, not by each that collects them

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    family = (
        kind.removesuffix("ForSequenceClassification")
        .removesuffix("ForCausalLM")
        .removesuffix("Model")
    )
    common = _ENCODER if "ert" in family else _DECODER
    config = getattr(transformers, f"{family}Config")(**{**common, **overrides})
    torch.manual_seed(len(kind))
    oracle = getattr(transformers, kind)(config).eval()
    for name, parameter in oracle.named_parameters():
        # Fresh biases are zeros and norms are ones: make them matter.
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name.lower() else 0.0, std=0.3)
    oracle.save_pretrained(path)
    write_tokenizer(path, is_roberta="Roberta" in kind)
    return oracle


def write_tokenizer(path: Path, *, is_roberta: bool = False) -> tokenizers.Tokenizer:
    """Write a tokenizer of whole words, with BERT's marks or RoBERTa's around texts."""
    vocabulary = {word: index for index, word in enumerate(VOCABULARY)}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pair = "[CLS] $A [SEP] [SEP] $B [SEP]" if is_roberta else "[CLS] $A [SEP] $B:1 [SEP]:1"
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(path / "tokenizer.json"))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    (path / "tokenizer_config.json").write_text(json.dumps(names))
    return tokenizer
