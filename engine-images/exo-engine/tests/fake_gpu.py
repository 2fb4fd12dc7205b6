"""A double of a GPU on the CPU: what it captures it repeats, and it fails where the host would wait."""

from __future__ import annotations

from collections.abc import Callable

import torch
from exo_engine.core.graphs.device import Captured, Fetched, Outputs
from exo_engine.kernels.triton.launch import Launch
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = (
    "aten.bincount",
    "aten._local_scalar_dense",
    "aten._unique",
    "aten.allclose",
    "aten.nonzero",
    "aten.equal",
    "aten.masked_select",
    "aten.unique",
)
MASKS = (torch.bool, torch.uint8)


def give_zeros(launch: Launch) -> None:
    """Stand for `Launch.run` where no test looks at numbers: a kernel that takes no time and gives zeros."""
    for name in ("output", "outputs", "turned"):
        if name in launch.arguments:
            launch.arguments[name].zero_()


class NoWaiting(TorchDispatchMode):
    """Fails where a GPU would have the host wait for it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        is_waiting = str(func).startswith(WAITING) or _copies_to_host(func, args, kwargs)
        if str(func).startswith(("aten.index.", "aten.index_put", "aten._index_put")):
            # A mask becomes the places where it is true, however many these are.
            is_waiting |= any(each is not None and each.dtype in MASKS for each in args[1])
        if str(func).startswith("aten.repeat_interleave.Tensor"):  # of so many, unless that is said
            is_waiting |= kwargs.get("output_size") is None
        assert not is_waiting, f"the host would wait for {func}"
        return func(*args, **kwargs)


def _copies_to_host(func, args, kwargs) -> bool:
    """Whether numbers of a device come to the host. The double's are there already: of those a lint tells."""
    packet = func.overloadpacket
    if packet is torch.ops.aten.copy_:
        target, source = args[:2]
        return target.device.type == "cpu" and source.device.type != "cpu"
    if packet is not torch.ops.aten._to_copy or kwargs.get("device") is None:
        return False
    return torch.device(kwargs["device"]).type == "cpu" and args[0].device.type != "cpu"


class FakeGpu:
    """A device with graphs. A repetition writes where the captured run wrote, as on a GPU."""

    can_capture = True
    bytes_of_graph = 1000
    """Of its memory that each capture takes."""

    def __init__(self) -> None:
        self.num_captured = self.num_replayed = self.num_uploads = self.num_fetched = 0
        self.captured_rows: list[int] = []
        """What each capture gives, the first one first."""

    def upload(self, numbers: torch.Tensor, target: torch.Tensor) -> None:
        self.num_uploads += 1
        target[: len(numbers)].copy_(numbers)

    def fetch(self, numbers: torch.Tensor) -> Fetched:
        self.num_fetched += 1
        return numbers.clone().tolist

    def used_bytes(self) -> int:
        return 5000 + self.bytes_of_graph * self.num_captured

    def note_layer(self) -> None:
        """See `DeviceOps`; what is captured runs on the host here."""

    def capture(self, run: Callable[[], Outputs]) -> Captured:
        self.num_captured += 1
        with NoWaiting():
            outputs = run()
        self.captured_rows.append(len(outputs[0]))

        def replay() -> None:
            self.num_replayed += 1
            with NoWaiting():
                for held, new in zip(outputs, run(), strict=True):
                    held.copy_(new)

        return Captured(replay, outputs)
