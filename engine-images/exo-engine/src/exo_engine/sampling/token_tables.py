"""What single requests ask of single tokens, kept for all slots at once.

`SamplingState` owns one of each: `TokenEntries` (on the host, few entries), `SeenTokens`, `TokenMasks`
and `BadWords` (on the device). Only slots that ask have rows in the tables.

Legend: S slots, N rows of a step, V vocabulary, P slots that ask, K tokens listed, W words, L most
tokens before a word's last one.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exo_engine.kernels.uploads import to_device

Ints = NDArray[np.int64]
_Entries = tuple[Ints, NDArray[np.float64]]
_NO_ENTRIES: _Entries = np.empty(0, np.int64), np.empty(0, np.float64)
_WORD_BITS = 32
_ANY, _NONE = -1, -2
"""In a word that is shorter than the longest; before an answer's first token."""


class TokenEntries:
    """(slot, token id, value) for any number of tokens per slot; joined only when asked, not for each slot that comes."""

    def __init__(self) -> None:
        self._of_slot: dict[int, _Entries] = {}
        self._joined: tuple[Ints, _Entries] | None = None

    def add(self, slot: int, token_ids: Seq[int], values: Seq[float]) -> None:
        """Enter values for tokens of a slot."""
        before = self._of_slot.get(slot, _NO_ENTRIES)
        more = np.array(token_ids, np.int64), np.array(values, np.float64)
        self._of_slot[slot] = np.append(before[0], more[0]), np.append(before[1], more[1])
        self._joined = None

    def remove(self, slot: int) -> None:
        """Forget a slot's entries."""
        if self._of_slot.pop(slot, None) is not None:
            self._joined = None

    def of_rows(self, row_of_slot: Ints) -> tuple[Ints, Ints, NDArray[np.float64]]:
        """Return rows, token ids and values of the entries whose slots have a row.

        Args:
            row_of_slot: (S,), -1 for a slot that has none.
        """
        if self._joined is None:
            self._joined = self._join()
        slots, (token_ids, values) = self._joined
        rows = row_of_slot[slots]
        found = rows >= 0
        return rows[found], token_ids[found], values[found]

    def _join(self) -> tuple[Ints, _Entries]:
        token_ids, values = zip(_NO_ENTRIES, *self._of_slot.values(), strict=True)
        lengths = list(map(len, token_ids[1:]))
        slots = np.repeat(np.array(list(self._of_slot), np.int64), lengths)
        return slots, (np.concatenate(token_ids), np.concatenate(values))


class _Rows:
    """Which row of a table belongs to which slot; the table grows as rows are used."""

    def __init__(self, num_slots: int) -> None:
        self.of_slot = np.full(num_slots, -1, np.int64)
        self._free: list[int] = []
        self.num_rows = 0

    def take(self, slot: int) -> int:
        if not self._free:
            grown = max(1, 2 * self.num_rows)
            self._free = list(range(self.num_rows, grown))
            self.num_rows = grown
        self.of_slot[slot] = self._free.pop()
        return int(self.of_slot[slot])

    def give_back(self, slot: int) -> None:
        if self.of_slot[slot] >= 0:
            self._free.append(int(self.of_slot[slot]))
            self.of_slot[slot] = -1


def _grow(table: Tensor, num_rows: int) -> Tensor:
    """Return `table` with zeros after its rows, up to `num_rows`."""
    if len(table) >= num_rows:
        return table
    more = table.new_zeros((num_rows - len(table), *table.shape[1:]))
    return torch.cat([table, more])


