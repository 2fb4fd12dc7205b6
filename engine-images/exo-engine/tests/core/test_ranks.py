"""Several processes that share each layer give the tokens of one that has all of it."""

from __future__ import annotations

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from exo_engine.config import EngineConfig, ModelLimits, resolve
from exo_engine.core import executor_process, host_memory
from exo_engine.core.ranks.group import RankGroup, open_memory, open_sockets
from exo_engine.core.ranks.process import check_groups, end_all
from exo_engine.errors import MEMORY_HINT, ConfigurationError, CoreFailed, OutOfMemory
from exo_engine.frames import ConnectionEnded, FrameSocket
from exo_engine.layers import Linear
from exo_engine.layers.experts import Experts
from exo_engine.llm import LLM
from exo_engine.models.config_file import read_spec
from exo_engine.models.decoder import Decoder
from exo_engine.sampling_params import SamplingParams
from exo_engine.structured_output import grammars
from exo_engine.structured_output.vocabulary import Vocabulary
from exo_engine.weight_formats import FORMATS, formats_made_at_load

OPTIONS = {
    "dtype": "float32", "device": "cpu", "block_size": 4, "max_model_len": 88, "num_threads": 1,
    "num_gpu_blocks_override": 60, "max_num_batched_tokens": 9, "max_num_seqs": 5,
}  # fmt: skip
PARAMS = [
    SamplingParams(temperature=0, max_tokens=12, logprobs=2, prompt_logprobs=1),
    SamplingParams(temperature=1.3, seed=1, max_tokens=12, repetition_penalty=1.3),
    SamplingParams(temperature=1.3, seed=2, max_tokens=12, logit_bias={3: 5.0}, min_tokens=4),
    SamplingParams(temperature=1.3, seed=3, max_tokens=12, stop_token_ids=(5, 6, 7)),
    SamplingParams(temperature=0, max_tokens=12, ignore_eos=True),
]
# Every kind of layer that ranks can share.
FAMILIES = [
    "llama-biases",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("qwen3-half-windowed", "gemma4", "gpt-oss", "qwen3-moe", "deepseek-v3")
    ),
]


@pytest.fixture(autouse=True)
def cores(monkeypatch):
    """As many as three ranks need, whatever this machine has."""
    monkeypatch.setattr(host_memory, "usable_cores", lambda: 4)


@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks_give_the_tokens_of_one_and_the_end_of_an_idle_one_is_told_at_once(
    tiny_model, prompts, family
):
    path = tiny_model(family).path
    alone = LLM(path, **OPTIONS)
    wanted = alone.generate(prompts, PARAMS)
    ranks = LLM(path, **OPTIONS, tensor_parallel_size=2)
    try:
        found = ranks.generate(prompts, PARAMS)
        assert [each.token_ids for each in found] == [each.token_ids for each in wanted]
        scores = [[entry.logprob for entry in each[0].logprobs] for each in (found, wanted)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)
        ranks.core.check_integrity()
        assert ranks.stats().num_used_blocks == 0
        both, one = ranks.core.measurements, alone.core.measurements
        assert both.kv_bytes_per_token == one.kv_bytes_per_token or family == "deepseek-v3"
        assert one.weights_bytes < both.weights_bytes < 2 * one.weights_bytes
        assert len(set(ranks.core.executor.pids)) == 2
        end_while_idle(ranks)
    finally:
        ranks.close()


def end_while_idle(ranks: LLM) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        idle = ranks.core.check_processes()
        assert len(idle) == 2
        os.kill(ranks.core.executor.pids[1], signal.SIGKILL)
        FrameSocket(ours).wait_beside(idle)  # on which nothing comes
    with pytest.raises(CoreFailed, match="ended with SIGKILL"):
        ranks.core.check_processes()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"async_scheduling": True}, {"quantization": "int8"}])
def test_so_do_three_however_steps_are_made(tiny_model, prompts, options):
    path = tiny_model("qwen3-three").path
    wanted = LLM(path, **OPTIONS, **options).generate(prompts, PARAMS)
    ranks = LLM(path, **OPTIONS, **options, tensor_parallel_size=3)
    try:
        found = ranks.generate(prompts, PARAMS)
        assert [each.token_ids for each in found] == [each.token_ids for each in wanted]
    finally:
        ranks.close()


@pytest.mark.slow  # that of an idle one is told by default
def test_the_end_of_any_rank_is_told(tiny_model, prompts):
    ranks = LLM(tiny_model("llama").path, **OPTIONS, tensor_parallel_size=2)
    try:
        os.kill(ranks.core.executor.pids[1], signal.SIGKILL)
        with pytest.raises(CoreFailed, match="ended with SIGKILL"):
            ranks.generate(prompts, PARAMS)
    finally:
        ranks.close()


