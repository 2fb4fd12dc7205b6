"""Steps of single tokens from graphs, on a double of a GPU: the tokens are those without graphs."""

from __future__ import annotations

import ast
import itertools
import sys
from dataclasses import replace
from pathlib import Path

import exo_engine
import numpy as np
import pytest
import torch
from exo_engine import LLM, SamplingParams
from exo_engine.core import runner
from exo_engine.core.graphs import device
from exo_engine.core.graphs.decode_graphs import graph_sizes
from exo_engine.kernels.triton.code_kernels import multiply_codes
from exo_engine.kernels.triton.launch import Launch
from exo_engine.kernels.triton.matmul_kernels import multiply_rows
from exo_engine.kernels.uploads import to_device
from exo_engine.layers import delta_net, embedding, latent, mlp, rms_norm
from exo_engine.sampling import draws
from exo_engine.weight_formats import formats_made_at_load, fp8, int4, int8, plain

from ..fake_gpu import FakeGpu, NoWaiting, give_zeros

GRAPHS_OF_THREE = 3 + 3 * 4
"""Of at most three sequences: the model for 1, 2 and 3, and for as many rows four kinds of choices."""


@pytest.fixture
def gpu(monkeypatch) -> FakeGpu:
    fake = FakeGpu()
    monkeypatch.setattr(runner, "device_ops", lambda device: fake)
    return fake


@pytest.fixture
def quick_kernels(monkeypatch) -> None:
    """Kernels that compute nothing, for tests of what a step launches, copies and waits for."""
    monkeypatch.setattr(Launch, "run", give_zeros)


@pytest.fixture
def formats_of_a_gpu(monkeypatch) -> None:
    """Weights in every format are multiplied by the kernels of a GPU."""
    for module in (fp8, int4, int8, plain):
        monkeypatch.setattr(module, "is_for_triton", lambda device: True)


def make(model, *, max_num_seqs: int = 3, **options) -> LLM:
    return LLM(
        model.path,
        device="cpu",
        dtype="float32",
        attention_backend="triton",
        max_num_seqs=max_num_seqs,
        max_model_len=64,
        **options,
    )


@pytest.mark.slow
def test_greedy_tokens_come_from_graphs_and_nobody_waits(gpu, tiny_model, prompts):
    model = tiny_model("qwen3")
    llm = make(model)
    assert gpu.num_captured == GRAPHS_OF_THREE
    before = gpu.num_replayed
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    found = [completion.token_ids for completion in llm.generate(prompts[:3], params)]
    assert found == [model.greedy(prompt, 5) for prompt in prompts[:3]]
    assert gpu.num_replayed - before >= 4


