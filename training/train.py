"""Train the models that come with the project: `exo/tiny-chat` and its draft, `exo/tiny-draft`.

    python training/train.py                         # both, from nothing, some 20 minutes on 2 free cores
    python training/train.py --only tiny-draft       # one of them
    python training/train.py --evaluate-only         # figures of what is there, no training

Reads `corpus/`, writes the model folders and `report.json`. The same seed, corpus, versions and
number of threads give the same weights. It knows nothing of the engine or the control plane.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from training.dataset import Corpus, Sampler, load_corpus
from training.encoding import Encoder, batches, train_tokenizer
from training.export import write_model
from training.report import write_report
from training.shapes import SHAPES, Shape

HERE = Path(__file__).resolve().parent
DEFAULT_OUT = HERE.parent / "exo_inference" / "hub" / "builtin_models"
DEFAULT_STEPS = {"tiny-chat": 1600, "tiny-draft": 1500}
PEAK_LEARNING_RATE = {"tiny-chat": 2e-3, "tiny-draft": 4e-3}


@dataclass(frozen=True, slots=True)
class Run:
    """What one training run was, for the report."""

    steps: int
    batch_tokens: int
    final_loss: float
    seconds: float
    seed: int
    threads: int


def main() -> int:
    """Train, export, evaluate, report."""
    options = _parse()
    torch.set_num_threads(options.threads)
    corpus = load_corpus()
    if not options.evaluate_only:
        tokenizer = train_tokenizer(corpus.texts())
        for name in [options.only] if options.only else list(SHAPES):
            run = _train_one(SHAPES[name], corpus, tokenizer, options)
            _record(options.checkpoints, name).write_text(json.dumps(asdict(run)), encoding="utf-8")
    if not options.no_report:
        records = {name: _record(options.checkpoints, name) for name in SHAPES}
        runs = {
            name: json.loads(path.read_text(encoding="utf-8"))
            for name, path in records.items()
            if path.exists()
        }
        write_report(options.out, corpus, runs)
    return 0


def _record(checkpoints: Path, name: str) -> Path:
    """Name the file that keeps what a run was until the report is written."""
    checkpoints.mkdir(parents=True, exist_ok=True)
    return checkpoints / f"{name}.json"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_OUT, help="folder for the model folders"
    )
    parser.add_argument("--only", choices=sorted(SHAPES), help="train this one alone")
    parser.add_argument("--steps", type=int, help="optimizer steps (default: as shipped)")
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--checkpoints", type=Path, default=HERE / "checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--no-report", action="store_true", help="train and export only")
    parser.add_argument("--evaluate-only", action="store_true", help="report on what is in --out")
    return parser.parse_args()


def _train_one(
    shape: Shape, corpus: Corpus, tokenizer: Tokenizer, options: argparse.Namespace
) -> Run:
    """Train one model and write its folder; a checkpoint is kept every 250 steps."""
    torch.manual_seed(options.seed)
    model = _build(shape)
    peak = PEAK_LEARNING_RATE[shape.name]
    optimizer = _optimizer(model, peak)
    steps = options.steps or DEFAULT_STEPS[shape.name]
    checkpoint = options.checkpoints / f"{shape.name}.pt"
    done, seconds = _restore(checkpoint, model, optimizer) if options.resume else (0, 0.0)
    num_parameters = sum(p.numel() for p in model.parameters())
    print(
        f"{shape.name}: {num_parameters:,} parameters, {steps} steps of {options.batch_tokens} tokens",
        flush=True,
    )
    stream = batches(
        Sampler(corpus, seed=options.seed),
        Encoder(tokenizer),
        batch_tokens=options.batch_tokens,
        seed=options.seed,
    )
    model.train()
    losses: list[float] = []
    started = time.monotonic() - seconds
    for step, (ids, labels) in enumerate(islice(stream, done, steps), start=done):
        for group in optimizer.param_groups:
            group["lr"] = peak * _schedule(step, steps)
        losses.append(_step(model, optimizer, ids, labels))
        _show(step + 1, steps, losses, time.monotonic() - started)
        if (step + 1) % 250 == 0:
            _save(checkpoint, model, optimizer, step=step + 1, seconds=time.monotonic() - started)
    write_model(options.out / shape.name, shape, model.state_dict(), tokenizer)
    final_loss = sum(losses[-50:]) / max(len(losses[-50:]), 1)
    seconds = time.monotonic() - started
    return Run(steps, options.batch_tokens, final_loss, seconds, options.seed, options.threads)


def _step(
    model: LlamaForCausalLM, optimizer: torch.optim.AdamW, ids: torch.Tensor, labels: torch.Tensor
) -> float:
    """Take one optimizer step and return the loss before it; shapes as in `_loss`."""
    loss = _loss(model, ids, labels)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def _restore(
    path: Path, model: LlamaForCausalLM, optimizer: torch.optim.AdamW
) -> tuple[int, float]:
    """Load the last checkpoint, where there is one; return the steps done and the time they took."""
    if not path.exists():
        return 0, 0.0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"], state["seconds"]


def _build(shape: Shape) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(**{k: v for k, v in shape.config().items() if k != "torch_dtype"})
    )


def _optimizer(model: LlamaForCausalLM, peak: float) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    scales = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": scales, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.97), fused=True)


def _schedule(step: int, steps: int) -> float:
    """Warm up over 100 steps, hold, then fall to zero over the last half."""
    warm = min(1.0, (step + 1) / 100)
    left = (steps - step) / (0.5 * steps)
    return warm * min(1.0, left)


def _loss(model: LlamaForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the next token, computed for the labelled positions alone.

    Args:
        model: the model in training.
        ids: (B, T) int64, padded on the right; being causal, no mask is needed.
        labels: (B, T) int64, negative where a position does not count.
    """
    hidden = model.model(ids, use_cache=False).last_hidden_state  # (B, T, hidden)
    wanted = labels[:, 1:]
    counts = wanted >= 0
    logits = model.lm_head(hidden[:, :-1][counts])  # (labelled, vocabulary)
    return torch.nn.functional.cross_entropy(logits, wanted[counts])


def _show(step: int, steps: int, losses: list[float], elapsed: float) -> None:
    if step % 50 and step != steps:
        return
    recent = losses[-50:]
    left = elapsed / step * (steps - step)
    print(
        f"  step {step:5d}/{steps}  loss {sum(recent) / len(recent):.4f}  {elapsed:6.0f} s  {left:6.0f} s left",
        flush=True,
    )


def _save(
    path: Path, model: LlamaForCausalLM, optimizer: torch.optim.AdamW, **progress: float
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), **progress}, partial
    )
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main())
