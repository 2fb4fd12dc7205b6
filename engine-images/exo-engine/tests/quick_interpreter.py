"""Triton's interpreter without the work whose results nobody reads: most of its time, and no number of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from functools import cache
from types import ModuleType
from typing import Any

from triton.runtime import interpreter as of_triton


@cache
def quicken() -> None:
    """Leave out of the interpreter what changes no result; once in a process."""
    _leave_out_overflow(of_triton)
    _patch_once_in_a_launch(of_triton)
    _remember_types(of_triton)


def _leave_out_overflow(interpreter: ModuleType) -> None:
    """Compute no sum of integers a second time in 64 bits: an assertion would read it, and those are off."""
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _patch_once_in_a_launch(interpreter: ModuleType) -> None:
    """Replace functions of the language where a kernel is launched, and not in each call of what it calls."""
    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    is_builtin = interpreter.tl.core.is_builtin
    patched: set[int] = set()

    @cache
    def names_of(package: Any) -> list[str]:
        return [name for name in dir(package) if is_builtin(getattr(package, name, None))]

    def patch_builtins(package: Any, builder: Any, scope: Any) -> None:
        for name in names_of(package):
            if is_builtin(member := getattr(package, name)):
                interpreter._patch_attr(package, name, member, builder, scope)

    def patch_once(function: Any) -> Any:
        module = id(function.__globals__)
        if module in patched:
            return interpreter._LangPatchScope()
        patched.add(module)
        return patch(function)

    def launch_anew(self: Any, *arguments: Any, **options: Any) -> None:
        patched.clear()
        launch(self, *arguments, **options)

    interpreter._patch_builtin = patch_builtins  # type: ignore[attr-defined]
    interpreter._patch_lang = patch_once  # type: ignore[attr-defined]
    interpreter.GridExecutor.__call__ = launch_anew


def _remember_types(interpreter: ModuleType) -> None:
    """Work out once what follows from a type and a shape; kernels of tiles of a few numbers do little else."""
    core, number_type = interpreter.tl.core, interpreter._get_np_dtype
    types: dict[str, Any] = {}

    def remembered_type(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in types:
            types[name] = number_type(dtype)
        return types[name]

    interpreter._get_np_dtype = remembered_type  # type: ignore[attr-defined]
    _remember(core.block_type, lambda element, shape: (element.name, *shape))
    _remember(core.tensor, lambda handle, dtype: dtype.name, handle=0, type=1)


def _remember(kind: type, key_of: Callable[..., Hashable], **arguments: int) -> None:
    """Give an object the attributes of the first one with its key, and of its own those that are `arguments`."""
    initialise = kind.__init__  # type: ignore[misc]
    found: dict[Hashable, dict[str, Any]] = {}

    def remembered(self: Any, first: Any, second: Any) -> None:
        key = key_of(first, second)
        if key not in found:
            initialise(self, first, second)
            found[key] = {**vars(self)}
        else:
            vars(self).update(found[key])
            for name, place in arguments.items():
                setattr(self, name, (first, second)[place])

    kind.__init__ = remembered  # type: ignore[misc]
