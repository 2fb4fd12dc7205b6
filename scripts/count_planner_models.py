"""Count the parameters of bundled models by instantiating their configs, without memory for the weights.

    python -m scripts.count_planner_models [--write]

Names each model of `planner/catalog/further_models.json` that no class gives the planner's own count; with --write
marks the others as checked. Configs lack what has no bearing on sizes, so positions are left to the class.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from exo_inference.planner.catalog_models import read_entry

TARGET = Path(__file__).parents[1] / "exo_inference/planner/catalog/further_models.json"
_TABLES = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_MAPPING_NAMES",
)
_NOT_COUNTED = (
    "; its parameters were not counted by instantiating it",
    "not counted by instantiating it",
)


def counts(config: Mapping[str, Any]) -> Iterator[int]:
    """Yield the parameters of each class that has a model of this type; nothing where there is none."""
    import transformers

    kind = str(config.get("model_type"))
    if (
        f"{kind}_thinker" in transformers.CONFIG_MAPPING
    ):  # what is served of a model that also speaks
        kind, config = f"{kind}_thinker", config["thinker_config"]
    if kind not in transformers.CONFIG_MAPPING:
        return
    given = {k: v for k, v in config.items() if k != "quantization_config"}
    for fields in (_without_positions(given, keeps_types=True), _without_positions(given)):
        yield from _counts_of(kind, fields, config)


def _counts_of(kind: str, fields: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[int]:
    import torch
    import transformers

    for name in dict.fromkeys([*(config.get("architectures") or []), *_classes(kind)]):
        model_class = getattr(transformers, name, None)
        if model_class is None:
            continue
        try:
            settings = transformers.CONFIG_MAPPING[kind](**fields)
            with torch.device("meta"):
                model = model_class._from_config(settings)
        except (AttributeError, ImportError, KeyError, TypeError, ValueError, RuntimeError):
            continue  # a class of another task, or one that wants a package that is not here
        yield sum(each.numel() for each in {id(p): p for p in model.parameters()}.values()) + _head(
            model, config
        )


def _head(model: Any, config: Mapping[str, Any]) -> int:
    """Return the parameters of an output table that the config keeps apart though the class ties it to the input's."""
    text = config.get("text_config") or config
    if text.get("tie_word_embeddings") is not False:
        return 0
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is None:
        return 0
    return int(head.weight.numel()) if head.weight is table.weight else 0


def _classes(kind: str) -> Iterator[str]:
    from transformers.models.auto import modeling_auto

    for table in _TABLES:
        found = getattr(modeling_auto, table).get(kind)
        yield from [found] if isinstance(found, str) else found or ()


def _without_positions(value: Any, *, keeps_types: bool = False, is_nested: bool = False) -> Any:
    """Return a config without what says positions; its own type, and unless `keeps_types` those within it, are left out too."""
    if not isinstance(value, dict):
        return value
    dropped = {"rope_scaling", "rope_parameters", "architectures", "model_type"}
    dropped -= {"model_type"} if keeps_types and is_nested else set()
    return {
        key: _without_positions(each, keeps_types=keeps_types, is_nested=True)
        for key, each in value.items()
        if key not in dropped
    }


def checked(name: str, entry: dict[str, Any]) -> dict[str, Any] | None:
    """Return the entry with its count, or None where no class confirms it."""
    number = read_entry(name).num_parameters
    if number not in counts(entry["config"]):
        return None
    import transformers

    said = f"counted by instantiating it (transformers {transformers.__version__}, meta device)"
    source = entry["source"].replace(_NOT_COUNTED[0], f"; {said}").replace(_NOT_COUNTED[1], said)
    return {**entry, "source": source, "is_checked": True, "num_parameters": number}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is not confirmed; with --write mark what is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="mark confirmed models as checked")
    options = parser.parse_args(arguments)
    entries = json.loads(TARGET.read_text(encoding="utf-8"))
    for name, entry in entries.items():
        found = None if entry["is_checked"] else checked(name, entry)
        if found is not None:
            entries[name] = found
        elif not entry["is_checked"]:
            print(name)
    if options.write:
        lines = [
            f"{json.dumps(name)}:{json.dumps(each, separators=(',', ':'))}"
            for name, each in entries.items()
        ]
        TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
