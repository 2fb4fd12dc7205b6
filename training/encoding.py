"""From text to ids: the byte-level BPE tokenizer, and labelled batches for training.

Used by `train.py`. Both models share the one tokenizer; every UTF-8 text can be encoded, since all
256 bytes are in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from training.dataset import Sample, Sampler
from training.shapes import END_ID, END_OF_TEXT_ID, SPECIAL_TOKENS, START_ID, VOCAB_SIZE

IGNORED = -100
"""Label of a position that the loss leaves out."""


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Train the tokenizer; the same texts give the same file."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[
            AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS
        ],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        [variant for text in texts for variant in (text, text.lower())], trainer
    )
    return tokenizer


@dataclass(frozen=True, slots=True)
class Encoded:
    """One sample as ids; `labels` is IGNORED where the model is not asked to predict."""

    ids: list[int]
    labels: list[int]


class Encoder:
    """Encodes samples, remembering the pieces that come back often."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[str, list[int]] = {}

    def encode(self, sample: Sample) -> Encoded:
        """Encode a conversation, or prose; of a conversation only the assistant's tokens count."""
        if sample.prose:
            ids = [*self._piece(sample.prose), END_OF_TEXT_ID]
            return Encoded(ids, list(ids))
        ids, labels = [], []
        newline = self._piece("\n")
        for message in sample.messages:
            head = [START_ID, *self._piece(message["role"]), *newline]
            body = [*self._piece(message["content"]), END_ID]
            ids += head + body + newline
            learned = body if message["role"] == "assistant" else [IGNORED] * len(body)
            labels += [IGNORED] * len(head) + learned + [IGNORED] * len(newline)
        return Encoded(ids, labels)

    def _piece(self, text: str) -> list[int]:
        if text not in self._pieces:
            self._pieces[text] = self._tokenizer.encode(text).ids
        return self._pieces[text]


def batches(
    sampler: Sampler, encoder: Encoder, *, batch_tokens: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches for ever, always the same ones; samples of like length share a batch.

    Returns:
        ids     (B, T) int64, padded on the right with END_OF_TEXT_ID
        labels  (B, T) int64, IGNORED where the loss leaves a position out
    """
    for number in count():
        encoded = sorted(
            (encoder.encode(s) for s in sampler.chunk(number)), key=lambda e: len(e.ids)
        )
        groups: list[list[Encoded]] = [[]]
        for item in encoded:
            if groups[-1] and (len(groups[-1]) + 1) * len(item.ids) > batch_tokens:
                groups.append([])
            groups[-1].append(item)
        order = torch.randperm(
            len(groups), generator=torch.Generator().manual_seed(seed * 100_003 + number)
        )
        for index in order.tolist():
            yield _pad(groups[index])


def _pad(group: list[Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
    length = max(len(item.ids) for item in group)
    ids = torch.full((len(group), length), END_OF_TEXT_ID)
    labels = torch.full((len(group), length), IGNORED)
    for row, item in enumerate(group):
        ids[row, : len(item.ids)] = torch.tensor(item.ids)
        labels[row, : len(item.labels)] = torch.tensor(item.labels)
    return ids, labels
