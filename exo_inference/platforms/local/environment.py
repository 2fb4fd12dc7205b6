"""The environment of an engine process: the little it needs, and nothing of the user's.

Tokens and keys in the controller's environment (`HF_TOKEN`, `EXOSCALE_*`, cloud credentials) never
reach an engine, because only the names listed here are passed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from exo_inference.host_processor import KERNELS_VARIABLE
from exo_inference.platforms.local.shim import MARKER

_PASSED_ON = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    KERNELS_VARIABLE,
    # Where traces go, OpenTelemetry's own variables; headers may have the collector's key, which senders need.
    "OTEL_SDK_DISABLED",
    "OTEL_SERVICE_NAME",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_TRACES_EXPORTER",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
    *(
        f"OTEL_EXPORTER_OTLP_{signal}{name}"
        for signal in ("", "TRACES_")
        for name in (
            *("ENDPOINT", "PROTOCOL", "HEADERS", "TIMEOUT", "COMPRESSION"),
            *("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"),
        )
    ),
    *(
        f"OTEL_BSP_{name}"
        for name in ("SCHEDULE_DELAY", "EXPORT_TIMEOUT", "MAX_QUEUE_SIZE", "MAX_EXPORT_BATCH_SIZE")
    ),
)


def engine_environment(
    own: Mapping[str, str],
    *,
    directory: Path,
    home: Path,
    gpus: tuple[str, ...],
    num_threads: int,
) -> dict[str, str]:
    """Return the environment of one replica.

    Args:
        own: the controller's environment.
        directory: the replica's.
        home: where engines may keep what outlives a replica, such as compiled kernels.
        gpus: UUIDs of its GPUs; none hides them all.
        num_threads: its share of the cores.
    """
    passed_on = {name: own[name] for name in _PASSED_ON if name in own}
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        **passed_on,
        MARKER: str(directory),
        "HOME": str(home),
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "OMP_NUM_THREADS": str(num_threads),
        "MKL_NUM_THREADS": str(num_threads),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
    }
