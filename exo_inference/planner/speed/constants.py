"""What engines reach of a GPU, and what a step takes beside reading and computing: measured, not derived.

`catalog/speeds.json` has the values; `make planner-calibrate` sets them on one half of the published speeds
(`docs/benchmarks/planner-published-speeds.json`, `scripts/calibrate_speeds.py`). `estimate.py` asks for them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from exo_inference.planner.gpu_catalog import Gpu

_LEAST_SHARE = 0.25
"""Of the dense arithmetic, as an L4 has it (72 W, 403 operations per byte): the line is not followed below."""
_AMD_COMPUTE = 0.64
"""Of an NVIDIA GPU's share: the largest products reach 51.4 % of the stated rate on an MI300X and 80.3 % on an H100
(github.com/stas00/ml-engineering @744d01e1, compute/accelerator, Maximum Achievable Matmul FLOPS, 2026-08-22)."""


@dataclass(frozen=True, slots=True)
class SpeedConstants:
    """Shares of what a GPU's maker states, and seconds.

    Attributes:
        memory_share: of the memory bandwidth that a step reads at.
        compute_share: of the dense 16-bit arithmetic, on a GPU whose memory could feed all of it.
        compute_loss: of that share for each operation that the GPU can do per byte that it reads: arithmetic has
            grown faster than power and bandwidth.
        amd_share: of the share of the bandwidth, on AMD's GPUs.
        grouped_width: columns of a rank's slice of an expert whose products take as much longer than others as the GPU's
            whole stated arithmetic would take for them: narrow ones do not fill the GPU.
        layer: the small kernels of a layer's half (attention or states, feed-forward): norms, sums, short texts.
        experts: what a layer of experts adds: routing, sorting, small grouped products.
        early_groups: what it adds before 0.12 where experts are chosen by groups, which took several kernels.
        expert_launches: times as long as others that launching a layer of experts takes in a prompt: it has more kernels.
        early_attention: times as long as FlashAttention that a prompt's attention takes where that does not run: below
            compute capability 8 (vLLM's platforms/cuda.py, "Cannot use FlashAttention-2 backend for Volta and Turing
            GPUs", 0.6.6 to 0.10.2).
        latent: what attention to latents (MLA) adds to a layer: products that compress, expand and absorb them.
        switch, bus: waiting for the other ranks in one all-reduce, over NVLink and over PCIe.
        step: scheduling, sampling and launching one step. sequence: the same for each request in it.
        waiting: the same of one step more, before 0.14, whose GPU waits until the host has scheduled the next step.
        ahead: what the host takes for a step beside its requests where it schedules while the GPU computes the one before:
            a step takes no less.
        prompt: taking a request in and answering its first token.
        template: parsing a chat template, in the release that does so for each request.
        old_step, old_sequence, old_prompt: the same in vLLM's V0 engine, whose GPU waits for the host.
        bus_share: of the bandwidth of PCIe that ranks reach among each other. copied_share: the same where no GPU reads
            another's memory, so that all goes through the host's: each byte is written there and read again.
        prompt_layer: launching a layer of a prompt, which no CUDA graph replays. old_prompt_layer: the same in V0, which
            does not compile models: Python launches each of their modules. old_reduce: one all-reduce among them.
        hosts: times that a host's part takes, by its processor: of what it takes on a host that is not known.
        launch: launching a layer's kernels one by one, where no CUDA graph replays them. The GPU works meanwhile, so that
            the longer of the two counts. Published per step and layer: 0.38 ms (Llama 2 7B, vllm-project/vllm#1440) and
            0.79 ms (Qwen2.5-Omni-7B, vllm-project/vllm-omni#7960); it begins at their geometric middle.
        low, high: nine in ten of the published times between tokens lie between these times the estimate.
        prompt_low, prompt_high: the same of first tokens.
        figures: on how many they were set.
    """

    memory_share: float = 0.85
    compute_share: float = 0.9
    compute_loss: float = 0.001
    amd_share: float = 0.75
    grouped_width: float = 1500.0
    layer: float = 1.5e-5
    experts: float = 4e-5
    early_groups: float = 1e-4
    expert_launches: float = 1.5
    early_attention: float = 3.0
    latent: float = 5e-5
    switch: float = 1.5e-5
    bus: float = 3e-5
    bus_share: float = 0.5
    copied_share: float = 0.25
    step: float = 5e-4
    sequence: float = 2e-5
    waiting: float = 1e-3
    ahead: float = 2e-3
    prompt: float = 5e-3
    template: float = 7e-3
    old_step: float = 2e-3
    old_sequence: float = 1e-4
    old_prompt: float = 1e-2
    prompt_layer: float = 2e-4
    old_prompt_layer: float = 4e-4
    old_reduce: float = 3e-5
    hosts: Mapping[str, float] = field(default_factory=dict)
    launch: float = 5.5e-4
    low: float = 0.7
    high: float = 1.5
    prompt_low: float = 0.5
    prompt_high: float = 2.0
    figures: int = 0

    def memory_reached(self, gpu: Gpu) -> float:
        """Return the share of the memory bandwidth that engines reach on a GPU."""
        return self.memory_share * (self.amd_share if gpu.vendor == "amd" else 1.0)

    def compute_reached(self, gpu: Gpu) -> float:
        """Return the share of the dense arithmetic that engines reach on a GPU."""
        rate = (gpu.tflops.get("bf16") or gpu.tflops.get("fp16") or 0.0) * 1e12
        share = self.compute_share - self.compute_loss * rate / gpu.bandwidth
        return max(_LEAST_SHARE, share) * (_AMD_COMPUTE if gpu.vendor == "amd" else 1.0)


@cache
def load_speed_constants() -> SpeedConstants:
    """Return the measured constants."""
    text = files("exo_inference.planner").joinpath("catalog", "speeds.json").read_text("utf-8")
    return SpeedConstants(**json.loads(text))
