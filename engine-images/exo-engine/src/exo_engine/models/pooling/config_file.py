"""Whether a model embeds, scores or generates, and how: config.json, sentence-transformers' files and flags.

The core asks `is_pooling` once at start; `read_pooling_spec` does for such models what `models.config_file.read_spec`
does for those that generate. What the files say, flags may say otherwise, by vLLM's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from exo_engine.config import EngineConfig
from exo_engine.errors import ConfigurationError
from exo_engine.foreign_files import MissingFile, parse_object, read_regular, shown
from exo_engine.models.config_file import (
    FAMILIES,
    ConfigReader,
    check_num_layers,
    open_config,
    read_checkpoint_facts,
    read_decoder,
)
from exo_engine.models.pooling import bert
from exo_engine.models.pooling.spec import EncoderSpec, HeadSpec, PoolingMethod, PoolingSpec
from exo_engine.models.spec import DecoderSpec

ENCODERS: Final = tuple(
    f"{family}{kind}"
    for family in ("Bert", "Roberta", "XLMRoberta")
    for kind in ("Model", "ForSequenceClassification")
)
"""Architectures that only embed or score."""
_GENERATES, _CLASSIFIES, _BARE = "ForCausalLM", "ForSequenceClassification", "Model"
_MODES: Final[Mapping[str, PoolingMethod]] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_MODE_WORDS: Final[Mapping[str, PoolingMethod]] = {
    "cls": "cls",
    "mean": "mean",
    "lasttoken": "last",
}
_TYPES: Final[Mapping[str, PoolingMethod]] = {"cls": "cls", "mean": "mean", "last": "last"}
"""Of vLLM's flag, in lower case."""
_POOLER_KEYS = ("pooling_type", "seq_pooling_type", "use_activation", "normalize")
_TEXTS_FILES = tuple(f"sentence_{kind}_config.json" for kind in ("bert", "roberta", "xlm-roberta"))
"""Names that versions of sentence-transformers have given to one file, in the order in which they look for it."""
_MAX_MODULES = 16
_MAX_LABELS, _MAX_LABEL_CHARACTERS = 2**16, 256


def is_pooling(config: EngineConfig) -> bool:
    """Say whether a configuration asks for vectors or scores rather than text.

    Raises:
        ModelUnusable: its files cannot be read.
    """
    if config.runner != "auto" or config.simulation is not None:
        return config.runner == "pooling"
    if config.convert in ("embed", "classify") or config.pooler:
        return True
    names = _architectures(open_config(config.model_dir))
    if any(each in ENCODERS or _base_of(each, _BARE, _CLASSIFIES) for each in names):
        return True
    return _pooling_module(config.model_dir) is not None


def read_pooling_spec(config: EngineConfig) -> PoolingSpec:
    """Read what the model is, and how a text's states become a vector or a score.

    Raises:
        ModelUnusable: it is not one that this engine can embed or score with.
        ConfigurationError: the flags contradict the model.
    """
    reader = open_config(config.model_dir)
    architecture = _architecture(reader)
    _check_conversion(config.convert, architecture)
    body = _read_body(reader, architecture)
    if architecture.endswith(_CLASSIFIES):
        spec = _classifier(reader, body)
    else:
        spec = _embedder(config.model_dir, reader, body)
    return _with_flags(spec, config.pooler or {})


def _architectures(reader: ConfigReader) -> list[str]:
    found = reader.values.get("architectures")
    names = found if isinstance(found, list) else []
    return [each for each in names if isinstance(each, str)]


def _base_of(architecture: str, *kinds: str) -> str | None:
    """Return the name under which `FAMILIES` knows a decoder that is of one of these kinds."""
    for kind in kinds:
        base = architecture.removesuffix(kind) + _GENERATES
        if architecture.endswith(kind) and base in FAMILIES:
            return base
    return None


def _architecture(reader: ConfigReader) -> str:
    for name in _architectures(reader):
        if name in ENCODERS or _base_of(name, _GENERATES, _BARE, _CLASSIFIES):
            return name
    known = ", ".join(ENCODERS)
    raise reader.unusable(
        "architectures",
        reader.values.get("architectures"),
        f"one of {known}, or a decoder that this engine generates with",
        hint="This engine cannot embed or score with the model; another engine may.",
    )


def _check_conversion(convert: str, architecture: str) -> None:
    has_head = architecture.endswith(_CLASSIFIES)
    if convert not in ("auto", "none") and has_head != (convert == "classify"):
        raise ConfigurationError(
            f"--convert is {convert}, but {architecture} {'scores' if has_head else 'embeds'}",
            param="convert",
            hint="Leave --convert out.",
        )


