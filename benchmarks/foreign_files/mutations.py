"""Makes files from a right one: half by changing bytes, half by changing values of its grammar.

Deterministic by seed. The tests of the control plane and of the engine use it, and the benchmark.
"""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

_DIGITS = int("9" * 4000)
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 7, 1.5, -0.0, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**9, 10**18, 10**30,
    1e308, float("inf"), float("-inf"), float("nan"), "", "a", "0", "1e999", "9" * 4000, "\x1b[2J", "\x00", "\ud800",
    "\u202e", "../../etc/passwd", "/dev/zero", "a" * 100_000, [], {}, [[]], [{}], {"": {}}, [1] * 10_000,
    [2**62] * 60, [1.5], ["a"], [None], [0, float("inf")], [1.5, 9.5], [-8, 0], {"a": 1}, {"text_config": {}},
)  # fmt: skip


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    """Return the bytes with one to four places changed, repeated or gone."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        if not changed:
            break
        place = chance.randrange(len(changed))
        size = chance.choice((1, 1, 1, 2, 8, 64))
        kind = chance.randrange(5)
        if kind == 0:
            changed[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            changed[place] = chance.choice(b'0123456789"[]{},:-.eE \n\\')
        elif kind == 2:
            del changed[place : place + size]
        elif kind == 3:
            changed[place:place] = changed[place : place + size] * chance.choice((1, 2, 500))
        else:
            changed[place:place] = chance.randbytes(size)
    return bytes(changed)


def mutate_value(document: Any, chance: random.Random) -> Any:
    """Return a JSON value with one to three of its parts replaced, renamed, repeated or gone."""
    changed = json.loads(json.dumps(document))
    for _ in range(chance.randint(1, 3)):
        places = list(_places(changed))
        if not places:
            break
        holder, key = chance.choice(places)
        kind = chance.randrange(6)
        if kind <= 2:
            holder[key] = copy.deepcopy(chance.choice(_VALUES))
        elif kind == 3 and isinstance(holder, dict):
            holder[str(chance.choice(_VALUES))[:300]] = holder.pop(key)
        elif kind == 4:
            del holder[key]
        elif isinstance(holder[key], int):
            holder[key] = holder[key] + chance.choice((-1, 1, 2**40, -(2**40)))
        else:
            holder[key] = [holder[key]] * chance.choice((1, 2, 100))
    return changed


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a JSON value, as what holds it and its key there."""
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        keys = list(holder) if isinstance(holder, dict) else range(min(len(holder), 20))
        for key in keys:
            yield holder, key
            if isinstance(holder[key], dict | list):
                waiting.append(holder[key])


def mutate_json(data: bytes, chance: random.Random) -> bytes:
    """Return a JSON file with values of its grammar changed; some nested, some with many digits."""
    text = json.dumps(mutate_value(json.loads(data), chance))
    kind = chance.randrange(12)
    if kind == 0:
        depth = chance.choice((10, 70, 900, 100_000))
        text = text.replace("1", "[" * depth + "1" + "]" * depth, 1)
    elif kind == 1:
        text = text.replace("2", str(_DIGITS // 10 ** chance.choice((0, 3950, 3990))), 1)
    return text.encode("utf-8", "surrogatepass")


def mutate_header(data: bytes, chance: random.Random) -> bytes:
    """Return a safetensors file with its header changed and the length before it kept right."""
    length = int.from_bytes(data[:8], "little")
    header, rest = data[8 : 8 + length], data[8 + length :]
    raw = mutate_json(header, chance)
    return struct.pack("<Q", len(raw)) + raw + rest


def mutate_yaml(data: bytes, chance: random.Random) -> bytes:
    """Return a manifest with values changed, or with what YAML alone has: aliases, tags, odd numbers."""
    value = mutate_value(yaml.safe_load(data), chance)
    text = json.dumps(value)  # JSON is YAML
    odd = (
        "&a [*a]", "*unknown", "!!python/object/apply:os.system [id]", "!!binary aGk=", "0x" + "f" * 5000,
        "1:" * 5000 + "1", "!!set {a, b}", "2001-99-99", "&x {a: *x}", "? [a, b]\n: c", "'" + "a" * 10_000 + "'",
        "!!int '" + "1" * 5000 + "'", "!!timestamp x", "[" * 2000 + "]" * 2000,
    )  # fmt: skip
    if chance.randrange(3) == 0:
        text = text.replace(": 1", f": {chance.choice(odd)}", 1).replace(
            "true", chance.choice(odd), 1
        )
    return text.encode("utf-8", "surrogatepass")


Mutation = Callable[[bytes, random.Random], bytes]


def mutated(data: bytes, by_grammar: Mutation, count: int, *, seed: int) -> Iterator[bytes]:
    """Yield so many files: by turns one with bytes changed, one with values changed."""
    for number in range(count):
        chance = random.Random(seed * 1_000_003 + number)
        yield (mutate_bytes if number % 2 else by_grammar)(data, chance)


def passes_first_parser(name: str, data: bytes) -> bool:
    """Whether a file is still of the syntax that it is written in, so that what is behind is tried."""
    try:
        if name.endswith(".safetensors"):
            length = int.from_bytes(data[:8], "little")
            data = data[8 : 8 + length] if length <= len(data) - 8 else b""
        if name.endswith(".yaml"):
            yaml.safe_load(data)
        else:
            json.loads(data)
    except (ValueError, RecursionError, TypeError, AttributeError, yaml.YAMLError):
        return False
    return True


SEED_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "ignored_layers": ["lm_head"]},
}


def write_seed(directory: Path) -> None:
    """Write a small model that is right, with two tensors in one file and an index."""
    tensors = {
        "model.embed_tokens.weight": ("BF16", [4, 2]),
        "model.layers.0.mlp.up_proj.weight": ("F32", [2, 2]),
    }
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = shape[0] * shape[1] * (2 if dtype == "BF16" else 4)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    weights = struct.pack("<Q", len(raw)) + raw + bytes(end)
    index = {
        "metadata": {"total_size": end},
        "weight_map": dict.fromkeys(tensors, "model.safetensors"),
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(SEED_CONFIG))
    (directory / "model.safetensors").write_bytes(weights)
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


KINDS: dict[str, Mutation] = {
    "config.json": mutate_json,
    "model.safetensors": mutate_header,
    "model.safetensors.index.json": mutate_json,
}
"""Files that the control plane reads, with how their grammar is changed."""
