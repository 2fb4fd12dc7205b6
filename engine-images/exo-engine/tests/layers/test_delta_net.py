"""Prompts in chunks move a Gated DeltaNet's state as its tokens one by one do."""

from __future__ import annotations

import pytest
import torch
from exo_engine.layers import delta_net


@pytest.mark.parametrize("num_tokens", [1, 2, 7, 8, 9, 30])
def test_a_chunk_is_its_tokens_one_after_another(num_tokens, monkeypatch):
    monkeypatch.setattr(delta_net, "_CHUNK", 8)
    torch.manual_seed(num_tokens)
    heads, key_dim, value_dim = 3, 4, 6
    queries, keys = (
        delta_net._normalise(torch.randn(num_tokens, heads, key_dim)) for _ in range(2)
    )
    values = torch.randn(num_tokens, heads, value_dim)
    log_decay, rates = -torch.rand(num_tokens, heads) * 3, torch.rand(num_tokens, heads)
    state = torch.randn(heads, key_dim, value_dim)
    inputs = (queries, keys, values, log_decay, rates)

    results, moved = delta_net._many_tokens(state, *inputs)

    expected, states = [], state.unsqueeze(0)
    for token in range(num_tokens):
        result, states = delta_net._one_token(states, *(each[token : token + 1] for each in inputs))
        expected.append(result[0])
    torch.testing.assert_close(results, torch.stack(expected), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(moved, states[0], rtol=1e-4, atol=1e-5)


def test_the_rule_is_the_papers():
    """S = a S + b k (v - a S k), written out for one head."""
    torch.manual_seed(0)
    state = torch.randn(1, 1, 4, 3)
    query, key, value = torch.randn(1, 1, 4), torch.randn(1, 1, 4), torch.randn(1, 1, 3)
    decay, rate = torch.tensor([[-0.5]]), torch.tensor([[0.25]])
    result, moved = delta_net._one_token(state, query, key, value, decay, rate)
    faded = state[0, 0] * decay.exp()
    expected = faded + 0.25 * torch.outer(key[0, 0], value[0, 0] - key[0, 0] @ faded)
    torch.testing.assert_close(moved[0, 0], expected)
    torch.testing.assert_close(result[0, 0], query[0, 0] @ expected)