@pytest.mark.usefixtures("quick_kernels")
def test_a_step_is_one_or_two_graphs_and_one_copy_back_and_nobody_waits(
    gpu, tiny_model, monkeypatch
):
    """Replays, copies there and copies back of each step: a prompt, and then single tokens."""
    llm = make(tiny_model("llama"), max_num_seqs=1)
    steps = []
    dispatch = runner.ModelRunner._dispatch

    def watched(self, frame):
        before = gpu.num_replayed, gpu.num_uploads, gpu.num_fetched
        with NoWaiting():
            pending = dispatch(self, frame)
        after = gpu.num_replayed, gpu.num_uploads, gpu.num_fetched
        steps.append(tuple(np.subtract(after, before).tolist()))
        return pending

    monkeypatch.setattr(runner.ModelRunner, "_dispatch", watched)
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    llm.generate([(1, 2, 3)], params)
    assert steps == [(0, 0, 1), (1, 1, 1), (1, 1, 1)]
    # What changes logits stands between the model's graph and the one that chooses.
    adjusted = replace(
        params,
        logit_bias={3: 2.0},
        bad_words=((1, 2), (5,)),
        allowed_token_ids=tuple(range(2, 90)),
        repetition_penalty=1.2,
        frequency_penalty=0.1,
        min_tokens=2,
        logprobs=1,
    )
    for asked, uploads in (
        (adjusted, 1),
        (replace(params, temperature=0.7, top_p=0.8, seed=1), 2),
        (replace(adjusted, temperature=0.7, top_k=5, min_p=0.01, seed=1), 2),
    ):
        steps.clear()
        llm.generate([(1, 2, 3)], asked)
        assert steps == [(0, 0, 1)] + 2 * [(2, uploads, 1)]
    steps.clear()  # more than the candidates, and less than all
    monkeypatch.setattr(draws, "NUM_CANDIDATES", 10)
    llm.generate([(1, 2, 3)], replace(params, temperature=0.7, top_k=11, seed=1))
    assert steps == [(0, 0, 1)] + 2 * [(1, 1, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("is_overlapped", [False, True])
def test_any_way_to_choose_gives_the_same_with_and_without_graphs(
    gpu, tiny_model, prompts, is_overlapped
):
    model = tiny_model("llama3-tied")
    params = [
        SamplingParams(temperature=1.0, seed=1, max_tokens=6, ignore_eos=True),
        SamplingParams(temperature=0.0, repetition_penalty=1.3, max_tokens=4, logprobs=2),
        SamplingParams(temperature=0.7, top_p=0.9, seed=4, max_tokens=7, ignore_eos=True),
        SamplingParams(temperature=0.0, max_tokens=5, prompt_logprobs=1, ignore_eos=True),
    ]
    answers = []
    for enforce_eager in (False, True):
        before = gpu.num_replayed
        llm = make(model, enforce_eager=enforce_eager, async_scheduling=is_overlapped)
        found = llm.generate(prompts[:4], params)
        answers.append(
            [(each.token_ids, [t.token_id for t in each.logprobs or ()]) for each in found]
        )
        assert (gpu.num_replayed > before) != enforce_eager
    assert answers[0] == answers[1]


OF_EXPERTS = [
    ("qwen3-moe", None),
    *(("qwen3-moe", name) for name in formats_made_at_load()),
    ("deepseek-v3", None),
    ("gpt-oss", "int4"),
]
"""A model, and how its weights are stored."""


@pytest.mark.usefixtures("quick_kernels", "formats_of_a_gpu")
@pytest.mark.parametrize(
    ("family", "quantization", "is_fixed"),
    [
        pytest.param(*each, is_fixed, marks=[] if row == 0 or is_fixed else pytest.mark.slow)
        for row, each in enumerate(OF_EXPERTS)
        for is_fixed in (False, True)
    ],
)
def test_experts_in_one_launch_ask_nobody_how_many_rows_each_has(
    gpu, tiny_model, monkeypatch, family, quantization, *, is_fixed
):
    """Prompts and single tokens; of these a graph repeats the same launches whatever experts are chosen."""
    for module in (delta_net, embedding, latent, mlp, rms_norm):
        monkeypatch.setattr(module, "is_for_triton", lambda device: is_fixed)
    # Outside of tiles of one size these are multiplied by PyTorch, which has no such product of float32.
    monkeypatch.setattr(fp8, "_scaled_product", lambda codes, weight, *_: torch.zeros(len(codes), len(weight)))  # fmt: skip
    llm = make(tiny_model(family), quantization=quantization, batch_invariant=is_fixed)
    assert gpu.num_captured == GRAPHS_OF_THREE
    dispatch, launched, run = runner.ModelRunner._dispatch, [], Launch.run

    def watched(self, frame):
        launched.append([])
        with NoWaiting():
            return dispatch(self, frame)

    def noted(launch):
        if launched:
            launched[-1].append((launch.kernel, launch.grid))
        run(launch)

    monkeypatch.setattr(runner.ModelRunner, "_dispatch", watched)
    monkeypatch.setattr(Launch, "run", noted)
    before = gpu.num_replayed
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    llm.generate([(1, 2, 3), (4, 5)], params)
    assert gpu.num_replayed - before == 3
    assert launched[1] == launched[2] == launched[3]
    grouped = [grid for kernel, grid in launched[1] if kernel in (multiply_rows, multiply_codes)]
    assert grouped, "experts are multiplied in kernels"


@pytest.mark.slow
@pytest.mark.usefixtures("formats_of_a_gpu")
@pytest.mark.parametrize(
    ("family", "quantization"),
    [("qwen3-moe", None), ("qwen3-moe", "int4"), ("qwen3-moe", "int8"), ("deepseek-v3", None)],
)
def test_experts_in_graphs_give_the_tokens_of_experts_one_by_one(
    gpu, tiny_model, prompts, monkeypatch, family, quantization
):
    model = tiny_model(family)
    llm = make(model, quantization=quantization)
    before = gpu.num_replayed
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    found = [completion.token_ids for completion in llm.generate(prompts[1:3], params)]
    assert gpu.num_replayed - before >= 2
    if quantization is None:
        assert found == [model.greedy(prompt, 3) for prompt in prompts[1:3]]
        return
    for module in (fp8, int4, int8, plain):
        monkeypatch.setattr(module, "is_for_triton", lambda device: False)
    options = {"device": "cpu", "dtype": "float32", "quantization": quantization}
    plainly = LLM(model.path, **options).generate(prompts[1:3], params)
    assert found == [completion.token_ids for completion in plainly]


def test_the_watch_sees_who_waits():
    device, host = torch.empty(3, device="meta"), torch.zeros(3)
    for ask in (
        device.cpu,
        lambda: device.to("cpu"),
        lambda: host.copy_(device),
        host[0].item,
        host.nonzero,
    ):
        with NoWaiting(), pytest.raises(AssertionError, match="the host would wait"):
            ask()
    with NoWaiting():
        host.copy_(torch.ones(3))
        device.copy_(host)
        device.to(torch.float16)


@pytest.mark.usefixtures("quick_kernels")
@pytest.mark.parametrize("family", ["qwen3-moe", "qwen3.5"])
def test_models_whose_steps_ask_the_host_run_without_graphs(gpu, tiny_model, family):
    make(tiny_model(family))
    assert gpu.num_captured == 0


@pytest.mark.usefixtures("quick_kernels")
def test_the_largest_graphs_are_captured_first(gpu, tiny_model):
    """Two that tell what they take, and then all, whose memory is that of the largest."""
    make(tiny_model("llama"))
    model, choices = [3, 2, 1], [size for size in (3, 2, 1) for _ in range(4)]
    assert gpu.captured_rows[-len(model + choices) :] == model + choices


def test_sizes_of_graphs():
    assert graph_sizes(1) == [1]
    assert graph_sizes(6) == [1, 2, 4, 6]
    assert graph_sizes(64)[-3:] == [48, 56, 64]
    assert len(graph_sizes(256)) == 23
    assert max(graph_sizes(4096)) == 512


ASKING = {"item", "cpu", "tolist", "nonzero", "numpy"}
# Calls of these names in the modules that a step of single tokens goes through. Whoever adds one says here why no
# GPU is waited for.
OF_THE_HOST = {  # arrays of numpy, as frames bring them
    ("attention/states.py", "begin", "host.query_starts.tolist"),
    ("core/graphs/decode_graphs.py", "_stage", "np.cumsum([0, *map(np.prod, shapes)]).tolist"),
    ("core/runner.py", "_add", "added.token_ids[:added.num_prompt_tokens].tolist"),
    ("core/runner.py", "_add", "added.token_ids[added.num_prompt_tokens:].tolist"),
    ("core/runner.py", "_apply", "frame.removed.tolist"),
    ("core/runner.py", "_collect", "are_finite.tolist"),
    ("core/runner.py", "_collect", "are_valid.tolist"),
    ("core/runner.py", "_collect", "epochs.tolist"),
    ("core/runner.py", "_collect", "inputs.slots.tolist"),
    ("core/runner.py", "_collect", "rows.tolist"),
    ("core/runner.py", "_collect", "token_ids.tolist"),
    ("core/runner.py", "_dispatch", "frame.copies[0].reshape(-1, 2).tolist"),
    ("core/runner.py", "_score", "self._batch.token_ids(slot)[:self._batch.num_prompt_tokens[slot]].tolist"),
    ("core/runner.py", "_score_prompts", "np.flatnonzero(is_wanted).tolist"),
    *(("sampling/logprobs.py", "unpack", f"{name}.tolist") for name in ("whole", "floats")),
    ("sampling/sampler.py", "reports", "self.reported_rows.tolist"),
    ("sampling/sampler.py", "sample", "plan.num_top.tolist"),
    ("core/choices.py", "follow", "tokens.tolist"),
    ("structured_output/states.py", "note", "rows.tolist"),
    ("structured_output/states.py", "note", "slots[rows].tolist"),
}  # fmt: skip
ONLY_ON_A_CPU = {
    ("sampling/token_tables.py", "unpack_bits", "words.contiguous().numpy"),
}
BEHIND_THE_COPY = {  # of a step's tokens, which has been waited for
    ("core/graphs/device.py", "wait", "held.tolist"),
    ("structured_output/states.py", "_settle", "choice.tokens.tolist"),
}
# Where experts are multiplied one by one, of which no graph is made: `Experts.asks_host`.
WITHOUT_GRAPHS = {
    ("layers/experts.py", "_products", "experts.bincount(minlength=len(self._experts)).tolist"),
}
# These do wait: where guesses are verified, and for the log-probabilities of a prompt.
WAITING_NOW_AND_THEN = {
    ("sampling/logprobs.py", "gather_logprobs", "found.packed.tolist"),
    ("core/runner.py", "_choose", "samples.tokens.cpu"),
    ("core/runner.py", "_choose", "samples.tokens.cpu().numpy"),
}


BRINGING = {"from_numpy", "frombuffer", "tensor", "as_tensor", "pin_memory", "cuda"}
# Calls of these names in the same modules, which may copy to the device from memory that is not pinned.
PINNED = {
    ("core/graphs/device.py", "upload", "numbers.pin_memory"),
    ("kernels/uploads.py", "to_device", "tensor.pin_memory"),
    ("kernels/uploads.py", "to_device", "torch.from_numpy"),
}
AT_THE_START = {
    # Pages that ways to attend are tried on:
    ("attention/triton.py", "fill_blocks", "torch.tensor"),
    # Where matrices lie:
    ("kernels/triton/codes.py", "of", "torch.tensor"),
    ("kernels/triton/matmul.py", "of", "torch.tensor"),
}
STAYS_ON_THE_HOST = {
    ("attention/kv_cache.py", "_zeros", "np.frombuffer"),
    ("attention/kv_cache.py", "_zeros", "torch.from_numpy"),
    ("core/graphs/choice_graphs.py", "choose", "torch.from_numpy"),  # for `upload`
    ("core/graphs/decode_graphs.py", "_stage", "torch.from_numpy"),
    ("models/decoder.py", "forward", "torch.tensor"),  # a number
    ("sampling/sampler.py", "_numbers_of_rows", "torch.from_numpy"),  # for the kernels of a CPU
    ("sampling/token_tables.py", "unpack_bits", "torch.from_numpy"),
}


def calls_of(names: set[str], path: Path) -> set[tuple[str, str]]:
    """Return the functions of a module that call one of these names, with what they call it on."""
    found = set()

    def look(node: ast.AST, function: str) -> None:
        for child in ast.iter_child_nodes(node):
            is_function = isinstance(child, ast.FunctionDef)
            look(child, child.name if is_function else function)
            if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
                given = [*child.args, *(each.value for each in child.keywords)]
                words = [each.value for each in given if isinstance(each, ast.Constant)]
                is_home = child.func.attr == "to" and "cpu" in words
                if child.func.attr in names or ("cpu" in names and is_home):
                    found.add((function, ast.unparse(child.func)))

    look(ast.parse(path.read_text()), "")
    return found


@pytest.fixture
def modules_of_steps(
    gpu, quick_kernels, formats_of_a_gpu, tiny_model, monkeypatch
) -> dict[str, Path]:
    """Every module of which anything runs in a step, up to its result, found by running steps."""
    asked = [("llama", None), *OF_EXPERTS]
    for module in (delta_net, embedding, latent, mlp, rms_norm):
        monkeypatch.setattr(module, "is_for_triton", lambda device: True)
    engines = [
        make(tiny_model(family), quantization=name, batch_invariant=family != "llama")
        for family, name in asked
    ]
    root, seen = Path(exo_engine.__file__).parent, set()

    def profiled(compute):
        def run(*args):
            sys.setprofile(lambda frame, event, _: seen.add(frame.f_code.co_filename))
            try:
                return compute(*args)
            finally:
                sys.setprofile(None)

        return run

    for name in ("_dispatch", "_collect"):
        monkeypatch.setattr(runner.ModelRunner, name, profiled(getattr(runner.ModelRunner, name)))
    ways = (SamplingParams(temperature=0.0), SamplingParams(temperature=0.7, seed=1, logprobs=2))
    for llm, params in itertools.product(engines, ways):
        llm.generate([(1, 2, 3)], replace(params, max_tokens=2, ignore_eos=True))
    modules = {Path(name) for name in seen if Path(name).is_relative_to(root)}
    modules.add(
        Path(device.__file__)
    )  # whose double was told instead, as is what the kernels are made of:
    modules |= {*(root / "kernels/triton").glob("*_kernels.py"), root / "kernels/triton/numbers.py"}
    found = {str(path.relative_to(root)): path for path in modules}
    assert {"core/graphs/decode_graphs.py", "core/runner.py", "attention/triton.py"} <= found.keys()
    assert {"layers/experts.py", "layers/latent.py", "kernels/triton/codes.py"} <= found.keys()
    assert {"core/choices.py", "sampling/logprobs.py"} <= found.keys()
    return found


def test_no_step_asks_a_tensor_for_its_numbers_nor_copies_from_memory_that_is_not_pinned(
    modules_of_steps,
):
    """Calls to arrays of the host are listed, as are those that bring something where nobody waits."""
    asking, bringing = (
        {(name, *call) for name, path in modules_of_steps.items() for call in calls_of(names, path)}
        for names in (ASKING, BRINGING)
    )
    of_nobody = OF_THE_HOST | ONLY_ON_A_CPU | BEHIND_THE_COPY
    assert asking <= of_nobody | WITHOUT_GRAPHS | WAITING_NOW_AND_THEN
    assert bringing <= PINNED | AT_THE_START | STAYS_ON_THE_HOST
    assert bringing >= PINNED


def test_an_array_goes_to_a_gpu_from_pinned_memory(monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    assert to_device(np.arange(3), torch.device("meta")).device.type == "meta"
    assert [each.tolist() for each in pinned] == [[0, 1, 2]]
    assert to_device(np.arange(6).reshape(2, 3).T, torch.device("cpu")).is_contiguous()
    assert len(pinned) == 1