def _read_body(reader: ConfigReader, architecture: str) -> EncoderSpec | DecoderSpec:
    if architecture in ENCODERS:
        check_num_layers(reader)
        return read_checkpoint_facts(reader, bert.spec_from_config(reader, architecture))
    base = _base_of(architecture, _GENERATES, _BARE, _CLASSIFIES)
    assert base is not None, "`_architecture` saw to it"
    spec = read_decoder(reader, base)
    unable = {
        "layers that keep states": spec.delta is not None,
        "latent attention": spec.latent is not None,
        "caps on scores": spec.soft_cap is not None,
        "sinks": spec.has_sinks,
        "attention to what follows a token (is_causal)": not reader.boolean("is_causal", True),
    }
    for what, has_it in unable.items():
        if has_it:
            raise reader.unusable(
                "architectures", [architecture], f"a model without {what} to embed or score with"
            )
    # No head is loaded, as no text is generated.
    return replace(spec, ties_embeddings=True, has_head=False)


def _classifier(reader: ConfigReader, body: EncoderSpec | DecoderSpec) -> PoolingSpec:
    """Return a cross-encoder, whose one label's number says how well two texts fit, or a classifier."""
    labels = _labels(reader)
    is_encoder = isinstance(body, EncoderSpec)
    head = (
        bert.head_of(body) if isinstance(body, EncoderSpec) else HeadSpec("score", has_bias=False)
    )
    is_several = reader.text("problem_type", "") == "multi_label_classification"
    return PoolingSpec(
        body,
        method="cls" if is_encoder else "last",
        is_activated=_is_activated(reader),
        max_length=body.max_position_embeddings,
        head=replace(head, num_labels=len(labels)),
        labels=labels,
        is_exclusive=not is_several
        and len(labels) > 1
        and not _names_function(reader).endswith("Sigmoid"),
    )


def _labels(reader: ConfigReader) -> tuple[str, ...]:
    """Read the labels in the order of their numbers; where the file names none they are called as in `transformers`."""
    found = reader.child("id2label")
    number = reader.integer("num_labels", 2) if found is None else len(found.values)
    if not 1 <= number <= _MAX_LABELS:
        raise reader.unusable("id2label", number, f"1 to {_MAX_LABELS} labels")
    if found is None:
        return tuple(f"LABEL_{index}" for index in range(number))
    labels = tuple(found.text(str(index), "") for index in range(number))
    for index, each in enumerate(labels):
        if not found.has(str(index)) or len(each) > _MAX_LABEL_CHARACTERS:
            what = f"the numbers from 0, each with at most {_MAX_LABEL_CHARACTERS} characters"
            raise reader.unusable("id2label", shown(each) or list(found.values)[:8], what)
    return labels


def _names_function(reader: ConfigReader) -> str:
    """Return the function behind scores that sentence-transformers' settings name, if they name one."""
    own = reader.child("sentence_transformers")
    name = "" if own is None else own.text("activation_fn", "")
    return name or reader.text("sbert_ce_default_activation_function", "")


def _is_activated(reader: ConfigReader) -> bool:
    """Say whether numbers of labels pass a function: sentence-transformers' word counts, else all but regression's."""
    name = _names_function(reader)
    kind = name.rpartition(".")[2]
    if kind not in ("", "Sigmoid", "Identity"):
        key = "sbert_ce_default_activation_function"
        raise reader.unusable(key, shown(name), "Sigmoid or Identity")
    if not kind and reader.text("problem_type", "") == "regression":
        return False
    return kind != "Identity"


def _embedder(
    model_dir: Path, reader: ConfigReader, body: EncoderSpec | DecoderSpec
) -> PoolingSpec:
    is_encoder = isinstance(body, EncoderSpec)
    spec = PoolingSpec(
        body,
        method="cls" if is_encoder else "last",
        is_activated=True,
        max_length=body.max_position_embeddings,
        dimensions=_dimensions(reader, body.hidden_size),
    )
    modules = _read_modules(model_dir)
    if modules is None:
        return spec
    kinds = [kind for kind, _ in modules]
    for kind in kinds:
        if kind not in ("Transformer", "Pooling", "Normalize"):
            path = model_dir / "modules.json"
            raise ConfigReader(path, {}).unusable(
                "type", shown(kind, 64), "Transformer, Pooling or Normalize"
            )
    pooling = _pooling_module(model_dir)
    texts = _texts_file(model_dir)
    longest = min(spec.max_length, texts.integer("max_seq_length", spec.max_length))
    return replace(
        spec,
        method=spec.method if pooling is None else _read_method(pooling),
        is_activated="Normalize" in kinds,
        max_length=longest,
        lowers_case=texts.boolean("do_lower_case", False),
    )


