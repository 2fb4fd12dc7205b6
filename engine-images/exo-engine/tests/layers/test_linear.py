"""A linear layer takes its share of a checkpoint's matrices, and ranks together compute the whole."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from exo_engine.errors import ConfigurationError
from exo_engine.layers import Context, Linear
from exo_engine.weight_formats import FORMATS, load_format

PARTS = {"q": 12, "k": 4, "v": 4}
INPUTS = 512
"""Four ranks have a whole group of each format."""
CPU = torch.device("cpu")
BY_ORDER = {"atol": 1e-4, "rtol": 1e-5}
"""What sums of 512 numbers of 32 bits may differ by: BLAS chooses their order by the matrix's shape."""


@pytest.fixture(params=sorted(FORMATS))
def context(request):
    """Return a function from rank and number of ranks to a context of one format."""

    def make(rank=0, num_ranks=1, device=CPU):
        found = load_format(request.param)
        return Context(found, torch.float32, device, rank=rank, num_ranks=num_ranks)

    return make


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    made = {}
    for name, rows in {**PARTS, "o": 8}.items():
        made[f"{name}.weight"] = torch.randn(rows, INPUTS)
        made[f"{name}.bias"] = torch.randn(rows)
    return made


@pytest.fixture
def inputs():
    torch.manual_seed(1)
    return torch.randn(5, INPUTS)


def fill(layer, tensors):
    for name, slot in layer.slots.items():
        assert slot.stored.shape == tuple(tensors[name].shape)
        before = tensors[name].clone()
        slot.load(tensors[name])
        assert torch.equal(tensors[name], before), "a file's tensor is not to be changed"
    layer.finish()
    return layer


@torch.inference_mode()
def test_merged_matrices_give_their_outputs_one_after_another(context, tensors, inputs):
    merged = fill(Linear.column(context(), PARTS, INPUTS, has_bias=True), tensors)
    apart = [
        fill(Linear.column(context(), {name: rows}, INPUTS, has_bias=True), tensors)(inputs)
        for name, rows in PARTS.items()
    ]
    torch.testing.assert_close(merged(inputs), torch.cat(apart, dim=1), **BY_ORDER)
    plain = [F.linear(inputs, tensors[f"{n}.weight"], tensors[f"{n}.bias"]) for n in PARTS]
    difference = merged(inputs) - torch.cat(plain, dim=1)
    assert difference.norm() < 0.15 * torch.cat(plain, dim=1).norm()


@torch.inference_mode()
def test_ranks_of_a_column_layer_have_a_part_of_each_matrix(context, tensors, inputs):
    whole = fill(Linear.column(context(), PARTS, INPUTS, has_bias=True), tensors)(inputs)
    ranks = [
        fill(Linear.column(context(rank, 2), PARTS, INPUTS, has_bias=True), tensors)(inputs)
        for rank in range(2)
    ]
    assert [tuple(each.shape) for each in ranks] == [(5, 10), (5, 10)]
    sizes = [rows // 2 for rows in PARTS.values()]
    pairs = zip(*(each.split(sizes, dim=1) for each in ranks), strict=True)
    joined = torch.cat([part for pair in pairs for part in pair], dim=1)
    torch.testing.assert_close(joined, whole, **BY_ORDER)


@torch.inference_mode()
@pytest.mark.parametrize("has_bias", [True, False])
def test_results_of_the_ranks_of_a_row_layer_add_up(context, tensors, inputs, has_bias):
    whole = fill(Linear.row(context(), "o", INPUTS, 8, has_bias=has_bias), tensors)(inputs)
    total = torch.zeros(5, 8)
    for rank in range(4):
        layer = fill(Linear.row(context(rank, 4), "o", INPUTS, 8, has_bias=has_bias), tensors)
        total += layer(inputs[:, INPUTS // 4 * rank : INPUTS // 4 * (rank + 1)])
    torch.testing.assert_close(total, whole, **BY_ORDER)


def test_what_cannot_be_shared_evenly_is_refused(context):
    with pytest.raises(ConfigurationError, match="4 cannot be shared evenly by 3 ranks"):
        Linear.column(context(0, 3), PARTS, INPUTS)


def test_bytes_are_known_before_anything_is_held(context, tensors):
    sketch = Linear.column(context(device=torch.device("meta")), PARTS, INPUTS, has_bias=True)
    held = fill(Linear.column(context(), PARTS, INPUTS, has_bias=True), tensors)
    assert sketch.num_bytes == held.num_bytes > 0
    assert list(sketch.slots) == list(held.slots)
