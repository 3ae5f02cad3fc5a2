"""Models of ModelScope: the files of a revision with their sizes and checksums, from its HTTP interface."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from typing import Any, Final
from urllib.parse import urlencode

from huggingface_hub.utils import get_session, hf_raise_for_status

from blade_llm.hub.download import TIMEOUT_S, with_retries
from blade_llm.hub.model import HubModel, Listing, RemoteFile
from blade_llm.hub.wanted import ELSEWHERE, wanted_files
from blade_llm.models.errors import ModelFilesError

DEFAULT_REVISION: Final = "master"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def endpoint() -> str:
    """``MODELSCOPE_ENDPOINT``, else ``MODELSCOPE_DOMAIN``, else the public site."""
    address = os.environ.get("MODELSCOPE_ENDPOINT") or os.environ.get("MODELSCOPE_DOMAIN") or "www.modelscope.cn"
    return (address if "://" in address else f"https://{address}").rstrip("/")


def list_modelscope(model: HubModel) -> Listing:
    """The files of ``model`` as they are now. Raises :class:`ModelFilesError` and the errors of requests."""
    base, revision = f"{endpoint()}/api/v1/models/{model.repo_id}/repo", model.revision or DEFAULT_REVISION
    token = os.environ.get("MODELSCOPE_API_TOKEN")
    headers = {"Authorization": f"Bearer {token}", "Cookie": f"m_session_id={token}"} if token else {}
    url = f"{base}/files?{urlencode({'Revision': revision, 'Recursive': 'true'})}"

    def request() -> Any:
        response = get_session().get(url, headers=headers, timeout=TIMEOUT_S)
        hf_raise_for_status(response)
        try:
            return response.json()
        except ValueError:
            raise ModelFilesError(
                f"{url} answers with something else than JSON; check MODELSCOPE_ENDPOINT, or a proxy before it"
            ) from None

    content = with_retries(request, threading.Event())
    try:
        found = {str(entry["Path"]): entry for entry in content["Data"]["Files"] if entry.get("Type") != "tree"}
        files = [
            RemoteFile(
                name=name,
                url=f"{base}?{urlencode({'Revision': revision, 'FilePath': name})}",
                size=int(found[name]["Size"]),
                digest=str(found[name]["Sha256"]),
            )
            for name in wanted_files(list(found), model)
        ]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, ModelFilesError):
            raise
        raise ModelFilesError(
            f"{endpoint()} does not tell files, sizes and checksums of model {model} ({error!r}); {ELSEWHERE}"
        ) from None
    for file in files:
        if not _SHA256.fullmatch(file.digest):
            raise ModelFilesError(f"{endpoint()} tells no checksum of {file.name} of model {model}; {ELSEWHERE}")
    return Listing(version_of(files), files, headers)


def version_of(files: list[RemoteFile]) -> str:
    """What stands for the content of ``files`` where whoever keeps them has no name for it."""
    return hashlib.sha256("\n".join(f"{file.name} {file.digest}" for file in files).encode()).hexdigest()