def _dimensions(reader: ConfigReader, size: int) -> tuple[int, ...] | None:
    found = reader.values.get("matryoshka_dimensions")
    if found is None:
        return None if reader.boolean("is_matryoshka", True) else (size,)
    if not isinstance(found, list) or not all(type(e) is int and 0 < e <= size for e in found):
        raise reader.unusable("matryoshka_dimensions", found, f"integers from 1 to {size}")
    return (*found, size)


def _read_modules(model_dir: Path) -> list[tuple[str, str]] | None:
    """Return kind and folder of each of sentence-transformers' modules; None: there is no such file."""
    path = model_dir / "modules.json"
    try:
        data = read_regular(path)
    except MissingFile:
        return None
    # The file is a list; the bounds are those of objects.
    modules = parse_object(b'{"modules":' + data + b"}", path)["modules"]
    if not isinstance(modules, list) or len(modules) > _MAX_MODULES:
        raise ConfigReader(path, {}).unusable("[]", modules, f"at most {_MAX_MODULES} modules")
    readers = [ConfigReader(path, each if isinstance(each, dict) else {}) for each in modules]
    return [(each.text("type", "").rpartition(".")[2], each.text("path", "")) for each in readers]


def _pooling_module(model_dir: Path) -> ConfigReader | None:
    """Return the configuration of the module that pools, if there is one."""
    for kind, folder in _read_modules(model_dir) or ():
        if kind == "Pooling":
            if Path(folder).name != folder or folder in ("", "..", "."):
                path = model_dir / "modules.json"
                raise ConfigReader(path, {}).unusable(
                    "path", shown(folder, 64), "a folder beside it"
                )
            path = model_dir / folder / "config.json"
            return ConfigReader(path, parse_object(read_regular(path), path))
    return None


def _texts_file(model_dir: Path) -> ConfigReader:
    """Return what says how long texts may be, under the first of its names; empty where there is none."""
    for name in _TEXTS_FILES:
        path = model_dir / name
        with suppress(MissingFile):
            return ConfigReader(path, parse_object(read_regular(path), path))
    return ConfigReader(model_dir / _TEXTS_FILES[0], {})


def _read_method(reader: ConfigReader) -> PoolingMethod:
    """Return how sentence-transformers pools: one way, of those that are known."""
    if word := reader.text("pooling_mode", ""):
        if word not in _MODE_WORDS:
            raise reader.unusable("pooling_mode", word, f"one of {', '.join(_MODE_WORDS)}")
        return _MODE_WORDS[word]
    modes = [each for each in reader.values if each.startswith("pooling_mode_")]
    chosen = [each for each in modes if reader.boolean(each, False)]
    if len(chosen) != 1 or chosen[0] not in _MODES:
        raise reader.unusable("pooling_mode", chosen, f"one of {', '.join(_MODES)}")
    return _MODES[chosen[0]]


def _with_flags(spec: PoolingSpec, pooler: Mapping[str, Any]) -> PoolingSpec:
    """Have `--pooler-config` win."""
    for key in pooler:
        if key not in _POOLER_KEYS:
            raise _wrong_pooler(f"has {shown(key, 64)}, expected {', '.join(_POOLER_KEYS)}")
    word = pooler.get("seq_pooling_type", pooler.get("pooling_type"))
    if word is not None:
        method = _TYPES.get(str(word).lower())
        if method is None:
            raise _wrong_pooler(f"has pooling_type {shown(word, 64)}, expected CLS, LAST or MEAN")
        if spec.head is not None and method != spec.method:
            raise _wrong_pooler(
                f"has pooling_type {method}, but this model scores by {spec.method}"
            )
        spec = replace(spec, method=method)
    flag = pooler.get("use_activation", pooler.get("normalize"))
    if flag is not None and not isinstance(flag, bool):
        raise _wrong_pooler(f"has use_activation {shown(flag, 64)}, expected true or false")
    return spec if flag is None else replace(spec, is_activated=flag)


def _wrong_pooler(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"--pooler-config {what}",
        param="pooler-config",
        hint="Change or leave out --pooler-config.",
    )
