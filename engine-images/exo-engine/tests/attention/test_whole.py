"""A long text is attended in parts, between which the server sees that the engine gets on."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch
from exo_engine import pulse
from exo_engine.attention import whole
from exo_engine.attention.layer import AttentionLayer
from exo_engine.attention.whole import WholeAttention

LENGTHS = [30, 30, 7]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("pairs", [1, 2 * 30 * 30 * 4, 2**27])
def test_parts_give_what_all_heads_give_together(
    is_causal: bool, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    num_tokens = sum(LENGTHS)
    queries = torch.randn(num_tokens, 6, 16)
    keys, values = torch.randn(num_tokens, 2, 16), torch.randn(num_tokens, 2, 16)
    layer = AttentionLayer(6, 2, 16, scale=0.3)
    beat = Mock()
    monkeypatch.setattr(pulse.OWN, "beat", beat)
    monkeypatch.setattr(whole, "_MAX_PAIRS_AT_ONCE", pairs)
    attention = WholeAttention([layer], is_causal=is_causal)
    attention.begin_whole(LENGTHS)
    found = attention.attend(0, queries, keys, values)
    assert beat.call_count == {1: 12, 2 * 30 * 30 * 4: 3, 2**27: 2}[pairs]
    expected, row = [], 0
    for length in LENGTHS:
        rows = slice(row, row + length)
        scores = torch.einsum("qhd,khd->hqk", queries[rows], keys[rows].repeat_interleave(3, dim=1))
        if is_causal:
            scores.masked_fill_(torch.ones(length, length).triu(1).bool(), -torch.inf)
        weights = (0.3 * scores).softmax(dim=-1)
        expected.append(
            torch.einsum("hqk,khd->qhd", weights, values[rows].repeat_interleave(3, dim=1))
        )
        row += length
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-4, atol=1e-5)