class SeenTokens:
    """Which tokens the prompt has, and how often each came out, of slots with penalties.

    Beside tables over the vocabulary it keeps a list of tokens per slot, so that a step looks only at
    these. A list may name a token twice, and ends in zeros: whoever asks for a token gets its counts.
    """

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self._rows = _Rows(num_slots)
        self._counts = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
        self._in_prompt = torch.zeros((0, vocab_size), dtype=torch.bool, device=device)
        self._listed = torch.zeros((0, 1), dtype=torch.int64, device=device)
        self._num_listed = np.zeros(num_slots, np.int64)

    def add(self, slot: int, prompt_ids: Seq[int], output_ids: Seq[int]) -> None:
        """Begin to count for a slot."""
        row, device = self._rows.take(slot), self._counts.device
        for name in ("_counts", "_in_prompt", "_listed"):
            setattr(self, name, _grow(getattr(self, name), self._rows.num_rows))
            getattr(self, name)[row] = 0
        prompt = to_device(np.array(sorted(set(prompt_ids)), np.int64), device)
        outputs = to_device(np.array(tuple(output_ids), np.int64), device)
        length = len(prompt) + len(outputs)
        self._widen(length)
        self._in_prompt[row, prompt] = True
        self._count(torch.full_like(outputs, row), outputs)
        self._listed[row, :length] = torch.cat([prompt, outputs])
        self._num_listed[slot] = length

    def remove(self, slot: int) -> None:
        """Count for a slot no longer."""
        self._rows.give_back(slot)

    def append(self, slots: Ints, tokens: Tensor) -> None:
        """Count one token (N,) more of each slot that counts."""
        rows = self._rows.of_slot[slots]
        counting = np.flatnonzero(rows >= 0)
        if not len(counting):
            return
        ends = self._num_listed[slots[counting]]
        self._widen(int(ends.max()) + 1)
        self._num_listed[slots[counting]] += 1
        packed = to_device(np.stack([counting, rows[counting], ends]), tokens.device)
        tokens = tokens[packed[0]]
        self._count(packed[1], tokens)
        self._listed[packed[1], packed[2]] = tokens

    def rows(self, slots: Ints) -> Ints:
        """Return the row (N,) of each slot, -1 for one that does not count."""
        return self._rows.of_slot[slots]

    def of_rows(self, rows: Tensor, slots: Ints) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tokens seen by rows (P,), of slots (P,).

        Returns:
            Token ids, how often they came out, and whether they are in prompt or output: (P, K) each.
        """
        token_ids = self._listed[rows, : max(1, int(self._num_listed[slots].max()))]
        index = (rows.unsqueeze(1), token_ids)
        counts = self._counts[index]
        return token_ids, counts, self._in_prompt[index] | (counts > 0)

    def _count(self, rows: Tensor, tokens: Tensor) -> None:
        ones = torch.ones_like(tokens, dtype=torch.int32)
        self._counts.index_put_((rows, tokens), ones, accumulate=True)

    def _widen(self, length: int) -> None:
        width = self._listed.shape[1]
        if length > width:
            more = max(length, 2 * width) - width
            self._listed = torch.nn.functional.pad(self._listed, (0, more))


class TokenMasks:
    """A bit per token, set where it is allowed, of slots that allow only some."""

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self._rows = _Rows(num_slots)
        self._num_words = -(-vocab_size // _WORD_BITS)
        self._words = torch.zeros((0, self._num_words), dtype=torch.int32, device=device)

    def add(self, slot: int, token_ids: Seq[int]) -> None:
        """Allow a slot these tokens only."""
        row = self._rows.take(slot)
        self._words = _grow(self._words, self._rows.num_rows)
        self._words[row] = to_device(pack_bits(token_ids, self._num_words), self._words.device)

    def remove(self, slot: int) -> None:
        """Allow a slot everything again."""
        self._rows.give_back(slot)

    def rows(self, slots: Ints) -> Ints:
        """Return the row (N,) of each slot, -1 for one that is allowed everything."""
        return self._rows.of_slot[slots]

    def of_rows(self, rows: Tensor) -> Tensor:
        """Return the words (P, ceil(V / 32)) of rows."""
        return self._words[rows]


def pack_bits(token_ids: Seq[int], num_words: int) -> NDArray[np.int32]:
    """Return words (num_words,) with a bit set for each token, the lowest bit first."""
    is_set = np.zeros(num_words * _WORD_BITS, np.uint8)
    is_set[np.array(token_ids, np.int64)] = 1
    return np.packbits(is_set, bitorder="little").view("<i4").astype(np.int32)


def unpack_bits(words: Tensor, vocab_size: int) -> Tensor:
    """Return whether each token's bit is set: (N, W) int32 to (N, V) bool."""
    if words.device.type == "cpu":
        bytes_ = words.contiguous().numpy().view(np.uint8)
        unpacked = np.unpackbits(bytes_, axis=1, count=vocab_size, bitorder="little")
        return torch.from_numpy(unpacked.view(np.bool_))
    shifts = torch.arange(_WORD_BITS, dtype=torch.int32, device=words.device)
    bits = (words.unsqueeze(-1) >> shifts) & 1
    return bits.flatten(1)[:, :vocab_size].bool()


