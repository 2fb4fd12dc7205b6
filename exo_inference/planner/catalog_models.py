"""The bundled models, so that planning by name works without a network.

Callers ask `find_model` by Hub name. A name that is not bundled but says plainly what it is (a bundled
model's name and a quantization: `Qwen3-14B-AWQ`) is derived from that model, and says so in its notes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from exo_inference.errors import UsageError
from exo_inference.planner.model.architecture import Architecture, read_architecture
from exo_inference.planner.model.name_words import (
    FULL,
    KEPT,
    PLAIN,
    UNQUANTIZED,
    NameWords,
    distance,
    nearest_names,
    other_context,
    read_words,
    sized_name,
    strip_quantization,
    typed_name,
    why_no_fine_tune,
    why_no_name,
)
from exo_inference.planner.model.quantization import quantization_named
from exo_inference.planner.model.requantize import (
    derived_error,
    has_states,
    in_usual_form,
    words_of,
)

Entries = Mapping[str, Mapping[str, Any]]


@cache
def load_models() -> Entries:
    """Return the catalogue's raw entries by Hub name."""
    return _read_entries("models.json")


@cache
def _own_models() -> Entries:
    """Models that come with the project; `exo_inference.hub` serves them."""
    return _read_entries("own_models.json")


def _read_entries(name: str) -> Entries:
    text = files("exo_inference.planner").joinpath("catalog", name).read_text(encoding="utf-8")
    entries: dict[str, Mapping[str, Any]] = json.loads(text)
    return entries


@cache
def _by_lower_name() -> Mapping[str, str]:
    names: dict[str, str] = {}
    for name in (*load_models(), *_further_models()):
        names.setdefault(name.lower(), name)
        names.setdefault(name.lower().rpartition("/")[2], name)
    return names


@cache
def _further_models() -> Entries:
    """Models beside the collected ones; `is_checked` says whether their config was instantiated and counted."""
    return _read_entries("further_models.json")


@cache
def _unsized_models() -> Mapping[str, str]:
    """Return the model type of known models that no family sizes, by the rest of their names."""
    kinds: Mapping[str, Any] = _read_entries("unsized_models.json")
    return {_words_in(name).rest: kind for kind, names in kinds.items() for name in names}


def _words_in(name: str) -> NameWords:
    return read_words(re.sub(r"\s+", "-", name.rpartition("/")[2].lower()))


def _check_can_size(name: str) -> None:
    """Check that the name is none of a model that is known and cannot be sized.

    Raises:
        UsageError: it is one.
    """
    kind = _unsized_models().get(_words_in(name).rest)
    if kind is not None:
        raise UsageError(
            f"the model {name!r} cannot be sized: its architecture {kind!r} is unknown here",
            hint="Plan another model; docs/concepts/planning.md lists the architectures that are known.",
        )


@lru_cache(maxsize=1024)  # names are anybody's
def find_model(name: str) -> Architecture:
    """Return a model by its Hub name, with or without the organisation.

    Raises:
        UsageError: the catalogue has neither this model nor one that it plainly derives from, or it cannot be sized.
    """
    known = _by_lower_name().get(name.strip().lower())
    if known is not None:
        return read_entry(known)
    own = _own_models().get(name.strip())
    if own is not None:
        return read_architecture(own["config"], name=name.strip(), source=own["source"])
    if (typed := typed_name(name.strip())) is not None:
        found = find_model(typed)
        notes = tuple(note.replace(typed, name.strip()) for note in found.notes)
        return replace(found, name=name.strip(), notes=notes)
    if (sized := sized_name(name)) is not None:
        raise _unknown(name, _nearest(sized), "a name of the Hub has no ':'")
    wrong = why_no_name(name)
    if wrong is not None:
        raise UsageError(wrong[0], hint=wrong[1])
    _check_can_size(name.strip())
    derived = _derive(name.strip()) or _variant(name.strip()) or _fine_tune(name.strip())
    if derived is not None:
        return derived
    raise _unknown(name, _nearest(name))


def _unknown(name: str, near: list[str], reason: str = "") -> UsageError:
    said = f"the model {name!r} is not in the bundled catalogue" + (reason and f": {reason}")
    meant = f"Did you mean {' or '.join(near)}?"
    return UsageError(said, hint=meant if near else "Give a directory or a config.json instead.")


