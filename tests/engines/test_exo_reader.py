"""exo-engine's own reader beside the control plane's: every flag, in every form, read alike.

Stricter on purpose are a flag that is given twice, which the engine takes the last of, and flags that the
platform sets itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest
from exo_engine.arguments import ServeCommand, catalogue, parse
from exo_engine.errors import ConfigurationError
from exo_engine.flag import Flag
from exo_engine.flags import FLAGS
from exo_engine.models.config_file import FAMILIES
from exo_engine.weight_formats import formats_made_at_load

from exo_inference.engines import get_engine
from exo_inference.planner import EngineParameters, find_gpu, find_model
from exo_inference.planner.engine_rules import rules_for
from exo_inference.preflight import Subject, judge

WORDS = ("true", "false", "1", "0", "yes", "no", "on", "off", "True", "OFF", "perhaps", "")
TEXTS = {
    "boolean": WORDS,
    "integer": (
        *("8", "+8", "-8", "0", "1", "-1", "08", " 8", "8 ", "8k", "8K", "1m", "1M", "1g", "1T"),
        *("1.5k", "1.5K", "1.5", "1e3", "auto", "Auto", "None", "", "x", "65535", "65537", "0x8"),
        *("9" * 18, "9" * 19, "9" * 24, "99999999999T", "999999T", "9" * 5000, "+8k", "-8k"),
        *("1.0000000001k", "0.5T"),
    ),
    "float": ("0.5", ".5", "5e-1", " 0.5", "1", "1.0", "1.5", "0", "-1", "nan", "inf", "x", ""),
    "json": ("{}", '{"a": 1}', '{ "a" : [1, 2] }', "[]", "7", "null", "{'a': 1}", "{", ""),
    "string": ("text", "two words", "a=b", "-", "-x", "--x", "-1", "{{ x }}\n\ty", ""),
    "enum": ("no-such-choice", "AUTO", " auto", ""),
}
OWN = {entry["name"] for entry in catalogue()}
OFFERED = {parameter.name for parameter in get_engine("exo").parameters()}
MODEL, GPU = find_model("meta-llama/Llama-3.2-1B-Instruct"), find_gpu("H200")


def by_engine(items: tuple[str, ...]) -> ServeCommand | None:
    """Return what the engine reads; None where it refuses."""
    try:
        command = parse(["serve", "model", *items], {})
    except ConfigurationError:
        return None
    assert isinstance(command, ServeCommand)
    return command


def forms(flag: Flag) -> Iterator[tuple[str, ...]]:
    """Write a flag in every way, right and wrong."""
    for spelling in flag.spellings:
        swapped = spelling[:2] + spelling[2:].replace("-", "_")
        yield (spelling,)
        yield (swapped,)
        yield (spelling[:-1],)
        yield (f"{spelling}x",)
        yield (spelling.upper(),)
        for value in (*flag.choices, *TEXTS[flag.kind]):
            yield (f"{spelling}={value}",)
            yield (f"{swapped}={value}",)
            yield (spelling, value)
            yield (f"{spelling} {value}",)
        yield (f"{spelling}.key=1",)


def test_what_the_engine_offers_is_what_is_known_here() -> None:
    assert OFFERED <= OWN
    assert {"tensor-parallel-size", "tokenizer", "device"} <= OWN - OFFERED


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=pytest.mark.slow if zlib.crc32(each.encode()) % 3 else [])
        for each in sorted(OFFERED)
    ],
)
def test_every_form_is_taken_or_refused_by_both(name: str) -> None:
    flag = next(each for each in FLAGS if each.name == name)
    differences = []
    for items in forms(flag):
        problems = get_engine("exo").read(items).problems
        judged = judge(Subject(None, None, 1, items, engine="exo")).flag_problems
        taken = by_engine(items) is not None
        if not taken == (not problems) == (not judged):
            differences.append((items, "the engine " + ("takes" if taken else "refuses"), problems))
    assert differences == []


PLANNED = {
    "max_model_len": "max_model_len",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "kv_cache_memory_bytes": "kv_cache_bytes",
    "num_gpu_blocks_override": "num_gpu_blocks_override",
    "block_size": "block_size",
    "dtype": "dtype",
    "quantization": "quantization",
    "kv_cache_dtype": "kv_cache_dtype",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "enable_prefix_caching": "enable_prefix_caching",
    "enable_chunked_prefill": "enable_chunked_prefill",
}
"""Fields of the planner, each with the engine's."""
TYPES = ("dtype", "kv_cache_dtype")
"""Of which "auto" is a value to the engine, too."""


@pytest.mark.parametrize("field", sorted(PLANNED))
def test_what_both_take_they_read_alike(field: str) -> None:
    flag = next(each for each in FLAGS if each.attribute == field)
    num_read = 0
    for items in forms(flag):
        command = by_engine(items)
        if command is None:
            continue
        subject = Subject(MODEL, GPU, 1, items, engine="exo")
        plan = judge(subject, with_advice=False).plan
        assert plan is not None, items
        found: EngineParameters = plan.parameters
        read, own = getattr(found, field), getattr(command.engine, PLANNED[field])
        assert (None if read == "auto" and field not in TYPES else read) == own, items
        num_read += 1
    assert num_read >= 3


MODEL_TYPES = {
    "qwen3_5": {"qwen3_5_text"},
    "deepseek": {"deepseek_v2", "deepseek_v3"},
    "gemma3": {"gemma3_text"},
    "gemma4": {"gemma4_text"},
}
"""Modules of families that are not called as the model type of config.json."""
ENCODERS = {"bert", "roberta", "xlm-roberta"}
"""Of models that only embed or score, whose architectures are `models.pooling.config_file.ENCODERS`."""


def test_the_planner_plans_every_family_that_the_engine_serves() -> None:
    modules = {module.rpartition(".")[2] for module in FAMILIES.values()}
    served = set().union(*(MODEL_TYPES.get(module, {module}) for module in modules))
    assert rules_for("exo", "").families == served | ENCODERS
    assert modules >= MODEL_TYPES.keys()


@pytest.mark.parametrize("name", formats_made_at_load())
def test_the_planner_counts_the_bytes_of_every_format_that_the_engine_makes(name: str) -> None:
    """One that it does not know would be planned as if the weights stayed as they are."""
    subjects = (
        Subject(MODEL, GPU, 1, flags, engine="exo") for flags in ((), (f"--quantization={name}",))
    )
    plain, made = (judge(each, with_advice=False).plan for each in subjects)
    assert plain is not None
    assert made is not None
    assert made.weights_bytes_per_gpu < 0.8 * plain.weights_bytes_per_gpu
