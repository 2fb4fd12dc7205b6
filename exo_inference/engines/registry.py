"""Which engine has which name, and which releases of it may be asked for."""

from __future__ import annotations

import functools
import importlib

from exo_inference.engine_names import ENGINES, facts_of
from exo_inference.engines.base import Engine, UnknownEngine
from exo_inference.engines.flags.catalogue import is_listed
from exo_inference.engines.versions import DEFAULT_VERSION, VERSIONS


def get_engine(name: str) -> Engine:
    """Return the engine of that name.

    Raises:
        UnknownEngine
    """
    if name not in ENGINES:
        raise UnknownEngine(
            f"there is no engine {name!r}; there are: {', '.join(ENGINES)}",
            hint="Leave the engine out, or ask for `exo`.",
        )
    # Imported here, because each loads its catalogue of flags.
    module = importlib.import_module(f"exo_inference.engines.{name.replace('-', '_')}")
    engine: Engine = module.ENGINE
    return engine


@functools.cache
def engines_on(device: str) -> tuple[str, ...]:
    """Return the names of the engines whose images run on `CPU` or `GPU`."""
    return tuple(name for name in ENGINES if device in get_engine(name).devices)


def releases_of(engine: str) -> tuple[str, ...]:
    """Return the versions that a deployment of an engine may name."""
    return VERSIONS if facts_of(engine).takes_vllm_flags else (get_engine(engine).version,)


def can_name(engine: str | None, version: str) -> bool:
    """Whether a deployment may name that release of an engine; of one that is not here, those of vLLM."""
    if engine not in ENGINES or facts_of(engine).takes_vllm_flags:
        return is_listed(version)
    return version in releases_of(engine)


def flags_release(engine: str, version: str | None) -> str:
    """Return the release whose flags a deployment has: the one that it names, or the default one."""
    default = DEFAULT_VERSION if facts_of(engine).takes_vllm_flags else get_engine(engine).version
    return version or default


def engine_release(engine: str | None, version: str | None) -> str:
    """Return the release that runs: exo-engine's own, or that whose flags were asked for."""
    own = None if facts_of(engine).is_ours else version
    # What came by kubectl may name any engine, until it is judged.
    return own or (get_engine(engine).version if engine in ENGINES else "")
