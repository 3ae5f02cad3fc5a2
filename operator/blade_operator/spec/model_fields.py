"""The fields of ``spec.model``: where the model comes from, where it is kept, and what requests call it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from blade_operator.spec.types import Bytes, Hint, ListType, ObjectName, Record, SecretKey, Unique

ServedName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$", min_length=1, max_length=128),
    Hint("a name of letters, digits and . _ / : -"),
]
_REPOSITORY: Final = "[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*"
_PREFIX: Final = r"[a-z0-9](\.?[a-z0-9-])+(/[A-Za-z0-9_=+-]+(\.[A-Za-z0-9_=+-]+)*)+/?"
_ARTIFACT: Final = (
    r"[A-Za-z0-9](\.?[A-Za-z0-9-])*(:[0-9]{1,5})?(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)+"
    r"(:[A-Za-z0-9_](\.?[A-Za-z0-9_-])*|@sha256:[0-9a-f]{64})?"
)
URI: Final = (
    "^(file:///.+"
    f"|(hf|modelscope)://{_REPOSITORY}"
    f"|(s3|oss)://{_PREFIX}"
    f"|oci://{_ARTIFACT}"
    "|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*)$"
)
"""What the engine's programs read as a model, without what `..` would make of it."""
HUBS: Final = ("hf", "modelscope")
"""Schemes of models with revisions, downloaded with a token."""
STORES: Final = ("s3", "oss", "oci")
"""Schemes of models in buckets and registries, downloaded with credentials of two parts."""
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]
QuantizationMethod = Literal["int", "int8", "int4", "w8a8"]
KvCacheQuantization = Literal[
    "no_quant", "int8", "int4", "int8_affine", "int4_affine", "fp8_e5m2", "fp8_e4m3",
    "mix_f852i4", "mix_f843i4", "mix_i8i4", "mix_i4i4",
]  # fmt: skip
"""BladeLLM's names. The ``mix_`` ones keep keys in the first of two types and values in the second."""


class ModelCache(Record):
    """Where downloaded models are kept. Neither `claimName` nor `size`: in each pod, for as long as the pod lives."""

    claim_name: ObjectName | None = Field(
        default=None,
        description="PersistentVolumeClaim of the namespace that holds downloads; services may share it. It "
        "must exist on a cluster; the local runtime makes it a folder.",
    )
    size: Bytes | None = Field(
        default=None,
        description="Size of a PersistentVolumeClaim that the operator makes, e.g. `20Gi`. It is called like the "
        "service with `-models` behind it, and goes with it. It can grow where the storage class can, never shrink.",
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


class CredentialsSecret(Record):
    """A Secret with several keys."""

    name: ObjectName = Field(description="Name of the Secret, in the service's namespace.")


class Quantization(Record):
    """How weights and KV cache are stored. A checkpoint that is quantised already needs no `method`."""

    method: QuantizationMethod | None = Field(
        default=None,
        description="Quantise the weights of linear layers while loading (`--quant`), to integers of `bits` bits. "
        "`int8` and `int4` are `int` with these; `w8a8` quantises activations, too, both to 8 bits. A checkpoint that "
        "is quantised already is loaded as it is: leave it unset.",
    )
    bits: Literal[4, 8] | None = Field(
        default=None,
        description="Bits a weight of method `int`; 8 when unset.",
        json_schema_extra={"minimum": 4, "maximum": 8},
    )
    kv_cache: KvCacheQuantization = Field(
        default="no_quant", description="Type that keys and values are kept in (`--kv_cache_quant`)."
    )

    @property
    def weights(self) -> str:
        """The value of ``--quant``."""
        return f"int{self.bits or 8}" if self.method == "int" else self.method or "none"


class Model(Record):
    """Which model is served, and under which names."""

    uri: Annotated[
        str,
        StringConstraints(pattern=URI, max_length=1024),
        Hint(
            "hf://organisation/name, modelscope://organisation/name, s3://bucket/prefix, oss://bucket/prefix, "
            "oci://registry/name:tag, pvc://claim/folder or file:///absolute/folder"
        ),
    ] = Field(
        description="`file:///folder`: an absolute path the engine can read. In its image, or on this machine under "
        "the local runtime. `pvc://claim/folder`: a folder of a PersistentVolumeClaim in the service's namespace, "
        "mounted read-only. The others are downloaded into the cache. `hf://` and "
        "`modelscope://organisation/name`: a model of that hub. `s3://` and `oss://bucket/prefix`: the files below a "
        "prefix. `oci://registry/name:tag` or `name@sha256:digest`: an artifact of files; `latest` without a tag."
    )
    revision: (
        Annotated[
            str,
            StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=128),
            Hint("a branch, tag or commit of the hub"),
        ]
        | None
    ) = Field(
        default=None,
        description="Branch, tag or commit on the hub; the hub's default branch when unset.",
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
        description="Where a downloaded model is kept. Unset: every pod downloads it anew, also one that replaces "
        "another.",
    )
    quantization: Quantization | None = Field(default=None, description="How weights and KV cache are stored.")
    token_secret_ref: SecretKeyRef | None = Field(
        default=None,
        description="Secret with the hub's access token. For gated and private `hf://` and `modelscope://` models. "
        "Only the download sees it; the operator never reads it.",
    )
    credentials_secret_ref: CredentialsSecret | None = Field(
        default=None,
        description="Secret with credentials for an `s3://`, `oss://` or `oci://` model. Its keys are called like the "
        "variables of their clients. `s3://`: `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, and if it has them "
        "`AWS_SESSION_TOKEN` and `AWS_REGION`. `oss://`: `OSS_ACCESS_KEY_ID`, "
        "`OSS_ACCESS_KEY_SECRET`, `OSS_SESSION_TOKEN`, `OSS_REGION`. `oci://`: `.dockerconfigjson`, as in an "
        "imagePullSecret. Only the download sees them; the operator never reads them.",
    )

    @property
    def kv_cache(self) -> KvCacheQuantization:
        """The type of the KV cache."""
        return "no_quant" if self.quantization is None else self.quantization.kv_cache

    @property
    def scheme(self) -> str:
        """What the URI begins with."""
        return self.uri.partition("://")[0]

    @property
    def downloaded(self) -> bool:
        """Whether the model has to be fetched before an engine can read it."""
        return self.scheme in (*HUBS, *STORES)
