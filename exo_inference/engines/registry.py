"""Which engine has which name, and which releases of it may be asked for."""

from __future__ import annotations

import functools

from exo_inference.engines.base import ENGINES, Engine, UnknownEngine
from exo_inference.engines.versions import VERSIONS
from exo_inference.resources import EngineRef


def get_engine(name: str) -> Engine:
    """Return the engine of that name.

    Raises:
        UnknownEngine
    """
    # Imported here, because each loads its catalogue of flags.
    if name == "exo":
        from exo_inference.engines.exo import ExoEngine

        return ExoEngine()
    if name == "vllm":
        from exo_inference.engines.simulated import SimulatedVllm

        return SimulatedVllm()
    if name in ENGINES:
        from exo_inference.engines import llama_cpp, sglang, tensorrt_llm, tgi

        on_clusters = (llama_cpp.ENGINE, sglang.ENGINE, tensorrt_llm.ENGINE, tgi.ENGINE)
        return next(engine for engine in on_clusters if engine.name == name)
    raise UnknownEngine(
        f"there is no engine {name!r}; there are: {', '.join(ENGINES)}",
        hint="Leave the engine out, or ask for `exo`.",
    )


@functools.cache
def engines_on(device: str) -> tuple[str, ...]:
    """Return the names of the engines whose images run on `CPU` or `GPU`."""
    return tuple(name for name in ENGINES if device in get_engine(name).devices)


def releases_of(engine: str) -> tuple[str, ...]:
    """Return the versions that a deployment of an engine may name."""
    return VERSIONS if engine in ("exo", "vllm") else (get_engine(engine).version,)


def engine_release(engine: EngineRef) -> str:
    """Return the release that runs: exo-engine's own, or that whose flags were asked for."""
    own: str | None = None if engine.name == "exo" else engine.version
    # What came by kubectl may name any engine, until it is judged.
    return own or (get_engine(engine.name).version if engine.name in ENGINES else "")
