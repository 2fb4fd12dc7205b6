"""The settings of an engine that memory and speed depend on, as one frozen object of values.

Nothing here reads text: `preflight` reads flags and hands over what they set. `format` writes the settings
as flags in vLLM's form, which exo-engine takes too; flags without a bearing on the plan are kept as they were
written. Which flags exist in a version, the parameter catalogue knows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from exo_inference.engine_names import GPU_ENGINE
from exo_inference.errors import UsageError
from exo_inference.planner.engine_rules import EngineRules, rules_for

LATEST_VLLM = "0.33.0"
AUTO_LENGTH = "auto"


class WrongSetting(UsageError):
    """A value that no engine can be planned with.

    Attributes:
        name: of the setting.
        finding: what was found and what is expected; before it goes the flag, as its engine calls it.
    """

    def __init__(self, name: str, value: object, kind: _Kind) -> None:
        flag = f"--{name.replace('_', '-')}"
        self.name = name
        self.finding = f"is {value!r:.60}, expected {kind.expected}"
        super().__init__(f"{flag} {self.finding}", hint=kind.hint.format(flag=flag))


@dataclass(frozen=True, slots=True)
class EngineParameters:
    """What was asked of the engine. None: the engine's default.

    Attributes:
        engine: one of `engine_rules.PLANNED`.
        engine_version: the vLLM release whose rules apply.
        max_model_len: tokens, or `auto` (the engine takes what fits).
        others: flags that have no bearing on the plan, as given.
        records_full_graphs: whole decode steps are recorded as CUDA graphs, as vLLM does by default; the
            flags that say so are in `others`.
        schedules_ahead: what `--async-scheduling` says, which is in `others`; None where it is not there.
        sleeps: what `--enable-sleep-mode` says, likewise.
        attention_backend, batch_invariant, cpu_threads: what the flags of these names say, which are in `others`.
        has_flashinfer_sampler: whether FlashInfer samples, where the start says so or what was installed (no flag
            does); None where nobody says.
    """

    engine: str = GPU_ENGINE
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
    speculative_config: Mapping[str, Any] | None = None
    limit_mm_per_prompt: Mapping[str, Any] | None = None
    skip_mm_profiling: bool | None = None
    language_model_only: bool | None = None
    runner: str | None = None
    all2all_backend: str | None = None
    others: tuple[str, ...] = ()
    records_full_graphs: bool = True
    schedules_ahead: bool | None = None
    attention_backend: str | None = None
    batch_invariant: bool = False
    cpu_threads: int | None = None
    has_flashinfer_sampler: bool | None = None
    sleeps: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any], **others: Any) -> EngineParameters:
        """Return settings from outside.

        Args:
            values: of flags, by name with `_` for `-`; None is as if it were not there, a length of -1 is
                `auto`. What is no setting has no bearing.
            others: the fields that no flag sets.

        Raises:
            WrongSetting: no engine can be planned with a value.
        """
        settings = {name: values[name] for name in SETTINGS if values.get(name) is not None}
        for name, value in settings.items():
            if not _KINDS[name].holds(value):
                raise WrongSetting(name, value, _KINDS[name])
        if settings.get("max_model_len") == -1:
            settings["max_model_len"] = AUTO_LENGTH
        ahead, backend = values.get("async_scheduling"), values.get("attention_backend")
        threads = values.get("cpu_threads")
        return cls(
            **settings,
            records_full_graphs=_records_full_graphs(values),
            schedules_ahead=ahead if isinstance(ahead, bool) else None,
            attention_backend=backend.lower() if isinstance(backend, str) else None,
            batch_invariant=values.get("batch_invariant") is True,
            sleeps=values.get("enable_sleep_mode") is True,
            cpu_threads=threads if _is_count(threads) else None,
            **others,
        )

    @property
    def rules(self) -> EngineRules:
        """How that engine, in that version, uses memory."""
        return rules_for(self.engine, self.engine_version)

    @property
    def settings(self) -> dict[str, Any]:
        """What is set, by name."""
        values = {name: getattr(self, name) for name in SETTINGS}
        return {name: value for name, value in values.items() if value is not None}

    def format(self) -> list[str]:
        """Return the argument vector that is read back to equal settings."""
        flags: list[str] = []
        for each, value in self.settings.items():
            name = each.replace("_", "-")
            if isinstance(value, bool):
                flags.append(f"--{name}" if value else f"--no-{name}")
            else:
                flags.append(f"--{name}={_written(value)}")
        return [*flags, *self.others]

    def with_values(self, values: Mapping[str, str | int | bool]) -> EngineParameters:
        """Return them with settings and such flags as are in `others` and are fields all the same, by field."""
        others = list(self.others)
        for name in sorted(values.keys() - set(SETTINGS)):
            flag, value = f"--{name.replace('_', '-')}", values[name]
            others = _without(others, flag, takes_value=not isinstance(value, bool))
            if isinstance(value, bool):
                others.append(flag if value else flag.replace("--", "--no-", 1))
            else:
                others.append(f"{flag}={value}")
        return replace(self, **values, others=tuple(others))  # type: ignore[arg-type]

    @property
    def speculative(self) -> Mapping[str, Any]:
        """The speculative decoding settings, empty where there are none."""
        return self.speculative_config or {}

    @property
    def draft_name(self) -> str | None:
        """The draft model that the speculative decoding settings name."""
        name = self.speculative.get("model")
        return name if isinstance(name, str) and name else None

    @property
    def mm_limits(self) -> Mapping[str, Any]:
        """The limits of images, videos and audio per prompt."""
        return self.limit_mm_per_prompt or {}


def _records_full_graphs(values: Mapping[str, Any]) -> bool:
    """Whether whole decode steps are recorded as CUDA graphs.

    Level 0 records none and level 1 pieces alone (config/vllm.py, 0.19.0); `cudagraph_mode` goes before both.
    """
    compilation = values.get("compilation_config")
    mode = compilation.get("cudagraph_mode") if isinstance(compilation, Mapping) else None
    if mode is not None:
        return "FULL" in str(mode).upper()
    return values.get("optimization_level", 2) not in (0, 1)


def _without(words: list[str], flag: str, *, takes_value: bool) -> list[str]:
    """Return an argument vector without a flag, however it is spelled."""
    kept: list[str] = []
    is_value = False
    for word in words:
        name, has_equals, _ = word.replace("_", "-").partition("=")
        is_flag = name in (flag, flag.replace("--", "--no-", 1))
        if not is_flag and not is_value:
            kept.append(word)
        is_value = is_flag and takes_value and not has_equals
    return kept


def _written(value: object) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    return repr(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a setting may be."""

    holds: Callable[[Any], bool]
    expected: str
    hint: str


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


