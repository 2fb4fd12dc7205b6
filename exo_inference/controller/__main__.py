"""`python -m exo_inference.controller`: run the controller of this machine, or in a pod one of a cluster.

Exit codes follow sysexits.h where the supervisor needs them: 78 when it is wrong as configured and
starting it again alone does not help, 1 otherwise. The last line on stderr says why.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Sequence
from functools import partial

from exo_inference.connection_limits import raise_descriptor_limit
from exo_inference.controller.local.server import serve
from exo_inference.controller.settings import ControllerSettings, read_settings
from exo_inference.controller.stores.base import StoreDamaged, StoreTooNew
from exo_inference.errors import ConfigurationError, ExoError, UsageError
from exo_inference.hub import source_for
from exo_inference.hub.architecture import read_directory
from exo_inference.hub.builtin import builtin_directory
from exo_inference.local_settings import take_inherited_listener
from exo_inference.logs import set_up_logging
from exo_inference.platforms.local import LocalPlatform, Simulation

STAND_IN = "exo/tiny-chat"
"""The model that runs on simulated GPUs in place of the one asked for."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the controller and return its exit code."""
    try:
        settings = read_settings(argv)
        set_up_logging()
        raise_descriptor_limit()
        _look_for_garbage_seldom()
        if settings.cluster is not None:
            # Brings the client of the Kubernetes API, which one machine does without.
            from exo_inference.controller.cluster.server import serve_on_cluster

            asyncio.run(serve_on_cluster(settings, find_source=source_for))
            return 0
        settings.state.create()
        listener = take_inherited_listener()
        os.chdir(settings.state.root)  # sockets of replicas are named relative to it
        find_source = partial(source_for, simulated=bool(settings.simulated_gpus))
        platform = LocalPlatform(settings.state, simulation=_simulation(settings))
        asyncio.run(serve(settings, platform=platform, find_source=find_source, listener=listener))
    except (ConfigurationError, UsageError, StoreDamaged, StoreTooNew) as exc:
        return _fail(exc, os.EX_CONFIG)
    except ExoError as exc:
        return _fail(exc, 1)
    return 0


def _look_for_garbage_seldom() -> None:
    """Leave what was imported out of collections, and make them rarer.

    A controller keeps thousands of objects that are no garbage and makes as many for one answer: with Python's own
    bounds going through them took a sixth of the time of a list of 1,000 deployments.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _simulation(settings: ControllerSettings) -> Simulation:
    return Simulation(
        gpus=settings.simulated_gpus,
        speedup=settings.simulation_speedup,
        stand_in=builtin_directory(STAND_IN),
        read_model=read_directory,
    )


def _fail(exc: ExoError, code: int) -> int:
    print(f"controller: error: {exc.text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
