"""What lies between the products equals what torch computes step by step, rounded as often."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from exo_engine.attention.cache_plan import plan_cache
from exo_engine.attention.kv_cache import KVCache
from exo_engine.attention.kv_format import KV_FORMATS
from exo_engine.attention.layer import AttentionLayer
from exo_engine.kernels.library import Kernels
from exo_engine.kernels.pages import Pages
from exo_engine.kernels.pointwise import add_and_normalise, rotate_and_store, silu_and_multiply

BF16_STEP = 2**-7


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(5)


@pytest.mark.parametrize(("num_tokens", "size"), [(1, 576), (40, 896), (3, 70)])
def test_an_update_is_added_before_the_norm(kernels: Kernels, num_tokens: int, size: int) -> None:
    states, update = torch.randn(2, num_tokens, size).bfloat16()
    weight = torch.randn(size).bfloat16()
    added = states + update
    expected = F.rms_norm(added.double(), (size,), weight.double(), 1e-5)
    outputs = add_and_normalise(kernels, states, update, weight, 1e-5)
    assert torch.equal(states, added)
    torch.testing.assert_close(outputs.double(), expected, rtol=BF16_STEP, atol=1e-6)


def test_without_an_update_states_stay(kernels: Kernels) -> None:
    states = torch.randn(2, 64).bfloat16()
    before = states.clone()
    weight = torch.ones(64).bfloat16()
    outputs = add_and_normalise(kernels, states, None, weight, 0.0)
    assert torch.equal(states, before)
    torch.testing.assert_close(
        outputs.double(), F.rms_norm(before.double(), (64,)), rtol=BF16_STEP, atol=0
    )


@pytest.mark.parametrize(("num_tokens", "size"), [(1, 1536), (33, 200), (2, 7)])
def test_silu_and_product(kernels: Kernels, num_tokens: int, size: int) -> None:
    merged = (8 * torch.randn(num_tokens, 2 * size)).bfloat16()
    merged[0, 0], merged[0, 1] = 100.0, -100.0
    gate, up = merged.double().chunk(2, dim=1)
    outputs = silu_and_multiply(kernels, merged)
    torch.testing.assert_close(outputs.double(), F.silu(gate) * up, rtol=2 * BF16_STEP, atol=1e-6)


def make_pages(
    num_pages: int, num_kv_heads: int, head_dim: int, page_size: int, dtype: torch.dtype
) -> tuple[Pages, Pages]:
    shape = (num_kv_heads, head_dim, page_size)
    planes = torch.zeros(2, num_pages, Pages.num_bytes(*shape, dtype), dtype=torch.uint8)
    return Pages.keys_and_values(*planes, *shape, dtype)


@pytest.mark.parametrize("has_norms", [False, True], ids=["plain", "normalised heads"])
@pytest.mark.parametrize(("head_dim", "page_size"), [(64, 16), (80, 32), (16, 16)])
def test_heads_are_turned_and_stored(
    kernels: Kernels, head_dim: int, page_size: int, *, has_norms: bool
) -> None:
    num_tokens, num_heads, num_kv_heads, num_pages = 21, 6, 2, 5
    pages = make_pages(num_pages, num_kv_heads, head_dim, page_size, torch.bfloat16)
    keys, values = (each.numbers for each in pages)
    merged = torch.randn(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim).bfloat16()
    angles = torch.randn(50, head_dim // 2)
    positions = torch.randint(50, (num_tokens,), dtype=torch.int32)
    slots = torch.randperm(num_pages * page_size)[:num_tokens]
    norms = (torch.randn(head_dim).bfloat16(), torch.randn(head_dim).bfloat16())
    queries = rotate_and_store(
        kernels,
        merged,
        num_heads,
        *pages,
        angles.cos(),
        angles.sin(),
        positions,
        slots,
        norms=norms if has_norms else None,
        eps=1e-6,
    )
    heads = merged.view(num_tokens, -1, head_dim)
    plain = dict(
        zip(("queries", "keys"), heads.split((num_heads, num_kv_heads * 2), 1), strict=True)
    )
    plain["keys"], plain_values = plain["keys"].chunk(2, dim=1)
    turned = {}
    for weight, (name, states) in zip(norms, plain.items(), strict=True):
        states = states.double()
        if has_norms:
            states = F.rms_norm(states, (head_dim,), weight.double(), 1e-6).bfloat16().double()
        first, second = states.chunk(2, dim=-1)
        at = angles[positions.long()].double().unsqueeze(1)
        turned[name] = torch.cat(
            (first * at.cos() - second * at.sin(), second * at.cos() + first * at.sin()), dim=-1
        )
    tolerance = {"rtol": 2 * BF16_STEP, "atol": 0.03 if has_norms else 0.01}
    torch.testing.assert_close(queries.double(), turned["queries"], **tolerance)
    stored = keys.permute(0, 3, 1, 2, 4).reshape(-1, num_kv_heads, head_dim)
    torch.testing.assert_close(stored[slots].double(), turned["keys"], **tolerance)
    stored = values.permute(0, 2, 4, 1, 3).reshape(-1, num_kv_heads, head_dim)
    assert torch.equal(stored[slots], plain_values)
    untouched = torch.ones(num_pages * page_size, dtype=torch.bool).index_fill(0, slots, False)
    assert not stored[untouched].any()


def test_int8_pages_hold_what_the_cache_would_store(kernels: Kernels) -> None:
    """Codes and scales are those of `KVCache.encode`, for what pages of bf16 get."""
    num_tokens, num_heads, num_kv_heads, head_dim, page_size, num_pages = 25, 4, 2, 80, 16, 3
    merged = 3 * torch.randn(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim)
    merged[3], merged[4] = 0.0, 1e-20
    merged[5, ::7] = 3e38
    merged = merged.bfloat16()
    angles = torch.randn(num_tokens, head_dim // 2)
    positions = torch.arange(num_tokens, dtype=torch.int32)
    slots = torch.randperm(num_pages * page_size)[:num_tokens]
    stored = {}
    for dtype in (torch.bfloat16, torch.int8):
        pages = make_pages(num_pages, num_kv_heads, head_dim, page_size, dtype)
        turned = (angles.cos(), angles.sin(), positions, slots)
        rotate_and_store(kernels, merged, num_heads, *pages, *turned)
        keys = pages[0].numbers.permute(0, 3, 1, 2, 4).reshape(-1, num_kv_heads, head_dim)
        values = pages[1].numbers.permute(0, 2, 4, 1, 3).reshape(-1, num_kv_heads, head_dim)
        stored[dtype] = keys[slots], values[slots]
    layer = AttentionLayer(num_heads, num_kv_heads, head_dim, scale=1.0)
    plan = plan_cache([layer], page_size, KV_FORMATS["int8"])
    device = torch.device("cpu")
    cache = KVCache([layer], plan, KV_FORMATS["int8"], 2, dtype=torch.bfloat16, device=device)
    for own, plain, codes in zip(pages, *stored.values(), strict=True):
        expected, scales = cache.encode(plain)
        assert own.scales is not None
        assert torch.equal(codes, expected)
        assert torch.equal(own.scales.transpose(1, 2).flatten(0, 1)[slots], scales)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_number_that_is_not_finite_shows_in_the_scale_of_its_token_and_head(
    kernels: Kernels, bad: float
) -> None:
    pages = make_pages(1, 2, 16, 16, torch.int8)
    merged = torch.ones(2, 5 * 16).bfloat16()
    merged[1, 4 * 16 + 3] = bad  # of the second head's value
    angles, positions = torch.zeros(2, 8), torch.arange(2, dtype=torch.int32)
    turned = (angles.cos(), angles.sin(), positions, positions.long())
    rotate_and_store(kernels, merged, 1, *pages, *turned)
    keys, values = (each.scales for each in pages)
    assert keys is not None
    assert values is not None
    assert values.isnan().nonzero().tolist() == [[0, 1, 1]]
    assert not keys.isnan().any()
