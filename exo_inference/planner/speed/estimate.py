"""How fast a plan would be: what must be read, computed and sent over what engines reach of the GPU, and floors.

`planning.py` calls `estimate_speed`. A decode step reads the weights it touches and every sequence's cache; a
prefill computes; each layer adds a floor, layers of experts a larger one. What engines reach and the floors are
measured (`constants.py`). Offloaded weights come over the host's link in every step, and without CUDA graphs
the host must keep up with launching. Queueing and the network are not in the times.
"""

from __future__ import annotations

from collections.abc import Mapping

from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.shapes import KvKind
from exo_inference.planner.speed.figures import SOURCE, BatchSpeed, PromptSpeed, Speed
from exo_inference.planner.speed.inputs import SpeedInputs, arithmetic
from exo_inference.planner.speed.operations import (
    attention_flops,
    half_rate,
    logits_operations,
    product_seconds,
    read_bytes,
    unchosen_share,
)

DRAFT_PASS_SECONDS = 0.0002
"""Launching one pass of the draft, which neither schedules nor answers: a quarter of a step. Assumed."""

PROMPT_LENGTHS = (128, 1024, 8192, 32768, 131072)


def estimate_speed(inputs: SpeedInputs) -> Speed | None:
    """Return the estimate, or None for a GPU without figures for arithmetic."""
    kind, flops = arithmetic(inputs)
    if flops <= 0 or inputs.gpu.bandwidth <= 0:
        return None
    lengths = [n for n in PROMPT_LENGTHS if n < inputs.max_model_len] or [inputs.max_model_len]
    prompts = tuple(prompt_speed(inputs, n, flops) for n in lengths if n > 0)
    context = max(1, min(inputs.max_model_len, 2048))
    sizes = decoded_at_once(inputs, context)
    batches = tuple(batch_speed(inputs, size, context, flops) for size in sizes)
    if inputs.drafting is None:
        return Speed(prompts, batches, kind)
    source = f"{SOURCE}; decoding by an assumed acceptance of drafted tokens, see the notes"
    return Speed(prompts, batches, kind, source)


