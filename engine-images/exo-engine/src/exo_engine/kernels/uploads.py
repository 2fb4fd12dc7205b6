"""From numpy to a device without waiting: a GPU copies from pinned memory while the host goes on.

A copy from other memory has the host wait until the GPU has done all that it was told before. All that a step brings
to the device comes through here, or through `DeviceOps.upload`; a test holds it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """Return an array as a tensor on a device; on a CPU it may share the array's memory."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if device.type == "cpu":
        return tensor
    # The allocator of pinned memory gives it to nobody else before the copy is done.
    return tensor.pin_memory().to(device, non_blocking=True)
