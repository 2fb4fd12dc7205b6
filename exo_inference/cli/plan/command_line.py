"""Whole command lines that put a piece of advice into effect, ready to be pasted. Pure.

Advice names only what changes; the line has everything that was asked for, with that changed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from exo_inference.engine_names import ENGINES, GPU_ENGINE
from exo_inference.engines import get_engine
from exo_inference.engines.cluster_engine import ClusterEngine
from exo_inference.engines.flags.argument_vector import merge
from exo_inference.engines.flags.catalogue import ReleaseFlags, flags_of, judging_release

PROGRAM = ("exo", "ai", "deployment")
_FIXED = frozenset({"--gpu-type", "--gpu-count", "--model", "--model-name"})
"""What a deployment cannot change any more once it exists."""


@dataclass(frozen=True)
class CommandLine:
    """What was asked for, so that it can be asked for again with changes.

    Attributes:
        verb: `create`, `update` or `plan`.
        name: of the deployment; empty for a plan of none.
        options: the command's options with their values, in the order in which they are printed.
        flags: the engine's.
        version: the release whose flags they are.
        globals: flags that say which control plane is meant.
        engine: whose flags they are; a name that is not known here counts as one that takes flags of vLLM.
    """

    verb: str
    name: str
    options: tuple[tuple[str, str], ...]
    flags: tuple[str, ...] = field(default=())
    version: str = ""
    globals: tuple[str, ...] = ()
    engine: str = GPU_ENGINE

    @property
    def release(self) -> ReleaseFlags:
        """The flags that there are."""
        engine = get_engine(self.engine) if self.engine in ENGINES else None
        if isinstance(engine, ClusterEngine):
            return engine.flags
        return flags_of(judging_release(self.version))

    def with_changes(self, options: Sequence[str], flags: Sequence[str]) -> str | None:
        """Return the line with other options (`--gpu-count=4`) and further flags of the engine.

        Returns:
            None where a change cannot be made to a deployment that exists.
        """
        changed = dict(self.options)
        for option in options:
            name, _, value = option.partition("=")
            if self.verb == "update" and name in _FIXED:
                return None
            changed["--model-name" if name == "--model" else name] = value
        if "--model-name" in changed and "--model" in changed:
            del changed["--model"]
        words = [*PROGRAM, self.verb, *([self.name] if self.name else [])]
        words += [*(word for pair in changed.items() for word in pair), *self.globals]
        engine_flags = merge(self.flags, flags, self.release)
        line = shlex.join(words)
        if not engine_flags:
            return line
        quoted = shlex.quote(shlex.join(engine_flags))
        # In quotes always, so that it is plain where the engine's flags begin and end.
        return f"{line} --inference-engine-params " + (
            quoted if quoted.startswith("'") else f"'{quoted}'"
        )


def name_for(model: str) -> str:
    """Return a deployment's name made from a model's, for lines of which the user gave none."""
    short = re.sub(r"[^a-z0-9]+", "-", model.rpartition("/")[2].lower()).strip("-")
    return short[:40].strip("-") or "chat"
