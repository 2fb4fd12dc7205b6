"""vLLM: which flags a user may set in which release, checked without starting anything. Pure.

The catalogue has data for the releases of `catalogue.listed_releases()`, 0.12.0 to 0.33.0; one
between two of them is judged as the nearest lower one, and every message says so. Earlier and
later ones are refused. On a cluster vLLM runs in pods; on one machine the local platform simulates it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from exo_inference.engines.base import GPU, ClusterOnly
from exo_inference.engines.flags.catalogue import Flag, flags_of
from exo_inference.engines.flags.reader import Reading, read_vector
from exo_inference.engines.versions import DEFAULT_VERSION
from exo_inference.wire import EngineParameter

_SOCKET = "replicas listen on a private socket behind the gateway"
_GATEWAY = "the gateway is the only way in"
_NODES = "one replica runs on one machine"
_REPLICAS = "use the deployment's replicas"

PLATFORM_OWNED = {
    "model": "it is the deployment's model",
    "served-model-name": "it is the deployment's model name",
    "revision": "the model's revision was pinned when it was created",
    "download-dir": "the platform keeps the model's files",
    "hf-token": "a Hub token is given when the model is created",
    "config": "flags are given in the deployment",
    "host": _SOCKET,
    "port": _SOCKET,
    "uds": _SOCKET,
    "grpc": _SOCKET,
    "grpc-port": _SOCKET,
    "headless": _SOCKET,
    "api-key": "the gateway checks keys; use `deployment reveal-api-key`",
    "ssl-keyfile": _GATEWAY,
    "ssl-certfile": _GATEWAY,
    "ssl-ca-certs": _GATEWAY,
    "ssl-cert-reqs": _GATEWAY,
    "ssl-ciphers": _GATEWAY,
    "enable-ssl-refresh": _GATEWAY,
    "root-path": _GATEWAY,
    "device-ids": "use the deployment's gpu-count",
    "nnodes": _NODES,
    "node-rank": _NODES,
    "master-addr": _NODES,
    "master-port": _NODES,
    "data-parallel-address": _NODES,
    "data-parallel-backend": _NODES,
    "data-parallel-external-lb": _REPLICAS,
    "data-parallel-hybrid-lb": _REPLICAS,
    "data-parallel-multi-port-external-lb": _REPLICAS,
    "data-parallel-rank": _NODES,
    "data-parallel-rpc-port": _NODES,
    "data-parallel-size-local": _NODES,
    "data-parallel-start-rank": _NODES,
    "data-parallel-supervisor-port": _REPLICAS,
    "dp-supervisor-probe-failure-threshold": _REPLICAS,
    "dp-supervisor-probe-interval-s": _REPLICAS,
    "dp-supervisor-probe-timeout-s": _REPLICAS,
}
"""Names of flags that a user must not set, with the reason or the field to use instead.

The sizes of tensor, pipeline and data parallelism are not here: they are the user's as long as they
go with the deployment's GPUs, which `model_rules.check_parallelism` judges.
"""

_WIRE_TYPES = {"number": "float"}


@functools.lru_cache(maxsize=32)
def _parameters(listed: str) -> tuple[EngineParameter, ...]:
    flags = (flag for flag in flags_of(listed).flags if flag.name not in PLATFORM_OWNED)
    return tuple(_to_wire(flag) for flag in flags)


def _to_wire(flag: Flag) -> EngineParameter:
    return EngineParameter(
        name=flag.name,
        flags=[*flag.spellings, *([flag.no_form] if flag.no_form else [])],
        type="enum" if flag.choices else _WIRE_TYPES.get(flag.type, flag.type),
        default=flag.default,
        section=flag.section,
        description=flag.description,
        allowed_values=list(flag.choices),
    )


class VllmEngine(ClusterOnly):
    """vLLM, by its flags."""

    name = "vllm"
    devices = (GPU,)
    spans_nodes = True

    @property
    def version(self) -> str:
        """The release whose flags are meant where a deployment names none."""
        return DEFAULT_VERSION

    def parameters(self, version: str | None = None) -> tuple[EngineParameter, ...]:
        """Return the flags a user may set in a release, by section and name, as the API has them.

        Raises:
            UnknownRelease
        """
        return _parameters(flags_of(version or DEFAULT_VERSION).listed)

    def read(self, parameters: Sequence[str], version: str | None = None) -> Reading:
        """Return what a user's flags set, and everything that is wrong with them.

        Args:
            parameters: the argument vector: `--flag=value`, or flag and value as two items.
            version: a release of vLLM; None is the platform's default.

        Raises:
            UnknownRelease: the catalogue cannot judge that release.
        """
        return read_vector(parameters, flags_of(version or DEFAULT_VERSION), PLATFORM_OWNED)


ENGINE = VllmEngine()
