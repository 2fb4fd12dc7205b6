"""Instance types: the GPU families a deployment may ask for."""

from __future__ import annotations

from pydantic import Field

from exo_inference.wire.base import Count, WireModel


class InstanceType(WireModel):
    """One GPU family. `authorized` says whether deployments may use it, whatever is free now.

    `max_gpu_count` is the most GPUs that one replica can have, `engines` what can run there.
    """

    family: str
    authorized: bool
    total_gpus: Count | None = Field(default=None, description="additive")
    free_gpus: Count | None = Field(default=None, description="additive")
    description: str | None = Field(default=None, description="additive")
    max_gpu_count: Count | None = Field(default=None, description="additive")
    engines: list[str] | None = Field(default=None, description="additive")


class InstanceTypeList(WireModel):
    """Answer of `GET /ai/instance-type`."""

    instance_types: list[InstanceType]
