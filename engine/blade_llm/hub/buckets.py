"""Models in buckets, of S3 and whatever speaks its protocol, Alibaba Cloud OSS among them. Takes ``boto3``, which finds
credentials and signs addresses; the bytes come as from any other origin, resumed and verified."""

from __future__ import annotations

import base64
import ipaddress
import os
import re
from typing import Any, Final
from urllib.parse import urlsplit

from blade_llm.hub.failures import explain_status, origin_of
from blade_llm.hub.model import HubModel, Listing, RemoteFile
from blade_llm.hub.modelscope import version_of
from blade_llm.hub.wanted import wanted_files
from blade_llm.models.errors import ModelFilesError

SIGNED_SECONDS: Final = 12 * 3600
"""How long a signed address is good: a download takes no longer, or continues with new ones at the next try."""
_ETAG: Final = re.compile(r'"?([0-9a-f]{32})(-\d+)?"?')


def list_bucket(model: HubModel) -> Listing:
    """The files under the prefix. Raises :class:`ModelFilesError`, also without ``boto3``."""
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise ModelFilesError(
            f"model {model}: buckets need the boto3 package: pip install 'bladellm[{model.origin}]'"
        ) from None
    bucket, _, prefix = model.repo_id.partition("/")
    try:
        client = _client(boto3, model)
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/")
        keys = [str(entry["Key"]) for page in pages for entry in page.get("Contents", ())]
        if not keys:
            raise ModelFilesError(f"model {model}: nothing in bucket {bucket} begins with {prefix}/; check the prefix")
        names = [key.removeprefix(f"{prefix}/") for key in keys]
        files = [_file(client, bucket, f"{prefix}/{name}", name, model) for name in wanted_files(names, model)]
    except ClientError as error:
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        raise ModelFilesError(f"{explain_status(model, status, origin_of(model))} ({error})") from None
    except BotoCoreError as error:
        raise ModelFilesError(f"model {model}: {error}") from None
    return Listing(version_of(files), files, {})


def _client(boto3: Any, model: HubModel) -> Any:
    from botocore import UNSIGNED
    from botocore.config import Config

    session = boto3.session.Session()
    options: dict[str, Any] = {"connect_timeout": 10, "read_timeout": 30, "retries": {"mode": "standard"}}
    if model.origin == "s3":
        # Without credentials it may be a public bucket; with them, boto3 would sign addresses in an old way.
        options["signature_version"] = UNSIGNED if session.get_credentials() is None else "s3v4"
        return session.client("s3", region_name=session.region_name or "us-east-1", config=Config(**options))
    region = os.environ.get("OSS_REGION", "cn-hangzhou").removeprefix("oss-")
    address = os.environ.get("OSS_ENDPOINT") or f"s3.oss-{region}.aliyuncs.com"
    address = address if "://" in address else f"https://{address}"
    key, secret = os.environ.get("OSS_ACCESS_KEY_ID"), os.environ.get("OSS_ACCESS_KEY_SECRET")
    return session.client(
        "s3",
        region_name=region,
        endpoint_url=address,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        aws_session_token=os.environ.get("OSS_SESSION_TOKEN"),
        config=Config(
            **options,
            signature_version="s3v4" if key else UNSIGNED,
            s3={"addressing_style": "path" if _is_address(urlsplit(address).hostname) else "virtual"},
        ),
    )


def _is_address(host: str | None) -> bool:
    """Whether ``host`` is a number, which a bucket's name cannot be put before."""
    try:
        ipaddress.ip_address(host or "")
    except ValueError:
        return False
    return True


def _file(client: Any, bucket: str, key: str, name: str, model: HubModel) -> RemoteFile:
    head = client.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    sha256 = str(head.get("ChecksumSHA256", ""))
    match = _ETAG.fullmatch(str(head["ETag"]).lower())
    if sha256 and "-" not in sha256:
        digest = base64.b64decode(sha256).hex()
    elif match is None or str(head.get("ServerSideEncryption", "")).startswith("aws:kms"):
        raise ModelFilesError(
            f"model {model}: the bucket tells no checksum of {name}; upload it with one of SHA256 "
            "(aws s3 cp --checksum-algorithm SHA256)"
        )
    elif match[2]:
        part = client.head_object(Bucket=bucket, Key=key, PartNumber=1)["ContentLength"]
        digest = f"{match[1]}{match[2]}-{part}"
    else:
        digest = match[1]
    parameters = {"Bucket": bucket, "Key": key}
    url = client.generate_presigned_url("get_object", Params=parameters, ExpiresIn=SIGNED_SECONDS)
    return RemoteFile(name, url, int(head["ContentLength"]), digest)
