"""The model cards: README.md of each model folder, written from the figures of the report.

Called by `report.py`. The prose is here, the numbers are not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from training.shapes import MAX_POSITIONS, SHAPES, VOCAB_SIZE

_HEAD = """\
---
license: apache-2.0
language: en
pipeline_tag: text-generation
---

# exo/{name}

{summary}

| | |
| --- | --- |
| architecture | Llama: {layers} layers, hidden size {hidden}, {heads} query heads and {kv_heads} KV head(s) of size {head_dim}, tied embeddings |
| parameters | {parameters:,} |
| weights | bfloat16, {megabytes:.1f} MB |
| tokenizer | byte-level BPE, {vocabulary} tokens, any UTF-8 text |
| context | {context} tokens (trained on conversations of up to about 400) |
| chat template | ChatML: `<|im_start|>`, `<|im_end|>` |
| licence | Apache-2.0 |
"""

_SUMMARY = {
    "tiny-chat": (
        "The model that comes with exo-inference, so that the demo and the tests need neither a GPU nor a\n"
        "download. It answers questions about inference and about exo-inference."
    ),
    "tiny-draft": (
        "A smaller sibling of `exo/tiny-chat` with the same tokenizer and training text, made to propose its\n"
        "tokens in speculative decoding. It answers on its own as well; the figures below say how well."
    ),
}

_TRAINED = """
## How it was trained

From random weights by `training/train.py`, on the text in `training/corpus`, which was written for this
project: {answers} answers with {phrasings} phrasings, {dialogues} dialogues, off-topic questions to decline,
and prose. Questions are varied in case, punctuation and spelling; the loss counts the assistant's tokens only.
{run}The report with machine and versions is `training/report.json`.
"""

_CAN = """
## What it can and cannot do

It knows the answers of its training text and recognises most other ways to ask for them. It declines most
questions about anything else, and may answer them wrongly: it does not reason, cannot do sums, write code or
follow instructions, and knows English only. Use it to try out serving, not to learn facts that matter.
"""


def write_card(folder: Path, name: str, report: dict[str, Any]) -> None:
    """Write the model card of one folder from the whole report."""
    shape, figures = SHAPES[name], report["models"][name]
    head = _HEAD.format(
        name=name,
        summary=_SUMMARY[name],
        layers=shape.num_layers,
        hidden=shape.hidden_size,
        heads=shape.num_heads,
        kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        parameters=figures["parameters"],
        megabytes=figures["weights_bytes"] / 1e6,
        vocabulary=VOCAB_SIZE,
        context=MAX_POSITIONS,
    )
    trained = _TRAINED.format(**report["corpus"], run=_run(figures["training"], report))
    (folder / "README.md").write_text(
        head + trained + _CAN + _evaluation(name, report), encoding="utf-8"
    )


def _run(run: dict[str, Any], report: dict[str, Any]) -> str:
    if not run:
        return ""
    return (
        f"{run['steps']} steps of {run['batch_tokens']} tokens, {run['seconds'] / 60:.0f} minutes on "
        f"{report['machine']['cores']} CPU cores, final loss {run['final_loss']:.4f}.\n"
    )


def _evaluation(name: str, report: dict[str, Any]) -> str:
    lines = [
        "\n## Evaluation\n",
        "Greedy answers of the shipped bfloat16 weights, computed in float32. *Near-exact* is a similarity of",
        "at least 0.9 in characters; *stopped* means that the answer ended by itself.\n",
        "| set | questions | exact | near-exact | stopped |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for label, rate in report["models"][name]["rates"].items():
        shares = " | ".join(
            f"{rate[key]:.1%}" for key in ("exact", "near_exact", "stopped_by_itself")
        )
        lines.append(f"| {label} | {rate['questions']} | {shares} |")
    lines.append(
        f"\nGiven the same context, `tiny-draft` proposes the token that `tiny-chat` would write in "
        f"{report['draft_agreement']:.1%} of the cases\n(training questions; context up to that token as in the training text).\n"
    )
    return "\n".join(lines)
