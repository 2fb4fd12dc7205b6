"""What the tokenizers of one engine hold of the machine's memory, by the size of their vocabulary.

The API process reads a model's tokenizer, and the process that tokenizes reads it too. The vocabularies are
made here, of random pairs; real ones of the same size differ by the lengths of their tokens.

    python benchmarks/tokenizer_memory.py --model ../../exo_inference/hub/builtin_models/tiny-chat
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from exo_engine.tokenizer.confined import pack, read

SIZES = (32_000, 128_000, 152_000, 256_000)


def make_tokenizer(model: Path, directory: Path, vocab_size: int) -> Path:
    """Write the model's tokenizer with so many tokens; return its directory."""
    target = directory / str(vocab_size)
    target.mkdir()
    for name in ("config.json", "tokenizer_config.json"):
        if (model / name).exists():
            shutil.copy(model / name, target / name)
    document = json.loads((model / "tokenizer.json").read_text())
    vocab, merges = document["model"]["vocab"], document["model"]["merges"]
    has_pairs = bool(merges) and isinstance(merges[0], list)
    tokens, chance = list(vocab), random.Random(1)
    number = 1 + max([*vocab.values(), *(each["id"] for each in document.get("added_tokens", []))])
    while len(vocab) < vocab_size:
        left, right = chance.choice(tokens), chance.choice(tokens[:3000])
        if len(left + right) <= 16 and left + right not in vocab:
            vocab[left + right] = number
            number += 1
            tokens.append(left + right)
            merges.append([left, right] if has_pairs else f"{left} {right}")
    (target / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False))
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "vocab_size": number}))
    return target


def measure(directory: Path) -> tuple[float, float]:
    """Return the MiB that a process with the tokenizer holds for itself, and the most it ever had."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "exo_engine.tokenizer.tokenizer_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(
        pack({"tokenizer_dir": str(directory), "model_dir": None, "fingerprint": ""})
    )
    process.stdin.flush()
    frame = read(process.stdout)
    assert frame is not None, "the process ended"
    assert "error" not in frame[0], frame[0]
    own = read_mib(process.pid, "smaps_rollup", "Private_Dirty")
    most = read_mib(process.pid, "status", "VmHWM")
    process.stdin.close()
    process.wait()
    return own, most


def read_mib(pid: int, file: str, name: str) -> float:
    """Return one figure of a file of /proc, which has KiB."""
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a directory with tokenizer.json")
    model = parser.parse_args().model
    empty, _ = measure(model)
    print("tokens   held MiB   most while loaded MiB   both processes at the worst moment MiB")
    with tempfile.TemporaryDirectory() as directory:
        for size in SIZES:
            own, most = measure(make_tokenizer(model, Path(directory), size))
            print(f"{size:>7,} {own:9.0f} {most:16.0f} {own + most - empty:30.0f}")


if __name__ == "__main__":
    main()
