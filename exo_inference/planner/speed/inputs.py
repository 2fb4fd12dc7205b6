"""What an estimate of speed needs of a plan, and the arithmetic that its GPU offers."""

from __future__ import annotations

from dataclasses import dataclass, field

from exo_inference.planner.draft_acceptance import Drafting
from exo_inference.planner.engine_rules import EngineRules
from exo_inference.planner.gpu_catalog import Gpu
from exo_inference.planner.memory import Ranks
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.speed.constants import SpeedConstants, load_speed_constants


@dataclass(frozen=True, slots=True)
class SpeedInputs:
    """What the estimate needs of a plan."""

    model: Architecture
    gpu: Gpu
    ranks: Ranks
    gpu_count: int
    weights_bytes: int
    kv_bytes_per_token: float
    capacity_tokens: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    dtype: str
    rules: EngineRules
    cache_times: float = 1.0
    """How many times its bytes the cache takes to read."""
    offloaded_bytes: int = 0
    """Weights of a rank that stay in the host's memory (`--cpu-offload-gb`)."""
    is_eager: bool = False
    """Kernels are launched one by one (`--enforce-eager`)."""
    schedules_ahead: bool = True
    """The host schedules a step while the GPU computes the one before (vLLM's `--async-scheduling`)."""
    drafting: Drafting | None = None
    """Speculative decoding."""
    why_not_estimated: str = ""
    """Why a processor's speed is not that of the engine's kernels with vectors; empty where it is."""
    writes: bool = True
    """The model writes texts; one that embeds or scores them computes prompts alone."""
    through_chat: bool = True
    """Requests come as messages, to /v1/chat/completions."""
    constants: SpeedConstants = field(default_factory=load_speed_constants)

    @property
    def bandwidth(self) -> float:
        """Bytes per second that a rank reads of its memory."""
        return self.gpu.bandwidth * self.constants.memory_reached(self.gpu)

    @property
    def host(self) -> float:
        """How many times as long as on a host that is not known everything takes that the host does."""
        return self.constants.hosts.get(self.gpu.processor, 1.0)

    def step(self, size: int) -> float:
        """Seconds of a step that are the host's, which answers `size` requests."""
        each = self.constants
        if self.rules.is_legacy:
            return self.host * (each.old_step + size * each.old_sequence)
        waiting = 0.0 if self.schedules_ahead else each.waiting
        return self.host * (each.step + waiting + size * each.sequence)

    def least_step(self, size: int) -> float:
        """Seconds that a step of `size` requests takes at least, as the host has as long to schedule the next one."""
        if self.rules.is_legacy or not self.schedules_ahead:
            return 0.0  # the GPU waits for the host: its part is in `step`
        own = self.rules.ahead_seconds
        ahead = self.constants.ahead if own is None else own
        return self.host * (ahead + size * self.constants.sequence)

    @property
    def taking_in(self) -> float:
        """Seconds of taking a request in and answering its first token."""
        known = self.constants.old_prompt if self.rules.is_legacy else self.constants.prompt
        return self.host * known + self.parsing

    @property
    def parsing(self) -> float:
        """Seconds in which the API parses the chat template of one request, and takes in no other.

        Requests that come at once are all parsed before the first of them starts: the API's loop takes turns among
        them (vllm-project/vllm#20065: 6 to 8 s for 1,000).
        """
        rules = self.rules
        has_template = self.through_chat and self.model.model_type not in rules.writes_itself
        is_parsed = has_template and rules.parses_templates
        return self.host * self.constants.template if is_parsed else 0.0


def arithmetic(inputs: SpeedInputs) -> tuple[str, float]:
    """Return the number type that the matrices are multiplied in, and its operations per second."""
    gpu, quantization = inputs.gpu, inputs.model.quantization
    native = quantization.default.native if quantization is not None else None
    rates = {"nvfp4": "fp4", "mxfp4": "fp4", "fp8": "fp8", "int8": "int8"}
    if native is not None and gpu.supports(native):
        rate = gpu.tflops.get(rates[native])
        if rate:
            return native, rate * 1e12
    if gpu.vendor == "cpu" and inputs.dtype == "float32":
        return "fp32", (gpu.tflops.get("bf16") or 0.0) * 1e12  # what is known of a CPU is its fp32
    is_half = inputs.dtype in ("float16", "half")
    has_bf16 = gpu.supports("bf16") or gpu.vendor == "cpu"
    wanted = "fp16" if is_half or not has_bf16 else "bf16"
    rate = gpu.tflops.get(wanted) or gpu.tflops.get("fp16") or 0.0
    return wanted, rate * 1e12