def _check_owner(name: str, base: str) -> None:
    """Check that the name is another owner's upload, not the owner misspelt.

    Raises:
        UsageError: a letter of the owner is wrong.
    """
    owner, own = (each.lower().rpartition("/")[0] for each in (name, base))
    if owner in _owners() or not owner:
        return
    if 0 < distance(owner, own) <= (1 if len(own) < 6 else 2):
        right = f"{base.rpartition('/')[0]}/{name.rpartition('/')[2]}"
        near = right if right.lower() in _by_lower_name() else base
        raise _unknown(name, [near], f"the owner {owner!r} is nearly {own!r}")


@cache
def _owners() -> frozenset[str]:
    return frozenset(known.lower().rpartition("/")[0] for known in _by_lower_name().values())


def _check_sized(name: str, words: NameWords) -> None:
    """Check that the size of the quantization that a name says is known.

    Raises:
        UsageError: it is not.
    """
    owner = name.lower().rpartition("/")[0]
    is_mlx = "mlx" in owner and words.method not in ("", *UNQUANTIZED)
    unsized = words.unsized or ("mlx" if is_mlx else "")
    if unsized:
        raise UsageError(
            f"the model {name!r} is not in the bundled catalogue: "
            f"the name says a quantization that is not sized offline ({unsized})",
            hint="Its config.json says it: plan without --offline, or give that file with --model.",
        )


def _nearest(name: str) -> list[str]:
    return nearest_names(name, _by_lower_name())


def find_draft(name: str | None) -> Architecture | None:
    """Return the draft model of that name; None where there is none or the catalogue lacks it."""
    try:
        return None if name is None else find_model(name)
    except UsageError:
        return None


@cache
def read_entry(name: str) -> Architecture:
    """Return the architecture of a catalogue entry by its exact name."""
    entry = load_models().get(name) or _further_models()[name]
    found = read_architecture(
        entry["config"],
        name=name,
        hf_quant_config=entry.get("hf_quant_config"),
        source=entry["source"],
    )
    return replace(found, notes=(*found.notes, *_notes_of(entry)))


def _notes_of(entry: Mapping[str, Any]) -> tuple[str, ...]:
    if entry.get("is_checked", True):
        return ()
    is_of_a_base = "whose shape it keeps" in entry["source"]
    return (_UNCHECKED, _UNREAD) if is_of_a_base else (_UNCHECKED,)


_UNCHECKED = (
    "its parameter count was not checked by instantiating its config: weights may be off by 1 %"
)
_UNREAD = "its config.json was not read: the longest request is that of its card or of the model that it was trained from"


def quantized_siblings(model: Architecture) -> tuple[Architecture, ...]:
    """Return the bundled checkpoints of the same model whose published weights are smaller.

    A sibling has the model's name with a quantization added, and the model's shape; who published it
    is in its name.
    """
    wanted = _bare_name(model.name)
    found = [read_entry(name) for name in _by_bare_name().get(wanted, ())]
    return tuple(
        each
        for each in found
        if each.quantization is not None
        and each.name != model.name
        and _shape(each) == _shape(model)
        and each.quantization.default.bits < _bits(model)
    )


def _bits(model: Architecture) -> float:
    return 16.0 if model.quantization is None else model.quantization.default.bits


def _shape(model: Architecture) -> tuple[int, ...]:
    return (
        model.hidden_size, len(model.layers), model.num_heads, model.kv_elements_per_token, model.intermediate_size,
    )  # fmt: skip


def _bare_name(name: str) -> str:
    """Return a model's name without its organisation and quantization, for comparing."""
    short = strip_quantization(name.rpartition("/")[2].lower())
    return short.removesuffix("-hf").removesuffix("-bf16").removesuffix("-fp32")


