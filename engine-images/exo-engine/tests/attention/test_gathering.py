"""Prompts over gathered keys and values equal attention written out; who is refused."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from exo_engine import LLM, SamplingParams
from exo_engine.attention import create_backend, gathering
from exo_engine.attention.layer import Reach
from exo_engine.errors import ConfigurationError
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import attention_cases
from attention_cases import LAYERS, Case, layer

SPANS = ((9, 1), (3, 3), (20, 20), (70, 4))


def check(case: Case, name: str, monkeypatch, num_gathered: int) -> None:
    """Hold a backend equal to float64, and see that it gathered so often."""
    made, calls, really_gather = [], [], gathering.gather

    def make(layers, cache, *, is_fixed):
        made.append(create_backend(name, layers, cache, is_fixed=is_fixed))
        return made[0]

    def gather(*arguments):
        calls.append(arguments)
        return really_gather(*arguments)

    monkeypatch.setattr(attention_cases, "TritonAttention", make)
    monkeypatch.setattr(gathering, "gather", gather)
    case.check()
    assert len(calls) == num_gathered


@pytest.mark.parametrize("name", ["full", "window", "odd sizes"])
def test_prompts_are_gathered_and_single_tokens_are_not(name, monkeypatch):
    check(Case(LAYERS[name], spans=SPANS), "torch", monkeypatch, 1)


@pytest.mark.parametrize("kv", ["bfloat16", "fp8_e4m3", "int8"])
def test_every_way_to_store_numbers(kv, monkeypatch):
    case = Case(layer(2, 1), torch.bfloat16, kv, block=4, spans=SPANS)
    check(case, "torch", monkeypatch, 1)


def test_prompts_beyond_the_bound_are_read_in_place(monkeypatch):
    monkeypatch.setattr(gathering, "MAX_GATHERED", 50)
    check(Case(layer(2, 1), spans=SPANS), "torch", monkeypatch, 0)


@pytest.mark.parametrize("reach", [Reach(), Reach(window=13)], ids=["full", "window"])
def test_pytorch_takes_what_its_flash_attention_is_given(reach):
    """On a double of a GPU's tensors, which have shapes and no numbers: PyTorch checks names, types and sizes."""
    each = layer(8, 2, 128, reach=reach)
    with FakeTensorMode():
        queries = torch.empty(24, 8, 128, dtype=torch.bfloat16, device="cuda")
        keys, values = torch.empty(2, 94, 2, 128, dtype=torch.bfloat16, device="cuda")
        starts = torch.empty(3, dtype=torch.int32, device="cuda")
        places = torch.empty(94, dtype=torch.int64, device="cuda")
        ends = (0, 20, 24), (0, 20, 94)
        prompts = gathering.Prompts(slice(0, 24), places, places, starts, starts, *ends)
        found = gathering.attend_by_torch(each, queries, keys, values, prompts)
    assert (found.shape, found.dtype, found.device.type) == (queries.shape, queries.dtype, "cuda")


def fake_flashinfer() -> ModuleType:
    """The one function of FlashInfer that is called, with the names and the meaning of its documentation."""

    def single_prefill_with_kv_cache(
        q: Tensor, k: Tensor, v: Tensor, *, causal: bool, sm_scale: float, window_left: int
    ) -> Tensor:
        assert causal
        positions = torch.arange(len(k) - len(q), len(k))[:, None]
        distance = positions - torch.arange(len(k))
        mask = (distance >= 0) & ((distance <= window_left) | (window_left < 0))
        heads = (each.transpose(0, 1) for each in (q, k, v))
        found = F.scaled_dot_product_attention(
            *heads, attn_mask=mask, scale=sm_scale, enable_gqa=True
        )
        return found.transpose(0, 1)

    module = ModuleType("flashinfer")
    module.__spec__ = importlib.util.spec_from_loader("flashinfer", None)
    module.single_prefill_with_kv_cache = single_prefill_with_kv_cache
    return module


@pytest.mark.parametrize("reach", [Reach(), Reach(window=13)])
def test_flashinfer_is_given_gathered_prompts(reach, monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer())
    check(Case(layer(reach=reach), spans=SPANS), "flashinfer", monkeypatch, 1)


def test_flashinfer_is_refused_by_name_where_it_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    monkeypatch.setattr(gathering.importlib.util, "find_spec", lambda name: None)
    case = Case(layer())
    with pytest.raises(
        ConfigurationError, match="'flashinfer' needs the Python package flashinfer"
    ):
        gathering.make_gathering("flashinfer", [case.layer], case.make_cache(0)[0], is_fixed=False)


@pytest.mark.parametrize(
    ("each", "is_fixed", "problem"),
    [
        (LAYERS["sinks"], False, "without caps, sinks, chunks and latent attention"),
        (LAYERS["latent"], False, "without caps, sinks, chunks and latent attention"),
        (LAYERS["full"], True, "does not keep the bits that --batch-invariant asks for"),
    ],
    ids=["sinks", "latent", "fixed"],
)
def test_what_cannot_be_gathered_is_refused_by_name(each, is_fixed, problem):
    cache, _ = Case(each, spans=((1, 1),)).make_cache(0)
    with pytest.raises(ConfigurationError, match=f"'torch' .*{problem}"):
        create_backend("torch", [each], cache, is_fixed=is_fixed)


def test_scratch_holds_what_is_gathered():
    cache, _ = Case(layer(2, 1), spans=((1, 1),)).make_cache(0)
    plain, gathered = (create_backend(n, [layer(2, 1)], cache) for n in ("triton", "torch"))
    assert gathered.scratch_bytes() - plain.scratch_bytes() == 2**14 * 16 * 2 * 4


def test_an_engine_on_it_gives_the_tokens_of_transformers(tiny_model):
    model = tiny_model("qwen3")
    llm = LLM(model.path, device="cpu", dtype="float32", attention_backend="torch")
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    (found,) = llm.generate([(3, 5, 7, 11)], params)
    assert found.token_ids == model.greedy((3, 5, 7, 11), 2)
