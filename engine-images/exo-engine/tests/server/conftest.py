"""Real server processes on a tiny random model, for tests that talk to them as clients do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import safetensors.torch
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

MODEL = "test/tiny"
MAX_MODEL_LEN = 4096
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('unknown role ' + message.role) }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT = ["The quick brown fox jumps over the lazy dog.", "Größe, naïve, 日本語, 🙂🚀!"] * 3


def write_tiny_model(
    directory: Path, *, num_positions: int = MAX_MODEL_LEN, num_layers: int = 2
) -> Path:
    """Write a small random Llama with a byte-level tokenizer."""
    directory.mkdir(parents=True)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>", "</s>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    size, hidden, head_dim = tokenizer.get_vocab_size(), 32, 16
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": size,
        "hidden_size": hidden,
        "intermediate_size": 48,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": head_dim,
        "max_position_embeddings": num_positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 3]}))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE})
    )
    generator = torch.Generator().manual_seed(5)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.3

    tensors = {
        "model.embed_tokens.weight": random(size, hidden),
        "lm_head.weight": random(size, hidden),
        "model.norm.weight": torch.ones(hidden),
    }
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "self_attn.q_proj.weight": random(2 * head_dim, hidden),
            prefix + "self_attn.k_proj.weight": random(head_dim, hidden),
            prefix + "self_attn.v_proj.weight": random(head_dim, hidden),
            prefix + "self_attn.o_proj.weight": random(hidden, 2 * head_dim),
            prefix + "mlp.gate_proj.weight": random(48, hidden),
            prefix + "mlp.up_proj.weight": random(48, hidden),
            prefix + "mlp.down_proj.weight": random(hidden, 48),
            prefix + "input_layernorm.weight": torch.ones(hidden),
            prefix + "post_attention_layernorm.weight": torch.ones(hidden),
        }
    safetensors.torch.save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory


class Engine:
    """One `exo-engine serve` process on a unix socket in a directory of its own."""

    def __init__(self, directory: Path, model_dir: Path, *flags: str) -> None:
        self.socket = directory / "engine.sock"
        self.log = directory / "engine.log"
        self.directory = directory
        command = [sys.executable, "-m", "exo_engine.server.main", "serve", str(model_dir)]
        command += ["--served-model-name", MODEL, "second-name", "--uds", "engine.sock"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--kv-cache-memory-bytes", "16M", "--dtype", "float32", *flags],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(directory)},
            )
        self.http = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(self.socket)),
            base_url="http://engine",
            timeout=30,
        )
        self.openai = openai.OpenAI(
            base_url="http://engine/v1", api_key="none", http_client=self.http, max_retries=0
        )

    def wait_listening(self) -> Engine:
        """Wait until the socket answers."""
        self._wait(lambda: self._health() is not None)
        return self

    def wait_ready(self) -> Engine:
        """Wait until the model is loaded."""
        self._wait(lambda: self._health() == 200)
        return self

    def wait_exit(self) -> int:
        """Wait until the process has ended; return its status."""
        self._wait(lambda: self.process.poll() is not None)
        return self.process.returncode

    def wait_until(self, is_true: Callable[[], bool]) -> None:
        """Wait for something that the engine does by itself."""
        self._wait(is_true)

    @contextlib.contextmanager
    def asked(self, body: dict[str, Any]) -> Iterator[None]:
        """Ask for a completion, and hang up at the end of the block."""
        content = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.socket))
            client.sendall(head.encode() + content)
            yield

    @property
    def core_pid(self) -> int:
        """The process that owns the model."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(children.split()[0])

    @property
    def last_line(self) -> str:
        """The last line on stderr."""
        return self.log.read_text().strip().rsplit("\n", 1)[-1]

    def metric(self, name: str, **labels: str) -> float:
        """Read one value of /metrics."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith(name + "{") and all(each in line for each in wanted):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric {name} {labels}")

    def terminate(self) -> None:
        """Ask for an end, as a platform does."""
        self.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """End the process, whatever state it is in."""
        self.http.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _health(self) -> int | None:
        if self.process.poll() is not None:
            raise AssertionError(f"the engine ended:\n{self.log.read_text()}")
        if not self._is_listening():
            return None
        return self.http.get("/health").status_code

    def _is_listening(self) -> bool:
        # By hand: httpx leaves the socket of a refused connection to the garbage collector.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def _wait(self, is_true: Callable[[], bool]) -> None:
        """Wait as long as the test may take: beside much work a start takes a minute."""
        try:
            while not is_true():
                time.sleep(0.02)
        except pytest.fail.Exception:  # the test's time is over
            print(f"the engine said:\n{self.log.read_text()}")
            raise


def is_alive(pid: int) -> bool:
    """Say whether a process exists and is not a zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with a chat template."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Engine]:
    """One ready server that the tests of the HTTP side share."""
    running = Engine(
        tmp_path_factory.mktemp("engine"), model_dir, "--max-request-body-bytes", "200000"
    )
    try:
        yield running.wait_ready()
    finally:
        running.close()


@pytest.fixture
def start_engine(tmp_path: Path, model_dir: Path) -> Iterator[Callable[..., Engine]]:
    """Start servers of the test's own; they are killed afterwards."""
    running: list[Engine] = []

    def start(*flags: str, model: Path = model_dir) -> Engine:
        directory = tmp_path / f"engine{len(running)}"
        directory.mkdir()
        running.append(Engine(directory, model, *flags))
        return running[-1]

    yield start
    for each in running:
        each.close()