@cache
def _by_bare_name() -> Mapping[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {}
    for name in (*load_models(), *_further_models()):
        bare = _bare_name(name)
        names[bare] = (*names.get(bare, ()), name)
    return names


_KINDS = (
    "", "-instruct", "-it", "-chat", "-base", "-pt", "-hf", "-thinking", "-v0.1", "-instruct-v0.1",
)  # fmt: skip
"""What names of one model's variants end with: they have one config."""


def _variants(short: str) -> list[str]:
    """Return the names under which a model of this name may be bundled, its own first."""
    bare = short
    for ending in _KINDS[1:8]:
        bare = bare.removesuffix(ending)
    return [
        short,
        *(f"{short}{ending}" for ending in _KINDS[1:]),
        *(f"{bare}{ending}" for ending in _KINDS),
    ]


_INNER_KIND = re.compile(r"-(instruct|base|chat|it|pt|thinking|reasoning)(?=-\d)")
"""What a variant is called before its date (`Mistral-Nemo-Base-2407`)."""


def _dated_variants(short: str) -> list[str]:
    """Return the names under which another kind of a model of this date may be bundled."""
    return [_INNER_KIND.sub(kind, short) for kind in _KINDS[:8]]


def _variant(name: str) -> Architecture | None:
    """Return the bundled model of which the name is another variant: tuned for chats, or not."""
    known = _by_lower_name()
    short = name.rpartition("/")[2].lower()
    tried = (*_variants(short), *_dated_variants(short))
    base = next((known[each] for each in tried if each in known), None)
    if base is None:
        return None
    _check_owner(name, base)
    if short != base.rpartition("/")[2].lower():
        _check_form(name, base)
    model = read_entry(base)
    note = f"taken to have the config of {base}, as variants of one model have"
    return replace(model, name=name, notes=(*model.notes, note))


_PARTS_OF_MODELS = re.compile(r"eagle|dflash|dspark|speculator|medusa|draft|lora|adapter|mtp")
"""Words of checkpoints that are not the model that they name."""

_WITH_PREDICTION = re.compile(r"(?<=fp4|fp8|nt4|awq|ptq|a16)-mtp$")
"""Behind a quantization the word says that the checkpoint of the model has kept its prediction layer."""


def _fine_tune(name: str) -> Architecture | None:
    """Return the bundled model whose name the name contains, with its size: a fine-tune keeps the config."""
    short = re.sub(r"\s+", "-", name.rpartition("/")[2].lower())
    words = read_words(_WITH_PREDICTION.sub("", short))
    rest = words.rest.replace("_", "-")
    if _PARTS_OF_MODELS.search(rest):
        return None
    within = [base for base in _sized_names() if f"-{base}-" in f"-{rest}-"]
    if not within:
        return None
    inner = max(within, key=len)
    base = _sized_names()[inner]
    extra = [each for each in f"-{rest}-".replace(f"-{inner}-", "-", 1).split("-") if each]
    _check_fine_tune(name, base, extra)
    _check_sized(name, words)
    model, method = read_entry(base), words.method
    if not method and _is_quantized_by_name(base):
        method = PLAIN
    elif not method:
        _check_form(name, base)
    is_other = method != "" and not _has_method(model, method)
    if is_other:
        model = in_usual_form(model, method)
    word, tokens = other_context(extra, model.max_model_len)
    kept = f"whose context ({word}) is not known: give --max-model-len" if word else KEPT
    note = f"derived from {base}: by its name {name} is a fine-tune of it, {kept}"
    if is_other:
        note += f", in {words_of(method)}"
    error = model.weights_error + (derived_error(model, method) if method else 0.01)
    model = replace(model, longest_model_len=max(tokens, model.longest_model_len or 0) or None)
    return replace(model, name=name, notes=(*model.notes, note), weights_error=error)


def _is_quantized_by_name(name: str) -> bool:
    return _words_in(name).method not in ("", *UNQUANTIZED)


def _check_form(name: str, base: str) -> None:
    """Check that a model whose name says no quantization does not get that of a model's own files, which its name does not say.

    Base models and fine-tunes of such a model are often in 16 bit or in other floats (Ministral 3, DeepSeek-V4, gpt-oss).

    Raises:
        UsageError: it would.
    """
    own = read_entry(base).quantization
    if own is not None:
        said = f"the files of {base} are in {own.default.name} and the name does not say what its own are in"
        step = f"Or write it into the name: {name}-BF16."
        if name.partition("/")[0] == base.partition("/")[0]:  # whose names are published, or not
            step = "Else its config.json says it: give that with --model."
        error = _unknown(name, list(dict.fromkeys([base, *_nearest(name)]))[:3], said)
        raise UsageError(error.message, hint=f"{error.hint} {step}")


def _check_fine_tune(name: str, base: str, extra: list[str]) -> None:
    """Check what a name says beside the name of a model.

    Raises:
        UsageError: no fine-tune is called so.
    """
    _check_owner(name, base)
    owner, own = (each.lower().rpartition("/")[0] for each in (name, base))
    reason = why_no_fine_tune(
        extra,
        sees=read_entry(base).vision is not None,
        is_own=owner in (own, ""),
    )
    if reason:
        inner = _bare_name(base)
        near = sorted(_nearest(name), key=lambda each: inner not in _bare_name(each))
        raise _unknown(name, list(dict.fromkeys([*near, base]))[:3], reason)


def _has_method(model: Architecture, method: str) -> bool:
    """Whether the model's own files are in what the name says already."""
    own = model.quantization
    if own is None or method in UNQUANTIZED:
        return own is None and method == (FULL if model.dtype == "float32" else PLAIN)
    wanted = quantization_named(method)
    return own.default.name.partition("-")[0] == wanted.default.name.partition("-")[0]


@cache
def _sized_names() -> Mapping[str, str]:
    """Return bundled models by their bare names, where these say a size (`llama-3.1-8b`)."""
    names: dict[str, str] = {}
    for bare, known in _by_bare_name().items():
        short = bare
        for ending in _KINDS[1:8]:
            short = short.removesuffix(ending)
        if re.search(r"-\d+(\.\d+)?b(-|$)", short) and short.count("-") >= 1:
            plain = [name for name in known if _bare_name(name) == name.rpartition("/")[2].lower()]
            if plain or short not in names:
                names[short] = plain[0] if plain else min(known, key=_is_quantized_by_name)
    return names


def _derive(name: str) -> Architecture | None:
    """Return the bundled model that the name adds a quantization to, in that quantization."""
    words = _words_in(name)
    method = words.method
    known = _by_lower_name()
    base = next((known[each] for each in _variants(words.rest) if each in known), None)
    if base is None:  # only another quantization of it is bundled
        base = min(
            _by_bare_name().get(_bare_name(name), ()), key=_is_quantized_by_name, default=None
        )
        if base is not None and not (method or words.unsized):
            method = PLAIN
    if base is None:
        dated = _dated_variants(words.rest)
        base = next((known[each] for each in dated if each in known), None)
    if base is None or not (method or words.unsized):
        return None
    _check_owner(name, base)
    _check_sized(name, words)
    published = known.get(f"{base.rpartition('/')[2].lower()}-{method}")
    if published is not None and method == "nvfp4" and has_states(read_entry(base)):
        owners = {each.rpartition("/")[0].lower() for each in (name, published)}
        published = published if len(owners) == 1 else None  # files of two publishers differ
    source = base if published is None else published
    model = read_entry(source)
    if method == "fp8-channel" and name.lower().startswith("qwen/"):
        method = "fp8-block"  # as all of its files that are bundled
    if published is None:  # what the bundled checkpoint says of its cache is not this one's
        model = in_usual_form(replace(model, quantization=None), method)
    note = f"derived from {source}: the checkpoint {name} itself is not known, {words_of(method)} is assumed"
    is_listed = method == "fp8-block" and _has_sibling(name, model.model_type)
    error = model.weights_error + (0.01 if is_listed else derived_error(model, method))
    return replace(model, name=name, notes=(*model.notes, note), weights_error=error)


def _has_sibling(name: str, model_type: str) -> bool:
    """Whether the owner's file of another model of this architecture is bundled, in blocks of 8 bit: it leaves the same in 16.

    Of Qwen's five lists and two counts of tensors are known, none of which differs from the others of its architecture.
    """
    owner = name.lower().rpartition("/")[0] + "/"
    both = (*load_models().items(), *_further_models().items())
    own = [entry["config"] for each, entry in both if each.lower().startswith(owner)]
    blocks = [c for c in own if "weight_block_size" in c.get("quantization_config", {})]
    return any(config["model_type"] == model_type for config in blocks)
