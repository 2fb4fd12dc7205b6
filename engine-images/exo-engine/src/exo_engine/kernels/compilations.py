"""Counts kernels that are compiled while requests are served, which wait for it.

A start compiles what its warm-up launches, what steps of other sizes and with longer contexts launch
(`ModelRunner.compile_ahead`), and the steps that become graphs. `watch` has Triton call back for each kernel that
a process makes or takes from its folder of compiled ones; before `begin_serving` that is part of a start, afterwards
it is logged and counted, and `/metrics` shows the number. The interpreter compiles nothing. This file imports no Triton.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from typing import Any

logger = logging.getLogger(__name__)


class Compilations:
    """Those of one process."""

    def __init__(self) -> None:
        self.num_late = 0
        """Compiled while requests were served."""
        self._is_serving = False
        self.is_watched = False
        """Whether Triton tells of what it compiles."""

    def watch(self, runtime: Any = None) -> None:
        """Have Triton tell each kernel that it compiles; once per process.

        Args:
            runtime: what has `jit_post_compile_hook`; None: Triton's, where it is installed.
        """
        if self.is_watched:
            return
        if runtime is None:
            if importlib.util.find_spec("triton") is None:
                return
            runtime = importlib.import_module("triton.knobs").runtime
        self.is_watched = True
        before = runtime.jit_post_compile_hook

        def told(**kernel: Any) -> Any:
            self._note(kernel)
            return None if before is None else before(**kernel)

        runtime.jit_post_compile_hook = told

    def begin_serving(self) -> None:
        """Count what is compiled from now on."""
        self._is_serving = True

    def begin_start(self) -> None:
        """Take what is compiled from now on for part of a start, as another model is loaded."""
        self._is_serving = False

    def _note(self, kernel: dict[str, Any]) -> None:
        if not self._is_serving:
            return
        self.num_late += 1
        name = getattr(kernel.get("fn"), "name", "a kernel")
        logger.warning(
            "kernel %s was compiled while requests were served, which made them wait: %s",
            name,
            str(kernel.get("repr", ""))[:256],
            extra={"kernel": name, "num_late_compilations": self.num_late},
        )


OWN = Compilations()
"""This process's."""
