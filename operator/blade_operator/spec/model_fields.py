"""The fields of ``spec.model``: where the model comes from, where it is kept, and what requests call it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from blade_operator.spec.types import Bytes, Hint, ListType, ObjectName, Record, SecretKey, Unique

ServedName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$", min_length=1, max_length=128),
    Hint("a name of letters, digits and . _ / : -"),
]
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]


class ModelCache(Record):
    """Where downloaded models are kept. Neither `claimName` nor `size`: in each pod, for as long as the pod lives."""

    claim_name: ObjectName | None = Field(
        default=None,
        description="PersistentVolumeClaim in the service's namespace that holds downloads; services may share it. It "
        "must exist on a cluster; the local runtime makes it a folder.",
    )
    size: Bytes | None = Field(
        default=None,
        description="The operator makes a PersistentVolumeClaim of this size, e.g. `20Gi`, called like the service "
        "with `-models` behind it. It goes with the service. It can grow where the storage class can, never shrink.",
    )
    storage_class_name: ObjectName | None = Field(
        default=None, description="Storage class of that claim; the cluster's default class when unset."
    )
    access_modes: Annotated[tuple[AccessMode, ...], ListType("set"), Unique] = Field(
        default=(),
        max_length=3,
        strict=False,
        description="Access modes of that claim; `ReadWriteOnce` when empty. Without `ReadWriteMany` all engines run "
        "on one machine, since only one can mount it.",
    )


class SecretKeyRef(Record):
    """One key of a Secret."""

    name: ObjectName = Field(description="Name of the Secret, in the service's namespace.")
    key: SecretKey = Field(default="token", description="Key of the Secret that holds the value.")


class Model(Record):
    """Which model is served, and under which names."""

    uri: Annotated[
        str,
        StringConstraints(
            pattern=r"^(file:///.+"
            r"|hf://[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*"
            r"|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*)$",
            max_length=1024,
        ),
        Hint("file:///absolute/folder, hf://organisation/name or pvc://claim/folder"),
    ] = Field(
        description="`file:///folder`: an absolute path the engine can read (in its image, or on this machine under "
        "the local runtime). `hf://organisation/name`: a model of the Hugging Face hub, downloaded into the cache. "
        "`pvc://claim/folder`: a folder of a PersistentVolumeClaim in the service's namespace, mounted read-only."
    )
    revision: (
        Annotated[
            str,
            StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=128),
            Hint("a branch, tag or commit of the hub"),
        ]
        | None
    ) = Field(
        default=None, description="Branch, tag or commit of an `hf://` model; the hub's default branch when unset."
    )
    served_names: Annotated[
        tuple[ServedName, ...],
        ListType("set"),
        Unique,
    ] = Field(
        default=(),
        max_length=16,
        strict=False,
        description="Names requests may put into `model`; answers carry the first. The service's own name when empty.",
    )
    cache: ModelCache | None = Field(
        default=None,
        description="Where an `hf://` model is kept. Unset: every pod downloads it anew, also one that replaces "
        "another.",
    )
    token_secret_ref: SecretKeyRef | None = Field(
        default=None,
        description="Secret with the hub's access token, for gated and private `hf://` models. Only the download sees "
        "it; the operator never reads it.",
    )
