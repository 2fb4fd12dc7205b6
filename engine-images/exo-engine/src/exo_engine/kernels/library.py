"""Loads the compiled kernels and chooses the instructions they run on.

The choice is the processor's best, or what `EXO_ENGINE_CPU_KERNELS` names: one of `PATHS`, or `off`. Plans for this
machine ask for it, in a process that has no PyTorch:

    python -m exo_engine.kernels.library      # prints the path, or nothing where PyTorch computes; or refuses
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from exo_engine import pulse
from exo_engine.errors import ConfigurationError
from exo_engine.kernels import LIBRARY, VARIABLE

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

PLAIN_LOOPS = "plain"
"""The path that has no vectors of the processor's."""
PATHS = ("amx", "avx512_bf16", "avx512_vnni", "avx512", "avx2_vnni", "avx2", PLAIN_LOOPS)
"""Sets of instructions, best first."""
_MOST_LETTERS = 40
"""Of a wrong name that is shown."""
_INTERFACE = 11
"""`EXO_INTERFACE` of `csrc/kernels.h`."""

_pointer, _long = ctypes.c_void_p, ctypes.c_long


class LinearCall(ctypes.Structure):
    """As in `csrc/store.h`."""

    _fields_ = (
        ("inputs", _pointer),
        ("packed", _pointer),
        ("bias", _pointer),
        ("outputs", _pointer),
        ("floats", _pointer),
        ("rows", _long),
        ("num_inputs", _long),
        ("num_outputs", _long),
        ("bits", ctypes.c_int),
        ("group", ctypes.c_int),
        ("has_zeros", ctypes.c_int),
        ("input_bits", ctypes.c_int),
        ("scale", ctypes.c_float),
    )


class GroupsCall(ctypes.Structure):
    """As in `csrc/linear.h`."""

    _fields_ = (
        ("matrices", ctypes.POINTER(LinearCall)),
        ("starts", _pointer),
        ("inputs", _pointer),
        ("outputs", _pointer),
        ("count", _long),
    )


class PageShape(ctypes.Structure):
    """As in `csrc/pages.h`."""

    _fields_ = (
        ("keys", _pointer),
        ("values", _pointer),
        ("page_stride", _long),
        ("kv_heads", ctypes.c_int),
        ("head_dim", ctypes.c_int),
        ("page_size", ctypes.c_int),
        ("is_quantized", ctypes.c_int),
    )


class AttentionCall(ctypes.Structure):
    """As in `csrc/attention.h`."""

    _fields_ = (
        ("pages", PageShape),
        ("queries", _pointer),
        ("tables", _pointer),
        ("starts", _pointer),
        ("contexts", _pointer),
        ("sinks", _pointer),
        ("outputs", _pointer),
        ("num_sequences", _long),
        ("table_stride", _long),
        ("group", ctypes.c_int),
        ("window", ctypes.c_int),
        ("chunk", ctypes.c_int),
        ("scale", ctypes.c_float),
        ("soft_cap", ctypes.c_float),
    )


class RotateCall(ctypes.Structure):
    """As in `csrc/pointwise.h`."""

    _fields_ = (
        ("pages", PageShape),
        ("merged", _pointer),
        ("query_weight", _pointer),
        ("key_weight", _pointer),
        ("cosines", _pointer),
        ("sines", _pointer),
        ("positions", _pointer),
        ("slots", _pointer),
        ("queries", _pointer),
        ("tokens", _long),
        ("heads", ctypes.c_int),
        ("eps", ctypes.c_float),
    )


class SampleCall(ctypes.Structure):
    """As in `csrc/sample.h`."""

    _fields_ = (
        ("logits", _pointer),
        ("temperatures", _pointer),
        ("log_min_ps", _pointer),
        ("top_ps", _pointer),
        ("top_ks", _pointer),
        ("numbers", _pointer),
        ("tokens", _pointer),
        ("is_finite", _pointer),
        ("rows", _long),
        ("size", _long),
    )


class MaskCall(ctypes.Structure):
    """As in `csrc/sample.h`."""

    _fields_ = (
        ("logits", _pointer),
        ("masks", _pointer),
        ("places", _pointer),
        ("is_finite", _pointer),
        ("rows", _long),
        ("size", _long),
        ("num_words", _long),
    )


_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "linear": (ctypes.POINTER(LinearCall),),
    "linear_groups": (ctypes.POINTER(GroupsCall),),
    "pack": (_pointer, _long, _long, _long, _pointer, _long),
    "unpack_rows": (ctypes.POINTER(LinearCall), _pointer, _long, _pointer),
    "attend": (ctypes.POINTER(AttentionCall),),
    "add_and_normalise": (*(_pointer,) * 4, _long, _long, ctypes.c_float),
    "silu_and_multiply": (_pointer, _pointer, _long, _long),
    "rotate_and_store": (ctypes.POINTER(RotateCall),),
    "run_stack": (_pointer,),
    "choose_tokens": (ctypes.POINTER(SampleCall),),
    "forbid_tokens": (ctypes.POINTER(MaskCall),),
}
"""Those of `csrc/kernels.h`, in its order."""


