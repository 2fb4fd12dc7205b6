"""Loading takes the memory of the finished weights and at most one tensor of the checkpoint beside."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from exo_engine.models.checkpoint import read_checkpoint
from exo_engine.models.config_file import read_spec
from exo_engine.models.decoder import Decoder
from safetensors.torch import save_file

pytestmark = pytest.mark.slow

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 2048,
    "hidden_size": 512,
    "intermediate_size": 8192,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
# Objects, and pages that the C library's allocator keeps: none of them grows with the model.
SLACK_BYTES = 6 * 2**20
# Libraries whose pages are first looked at meanwhile.
MAPPED_SLACK_BYTES = 16 * 2**20

OPTIONS = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
}
# Imports once, and loads in a process of its own for each of the options.
CHILD = """
import json, os, sys, threading
from pathlib import Path
import torch
from safetensors import safe_open
from exo_engine.config import EngineConfig, resolve
from exo_engine.core.loading import load_decoder
from exo_engine.models.config_file import limits_of, read_spec

def held(kind):
    for line in open("/proc/self/status"):
        if line.startswith(f"Rss{kind}:"):
            return int(line.split()[1]) * 1024

model = Path(sys.argv[1])
for name, options in json.loads(sys.argv[2]).items():
    if (pid := os.fork()) == 0:
        break
    if status := os.waitpid(pid, 0)[1]:
        sys.exit(f"{name}: status {status}")
else:
    sys.exit()
spec = read_spec(model)
settings = resolve(EngineConfig(model, device="cpu", **options), limits_of(spec), has_cuda=False)
torch.ones(64, 64) @ torch.ones(64, 64)
most, is_over = {"Anon": 0, "File": 0}, threading.Event()
def watch():
    while not is_over.wait(0.001):
        for kind in most:
            most[kind] = max(most[kind], held(kind))
before = {kind: held(kind) for kind in most}
watcher = threading.Thread(target=watch)
watcher.start()
decoder = load_decoder(spec, settings, lambda detail: None)
is_over.set()
watcher.join()
after = held("Anon")
print(json.dumps([name, {
    "most": max(most["Anon"], after) - before["Anon"], "after": after - before["Anon"],
    "mapped": most["File"] - before["File"], "weights": decoder.num_bytes,
}]))
"""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """52 million parameters in bfloat16, the largest tensor of 8 MiB."""
    path = tmp_path_factory.mktemp("model")
    (path / "config.json").write_text(json.dumps(CONFIG))
    sketch = Decoder(read_spec(path), dtype=torch.float32, device=torch.device("meta"))
    save_file(
        {
            name: torch.ones(slot.stored.shape, dtype=torch.bfloat16)
            for layer in sketch.weighted_layers
            for name, slot in layer.slots.items()
        },
        path / "model.safetensors",
    )
    return path


@pytest.fixture(scope="module")
def measured(model_dir):
    """Bytes more than before, at most and after, of mapped files at most, and of the weights, by the name of the options."""
    arguments = [sys.executable, "-c", CHILD, str(model_dir), json.dumps(OPTIONS)]
    child = subprocess.run(arguments, check=True, capture_output=True, text=True)
    return dict(json.loads(line) for line in child.stdout.splitlines())


@pytest.mark.parametrize("name", OPTIONS)
def test_nothing_of_the_checkpoint_stays_beside_the_weights(model_dir, measured, name):
    found = measured[name]
    largest = max(entry.num_bytes for entry in read_checkpoint(model_dir).values())
    assert found["after"] > 0.9 * found["weights"], "what was measured is where the weights are"
    assert found["most"] <= found["weights"] + largest + SLACK_BYTES
    assert found["mapped"] <= 2 * largest + MAPPED_SLACK_BYTES, (
        "gates and what they gate are one layer"
    )
