"""Reading files that strangers wrote: config.json, safetensors headers, whole folders of models.

Whoever publishes a model chooses every byte of it, so its files are read and parsed in a child process
with limits on processor time, memory and wall time, and what comes back is a small description whose
form is checked. `tasks.py` is what the child can do, `worker.py` its loop; `client.py` asks, through `pool.py`.

Callers: the controller and the hub (the `_async` functions), the download Job and `deployment plan` (those
that wait). A model that comes with this package is checked by the hub in its own process.
"""

from __future__ import annotations

from exo_inference.foreign_files.client import (
    RemoteDescription,
    check_model,
    check_model_async,
    describe_model,
    describe_model_async,
    describe_remote_async,
    num_waiting,
)
from exo_inference.foreign_files.errors import (
    ForeignFileError,
    MissingFile,
    ReadingFailed,
)
from exo_inference.foreign_files.model_directory import CheckedFiles

__all__ = [
    "CheckedFiles",
    "ForeignFileError",
    "MissingFile",
    "ReadingFailed",
    "RemoteDescription",
    "check_model",
    "check_model_async",
    "describe_model",
    "describe_model_async",
    "describe_remote_async",
    "num_waiting",
]
