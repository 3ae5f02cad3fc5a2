"""Fields that engines and routers have in common: environment, resources, and the overlay for everything else."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from blade_operator.spec.types import Annotations, Hint, Labels, Preserved, Quantity, Record


class EnvVar(Record):
    """One environment variable."""

    name: Annotated[
        str,
        StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", min_length=1, max_length=128),
        Hint("letters, digits and _, not starting with a digit"),
    ] = Field(description="Name of the variable.")
    value: Annotated[str, StringConstraints(max_length=4096)] = Field(default="", description="Its value.")


class ResourceList(Record):
    """Amounts of resources."""

    cpu: Quantity | None = Field(default=None, description="Cores, e.g. `2` or `500m`.")
    memory: Quantity | None = Field(default=None, description="Bytes, e.g. `4Gi`.")


class Resources(Record):
    """Requests and limits of a container. The local runtime does not enforce them."""

    requests: ResourceList | None = Field(default=None, description="What the scheduler keeps free for the container.")
    limits: ResourceList | None = Field(default=None, description="What the container may use at most.")


class Gpus(Record):
    """Devices each engine gets, and the ranks that compute its model together."""

    count: int = Field(
        default=0, ge=0, le=64, description="Devices of one engine, on all its nodes; 0: it computes on CPUs."
    )
    resource: Annotated[
        str,
        StringConstraints(
            pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=128
        ),
        Hint("a resource name like nvidia.com/gpu or amd.com/gpu"),
    ] = Field(
        default="nvidia.com/gpu",
        description="The device plugin's name for them, e.g. `nvidia.com/gpu` or `amd.com/gpu`.",
    )
    tensor_parallel: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Ranks that each layer is split over; when unset, all that devices are left for. Without devices, "
        "ranks are processes that share CPU cores.",
    )
    expert_parallel: bool = Field(
        default=False,
        description="Each rank has some experts whole, not a part of each.",
    )
    pipeline_parallel: int = Field(default=1, ge=1, le=64, description="Stages that the layers are divided into.")
    nodes: int = Field(
        default=1, ge=1, le=64, description="Machines the ranks are divided among. So many pods are one replica."
    )
    topology_key: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = Field(
        default=None, description="Node label that machines of one engine share, e.g. of a rack."
    )
    custom_all_reduce: bool = Field(
        default=False,
        description="Small sums by kernels over NVLink where devices can (`--enable_custom_allreduce`).",
    )

    @property
    def tensor_ranks(self) -> int:
        """Ranks of each layer: processes that compute it together."""
        return self.tensor_parallel or max(1, self.count // self.pipeline_parallel)

    @property
    def ranks(self) -> int:
        """Ranks of one engine: processes that compute one model together, on all its machines."""
        return self.tensor_ranks * self.pipeline_parallel

    @property
    def ranks_per_node(self) -> int:
        """Ranks of each machine."""
        return self.ranks // self.nodes


class PodMetadata(Record):
    """Labels and annotations of pods."""

    labels: Labels = Field(
        default_factory=dict, description="Further labels. Those of `serving.bladellm.io` are the operator's."
    )
    annotations: Annotations = Field(
        default_factory=dict, description="Further annotations. Those of `serving.bladellm.io` are the operator's."
    )


class PodTemplate(Record):
    """An overlay that is merged into the pods the operator renders."""

    metadata: PodMetadata | None = Field(default=None, description="Further labels and annotations.")
    spec: Annotated[dict[str, Any], Preserved()] = Field(
        default_factory=dict,
        description="Any fields of a Kubernetes PodSpec, merged one by one. Containers, init containers, volumes, env, "
        "ports, mounts and topology constraints are merged by name, other lists as a whole; null removes a field "
        "(`kubectl apply` needs `--server-side` for nulls). Containers: `engine` (before it `fetch`, `check`) and "
        "`router`; their command and arguments are the operator's.",
    )
