"""A mixture computes what its experts compute one by one, however its weights are stored."""

from __future__ import annotations

import json
import shutil
from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from exo_engine.errors import ModelUnusable
from exo_engine.layers import Context, Experts
from exo_engine.llm import LLM
from exo_engine.sampling_params import SamplingParams
from exo_engine.weight_formats import FORMATS, fp8, load_format, plain
from safetensors.torch import load_file, save_file

from ..cpu_kernels import needs_kernels

MODULES = {"plain": plain, "fp8_per_block": fp8}
HIDDEN, INNER, NUM_EXPERTS, CHOSEN = 8, 512, 5, 2
CPU = torch.device("cpu")


def make_experts(name, rank=0, num_ranks=1, device=CPU, normalizes=True):
    context = Context(load_format(name), torch.float32, device, rank=rank, num_ranks=num_ranks)
    layer = Experts(
        context,
        "mlp",
        HIDDEN,
        INNER,
        num_experts=NUM_EXPERTS,
        num_chosen=CHOSEN,
        normalizes=normalizes,
    )
    assert context.layers == [layer]
    return layer


@pytest.fixture(params=sorted(FORMATS))
def make(request):
    """Return a function from rank, number of ranks and device to a mixture in one format."""
    return partial(make_experts, request.param)


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    made = {"mlp.gate.weight": torch.randn(NUM_EXPERTS, HIDDEN)}
    for index in range(NUM_EXPERTS):
        for part in ("gate", "up"):
            made[f"mlp.experts.{index}.{part}_proj.weight"] = torch.randn(INNER, HIDDEN)
        made[f"mlp.experts.{index}.down_proj.weight"] = torch.randn(HIDDEN, INNER)
    return made


def fused(tensors, prefix="mlp"):
    """Return the same weights as two tensors for all experts."""
    name = f"{prefix}.experts"
    parts = {
        part: torch.stack(
            [tensors[f"{name}.{index}.{part}_proj.weight"] for index in range(NUM_EXPERTS)]
        )
        for part in ("gate", "up", "down")
    }
    return {
        f"{prefix}.gate.weight": tensors[f"{prefix}.gate.weight"],
        f"{name}.gate_up_proj": torch.cat([parts["gate"], parts["up"]], dim=1),
        f"{name}.down_proj": parts["down"],
    }


def fill(layer, tensors):
    slots = layer.slots_for(tensors)
    assert slots.keys() == tensors.keys()
    for name, slot in slots.items():
        assert slot.stored.shape == tuple(tensors[name].shape)
        slot.load(tensors[name])
    layer.finish()
    return layer


def held(layer, tensors):
    """Return the weights as the format holds them: what it makes of an identity matrix."""
    weights = dict(tensors)
    for index, expert in enumerate(layer._experts):
        gate_up, down = expert.gate_up(torch.eye(HIDDEN)).T, expert.down(torch.eye(INNER)).T
        for part, found in zip(("gate", "up", "down"), (*gate_up.split(INNER), down), strict=True):
            name = f"mlp.experts.{index}.{part}_proj.weight"
            assert (found - tensors[name]).norm() < 0.2 * tensors[name].norm()
            weights[name] = found
    return weights


def compute_plainly(tensors, inputs, *, normalizes):
    """One token at a time, one expert at a time."""
    outputs = []
    for row in inputs:
        scores = (tensors["mlp.gate.weight"] @ row).softmax(0)
        chosen = scores.argsort(descending=True)[:CHOSEN]
        weights = scores[chosen] / (scores[chosen].sum() if normalizes else 1)
        total = torch.zeros(HIDDEN)
        for weight, index in zip(weights, chosen.tolist(), strict=True):
            gate, up, down = (
                tensors[f"mlp.experts.{index}.{part}_proj.weight"]
                for part in ("gate", "up", "down")
            )
            total += weight * (down @ (F.silu(gate @ row) * (up @ row)))
        outputs.append(total)
    return torch.stack(outputs)


@torch.inference_mode()
@pytest.mark.parametrize("normalizes", [True, False])
@pytest.mark.parametrize("num_tokens", [1, 2, 40])
def test_a_token_is_computed_by_the_experts_it_chooses(make, tensors, num_tokens, normalizes):
    torch.manual_seed(1)
    inputs = torch.randn(num_tokens, HIDDEN)
    layer = fill(make(normalizes=normalizes), tensors)
    expected = compute_plainly(held(layer, tensors), inputs, normalizes=normalizes)
    assert (layer(inputs) - expected).norm() < 1e-5 * expected.norm()


@torch.inference_mode()
def test_experts_stored_in_one_tensor_are_the_same(make, tensors):
    torch.manual_seed(1)
    inputs = torch.randn(40, HIDDEN)
    apart, together = fill(make(), tensors), fill(make(), fused(tensors))
    assert torch.equal(apart(inputs), together(inputs))
    for num_ranks in (2, 4):
        for rank in range(num_ranks):
            pair = fill(make(rank, num_ranks), tensors), fill(make(rank, num_ranks), fused(tensors))
            assert torch.equal(pair[0](inputs), pair[1](inputs))