def decoded_at_once(inputs: SpeedInputs, context: int) -> list[int]:
    """Return how many requests of that length are decoded at once, from one to the most; none where none writes."""
    most = max(1, min(inputs.max_num_seqs, inputs.capacity_tokens // context))
    return batch_sizes(most) if inputs.writes else []


def batch_sizes(most: int) -> list[int]:
    """Return 1, 2, 4 and so on, and the most requests that are decoded at once."""
    return [2**power for power in range(most.bit_length()) if 2**power < most] + [most]


def prompt_times(inputs: SpeedInputs, length: int, flops: float) -> Mapping[str, float]:
    """Return the seconds that a prompt computes, reads weights, launches and sends between GPUs."""
    model, ranks = inputs.model, inputs.ranks
    compute = product_seconds(inputs, length, flops)
    # Of all its tokens a prompt has logits of the last one alone.
    compute -= logits_operations(model, length - 1) / flops
    compute += attention_flops(inputs, length) / half_rate(inputs, flops)
    steps = _num_steps(inputs, length)
    here, away = read_bytes(inputs, min(length, inputs.max_num_batched_tokens))
    reads = here * ranks.pipeline * steps
    return {
        "compute": compute / ranks.tensor / inputs.constants.compute_reached(inputs.gpu),
        "memory bandwidth": reads / inputs.bandwidth,
        "offloaded weights": steps * _host_seconds(inputs, away),
        "kernel launches": steps * max(_launch_seconds(inputs), _prompt_launches(inputs, length)),
        "communication": communication_seconds(inputs, length, steps),
    }


def _prompt_launches(inputs: SpeedInputs, length: int) -> float:
    """Return what the host takes to launch a prompt's kernels.

    vLLM's V1 replays the pieces between the attentions of a step of few tokens from CUDA graphs
    (config/compilation.py, `max_cudagraph_capture_size`, 0.24.0 to 0.28.0); V0 has graphs for decoding alone.
    """
    is_replayed = (
        inputs.rules.captures_graphs
        and not inputs.rules.is_legacy
        and not inputs.is_eager
        and length <= min(_MOST_CAPTURED, 2 * inputs.max_num_seqs)
    )
    if is_replayed:
        return floor_seconds(inputs)
    constants, layers = inputs.constants, inputs.model.layer_counts
    each = constants.old_prompt_layer if inputs.rules.is_legacy else constants.prompt_layer
    routed = sum(count for layer, count in layers if layer.uses_moe)
    total = len(inputs.model.layers) + routed * (constants.expert_launches - 1)
    sent = constants.old_reduce * num_reduces(inputs) if inputs.rules.is_legacy else 0.0
    return inputs.host * (total * each + sent)


_MOST_CAPTURED = 512
"""Tokens of a step that is replayed at most (config/vllm.py, `_set_cudagraph_sizes`, 0.24.0 to 0.28.0). On GPUs of
compute capability 10 0.28.0 has 1024, which is not followed here."""


def _host_seconds(inputs: SpeedInputs, read: float) -> float:
    """Return the time that so many bytes of each stage's offloaded weights take over the host's link.

    vLLM leaves them in pinned host memory, and the kernels of every step read them from there
    (model_executor/models/utils.py, `maybe_offload_to_cpu`). Each GPU has its own link.
    """
    return (
        read * inputs.ranks.pipeline / (inputs.gpu.host_bandwidth * inputs.constants.memory_share)
    )


def _launch_seconds(inputs: SpeedInputs, context: int = 0) -> float:
    is_eager = inputs.is_eager or (inputs.rules.is_legacy and context > _OLD_CAPTURED)
    return len(inputs.model.layers) * inputs.host * inputs.constants.launch if is_eager else 0.0


_OLD_CAPTURED = 8192
"""Tokens of a request beyond which V0 decodes without CUDA graphs (`max_seq_len_to_capture`, 0.6.6 to 0.7.3)."""


def _num_steps(inputs: SpeedInputs, length: int) -> int:
    return -(-length // max(1, inputs.max_num_batched_tokens))


def prompt_speed(inputs: SpeedInputs, length: int, flops: float) -> PromptSpeed:
    """Return the time to the first token of a prompt of any length."""
    parts = prompt_times(inputs, length, flops)
    seconds = prompt_seconds(inputs, parts, length)
    bound = max(parts, key=lambda name: parts[name])
    constants = inputs.constants
    low, high = seconds * constants.prompt_low, seconds * constants.prompt_high
    return PromptSpeed(length, seconds, bound, low, high)


def prompt_seconds(inputs: SpeedInputs, parts: Mapping[str, float], length: int) -> float:
    """Return the time to the first token from the parts that `prompt_times` returns.

    Reading and computing follow one another: with the few rows of a prompt most blocks of a product load all that they
    need before they multiply, and none that has finished loads for another.
    """
    reads = parts["memory bandwidth"] + parts["offloaded weights"]
    larger = max(parts["compute"] + reads, parts["kernel launches"])
    fixed = _num_steps(inputs, length) * inputs.step(1) + inputs.taking_in
    return larger + parts["communication"] + fixed


def joining_seconds(inputs: SpeedInputs, length: int, batch: int, flops: float) -> float:
    """Return how long a prompt holds up `batch` requests that are decoded beside it.

    V0 computes a prompt in steps of its own. V1 puts it into theirs (vLLM's docs/configuration/optimization.md, "Chunked
    Prefill": "enabled by default", it "batches all pending decode requests before scheduling any prefill"), so that
    weights that they read are not read again and no further step waits for the host or for other ranks.
    """
    parts = prompt_times(inputs, length, flops)
    if inputs.rules.is_legacy:
        return prompt_seconds(inputs, parts, length) - inputs.taking_in
    here, _ = read_bytes(inputs, batch)
    shared = here * inputs.ranks.pipeline
    reads = parts["memory bandwidth"] - _num_steps(inputs, length) * shared / inputs.bandwidth
    own = parts["compute"] + max(0.0, reads)
    return max(own, parts["kernel launches"]) + communication_seconds(inputs, length, 0)


def batch_times(inputs: SpeedInputs, size: int, context: int, flops: float) -> Mapping[str, float]:
    """Return the seconds that a decode step reads, computes and sends, by resource."""
    model, ranks = inputs.model, inputs.ranks
    bandwidth = inputs.bandwidth
    tokens = size * (1 + inputs.drafting.num_tokens if inputs.drafting is not None else 1)
    here, away = read_bytes(inputs, tokens)
    reads = here * ranks.pipeline
    cached = size * _cached_tokens(model, context) * inputs.kv_bytes_per_token * ranks.pipeline
    cached *= inputs.cache_times
    reached = inputs.constants.compute_reached(inputs.gpu)
    compute = product_seconds(inputs, tokens, flops) / ranks.tensor / reached
    return {
        "weights read": reads / bandwidth,
        "cache read": cached / bandwidth,
        "offloaded weights": _host_seconds(inputs, away),
        "compute": compute,
        "kernel launches": _launch_seconds(inputs, context),
        "small kernels": floor_seconds(inputs),
        "communication": communication_seconds(inputs, tokens, 1),
        "drafting": draft_seconds(inputs, size, context, flops),
    }


def floor_seconds(inputs: SpeedInputs) -> float:
    """Return what all layers' small kernels take in a step, routers and grouped products of experts included."""
    constants, total = inputs.constants, 0.0
    experts = constants.experts
    if inputs.model.model_type in inputs.rules.chooses_slowly:
        experts += constants.early_groups
    model = inputs.model
    for (layer, count), halves in zip(model.layer_counts, model.layer_halves, strict=True):
        routed = experts if layer.uses_moe else 0.0
        latent = constants.latent if layer.kv and layer.kv.kind is KvKind.LATENT else 0.0
        total += count * (halves * constants.layer + routed + latent)
    return total


def draft_seconds(inputs: SpeedInputs, size: int, context: int, flops: float) -> float:
    """Return the time of the draft's passes in a step, one for each drafted token."""
    draft = inputs.drafting
    if draft is None or not draft.num_parameters:
        return 0.0
    bandwidth = inputs.bandwidth
    chosen = 1 - unchosen_share(inputs.model, size)
    cached = size * context * draft.kv_bytes_per_token
    reads = (draft.read_bytes + draft.expert_bytes * chosen + cached) / bandwidth
    rate = flops * inputs.constants.compute_reached(inputs.gpu)
    compute = 2 * draft.num_parameters * size / inputs.ranks.tensor / rate
    each = inputs.host * inputs.constants.launch
    launches = draft.num_layers * each if inputs.is_eager else 0.0
    share = draft.num_layers / len(inputs.model.layers)
    sent = communication_seconds(inputs, size, 1) * share
    return draft.num_tokens * (max(reads, compute, launches) + sent + DRAFT_PASS_SECONDS)


def batch_speed(inputs: SpeedInputs, size: int, context: int, flops: float) -> BatchSpeed:
    """Return the speed of decoding `size` requests on each data rank."""
    bound = _bound(batch_times(inputs, size, context, flops))
    seconds = token_seconds(inputs, size, context, flops)
    low, high = seconds * inputs.constants.low, seconds * inputs.constants.high
    replicas = inputs.ranks.data
    rate = size * replicas / seconds
    price = inputs.gpu.price(inputs.gpu_count)
    cost = None if price is None else price / (rate * 3600) * 1e6
    return BatchSpeed(size * replicas, context, seconds, rate, bound, cost, low, high)


def token_seconds(inputs: SpeedInputs, size: int, context: int, flops: float) -> float:
    """Return the time between the tokens of each of `size` requests."""
    seconds = step_seconds(batch_times(inputs, size, context, flops), inputs.step(size))
    seconds = max(seconds, inputs.least_step(size))
    drafting = inputs.drafting
    return seconds if drafting is None else seconds / drafting.expected_tokens


def step_seconds(parts: Mapping[str, float], fixed: float) -> float:
    """Return the time of a decode step from the parts that `batch_times` returns, and what every step takes."""
    reads = parts["weights read"] + parts["cache read"] + parts["offloaded weights"]
    longest = max(reads, parts["compute"], parts["kernel launches"])
    return longest + parts["small kernels"] + parts["communication"] + parts["drafting"] + fixed


_READS = ("weights read", "cache read", "offloaded weights")


def _bound(parts: Mapping[str, float]) -> str:
    """Return what limits a decode step; reads follow one another, so that their sum competes."""
    others = {name: seconds for name, seconds in parts.items() if name not in _READS}
    largest = max(others, key=lambda name: others[name])
    if sum(parts[name] for name in _READS) < others[largest]:
        return largest
    return max(_READS, key=lambda name: parts[name])


def _cached_tokens(model: Architecture, context: int) -> float:
    """Return how many tokens' worth of cache a step reads per sequence; windows read less."""
    total = read = 0
    for layer, count in model.layer_counts:
        if layer.kv is None or layer.kv.kind is KvKind.STATE:
            continue
        elements = count * layer.kv.elements_per_token
        total += elements
        if layer.kv.kind is KvKind.COMPRESSED:
            window = count * layer.kv.key_dim
            read += window * min(context, layer.kv.window) + (elements - window) * context
            continue
        read += elements * (min(context, layer.kv.window) if layer.kv.window else context)
    return read / total if total else 0.0


def num_reduces(inputs: SpeedInputs) -> int:
    """Return how often ranks add up what each has computed: after every half of a layer."""
    return inputs.model.num_halves if inputs.ranks.tensor > 1 else 0


def communication_seconds(inputs: SpeedInputs, num_tokens: int, steps: int) -> float:
    """Return the seconds of an all-reduce per half of a layer, and of handing on between stages."""
    ranks, gpu, model = inputs.ranks, inputs.gpu, inputs.model
    if ranks.tensor == 1 and ranks.pipeline == 1:
        return 0.0
    size = num_tokens * model.hidden_size * 2
    seconds = 0.0
    if ranks.tensor > 1:
        constants = inputs.constants
        is_linked = gpu.is_linked(ranks.tensor)
        per = steps * (constants.switch if is_linked else constants.bus)
        share = constants.bus_share if gpu.reads_peers else constants.copied_share
        link = gpu.bandwidth_between(ranks.tensor) * (1.0 if is_linked else share)
        per += 2 * size * (ranks.tensor - 1) / ranks.tensor / link
        seconds += num_reduces(inputs) * per
    handed_on = steps * 2e-5 + size / gpu.bandwidth_between(ranks.pipeline * ranks.tensor)
    return seconds + (ranks.pipeline - 1) * handed_on


def inter_token_seconds(inputs: SpeedInputs, context: int) -> float | None:
    """Return the time between tokens of one request alone, or None for a GPU without figures or where none is written."""
    _, flops = arithmetic(inputs)
    if flops <= 0 or inputs.gpu.bandwidth <= 0 or not inputs.writes:
        return None
    return token_seconds(inputs, 1, context, flops)


def throughput_at_most(speed: Speed | None) -> float:
    """Return the most tokens per second that are written, or read where none is; 0 without an estimate."""
    if speed is None:
        return 0.0
    read = max((each.num_tokens / each.ttft_seconds for each in speed.prompts), default=0.0)
    return max((each.tokens_per_second for each in speed.batches), default=read)