class EndingProcess:
    """Stands for a `RankProcess`: says `failure`, then ends with `status`."""

    def __init__(self, calls, status, failure=None):
        self.calls, self.status, self.failure = calls, status, failure

    def hang_up(self):
        self.calls.append("hang up")

    def read_failure(self, deadline):
        self.calls.append("read")
        return self.failure

    def close(self, deadline):
        self.calls.append("close")
        return self.status


@pytest.mark.parametrize(
    ("statuses", "words", "exit_code"),
    [((0, -9, 1), "SIGKILL", 70), ((0, 3, 0), "status 3", 3), ((0, 0, 0), "status 0", 70)],
)
def test_ranks_end_together_and_the_one_that_failed_is_told(statuses, words, exit_code):
    calls = []
    error = end_all([EndingProcess(calls, status) for status in statuses])
    assert calls == ["hang up"] * 3 + ["read"] * 3 + ["close"] * 3
    assert error.message.endswith(words)
    assert error.exit_code == exit_code


def test_a_rank_without_memory_to_say_so_says_it_by_its_status(monkeypatch):
    error = end_all([EndingProcess([], 0), EndingProcess([], OutOfMemory.exit_code)])
    assert isinstance(error, OutOfMemory)
    assert error.hint == MEMORY_HINT

    def fail(*_):
        raise MemoryError

    def closed(connection):
        connection.close()
        return SimpleNamespace(send=fail)

    monkeypatch.setattr(executor_process, "_serve", fail)
    monkeypatch.setattr(executor_process, "FrameSocket", closed)
    monkeypatch.setattr(executor_process, "die_with_parent", lambda parent: None)
    monkeypatch.setattr(executor_process.garbage, "pause", lambda: None)
    monkeypatch.setattr(executor_process.signal, "signal", lambda *_: None)
    ours, theirs = socket.socketpair()
    with ours:
        words = ["--socket", str(theirs.detach()), "--parent", "1"]
        assert executor_process.main(words) == OutOfMemory.exit_code


def test_what_a_rank_says_of_its_failure_goes_before_how_others_end():
    failure = ConfigurationError("too small")
    ranks = [EndingProcess([], -9), EndingProcess([], 2, failure)]
    assert end_all(ranks) is failure


@pytest.mark.parametrize(("num_ranks", "name"), [(4, "attention heads"), (2, "")])
def test_ranks_that_cannot_be_are_refused_before_any_is_started(
    tiny_model, monkeypatch, num_ranks, name
):
    monkeypatch.setattr(executor_process, "start_processes", lambda _: pytest.fail("started"))
    monkeypatch.setattr(host_memory, "usable_cores", lambda: 1)
    message = name or "only 1 cores may be used here"
    with pytest.raises(ConfigurationError, match=message) as caught:
        LLM(tiny_model("llama").path, **OPTIONS, tensor_parallel_size=num_ranks)
    assert caught.value.param == "tensor-parallel-size"


@pytest.mark.slow
def test_ranks_keep_to_a_grammar(tiny_model):
    pytest.importorskip("llguidance")
    tokens = (*(bytes([32 + n]) for n in range(95)), b'{"', b'":', b'",', b"12", b"true", b'"}')
    params = SamplingParams(
        temperature=1.0,
        seed=4,
        max_tokens=8,
        structured_outputs=grammars.grammar('"yes" | "n" /[o-q]{1,4}/'),
    )
    given = []
    for num_ranks in (1, 2):
        llm = LLM(tiny_model("llama").path, **OPTIONS, tensor_parallel_size=num_ranks)
        llm.use_vocabulary(Vocabulary(tokens, (), ()))
        given.append([each.token_ids for each in llm.generate([(1, 2, 3)] * 3, params)])
        llm.close()
    assert given[0] == given[1]


@pytest.mark.parametrize(
    ("family", "num_ranks", "message"),
    [
        ("llama", 4, "does not divide the 6 attention heads of LlamaForCausalLM"),
        ("llama", 3, "does not divide the 80 inner numbers of an MLP"),
        ("llama", 6, "does not divide the 80 inner numbers of an MLP"),
        ("qwen3.5", 2, "Qwen3_5ForCausalLM has layers with states"),
    ],
)
def test_what_ranks_cannot_share_is_refused_by_name(tiny_model, family, num_ranks, message):
    spec = read_spec(tiny_model(family).path)
    with pytest.raises(ConfigurationError, match=message) as caught:
        spec.shared_by(num_ranks)
    assert caught.value.param == "tensor-parallel-size"


