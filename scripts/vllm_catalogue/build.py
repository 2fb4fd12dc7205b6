"""Makes `exo_inference/engines/catalog/vllm.json` from the files of facts and our descriptions.

Run as `python scripts/vllm_catalogue/build.py FLAGS_JSON [--check]`. FLAGS_JSON holds the engine's
flags by release (`name, flags, section, type, choices, defaults, bounds, since, until`); beside this
file are `sources.json` (the HTTP server's flags and the keys of JSON objects, see
`read_sources.py`), `corrections.yaml` and `descriptions.yaml`. `--check` only compares.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
TARGET = HERE.parents[1] / "exo_inference" / "engines" / "catalog" / "vllm.json"

Record = dict[str, Any]

_NAMED_VALUES = {"argparse.SUPPRESS": "None"}
_ORDER = ("name", "flags", "section", "type", "since", "until", "later", "choices", "defaults")


def main(arguments: list[str]) -> int:
    """Write the catalogue, or compare it."""
    check = "--check" in arguments
    (source,) = (Path(argument) for argument in arguments if argument != "--check")
    text = render(build(json.loads(source.read_text())))
    if check:
        same = TARGET.read_text() == text
        print("the catalogue is current" if same else f"{TARGET} is not what build.py makes")
        return 0 if same else 1
    TARGET.write_text(text)
    return 0


def build(facts: Record) -> Record:
    """Return the catalogue: versions, and flags ordered by section and name."""
    sources = json.loads((HERE / "sources.json").read_text())
    corrections = yaml.safe_load((HERE / "corrections.yaml").read_text())
    descriptions = yaml.safe_load((HERE / "descriptions.yaml").read_text())
    records = _gather(facts["flags"], sources["flags"], corrections)
    if unmatched := records.keys() ^ descriptions.keys():
        raise SystemExit(f"flags without description, or the reverse: {sorted(unmatched)}")
    for name, record in records.items():
        record["choices"] = sources["choices"].get(name, record.get("choices"))
        _complete(record, corrections, sources["keys"].get(name))
        record["description"] = descriptions[name]
    flags = sorted(records.values(), key=lambda record: (record["section"], record["name"]))
    return {"versions": sources["versions"], "flags": [_ordered(record) for record in flags]}


def render(catalogue: Record) -> str:
    """Return the file's text: one flag on each line."""
    lines = [json.dumps(record, ensure_ascii=False) for record in catalogue["flags"]]
    head = json.dumps(catalogue["versions"])
    return '{"versions": %s,\n"flags": [\n%s\n]}\n' % (head, ",\n".join(lines))  # noqa: UP031


def _gather(engine: list[Record], server: list[Record], corrections: Record) -> dict[str, Record]:
    """Join the lists by name; release 0.15.1 is put in where the flags file has 0.16.0."""
    records: dict[str, Record] = {}
    for record in engine:
        record = dict(record)
        if record["name"] not in corrections["absent_from_0_15_1"]:
            for field in ("defaults", "choices"):
                record[field] = {_backdate(v): x for v, x in record.get(field, {}).items()}
            record["since"] = _backdate(record["since"])
        records[record["name"]] = record
    for record in [*server, *corrections["extra"]]:
        records.setdefault(record["name"], dict(record))
    for name, fields in corrections["flags"].items():
        records[name].update(fields)
    return records


def _backdate(version: str) -> str:
    return "0.15.1" if version == "0.16.0" else version


def _complete(record: Record, corrections: Record, keys: Record | None) -> None:
    name = record["name"]
    if "defaults" not in corrections["flags"].get(name, {}):
        record["defaults"] = {v: _plain(x) for v, x in record["defaults"].items()}
    if record["section"] == "parser":
        record["section"] = "Engine"
    record["flags"] = sorted(record["flags"], key=lambda flag: (flag != f"--{name}", flag))
    later = corrections["later_spellings"]
    record["later"] = {flag: later[flag] for flag in record["flags"] if flag in later}
    if record["type"] == "boolean" and name not in corrections["without_no_form"]:
        record["no"] = f"--no-{name}"
    if name in corrections["suffixed"]:
        record["suffixed"] = True
        record["auto"] = corrections["suffixed"][name]
    if name in corrections["several"]:
        record["several"] = True
        record["type"] = corrections["several"][name]
    if name in corrections["folded"]:
        record["folded"] = True
    if name in corrections["repeatable"]:
        record["repeatable"] = True
    record["keys"] = keys


def _plain(value: str) -> str:
    """Return a default, which the facts give as Python, as a user would write it."""
    if value.startswith("field(default_factory="):
        return "[]" if "list" in value else "{}"
    try:
        return str(ast.literal_eval(_NAMED_VALUES.get(value, value)))
    except (ValueError, SyntaxError):
        raise SystemExit(f"the default {value!r} needs a correction") from None


def _ordered(record: Record) -> Record:
    rest = [key for key in record if key not in (*_ORDER, "description")]
    ordered = {key: record.get(key) for key in (*_ORDER, *sorted(rest), "description")}
    return {key: value for key, value in ordered.items() if value not in (None, {}, [], False)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
