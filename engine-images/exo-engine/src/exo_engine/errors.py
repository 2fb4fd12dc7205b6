"""Every error the engine raises on purpose, in one tree.

::

    EngineError
    ├── ConfigurationError         a flag or a file is wrong; a restart will not help (exit 78)
    │   └── ModelUnusable          the model directory cannot be served as it is (exit 78)
    ├── OutOfMemory                weights or KV cache do not fit (exit 71)
    ├── AddressUnavailable         nothing can listen where the server was told to (exit 75)
    ├── CoreFailed                 the engine core ended by itself (exit as it did)
    ├── RequestError               one request is refused; the engine and the others go on
    │   ├── InvalidSamplingParams  a sampling parameter is out of range
    │   ├── PromptTooLong          prompt (plus what was asked for) exceeds what can ever be served
    │   └── DuplicateRequest       the request id is already in use
    ├── InternalError              the engine broke one of its own promises (exit 70)
    ├── TemplateRefused            in `tokenizer`: the chat template refuses a conversation
    ├── NoProcess                  in `server`: a request needs a process that cannot be started now
    └── ApiError                   in `server`: an answer with an HTTP error status

Exceptions of torch, safetensors and the file system are mapped once, where they appear, and kept as
the cause. A message says what was being done, to what, and found against expected; `hint` is the
one next step.
"""

from __future__ import annotations

from typing import ClassVar


class EngineError(Exception):
    """Root of the tree. `exit_code` is what the process ends with (sysexits.h)."""

    exit_code: int = 70

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigurationError(EngineError):
    """A flag, an environment variable or a file is wrong; starting again will not help.

    Attributes:
        param: the flag or field at fault, where one is known.
    """

    exit_code = 78

    def __init__(self, message: str, *, param: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.param = param


class ModelUnusable(ConfigurationError):
    """The model directory cannot be served as it is: missing, corrupt or of an unknown kind."""


class OutOfMemory(EngineError):
    """Weights, activations or the KV cache do not fit into the memory there is."""

    exit_code = 71


class AddressUnavailable(EngineError):
    """The address is taken, or may not be used; another start may find it free."""

    exit_code = 75


class CoreFailed(EngineError):
    """The engine core ended by itself; the process ends with its status."""

    def __init__(self, message: str, *, exit_code: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


class RequestError(EngineError):
    """One request is refused; the engine and every other request go on.

    Attributes:
        param: the request field at fault, as the OpenAI error object names it.
        code: a stable machine-readable word.
    """

    code: ClassVar[str] = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.param = param


class InvalidSamplingParams(RequestError):
    """A sampling parameter is out of range or contradicts another."""

    code = "invalid_sampling_params"


class PromptTooLong(RequestError):
    """The prompt, with the tokens asked for, can never fit."""

    code = "context_length_exceeded"


class DuplicateRequest(RequestError):
    """A request with this id is still being served."""

    code = "duplicate_request"


class InternalError(EngineError):
    """The engine broke one of its own promises; this is a bug."""


MEMORY_HINT = "Lower --max-model-len, --max-num-seqs or --kv-cache-memory-bytes."
"""The hint where memory of the host ran out."""


def has_no_memory(error: BaseException) -> bool:
    """Say whether Python, or PyTorch's allocator for a CPU, which has no error of its own for it, found no room."""
    return isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error)
