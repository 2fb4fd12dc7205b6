"""The engine flags that memory and speed depend on, as one frozen object.

`EngineParameters.parse` reads an argument vector in vLLM's form (exo-engine takes the same names) and
`format` writes it back; flags without a bearing on the plan are kept as they are. Whether a flag
exists in a version is not checked here: that is the parameter catalogue's work.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from exo_inference.errors import UsageError

LATEST_VLLM = "0.33.0"
AUTO_LENGTH = "auto"

_SUFFIXES = {
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class EngineParameters:
    """What was asked of the engine. None: the engine's default.

    Attributes:
        engine: `vllm` or `exo`.
        engine_version: the vLLM release whose rules apply.
        max_model_len: tokens, or `auto` (the engine takes what fits).
        speculative_config, limit_mm_per_prompt: JSON in canonical form.
        others: flags that have no bearing on the plan, as given.
    """

    engine: str = "vllm"
    engine_version: str = LATEST_VLLM
    max_model_len: int | str | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_dtype: str | None = None
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    block_size: int | None = None
    dtype: str | None = None
    quantization: str | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    decode_context_parallel_size: int | None = None
    enable_expert_parallel: bool | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enforce_eager: bool | None = None
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    cpu_offload_gb: float | None = None
    mamba_ssm_cache_dtype: str | None = None
    enable_lora: bool | None = None
    max_loras: int | None = None
    max_lora_rank: int | None = None
    speculative_config: str | None = None
    limit_mm_per_prompt: str | None = None
    skip_mm_profiling: bool | None = None
    language_model_only: bool | None = None
    runner: str | None = None
    others: tuple[str, ...] = ()

    @classmethod
    def parse(
        cls, flags: Sequence[str], *, engine: str = "vllm", engine_version: str = LATEST_VLLM
    ) -> EngineParameters:
        """Read an argument vector (`--flag=value`, or `--flag value` as two items).

        Raises:
            UsageError: a flag the planner understands has a value of the wrong type.
        """
        values: dict[str, Any] = {}
        others: list[str] = []
        index = 0
        while index < len(flags):
            index = _take(flags, index, values, others)
        return cls(engine=engine, engine_version=engine_version, others=tuple(others), **values)

    def format(self) -> list[str]:
        """Return the argument vector that `parse` reads back to an equal object."""
        flags: list[str] = []
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in _NOT_FLAGS or value is None:
                continue
            name = each.name.replace("_", "-")
            if isinstance(value, bool):
                flags.append(f"--{name}" if value else f"--no-{name}")
            else:
                flags.append(f"--{name}={_written(value)}")
        return [*flags, *self.others]

    @property
    def speculative(self) -> Mapping[str, Any]:
        """The speculative decoding settings, empty where there are none."""
        return _loaded(self.speculative_config)

    @property
    def draft_name(self) -> str | None:
        """The draft model that the speculative decoding settings name."""
        name = self.speculative.get("model")
        return name if isinstance(name, str) and name else None

    @property
    def records_full_graphs(self) -> bool:
        """Whether whole decode steps are recorded as CUDA graphs, as vLLM does by default.

        `-O0` records none and `-O1` pieces alone (config/vllm.py, 0.19.0); `cudagraph_mode` goes before both.
        """
        mode, level = None, "2"
        for flag, value in _with_values(self.others):
            name = _COMPILATION.get(flag.partition(".")[0])
            if name == "optimization_level":
                level = value
            elif name == "compilation_config" and "." in flag:
                mode = value if flag.endswith(".cudagraph_mode") else mode
            elif name == "compilation_config":
                mode = _loaded(value).get("cudagraph_mode", mode)
        if mode is not None:
            return "FULL" in str(mode).upper()
        return level.strip() not in ("0", "1")

    @property
    def mm_limits(self) -> Mapping[str, Any]:
        """The limits of images, videos and audio per prompt."""
        return _loaded(self.limit_mm_per_prompt)


_NOT_FLAGS = frozenset({"engine", "engine_version", "others"})


def _loaded(text: str | None) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}  # flags that the planner does not read are judged elsewhere
    return value if isinstance(value, dict) else {}


_COMPILATION = {
    "--compilation-config": "compilation_config", "-cc": "compilation_config",
    "--optimization-level": "optimization_level", "-O": "optimization_level",
}  # fmt: skip


def _with_values(items: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield flags with their values, written `--flag=value`, `--flag value` or `-O0`."""
    for item, following in zip(items, [*items[1:], ""], strict=False):
        flag, equals, value = item.partition("=")
        if not flag.startswith("-"):
            continue
        if re.fullmatch(r"-O\d", flag):
            yield "-O", flag[2:]
            continue
        name, dot, path = flag.partition(".")
        yield name.replace("_", "-") + dot + path, value if equals else following