@pytest.mark.parametrize(
    ("head_dim", "inner", "refused", "hint"),
    [
        (128, 256, set(), ""),
        (64, 256, {"int4_per_group_128"}, "int4_per_group_64"),
        (64, 192, {"int4_per_group_64", "int4_per_group_128"}, "int4"),
        (64, 80, {"int4", "int4_per_group_64", "int4_per_group_128"}, "int8"),
        (32, 256, {"int4_per_group_64", "int4_per_group_128"}, "int4"),
    ],
)
def test_groups_that_ranks_would_share_are_refused_with_what_fits(
    tiny_model, head_dim, inner, refused, hint
):
    spec = read_spec(tiny_model("llama").path)
    spec = replace(spec, num_heads=2, head_dim=head_dim, intermediate_size=inner)
    found = {}
    for name in formats_made_at_load():
        try:
            check_groups(spec, name, 2)
        except ConfigurationError as exc:
            found[name] = exc
    assert found.keys() == refused
    for exc in found.values():
        assert exc.param == "quantization"
        assert exc.hint == f"Use fewer ranks, or --quantization {hint}."


def test_ranks_are_refused_by_the_groups_of_the_quantization(tiny_model, monkeypatch):
    monkeypatch.setattr(executor_process, "start_processes", lambda _: pytest.fail("started"))
    with pytest.raises(ConfigurationError, match=r"--quantization is int4, .* ranks cannot share"):
        LLM(tiny_model("llama").path, **OPTIONS, tensor_parallel_size=2, quantization="int4")


@pytest.mark.parametrize("name", [name for name, entry in FORMATS.items() if entry.group > 1])
@pytest.mark.parametrize("family", ["llama", "gemma4", "gpt-oss", "qwen3-moe", "deepseek-v3"])
def test_groups_are_refused_where_a_rank_would_begin_within_one(tiny_model, family, name):
    """As the model's own layers have their shares, with inner sizes that fit, and that do not."""
    spec, outcomes = read_spec(tiny_model(family).path), set()
    for inner in (80, 128, 256, 512):
        sized = replace(spec, intermediate_size=inner)
        if sized.latent is not None:
            sized = replace(sized, latent=replace(sized.latent, value_dim=inner))
        else:
            window = sized.window_heads and replace(sized.window_heads, head_dim=inner)
            sized = replace(sized, head_dim=inner, window_heads=window)
        if sized.mixture is not None:
            shared = inner if sized.mixture.shared_size else 0
            mixture = replace(sized.mixture, intermediate_size=inner, shared_size=shared)
            sized = replace(sized, mixture=mixture)
        second = SimpleNamespace(rank=1, size=2, add_up=lambda part: part)
        decoder = Decoder(
            sized.shared_by(2), dtype=torch.float32, device=torch.device("meta"), ranks=second
        )
        experts = [each for each in decoder.weighted_layers if isinstance(each, Experts)]
        layers = [each for each in decoder.weighted_layers if isinstance(each, Linear)]
        layers += [expert.down for each in experts for expert in each._experts]
        shares = [share for layer in layers for share, _ in layer.shares.values()]
        fits = all(share.columns.start % FORMATS[name].group == 0 for share in shares)
        with nullcontext() if fits else pytest.raises(ConfigurationError, match="cannot share"):
            check_groups(sized, name, 2)
        outcomes.add(fits)
    assert outcomes == {True, False}


@pytest.mark.parametrize(
    ("changes", "has_cuda", "message"),
    [
        ({}, True, "ranks compute on a CPU only"),
        ({"batch_invariant": True}, False, "the order of sums depends on the ranks"),
        ({"tensor_parallel_size": 0}, False, "must be 1 or more"),
    ],
)
def test_settings_that_ranks_do_not_go_with_are_refused(tmp_path, changes, has_cuda, message):
    config = EngineConfig(tmp_path, **{"tensor_parallel_size": 2, **changes})
    with pytest.raises(ConfigurationError, match=message):
        resolve(config, ModelLimits(64, "float32"), has_cuda=has_cuda)


def groups(num_ranks):
    memory = open_memory(num_ranks)
    made = [RankGroup(rank, memory, peers) for rank, peers in enumerate(open_sockets(num_ranks))]
    os.close(memory)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_rank_gets_the_same_sum_of_any_size(dtype):
    torch.manual_seed(0)
    sizes = [(3, 7), (600, 1001), (1, 1), (0, 5), (2**19 + 1,)]
    parts = [[torch.randn(size).to(dtype) for size in sizes] for _ in range(3)]

    def run(group):
        sums = [group.add_up(part) for part in parts[group.rank]]
        given = sums, group.least(10 - group.rank), group.from_first(torch.tensor([group.rank]))
        group.close()
        return given

    with ThreadPoolExecutor(3) as threads:
        results = list(threads.map(run, groups(3)))
    for sums, least, first in results:
        assert (least, int(first)) == (8, 0)
        for place, total in enumerate(sums):
            assert torch.equal(total, results[0][0][place])
            exact = sum(part[place].double() for part in parts)
            assert total.dtype == dtype
            torch.testing.assert_close(
                total.double(), exact.to(dtype).double(), atol=1e-5, rtol=0.01
            )


def test_a_rank_that_is_gone_is_noticed():
    first, second = groups(2)
    second.close()
    with pytest.raises(ConnectionEnded):
        first.add_up(torch.ones(3))
    first.close()