class _WordTable:
    """Words of about the same length, of all slots; joined only when they are asked for, not for each slot that comes.

    Args:
        width: L, tokens before the last one; shorter words are padded in front.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._of_slot: dict[int, Ints] = {}  # (W, L + 1)
        self._joined: tuple[Ints, Ints] | None = None

    def add(self, slot: int, words: Seq[Seq[int]]) -> None:
        length = self._width + 1
        padded = [(_ANY,) * (length - len(word)) + tuple(word) for word in words]
        self._of_slot[slot], self._joined = np.array(padded, np.int64), None

    def remove(self, slot: int) -> None:
        if self._of_slot.pop(slot, None) is not None:
            self._joined = None

    def joined(self) -> tuple[Ints, Ints]:
        """Return the slots (W,) and the words (W, L + 1)."""
        if self._joined is None:
            tables = list(self._of_slot.values())
            slots = np.repeat(np.array(list(self._of_slot), np.int64), list(map(len, tables)))
            empty = np.empty((0, self._width + 1), np.int64)
            self._joined = slots, np.concatenate([empty, *tables])
        return self._joined


class BadWords:
    """Words of several tokens, of which the last may not follow the others; per slot.

    Words are kept with others of about their length, so that a long one makes none of the others longer.
    """

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self._tables: dict[int, _WordTable] = {}  # by L, powers of two
        self._slots: set[int] = set()
        self._ends = torch.full((num_slots, 0), _NONE, device=device)  # (S, L), of the answers

    def add(self, slot: int, words: Seq[Seq[int]], output_ids: Seq[int]) -> None:
        """Forbid a slot words of at least two tokens."""
        by_width: dict[int, list[Seq[int]]] = {}
        for word in words:
            by_width.setdefault(1 << (len(word) - 2).bit_length(), []).append(word)
        for width, alike in by_width.items():
            self._tables.setdefault(width, _WordTable(width)).add(slot, alike)
        self._slots.add(slot)
        self._widen(max(by_width))
        width = self._ends.shape[1]
        end = ((_NONE,) * width + tuple(output_ids))[-width:]
        self._ends[slot] = to_device(np.array(end, np.int64), self._ends.device)

    def remove(self, slot: int) -> None:
        """Allow a slot all words again."""
        if slot in self._slots:
            self._slots.remove(slot)
            for table in self._tables.values():
                table.remove(slot)

    def append(self, slots: Ints, tokens: Tensor) -> None:
        """Remember one token (N,) more of each slot."""
        if self._slots:
            index = to_device(slots, tokens.device)
            self._ends[index] = torch.cat([self._ends[index, 1:], tokens.unsqueeze(1)], dim=1)

    def of_rows(self, row_of_slot: Ints) -> list[tuple[Ints, Ints, Ints, Ints]]:
        """Return row, slot, beginning (W, L) and last token of each word whose slot has a row; an entry for each L."""
        by_length = []
        for table in self._tables.values():
            slots, words = table.joined()
            rows = row_of_slot[slots]
            found = rows >= 0
            if found.any():
                chosen = words[found]
                by_length.append((rows[found], slots[found], chosen[:, :-1], chosen[:, -1]))
        return by_length

    def has_begun(self, slots: Tensor, beginnings: Tensor) -> Tensor:
        """Return whether each slot's answer ends with the beginning (W, L) beside it: (W,) bool."""
        ends = self._ends[:, self._ends.shape[1] - beginnings.shape[1] :][slots]
        return ((beginnings == _ANY) | (beginnings == ends)).all(dim=1)

    def _widen(self, width: int) -> None:
        more = width - self._ends.shape[1]
        if more > 0:
            # What came out before is not needed by the shorter words that are there.
            filler = self._ends.new_full((len(self._ends), more), _NONE)
            self._ends = torch.cat([filler, self._ends], dim=1)