class Kernels:
    """The functions of one set of instructions. They take addresses and check nothing."""

    linear: Callable[..., None]
    linear_groups: Callable[..., None]
    pack: Callable[..., None]
    unpack_rows: Callable[..., None]
    attend: Callable[..., None]
    add_and_normalise: Callable[..., None]
    silu_and_multiply: Callable[..., None]
    rotate_and_store: Callable[..., None]
    run_stack: Callable[..., None]
    choose_tokens: Callable[..., None]
    forbid_tokens: Callable[..., None]

    def __init__(self, path: str, library: ctypes.CDLL, table: int) -> None:
        self.path = path
        self._library = library
        addresses = (_pointer * len(_FUNCTIONS)).from_address(table)
        for (name, types), address in zip(_FUNCTIONS.items(), addresses, strict=True):
            setattr(self, name, ctypes.CFUNCTYPE(None, *types)(address))

    def set_num_threads(self, num_threads: int) -> None:
        """Share each call among so many threads."""
        self._library.exo_set_num_threads(num_threads)

    def wait_awake(self, microseconds: int) -> None:
        """Have threads wait so long for the next call before they sleep; while they wait they take processor time."""
        self._library.exo_wait_awake(microseconds)


def available_paths() -> tuple[str, ...]:
    """Return the sets of instructions that library and processor have, best first; none without it."""
    library = _load_library()
    return () if library is None else _paths_of(library)


@cache  # virtual machines are slow to say what their processor is
def _paths_of(library: ctypes.CDLL) -> tuple[str, ...]:
    paths: list[str] = []
    while (name := library.exo_path(len(paths))) is not None:
        paths.append(name.decode())
    return tuple(paths)


def allowed_paths() -> tuple[str, ...]:
    """Return those of `available_paths` that `EXO_ENGINE_CPU_KERNELS` leaves: the one that it names, and all below.

    Raises:
        ConfigurationError: it names what is not there.
    """
    wanted = os.environ.get(VARIABLE) or "auto"
    if wanted == "off":  # before a library is loaded that nobody calls, and warned of
        return ()
    paths = available_paths()
    if wanted == "auto":
        return paths
    if wanted not in paths:
        there = ", ".join(("auto", "off", *paths))
        raise ConfigurationError(
            f"{VARIABLE} is {wanted[:_MOST_LETTERS]!r}, but this machine has only {there}",
            hint=f"Leave {VARIABLE} out to take what is best.",
        )
    return paths[paths.index(wanted) :]


@cache
def load_path(path: str) -> Kernels:
    """Return the kernels of one of `available_paths`."""
    library = _load_library()
    assert library is not None, "nobody asks for a path that is not available"
    return Kernels(path, library, library.exo_load(path.encode()))


def chosen_kernels() -> Kernels | None:
    """Return the kernels to compute with; None: compute with PyTorch.

    Raises:
        ConfigurationError: `EXO_ENGINE_CPU_KERNELS` names what is not there.
    """
    paths = allowed_paths()
    return load_path(paths[0]) if paths else None


def kernels_for(dtype: torch.dtype, device: torch.device) -> Kernels | None:
    """Return the kernels for numbers of `dtype` on `device`; None: compute with PyTorch.

    The device `meta` gets what the CPU gets, so that sizes are right before anything is loaded.
    """
    import torch  # above, whoever only asks for the path would wait for it

    if dtype != torch.bfloat16 or device.type not in ("cpu", "meta"):
        return None
    return chosen_kernels()


@cache
def _load_library() -> ctypes.CDLL | None:
    if not LIBRARY.exists():
        return None
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as exc:  # damaged, or of another kind of machine
        logger.warning("cannot load the CPU kernels, so PyTorch computes: %s", exc)
        return None
    if not hasattr(library, "exo_interface") or library.exo_interface() != _INTERFACE:
        logger.warning(
            "the CPU kernels were compiled from other sources, so PyTorch computes; "
            "install exo-engine anew"
        )
        return None
    library.exo_set_pulse(_pointer(pulse.OWN.address))
    library.exo_path.restype = ctypes.c_char_p
    library.exo_path.argtypes = (ctypes.c_int,)
    library.exo_load.restype = _pointer
    library.exo_load.argtypes = (ctypes.c_char_p,)
    library.exo_refused.restype = ctypes.c_char_p
    if (refused := library.exo_refused()) is not None:
        logger.warning(
            "the processor has %s, but the operating system refuses it to this process, "
            "so the next best instructions compute",
            refused.decode(),
        )
    return library


def main() -> int:
    """Print which path computes here."""
    try:
        paths = allowed_paths()
    except ConfigurationError as error:
        print(f"{error.message}. {error.hint}", file=sys.stderr)
        return error.exit_code
    print(*paths[:1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
