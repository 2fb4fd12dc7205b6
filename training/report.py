"""The figures of a training: `report.json`, a table on the terminal, and the two model cards.

Called by `train.py` at its end. Rates are those of the files as shipped; see `evaluate.py`.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from training.card import write_card
from training.dataset import Corpus
from training.evaluate import Answerer, draft_agreement, question_sets
from training.export import folder_size_bytes

REPORT = Path(__file__).parent / "report.json"
TARGET, DRAFT = "tiny-chat", "tiny-draft"


def write_report(
    out: Path, corpus: Corpus, runs: dict[str, dict[str, Any]], *, report: Path = REPORT
) -> None:
    """Evaluate both models in `out`, print the table, write the report and the cards.

    Args:
        out: the folder that holds the model folders.
        corpus: what they were trained on.
        runs: per model, what `train.py` recorded of its training.
        report: where the figures go.
    """
    sets = question_sets(corpus)
    answerers = {name: Answerer(out / name) for name in (TARGET, DRAFT)}
    models = {
        name: _evaluate(out / name, answerers[name], sets, runs.get(name, {})) for name in answerers
    }
    agreement = draft_agreement(
        answerers[TARGET], answerers[DRAFT], sets["training questions, canonical"]
    )
    content = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": _machine(),
        "versions": _versions(),
        "corpus": _corpus(corpus),
        "models": models,
        "draft_agreement": round(agreement, 4),
    }
    report.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for name in models:
        write_card(out / name, name, content)
    _print(content)


def _evaluate(
    folder: Path, answerer: Answerer, sets: dict[str, Any], run: dict[str, Any]
) -> dict[str, Any]:
    rates = {}
    for label, questions in sets.items():
        result = answerer.rate(questions)
        rates[label] = result.as_dict()
        for question, answer in result.wrong[:3]:
            print(f"  {folder.name}, {label}: {question!r} -> {answer!r}", flush=True)
    return {
        "parameters": sum(p.numel() for p in answerer.model.parameters()),
        "weights_bytes": (folder / "model.safetensors").stat().st_size,
        "folder_bytes": folder_size_bytes(folder),
        "training": run,
        "rates": rates,
    }


def _machine() -> dict[str, Any]:
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    return {"cpu": names[0] if names else platform.machine(), "cores": os.cpu_count()}


def _versions() -> dict[str, str]:
    packages = ("torch", "transformers", "tokenizers", "safetensors")
    return {"python": sys.version.split()[0], **{package: version(package) for package in packages}}


def _corpus(corpus: Corpus) -> dict[str, int]:
    return {
        "answers": len(corpus.pairs),
        "phrasings": sum(len(pair.questions) for pair in corpus.pairs),
        "held_out_phrasings": sum(
            len(p.held_out) + len(p.held_out_templates) for p in corpus.pairs
        ),
        "dialogues": len(corpus.dialogues),
        "prose_paragraphs": len(corpus.prose),
    }


def _print(content: dict[str, Any]) -> None:
    table = Table(title="Near-exact answers, greedy, weights in bfloat16")
    table.add_column("set")
    table.add_column("questions", justify="right")
    for name in content["models"]:
        table.add_column(name, justify="right")
    for label, first in content["models"][TARGET]["rates"].items():
        values = [
            f"{model['rates'][label]['near_exact']:.1%}" for model in content["models"].values()
        ]
        table.add_row(label, str(first["questions"]), *values)
    console = Console()
    console.print(table)
    console.print(f"draft agrees with target on {content['draft_agreement']:.1%} of the tokens")