def _written(value: object) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def _take(flags: Sequence[str], index: int, values: dict[str, Any], others: list[str]) -> int:
    """Read the flag at `index` and return the index after it."""
    item = flags[index]
    flag, equals, value = item.partition("=")
    name = _ALIASES.get(flag, flag.removeprefix("--").replace("-", "_"))
    following = flags[index + 1] if index + 1 < len(flags) else None
    takes_next = not equals and following is not None and not _is_flag(following)
    if name.startswith("no_") and name.removeprefix("no_") in _BOOLEANS and not equals:
        values[name.removeprefix("no_")] = False
        return index + 1
    if name in _BOOLEANS:
        if not equals and takes_next and following is not None and following.lower() in _WORDS:
            values[name] = _WORDS[following.lower()]
            return index + 2
        values[name] = _boolean(flag, value) if equals else True
        return index + 1
    reader = _READERS.get(name)
    if reader is None or not (item.startswith("-")):
        others.append(item)
        if takes_next and item.startswith("-") and following is not None:
            others.append(following)
            return index + 2
        return index + 1
    if not equals:
        if not takes_next or following is None:
            raise UsageError(f"{flag} needs a value", hint=f"Write {flag}=VALUE.")
        value = following
    values[name] = reader(flag, value)
    return index + (1 if equals else 2)


def _is_flag(item: str) -> bool:
    return item.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", item)


_WORDS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}


def _boolean(flag: str, value: str) -> bool:
    if value.lower() not in _WORDS:
        raise UsageError(
            f"{flag} is {value!r}, expected true or false", hint=f"Write {flag} or leave it out."
        )
    return _WORDS[value.lower()]


def _integer(flag: str, value: str) -> int:
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?)([kmgtKMGT]?)", value.strip())
    number = float(match.group(1)) * _SUFFIXES.get(match.group(2), 1) if match else -1.0
    if match is not None and not match.group(2) and "." not in match.group(1):
        number = int(match.group(1))
    if number < 1 or number != int(number):
        hint = f"For example {flag}=8192, or 8K for 8192."
        raise UsageError(f"{flag} is {value!r}, expected a whole number of 1 or more", hint=hint)
    return int(number)


def _length(flag: str, value: str) -> int | str:
    if value.strip().lower() in (AUTO_LENGTH, "-1"):
        return AUTO_LENGTH
    return _integer(flag, value)


def _fraction(flag: str, value: str) -> float:
    number = _number(flag, value)
    if not 0 < number <= 1:
        raise UsageError(
            f"{flag} is {value!r}, expected above 0 and at most 1", hint=f"For example {flag}=0.9."
        )
    return number


def _number(flag: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e12:
        raise UsageError(f"{flag} is {value!r}, expected a number", hint=f"For example {flag}=4.")
    return number


def _word(flag: str, value: str) -> str:
    if not value.strip():
        raise UsageError(f"{flag} is empty", hint=f"Write {flag}=VALUE or leave it out.")
    return value.strip()


def _json(flag: str, value: str) -> str:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError) as exc:
        hint = f'For example {flag}=\'{{"method": "ngram"}}\'.'
        raise UsageError(f"{flag} is not valid JSON: {exc}", hint=hint) from exc
    if not isinstance(parsed, dict):
        raise UsageError(
            f"{flag} is {value!r:.60}, expected a JSON object", hint="Use {…} with keys and values."
        )
    return json.dumps(parsed, sort_keys=True, separators=(",", ":"))


_BOOLEANS = frozenset(
    {
        "enable_expert_parallel", "enforce_eager", "enable_chunked_prefill", "enable_prefix_caching",
        "enable_lora", "skip_mm_profiling", "language_model_only",
    }
)  # fmt: skip

_READERS: Mapping[str, Callable[[str, str], Any]] = {
    "max_model_len": _length,
    "gpu_memory_utilization": _fraction,
    "kv_cache_dtype": _word,
    "kv_cache_memory_bytes": _integer,
    "num_gpu_blocks_override": _integer,
    "block_size": _integer,
    "dtype": _word,
    "quantization": _word,
    "tensor_parallel_size": _integer,
    "pipeline_parallel_size": _integer,
    "data_parallel_size": _integer,
    "decode_context_parallel_size": _integer,
    "max_num_seqs": _integer,
    "max_num_batched_tokens": _integer,
    "cpu_offload_gb": _number,
    "mamba_ssm_cache_dtype": _word,
    "max_loras": _integer,
    "max_lora_rank": _integer,
    "speculative_config": _json,
    "limit_mm_per_prompt": _json,
    "runner": _word,
}

_ALIASES = {
    "-tp": "tensor_parallel_size", "-pp": "pipeline_parallel_size", "-dp": "data_parallel_size",
    "-q": "quantization", "-dcp": "decode_context_parallel_size", "-sc": "speculative_config",
}  # fmt: skip
