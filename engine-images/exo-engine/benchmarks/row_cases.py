"""What is computed row by row on a GPU, held equal to float64: norms, gates, one row's products, heads and states.

Used by the tests, under Triton's interpreter, and by `gpu_check.py` on a GPU, as `product_cases.py`.
"""

from __future__ import annotations

import itertools
import random

import torch
import torch.nn.functional as F  # noqa: N812
from attention_cases import Poisoned
from exo_engine.kernels.triton import fixed, pointwise, states
from exo_engine.kernels.triton.matmul import multiply_row
from product_cases import rounding
from torch import Tensor


def check_norm(device: torch.device, seed: int) -> None:
    """Fail where rows, with updates or without, are not normalised as in float64."""
    numbers, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype = numbers.choice((torch.float32, torch.bfloat16, torch.float16))
    shape = numbers.randint(1, 9), numbers.choice((20, 128, 1000, 5120))
    rows, weight = (
        torch.randn(each, generator=generator).to(device, dtype) for each in (shape, shape[1:])
    )
    has_weight = numbers.random() < 0.5
    if has_weight and numbers.random() < 0.5:
        updates = torch.randn(shape, generator=generator).to(device, dtype)
        expected = rows + updates
        with Poisoned():
            rows, found = pointwise.add_and_normalise(rows, updates, weight, 1e-5)
        # The interpreter cuts bfloat16 off where a GPU rounds.
        off = 0.0 if device.type == "cuda" else float(expected.abs().max()) * rounding(dtype)
        torch.testing.assert_close(rows, expected, rtol=0.0, atol=off)
    else:
        with Poisoned():
            found = pointwise.normalise(rows, weight if has_weight else None, 1e-5)
    squares = rows.double().square().mean(dim=1, keepdim=True)
    expected = rows.double() / (squares + 1e-5).sqrt() * (weight.double() if has_weight else 1.0)
    most = float(expected.abs().max()) * rounding(dtype)
    torch.testing.assert_close(found.double(), expected, rtol=0.0, atol=most)


def check_gate(device: torch.device, seed: int) -> None:
    """Fail where rows are not gated as in float64."""
    numbers, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype = numbers.choice((torch.float32, torch.bfloat16, torch.float16))
    shape = numbers.randint(1, 9), 2 * numbers.choice((20, 128, 1000, 2500))
    merged = (3 * torch.randn(shape, generator=generator)).to(device, dtype)
    is_silu = numbers.random() < 0.5
    with Poisoned():
        found = pointwise.gate(merged, is_silu=is_silu)
    gates, values = merged.double().chunk(2, dim=1)
    activated = F.silu(gates) if is_silu else F.gelu(gates, approximate="tanh")
    expected = activated * values
    most = float(expected.abs().max()) * rounding(dtype)
    torch.testing.assert_close(found.double(), expected, rtol=0.0, atol=most)


def check_row(device: torch.device, seed: int) -> None:
    """Fail where the product of one row, gated or not, is not that of float64."""
    numbers, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype = numbers.choice((torch.bfloat16, torch.float16))
    num_inputs, num_outputs = numbers.choice((20, 1000, 1024, 3000)), numbers.choice((6, 200, 517))
    gates = numbers.choice((None, "silu", "gelu_tanh"))
    rows = num_outputs * (1 if gates is None else 2)
    weights = torch.randn(rows, num_inputs, generator=generator).to(device, dtype)
    inputs = torch.randn(1, num_inputs, generator=generator).to(device, dtype) / num_inputs**0.5
    bias = None
    if gates is None and numbers.random() < 0.5:
        bias = torch.randn(num_outputs, generator=generator).to(device, dtype)
    with Poisoned():
        found = multiply_row(weights, inputs, bias, gates)
    expected = inputs.double() @ weights.double().T
    if bias is not None:
        expected += bias.double()
    if gates is not None:
        gate, values = expected.chunk(2, dim=1)
        expected = (F.silu(gate) if gates == "silu" else F.gelu(gate, approximate="tanh")) * values
    most = float(expected.abs().max()) * rounding(dtype)
    torch.testing.assert_close(found.double(), expected, rtol=0.0, atol=most)


