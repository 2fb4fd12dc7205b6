"""llama.cpp, as `llama-server` starts it: what the platform sets of it.

Its parser reads flags and values as two items, and `_` for `-`; booleans take no value. Its memory is not
judged: GGUF files have number formats of their own, and what the GPUs have no room for stays in main memory.
"""

from __future__ import annotations

from exo_inference.engines import imaged
from exo_inference.engines.base import CPU, GPU
from exo_inference.engines.flags.dialects import LLAMA_CPP
from exo_inference.engines.imaged import ImagedEngine

_TOOLS = "tools would let whoever asks the model read and change files of the pod"
_ROUTER = "a deployment serves one model"

PLATFORM_OWNED = {
    "model": imaged.MODEL,
    "alias": imaged.MODEL_NAME,
    "model-url": imaged.FILES,
    "docker-repo": imaged.FILES,
    "hf-repo": imaged.FILES,
    "hf-file": imaged.FILES,
    "hf-token": "a Hub token is given when the model is created",
    "mmproj-url": imaged.FILES,
    "spec-draft-hf": imaged.FILES,
    "models-dir": _ROUTER,
    "models-preset": _ROUTER,
    "models-max": _ROUTER,
    "models-autoload": _ROUTER,
    "host": imaged.SOCKET,
    "port": imaged.SOCKET,
    "reuse-port": imaged.SOCKET,
    "api-prefix": imaged.GATEWAY,
    "ssl-key-file": imaged.GATEWAY,
    "ssl-cert-file": imaged.GATEWAY,
    "api-key": imaged.KEYS,
    "api-key-file": imaged.KEYS,
    "metrics": imaged.METRICS,
    "rpc": imaged.NODES,
    "tools": _TOOLS,
    "tools-runtime": _TOOLS,
    "mcp-servers-config": _TOOLS,
    "mcp-servers-json": _TOOLS,
    "agent": _TOOLS,
}

ENGINE = ImagedEngine(
    name="llama-cpp",
    owned=PLATFORM_OWNED,
    dialect=LLAMA_CPP,
    devices=(CPU, GPU),
)
