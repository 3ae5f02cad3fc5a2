"""Rules of ``spec.model`` that span fields."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from blade_operator.spec.fields import LLMServiceSpec
from blade_operator.spec.model_fields import HUBS, STORES, ModelCache, Quantization
from blade_operator.spec.rules.rule import Rule

CREDENTIALS: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "OSS_ACCESS_KEY_ID",
    "OSS_ACCESS_KEY_SECRET",
    "OSS_SESSION_TOKEN",
    "OCI_USERNAME",
    "OCI_PASSWORD",
    "DOCKER_AUTH_CONFIG",
)
"""Variables with what a Secret of credentials is for."""


def _of(schemes: Iterable[str]) -> str:
    """CEL: whether the model's URI has one of these schemes."""
    return f"self.uri.split(':')[0] in {list(schemes)}"


def _cache(spec: LLMServiceSpec) -> ModelCache:
    return spec.model.cache or ModelCache()


def _token(spec: LLMServiceSpec) -> str:
    """The variable with the token of the model's hub."""
    return "HF_TOKEN" if spec.model.scheme == "hf" else "MODELSCOPE_API_TOKEN"


def _bits_are_of_the_method(quantization: Quantization) -> bool:
    """Whether ``bits`` says something, and nothing else than the method."""
    bits = quantization.bits
    return bits is None or quantization.method in ("int", f"int{bits}")


def _has_method(spec: LLMServiceSpec) -> bool:
    """Whether weights are quantised while loading, by the field that says so today."""
    return spec.model.quantization is not None and spec.model.quantization.method is not None


_NO_METHOD: Final = "!has(self.model.quantization) || !has(self.model.quantization.method)"

MODEL_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        at=("spec", "model"),
        field="spec.model.revision",
        cel=f"!has(self.revision) || {_of(HUBS)}",
        holds=lambda name, spec: spec.model.revision is None or spec.model.scheme in HUBS,
        message="only an hf:// or modelscope:// model has a revision: remove it (an oci:// model has its tag or digest "
        "in the uri)",
    ),
    Rule(
        at=("spec", "model"),
        field="spec.model.cache",
        cel=f"!has(self.cache) || {_of((*HUBS, *STORES))}",
        holds=lambda name, spec: spec.model.cache is None or spec.model.downloaded,
        message="only a model that is downloaded is cached, no file:// or pvc:// one; remove it",
    ),
    Rule(
        at=("spec", "model"),
        field="spec.model.tokenSecretRef",
        cel=f"!has(self.tokenSecretRef) || {_of(HUBS)}",
        holds=lambda name, spec: spec.model.token_secret_ref is None or spec.model.scheme in HUBS,
        message="only an hf:// or modelscope:// model is downloaded with a token: remove it (s3://, oss:// and oci:// "
        "models have credentialsSecretRef)",
    ),
    Rule(
        at=("spec", "model"),
        field="spec.model.credentialsSecretRef",
        cel=f"!has(self.credentialsSecretRef) || {_of(STORES)}",
        holds=lambda name, spec: spec.model.credentials_secret_ref is None or spec.model.scheme in STORES,
        message="only an s3://, oss:// or oci:// model is downloaded with credentials: remove it (hf:// and "
        "modelscope:// models have tokenSecretRef)",
    ),
    Rule(
        at=("spec", "model", "cache"),
        field="spec.model.cache.size",
        cel="!has(self.claimName) || !has(self.size)",
        holds=lambda name, spec: _cache(spec).claim_name is None or _cache(spec).size is None,
        message="claimName names a claim of yours, size makes one: set only one of them",
    ),
    Rule(
        at=("spec", "model", "cache"),
        field="spec.model.cache.storageClassName",
        cel="has(self.size) || (!has(self.storageClassName) "
        "&& (!has(self.accessModes) || size(self.accessModes) == 0))",
        holds=lambda name, spec: (
            _cache(spec).size is not None or (_cache(spec).storage_class_name is None and not _cache(spec).access_modes)
        ),
        message="storageClassName and accessModes are of the claim that the operator makes: set size, or remove them",
    ),
    Rule(
        at=("spec", "model", "quantization"),
        field="spec.model.quantization.bits",
        cel="!has(self.bits) || (has(self.method) && self.method in ['int', self.bits == 8 ? 'int8' : 'int4'])",
        holds=lambda name, spec: _bits_are_of_the_method(spec.model.quantization or Quantization()),
        message="is of method int (others have their own): set that, or remove it",
    ),
    Rule(
        at=("spec",),
        field="spec.engine.quant",
        cel=f"{_NO_METHOD} || !has(self.engine) || self.engine.quant == 'none'",
        holds=lambda name, spec: not _has_method(spec) or spec.engine.quant == "none",
        message="is the older name of spec.model.quantization.method: remove it",
    ),
    Rule(
        at=("spec",),
        field="spec.model.quantization.method",
        cel=f"{_NO_METHOD} || !has(self.engine) || self.engine.dtype != 'float32'",
        holds=lambda name, spec: not _has_method(spec) or spec.engine.dtype != "float32",
        message="quantised weights are computed in 16 bits: remove it, or set spec.engine.dtype to auto",
    ),
    Rule(
        at=("spec",),
        field="spec.model.tokenSecretRef.name",
        cel="!has(self.model.tokenSecretRef) || !has(self.engine) || !has(self.engine.env) "
        "|| !self.engine.env.exists(e, "
        "e.name == (self.model.uri.startsWith('hf://') ? 'HF_TOKEN' : 'MODELSCOPE_API_TOKEN'))",
        holds=lambda name, spec: (
            spec.model.token_secret_ref is None or _token(spec) not in {variable.name for variable in spec.engine.env}
        ),
        message="HF_TOKEN (for modelscope:// MODELSCOPE_API_TOKEN) comes from this Secret: remove it from "
        "spec.engine.env",
    ),
    Rule(
        at=("spec",),
        field="spec.model.credentialsSecretRef.name",
        cel="!has(self.model.credentialsSecretRef) || !has(self.engine) || !has(self.engine.env) "
        f"|| !self.engine.env.exists(e, e.name in {list(CREDENTIALS)})",
        holds=lambda name, spec: (
            spec.model.credentials_secret_ref is None
            or not any(variable.name in CREDENTIALS for variable in spec.engine.env)
        ),
        message="credentials come from this Secret: remove its variables (AWS_..., OSS_..., OCI_..., "
        "DOCKER_AUTH_CONFIG) from spec.engine.env",
    ),
    Rule(
        at=("spec",),
        field="spec.model.cache.accessModes",
        cel="!has(self.model.cache) || !has(self.model.cache.accessModes) "
        "|| !('ReadWriteOncePod' in self.model.cache.accessModes) "
        "|| (size(self.model.cache.accessModes) == 1 && self.replicas <= 1 && self.rollout.maxSurge == 0 "
        "&& (!has(self.scaling) || !has(self.scaling.max) || self.scaling.max == 1))",
        holds=lambda name, spec: (
            "ReadWriteOncePod" not in _cache(spec).access_modes
            or (
                len(_cache(spec).access_modes) == 1
                and spec.replicas <= 1
                and spec.rollout.max_surge == 0
                and (spec.scaling is None or spec.scaling.max in (None, 1))
            )
        ),
        message="ReadWriteOncePod lets one pod mount the claim: it must be the only mode, with replicas and "
        "scaling.max at most 1 and rollout.maxSurge 0",
    ),
)
