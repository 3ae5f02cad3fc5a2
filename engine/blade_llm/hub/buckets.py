"""Models in buckets, of S3 and whatever speaks its protocol, Alibaba Cloud OSS among them. Takes ``minio``, which lists
them and signs addresses; the bytes come as from any other origin, resumed and verified."""

from __future__ import annotations

import base64
import os
import re
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from blade_llm.hub.failures import explain_status, origin_of
from blade_llm.hub.model import HubModel, Listing, RemoteFile
from blade_llm.hub.modelscope import version_of
from blade_llm.hub.wanted import wanted_files
from blade_llm.models.errors import ModelFilesError

SIGNED: Final = timedelta(hours=12)
"""How long a signed address is good: a download that takes longer continues with new ones at its next start."""
_ETAG: Final = re.compile(r'"?([0-9a-f]{32})(-\d+)?"?')


def list_bucket(model: HubModel) -> Listing:
    """The files under the prefix. Raises :class:`ModelFilesError`, also without ``minio``, and ``OSError``."""
    try:
        import minio
        import urllib3
    except ImportError:
        raise ModelFilesError(
            f"model {model}: buckets need the minio package: pip install 'bladellm[{model.origin}]'"
        ) from None
    bucket, _, prefix = model.repo_id.partition("/")
    try:
        client = _client(minio, urllib3, model)
        keys = [str(entry.object_name) for entry in client.list_objects(bucket, prefix=f"{prefix}/", recursive=True)]
        if not keys:
            raise ModelFilesError(f"model {model}: nothing in bucket {bucket} begins with {prefix}/; check the prefix")
        names = [key.removeprefix(f"{prefix}/") for key in keys]
        files = [_file(client, bucket, f"{prefix}/{name}", name, model) for name in wanted_files(names, model)]
    except minio.error.MinioException as error:
        status: Any = getattr(error, "status_code", None) or getattr(getattr(error, "response", None), "status", 0)
        raise ModelFilesError(f"{explain_status(model, int(status), origin_of(model))} ({error})") from None
    except (urllib3.exceptions.HTTPError, ValueError) as error:
        if isinstance(error, ModelFilesError):
            raise
        raise ModelFilesError(
            f"model {model}: {error}; check {'AWS_ENDPOINT_URL_S3' if model.origin == 's3' else 'OSS_ENDPOINT'}"
        ) from None
    return Listing(version_of(files), files, {})


def _client(minio: Any, urllib3: Any, model: HubModel) -> Any:
    environment = os.environ
    if model.origin == "s3":
        address = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
        credentials = _aws_credentials(minio.credentials)
        if address and not region:
            region = "us-east-1"  # what servers of others take for any
        address = address or "s3.amazonaws.com"
    else:
        region = environment.get("OSS_REGION", "cn-hangzhou").removeprefix("oss-")
        address = environment.get("OSS_ENDPOINT") or f"s3.oss-{region}.aliyuncs.com"
        key, secret = environment.get("OSS_ACCESS_KEY_ID"), environment.get("OSS_ACCESS_KEY_SECRET")
        token = environment.get("OSS_SESSION_TOKEN")
        credentials = minio.credentials.StaticProvider(key, secret, token) if key and secret else None
    url = urlsplit(address if "://" in address else f"https://{address}")
    return minio.Minio(
        url.netloc,
        secure=url.scheme == "https",
        region=region,
        credentials=credentials,
        http_client=urllib3.PoolManager(
            timeout=urllib3.Timeout(connect=10, read=30),
            retries=urllib3.Retry(total=4, backoff_factor=0.5, status_forcelist=[500, 502, 503, 504]),
        ),
    )


def _aws_credentials(kinds: Any) -> Any:
    """Those of the environment, of the file of profiles, or of the pod's role; None: the bucket has to be public."""
    environment = os.environ
    if environment.get("AWS_ACCESS_KEY_ID"):
        return kinds.EnvAWSProvider()
    if {"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"} & environment.keys():
        return kinds.IamAwsProvider()
    file = environment.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.expanduser("~/.aws/credentials")
    return kinds.AWSConfigProvider(filename=file) if os.path.isfile(file) else None


def _file(client: Any, bucket: str, key: str, name: str, model: HubModel) -> RemoteFile:
    found = client.stat_object(bucket, key, extra_headers={"x-amz-checksum-mode": "ENABLED"})
    headers = {str(header).lower(): str(value) for header, value in found.metadata.items()}
    sha256 = headers.get("x-amz-checksum-sha256", "")
    match = _ETAG.fullmatch(str(found.etag).lower())
    if sha256 and "-" not in sha256:
        digest = base64.b64decode(sha256).hex()
    elif match is None or headers.get("x-amz-server-side-encryption", "").startswith("aws:kms"):
        raise ModelFilesError(
            f"model {model}: the bucket tells no checksum of {name}; upload it with one of SHA256 "
            "(aws s3 cp --checksum-algorithm SHA256)"
        )
    elif match[2]:
        part = client.stat_object(bucket, key, extra_query_params={"partNumber": "1"})
        digest = f"{match[1]}{match[2]}-{part.size}"
    else:
        digest = match[1]
    url = client.presigned_get_object(bucket, key, expires=SIGNED)
    return RemoteFile(name, url, int(found.size), digest)
