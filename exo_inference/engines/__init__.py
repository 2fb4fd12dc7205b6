"""Engines: their parameters, how one replica is started, and what its failures mean.

Admission asks an engine to check parameters; a platform asks it for a command line and for the
meaning of an exit. An engine starts nothing and knows neither store nor platform.
"""

from exo_inference.engine_names import ENGINES
from exo_inference.engines.base import (
    Engine,
    Failure,
    ReplicaCommand,
    UnknownEngine,
    UnknownEngineRelease,
)
from exo_inference.engines.flags.problems import ParameterProblem
from exo_inference.engines.registry import engines_on, get_engine, releases_of
from exo_inference.engines.versions import API_VERSIONS, DEFAULT_VERSION, VERSIONS

__all__ = [
    "API_VERSIONS",
    "DEFAULT_VERSION",
    "ENGINES",
    "VERSIONS",
    "Engine",
    "Failure",
    "ParameterProblem",
    "ReplicaCommand",
    "UnknownEngine",
    "UnknownEngineRelease",
    "engines_on",
    "get_engine",
    "releases_of",
]