def check_heads(device: torch.device, seed: int) -> None:
    """Fail where heads times their own matrices, as of latent attention, are not right, or depend on the rows beside."""
    numbers, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype = numbers.choice((torch.float32, torch.bfloat16, torch.float16))
    rows, heads = numbers.choice((1, 17, fixed.HEAD_ROWS + 6, 200)), numbers.choice((1, 3, 16))
    size, num_outputs = (numbers.choice((20, 70, 128, 512)) for _ in range(2))
    around = torch.full(
        (rows, heads, size + 20), torch.nan
    )  # inputs are a part of each head's numbers
    around[..., :size] = torch.randn(rows, heads, size, generator=generator)
    inputs = around.to(device, dtype)[..., :size]
    is_across = numbers.random() < 0.5  # matrices lie either way
    shape = (heads, num_outputs, size) if is_across else (heads, size, num_outputs)
    weights = torch.randn(shape, generator=generator).to(device, dtype)
    weights = weights.transpose(1, 2) if is_across else weights
    with Poisoned():
        found = fixed.multiply_heads(inputs, weights)
    expected = torch.einsum("thk,hkn->thn", inputs.double(), weights.double())
    most = float(expected.abs().max()) * rounding(dtype)
    torch.testing.assert_close(found.double(), expected, rtol=0.0, atol=most)
    if device.type == "cuda":  # a processor's own products have an order for each shape
        first = numbers.randrange(rows)
        own = slice(first, first + numbers.choice((1, 17)))
        assert torch.equal(fixed.multiply_heads(inputs[own], weights), found[own]), f"bits of {own}"


def check_states(device: torch.device, seed: int) -> None:
    """Fail where states are not moved on as in float64."""
    numbers, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    key_dim, value_dim = numbers.choice(((128, 128), (20, 40), (8, 6)))
    key_heads, repeats = numbers.randint(1, 2), numbers.randint(1, 2)
    heads = key_heads * repeats
    lengths = [numbers.randint(1, 9) for _ in range(numbers.randint(1, 3))]
    starts = torch.tensor([0, *lengths]).cumsum(0)
    total = sum(lengths)

    def random_numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    mixed = random_numbers(total, 2 * key_heads * key_dim + heads * value_dim)
    log_decays, rates = -random_numbers(total, heads).abs(), random_numbers(total, heads).sigmoid()
    before = random_numbers(len(lengths), heads, key_dim, value_dim)
    with Poisoned():
        found = states.move(mixed, log_decays, rates, before, starts.int().to(device))
    split = [key_heads * key_dim, key_heads * key_dim, heads * value_dim]
    *pairs, values = (
        each.reshape(total, -1, size)
        for each, size in zip(
            mixed.double().split(split, dim=1), (key_dim, key_dim, value_dim), strict=True
        )
    )
    queries, keys = (
        (each * (each.square().sum(2, keepdim=True) + 1e-6).rsqrt()).repeat_interleave(repeats, 1)
        for each in pairs
    )
    results, moved = torch.empty_like(values), before.double()
    for row, (start, stop) in enumerate(itertools.pairwise(starts.tolist())):
        for token in range(start, stop):
            state = moved[row] * log_decays[token].double().exp()[:, None, None]
            known = (keys[token].unsqueeze(1) @ state).squeeze(1)
            change = (values[token] - known) * rates[token].double()[:, None]
            moved[row] = state + keys[token].unsqueeze(2) * change.unsqueeze(1)
            results[token] = (queries[token].unsqueeze(1) @ moved[row]).squeeze(1)
    for own, expected in zip(found, (results * key_dim**-0.5, moved), strict=True):
        torch.testing.assert_close(own.double(), expected, rtol=0.0, atol=1e-4)
