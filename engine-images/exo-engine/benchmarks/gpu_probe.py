"""Say what the device of `gpu_check.py` is, in a process that may be ended: a driver that hangs, hangs this one.

python gpu_probe.py --device cuda      prints one JSON object: what is known, and `problem` where there is one
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from typing import Any


def main() -> None:
    """Print what is known."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    print(json.dumps(describe(parser.parse_args().device)), flush=True)


def describe(device: str) -> dict[str, Any]:
    """Return versions and the GPU; or `problem`, why it cannot be used."""
    import torch
    import triton

    found: dict[str, Any] = {
        "device": device,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cpus": os.cpu_count(),
    }
    if device == "cpu":
        return found
    if not torch.cuda.is_available():
        problem = f"torch {torch.__version__} finds no CUDA device on this machine"
        return {**found, "problem": problem}
    properties = torch.cuda.get_device_properties(0)
    found["gpu"] = properties.name
    found["gpu_memory_gib"] = round(properties.total_memory / 2**30, 1)
    found["cuda"] = torch.version.cuda
    torch.zeros(
        1, device=device
    ).item()  # properties are told by drivers, too, that compute nothing
    return found


if __name__ == "__main__":
    main()
