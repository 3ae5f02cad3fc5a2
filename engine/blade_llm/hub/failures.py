"""What to do about a model that could not be fetched."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RevisionNotFoundError

from blade_llm.hub.download import MAX_TRIES
from blade_llm.hub.model import HubModel
from blade_llm.hub.modelscope import endpoint as modelscope_endpoint
from blade_llm.hub.wanted import ELSEWHERE
from blade_llm.models.errors import ModelFilesError


def explain(error: Exception, model: HubModel, cache: Path) -> ModelFilesError:
    """The same failure with what to do about it."""
    endpoint = origin_of(model)
    if isinstance(error, HFValidationError):
        return ModelFilesError(f"model {model}: {error}")
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        if model.origin != "hf":
            return ModelFilesError(explain_status(model, status, endpoint))
        return ModelFilesError(_explain_status(error, model, status, endpoint))
    if isinstance(error, OSError):
        if error.errno == errno.ENOSPC:
            return ModelFilesError(
                f"no space left in {cache} for model {model}; free some, or set HF_HOME to a larger "
                "disk (what has arrived is kept, and the download continues there)"
            )
        return ModelFilesError(
            f"cannot write model {model} to {cache}: {error}; set HF_HOME to a folder that can be written"
        )
    return ModelFilesError(
        f"cannot reach the model hub {endpoint} for model {model} ({type(error).__name__}: {error}); "
        f"{ELSEWHERE}, or {_NETWORK[model.origin]}"
    )


_CREDENTIALS: Final = {
    "modelscope": "MODELSCOPE_API_TOKEN",
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "oss": "OSS_ACCESS_KEY_ID and OSS_ACCESS_KEY_SECRET",
    "oci": "OCI_USERNAME and OCI_PASSWORD, or DOCKER_AUTH_CONFIG,",
}
_NETWORK: Final = {
    "hf": "set HF_ENDPOINT to a mirror that this machine reaches",
    "modelscope": "set MODELSCOPE_ENDPOINT to a mirror that this machine reaches",
    "s3": "set AWS_ENDPOINT_URL_S3 to the address of the bucket's server",
    "oss": "set OSS_ENDPOINT to the address of the bucket's region",
    "oci": "check the registry's name (and set OCI_PLAIN_HTTP=1 for one without TLS)",
}


def origin_of(model: HubModel) -> str:
    """Where ``model`` is fetched from, for messages."""
    if model.origin == "hf":
        return str(constants.ENDPOINT)
    if model.origin == "modelscope":
        return modelscope_endpoint()
    return f"{model.origin}://{model.repo_id.partition('/')[0]}"


def explain_status(model: HubModel, status: int, endpoint: str) -> str:
    """What an HTTP status of another origin than the hub means."""
    if status in (401, 403):
        return (
            f"model {model} may not be read ({endpoint} answered {status}); set {_CREDENTIALS[model.origin]} to "
            "credentials that may read it"
        )
    if status == 404:
        return f"model {model} does not exist on {endpoint}; check its name" + (
            f" and the part after '@', {model.revision!r}" if model.revision else ""
        )
    return f"{endpoint} answered {status} for model {model}, {MAX_TRIES} times at most; try again later, or {ELSEWHERE}"


def _explain_status(error: Exception, model: HubModel, status: int, endpoint: str) -> str:
    if isinstance(error, GatedRepoError) or status == 403:
        return f"model {model} is gated on {endpoint}: accept its terms there and set HF_TOKEN to that account's token"
    if isinstance(error, RevisionNotFoundError):
        return f"model {model.repo_id} has no revision {model.revision!r} on {endpoint}; check the part after '@'"
    if status == 401:
        return (
            f"model {model} does not exist on {endpoint} or is not public; check the name, "
            "and for a private or gated model set HF_TOKEN to a token that may read it"
        )
    if status == 404:
        return f"model {model} does not exist on {endpoint}; check the name (ORG/NAME), or pass a folder"
    if status == 429:
        return (
            f"the model hub {endpoint} limits requests (429) and still did after {MAX_TRIES} tries; wait some minutes, "
            f"set HF_TOKEN for a higher limit, or {ELSEWHERE}"
        )
    return f"the model hub {endpoint} answered {status} for model {model}; try again later, or {ELSEWHERE}"
