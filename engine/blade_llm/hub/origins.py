"""What a model consists of and where its files are, by who keeps it; and what to do about a failure."""

from __future__ import annotations

import re
import threading
from typing import Final

from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.utils import build_hf_headers

from blade_llm.hub.download import with_retries
from blade_llm.hub.model import HubModel, Listing, RemoteFile
from blade_llm.hub.wanted import ELSEWHERE, wanted_files
from blade_llm.models.errors import ModelFilesError

HEX: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def list_files(model: HubModel) -> Listing:
    """The version ``model`` stands for now, and the files the engine needs of it."""
    if model.origin == "modelscope":
        from blade_llm.hub.modelscope import list_modelscope

        return list_modelscope(model)
    if model.origin in ("s3", "oss"):
        from blade_llm.hub.buckets import list_bucket

        return list_bucket(model)
    if model.origin == "oci":
        from blade_llm.hub.registry import list_registry

        return list_registry(model)
    return _list_hub(model)


def _list_hub(model: HubModel) -> Listing:
    info = with_retries(
        lambda: HfApi(endpoint=constants.ENDPOINT).model_info(
            model.repo_id, revision=model.revision, files_metadata=True, timeout=30
        ),
        threading.Event(),
    )
    siblings = {str(sibling.rfilename): sibling for sibling in info.siblings or ()}
    files = []
    for name in wanted_files(list(siblings), model):
        sibling = siblings[name]
        digest = str(sibling.lfs.sha256 if sibling.lfs else sibling.blob_id)
        if sibling.size is None or not HEX.fullmatch(digest) or not HEX.fullmatch(str(info.sha)):
            raise ModelFilesError(
                f"the hub at {constants.ENDPOINT} does not tell size and checksum of {name} of model {model}; "
                f"set HF_ENDPOINT to a complete mirror, or {ELSEWHERE}"
            )
        url = hf_hub_url(model.repo_id, name, revision=info.sha, endpoint=constants.ENDPOINT)
        files.append(RemoteFile(name=name, url=url, size=int(sibling.size), digest=digest))
    return Listing(str(info.sha), files, build_hf_headers())