@torch.inference_mode()
@pytest.mark.parametrize("name", ["plain", "fp8_per_block"])
@pytest.mark.parametrize("num_tokens", [1, 9])
def test_one_launch_for_all_experts_equals_the_loop_over_them(
    tensors, name, num_tokens, monkeypatch
):
    torch.manual_seed(1)
    inputs = torch.randn(num_tokens, HIDDEN)
    found = []
    for is_triton in (False, True):
        monkeypatch.setattr(MODULES[name], "is_for_triton", lambda device, it=is_triton: it)
        layer = fill(make_experts(name), tensors)
        assert layer.asks_host != is_triton
        found.append(layer(inputs))
    torch.testing.assert_close(
        found[1], found[0], rtol=1e-4, atol=1e-4 * float(found[0].abs().max())
    )


@torch.inference_mode()
def test_results_of_ranks_add_up(make, tensors):
    torch.manual_seed(1)
    inputs = torch.randn(9, HIDDEN)
    total = sum(fill(make(rank, 4), tensors)(inputs) for rank in range(4))
    whole = fill(make(), tensors)(inputs)
    assert (total - whole).norm() < 1e-6 * whole.norm()


def test_bytes_are_known_before_anything_is_held(make, tensors):
    sketch = make(device=torch.device("meta"))
    held = fill(make(), tensors)
    per_expert = sum(tensor.nbytes for name, tensor in tensors.items() if "experts.0" in name)
    assert sketch.num_bytes == held.num_bytes > NUM_EXPERTS * per_expert / 4


@pytest.fixture
def fused_model(tiny_model, tmp_path):
    model = tiny_model("qwen3-moe")
    path = shutil.copytree(model.path, tmp_path / "fused")
    tensors = load_file(path / "model.safetensors")
    apart = {name: tensor for name, tensor in tensors.items() if ".mlp." in name}
    ours = {name: tensor for name, tensor in tensors.items() if name not in apart}
    for layer in range(3):
        prefix = f"model.layers.{layer}.mlp"
        experts = [f"{prefix}.experts.{index}" for index in range(6)]
        for name, parts in {"gate_up": ("gate", "up"), "down": ("down",)}.items():
            ours[f"{prefix}.experts.{name}_proj"] = torch.stack(
                [torch.cat([apart[f"{e}.{part}_proj.weight"] for part in parts]) for e in experts]
            )
        ours[f"{prefix}.gate.weight"] = apart[f"{prefix}.gate.weight"]
    save_file(ours, path / "model.safetensors")
    return model, path


def test_a_checkpoint_of_experts_in_one_tensor_gives_the_oracles_tokens(fused_model, prompts):
    model, path = fused_model
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    llm = LLM(path, dtype="float32", device="cpu", max_model_len=128)
    found = [each.token_ids for each in llm.generate(prompts, greedy)]
    assert found == [
        model.greedy(prompt, 12, guess) for prompt, guess in zip(prompts, found, strict=True)
    ]


def test_what_such_a_checkpoint_lacks_is_named(fused_model):
    path = fused_model[1] / "model.safetensors"
    tensors = load_file(path)
    tensors.pop("model.layers.1.mlp.experts.down_proj")
    save_file(tensors, path)
    with pytest.raises(ModelUnusable, match=r"lacks model.layers.1.mlp.experts.down_proj"):
        LLM(path.parent, device="cpu")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_experts_per_tok", 7, r"expected at most 6 \(num_local_experts\)"),
        ("num_local_experts", 2**16, "num_local_experts is 65536, expected 21845 or fewer"),
        ("num_experts", -1, "expected an integer of 0 or more"),
        ("mlp_only_layers", ["1"], "expected a list of numbers of layers"),
        ("decoder_sparse_step", 0, "expected an integer of 1 or more"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(tiny_model, tmp_path, key, value, message):
    path = shutil.copytree(tiny_model("qwen3-moe").path, tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(ModelUnusable, match=message):
        LLM(path, device="cpu")


@torch.inference_mode()
@needs_kernels
@pytest.mark.parametrize("name", ["plain", "int8", "int4"])
def test_on_a_cpu_a_token_has_the_same_bits_alone_and_among_others(name):
    """With as many experts and choices as real models have, in one call for all of them."""
    torch.manual_seed(3)
    size, inner, num_experts = 64, 96, 128
    context = Context(load_format(name), torch.bfloat16, CPU)
    layer = Experts(
        context, "mlp", size, inner, num_experts=num_experts, num_chosen=8, normalizes=True
    )
    for slot in layer.slots.values():
        slot.load(torch.randn(slot.stored.shape).bfloat16())
    layer.finish()
    assert layer.is_computed_by_kernels
    hidden = torch.randn(37, size).bfloat16()
    together = layer(hidden)
    assert torch.equal(torch.cat([layer(each) for each in hidden.split(1)]), together)
    assert torch.equal(torch.cat([layer(each) for each in hidden.split(5)]), together)
    layer._grouped = None  # each expert by a product of its own, and sums by PyTorch
    torch.testing.assert_close(layer(hidden), together, rtol=2**-6, atol=2.0)
