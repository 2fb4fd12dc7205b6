"""What a start says that it has measured, and the arithmetic of a GPU's memory."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

from exo_engine.core import loading, memory, runner
from exo_engine.core.measurements import cpu_name, peak_rss_bytes
from exo_engine.core.memory import DeviceMemory, choose_num_blocks, cuda_budget, read_device_memory
from exo_engine.core.start_up import StartUp
from exo_engine.kernels.triton.launch import Launch
from exo_engine.llm import LLM
from safetensors import safe_open

from ..fake_gpu import FakeGpu, give_zeros

GIB = 2**30


def test_start_on_a_cpu_measures_what_there_is_to_measure(tiny_model):
    path = tiny_model("llama3-tied").path
    llm = LLM(path, dtype="float32", device="cpu", block_size=4, kv_cache_bytes=500_000)
    measured = llm.core.measurements
    with safe_open(path / "model.safetensors", framework="pt") as file:
        names = [name for name in file.keys() if name != "lm_head.weight"]  # noqa: SIM118
        num_parameters = sum(file.get_tensor(name).numel() for name in names)
    per_token = 2 * 3 * 2 * 8 * 4  # keys and values, layers, heads, head size, bytes
    assert measured.simulated is False
    assert measured.weights_bytes == 4 * num_parameters
    assert measured.kv_bytes_per_token == per_token
    assert measured.available_kv_bytes == 500_000
    assert measured.num_kv_blocks == 500_000 // (4 * per_token) == llm.stats().num_blocks
    assert measured.kv_capacity_tokens == 4 * measured.num_kv_blocks
    assert measured.max_model_len == 256
    assert (measured.device, measured.dtype) == ("cpu", "float32")
    assert measured.device_name
    assert measured.device_free_bytes is not None
    assert measured.device_total_bytes is not None
    assert 0 < measured.device_free_bytes < measured.device_total_bytes
    assert 50 * 2**20 < measured.peak_rss_bytes < measured.device_total_bytes
    # No largest step is run on a CPU, and there is no allocator whose outside could be told.
    assert measured.activation_peak_bytes is None
    assert measured.non_torch_bytes is None
    assert measured.cuda_graph_bytes == 0
    assert list(measured.start_up_seconds) == [
        "reading configuration", "loading weights", "sizing KV cache", "allocating KV blocks",
        "warming up",
    ]  # fmt: skip
    assert all(seconds >= 0 for seconds in measured.start_up_seconds.values())


def test_length_in_effect_is_the_one_that_was_fitted_to_the_cache(tiny_model):
    path = tiny_model("qwen3").path
    llm = LLM(path, dtype="float32", device="cpu", block_size=4, num_gpu_blocks_override=10)
    assert llm.core.measurements.max_model_len == 40


def test_phases_are_timed_one_after_another():
    class Ticks:
        """A clock that moves by a second whenever it is looked at."""

        time = 0.0

        def now(self):
            self.time += 1
            return self.time

    told: list[str] = []
    start_up = StartUp(told.append, clock=Ticks())  # type: ignore[arg-type]
    start_up.begin("one", "one 0 %")
    start_up.report("one 50 %")
    start_up.begin("two")
    assert start_up.finish() == {"one": 1.0, "two": 1.0}
    assert told == ["one 0 %", "one 50 %", "two"]


def test_gpu_budget_is_the_share_less_peak_and_what_is_elsewhere():
    before = DeviceMemory(80 * GIB, 62 * GIB, reserved_bytes=16 * GIB, allocated_bytes=15 * GIB)
    after = DeviceMemory(80 * GIB, 61 * GIB, reserved_bytes=16 * GIB, allocated_bytes=15 * GIB)
    budget = cuda_budget(0.9, before, 20 * GIB, after)
    assert budget.activation_peak_bytes == 5 * GIB
    assert budget.non_torch_bytes == 3 * GIB
    assert budget.available_bytes == 72 * GIB - 20 * GIB - 3 * GIB


def test_room_is_left_for_graphs(tiny_model, monkeypatch):
    """What a rehearsal of few graphs tells is taken off the cache, and is what all of them take here."""
    fake = FakeGpu()
    monkeypatch.setattr(runner, "device_ops", lambda device: fake)
    monkeypatch.setattr(Launch, "run", give_zeros)
    llm = LLM(
        tiny_model("llama").path, device="cpu", dtype="float32", attention_backend="triton",
        max_num_seqs=3, max_model_len=16, max_num_batched_tokens=8,
    )  # fmt: skip
    told = fake.bytes_of_graph * fake.num_captured
    assert (
        fake.num_captured == 3 + 3 * 4
    )  # sizes of batches, and four ways to choose for 3 numbers of rows
    assert llm.core.measurements.cuda_graph_bytes == told

    decoder = llm.core._pipeline.executor.runner._decoder
    config = replace(llm.core.config, kv_cache_bytes=None)
    rehearse = loading._run_largest_step(decoder, config)
    memory_of_gpu = SimpleNamespace(
        synchronize=lambda: None,
        empty_cache=lambda: None,
        reset_peak_memory_stats=lambda: None,
        mem_get_info=lambda: (60_000, 100_000),
        memory_reserved=lambda: 30_000,
        memory_allocated=lambda: 30_000,
        max_memory_allocated=lambda: 35_000,
    )
    monkeypatch.setattr(memory, "torch", SimpleNamespace(cuda=memory_of_gpu))
    on_gpu = replace(config, device="cuda", gpu_memory_utilization=0.9)
    found = choose_num_blocks(decoder.spec, on_gpu, lambda: rehearse)
    assert found.graph_bytes == told
    assert found.available_bytes == 90_000 - 35_000 - 10_000 - told
    assert fake.num_captured == 15 + 2 + 2 * 4  # the rehearsal had two of each

    eager = loading._run_largest_step(decoder, replace(config, enforce_eager=True))
    assert choose_num_blocks(decoder.spec, on_gpu, lambda: eager).graph_bytes == 0


def test_gpu_that_is_too_small_has_a_budget_below_zero():
    full = DeviceMemory(24 * GIB, GIB, reserved_bytes=20 * GIB, allocated_bytes=20 * GIB)
    assert cuda_budget(0.5, full, 21 * GIB, full).available_bytes == (12 - 21 - 3) * GIB


def test_memory_of_a_cpu_is_the_machines():
    memory = read_device_memory("cpu")
    assert 0 < memory.free_bytes <= memory.total_bytes
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory.total_bytes <= pages * 1.01  # less where a cgroup limits it


def test_kernel_knows_this_process_and_this_processor():
    assert 10 * 2**20 < peak_rss_bytes() < 2**40
    assert cpu_name().strip()


def test_a_processor_without_a_name_is_a_cpu(tmp_path):
    assert cpu_name(tmp_path) == "cpu"
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_bytes(b"processor\t: 0\n")
    assert cpu_name(tmp_path) == "cpu"
    (tmp_path / "proc/cpuinfo").write_bytes(b"processor\t: 0\nmodel name\t: QEMU \xae\n")
    assert cpu_name(tmp_path) == "QEMU \ufffd"