_COUNT = _Kind(_is_count, "a whole number of 1 or more", "For example {flag}=8192, or 8K for 8192.")
_BY_TYPE = {
    "int | None": _COUNT,
    "int | str | None": _Kind(
        lambda v: v in (AUTO_LENGTH, -1) or _is_count(v), _COUNT.expected, _COUNT.hint
    ),
    "float | None": _Kind(
        lambda v: _is_number(v) and 0 <= v < 1e12, "a number", "For example {flag}=4."
    ),
    "str | None": _Kind(
        lambda v: isinstance(v, str) and bool(v.strip()), "a word", "Write {flag}=VALUE or leave it out."
    ),
    "bool | None": _Kind(
        lambda v: isinstance(v, bool), "true or false", "Write {flag} or leave it out."
    ),
    "Mapping[str, Any] | None": _Kind(
        lambda v: isinstance(v, Mapping), "a JSON object", "Use {{…}} with keys and values."
    ),
}  # fmt: skip
_NO_FLAGS = ("schedules_ahead", "has_flashinfer_sampler", "attention_backend", "cpu_threads")
"""What is None by default though no flag of that name sets it, or one that is in `others`."""
_KINDS = {
    each.name: _BY_TYPE[str(each.type)]
    for each in fields(EngineParameters)
    if each.default is None and each.name not in _NO_FLAGS
}
_KINDS["gpu_memory_utilization"] = _Kind(
    lambda v: _is_number(v) and 0 < v <= 1, "above 0 and at most 1", "For example {flag}=0.9."
)

SETTINGS = tuple(_KINDS)
"""Names of the settings that flags set, in the order in which they are written."""
