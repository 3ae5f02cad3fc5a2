"""ModelScope, a bucket server and an OCI registry on loopback: the part of their protocols that a download uses."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from hub_support.fake_hub import FakeHub, HubHandler, Request, running_hub, sha256

PART_BYTES = 1000
"""Larger files of a bucket were uploaded in parts of so many bytes."""
XML = {"Content-Type": "application/xml"}
TITLE = "org.opencontainers.image.title"


def in_parts(data: bytes) -> str:
    """The entity tag of an upload in parts."""
    parts = [hashlib.md5(data[begin : begin + PART_BYTES]).digest() for begin in range(0, len(data), PART_BYTES)]
    return f"{hashlib.md5(b''.join(parts)).hexdigest()}-{len(parts)}"


def manifest(files: dict[str, bytes]) -> bytes:
    layers = [
        {
            "mediaType": "application/octet-stream",
            "digest": f"sha256:{sha256(data)}",
            "size": len(data),
            "annotations": {TITLE: name},
        }
        for name, data in files.items()
    ]
    return json.dumps({"schemaVersion": 2, "layers": layers}).encode()


class OriginsHandler(HubHandler):
    """``hub.repositories``: ``ORG/NAME`` for ModelScope and the registry, ``BUCKET/PREFIX`` for the bucket."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path, query = unquote(url.path), {name: values[0] for name, values in parse_qs(url.query).items()}
        self.fault = self.hub.take_fault(self.path) or self.hub_fault(path)
        with self.hub.lock:
            given = self.headers.get("Authorization") or query.get("X-Amz-Signature")
            self.hub.requests.append(Request(self.command, unquote(self.path), self.headers.get("Range"), given))
        if self.fault.status is not None:
            self.respond(self.fault.status, b"{}", self.fault.headers)
        elif match := re.fullmatch(r"/api/v1/models/([^/]+/[^/]+)/repo(/files)?", path):
            self.modelscope(match[1], query, listed=match[2] is not None)
        elif path == "/token":
            self.token()
        elif match := re.fullmatch(r"/v2/([^/]+/[^/]+)/(manifests|blobs)/(.+)", path):
            self.registry(match[1], match[2], match[3])
        else:
            self.bucket(path.strip("/"), query)

    def hub_fault(self, path: str):  # type: ignore[no-untyped-def]
        from hub_support.fake_hub import Fault

        return Fault(path)

    def modelscope(self, name: str, query: dict[str, str], *, listed: bool) -> None:
        files, token = self.hub.repositories.get(name), self.hub.tokens.get(name)
        if token and self.headers.get("Authorization") != f"Bearer {token}":
            self.respond(403, b"{}")
        elif files is None or query["Revision"] not in ("master", "v1"):
            self.respond(404, b'{"Code": 10010205001}')
        elif listed:
            entries = [{"Path": "folder", "Type": "tree"}]
            entries += [
                {"Path": path, "Name": path, "Type": "blob", "Size": len(data), "Sha256": sha256(data)}
                for path, data in files.items()
            ]
            self.respond(200, json.dumps({"Code": 200, "Data": {"Files": entries}}).encode())
        else:
            self.ranged(files[query["FilePath"]], {})

    def token(self) -> None:
        given = (self.headers.get("Authorization") or "").removeprefix("Basic ")
        if base64.b64decode(given) != b"me:secret":
            self.respond(401, b"{}")
        else:
            self.respond(200, json.dumps({"token": "registry-token"}).encode())

    def registry(self, name: str, kind: str, reference: str) -> None:
        files = self.hub.repositories.get(name)
        if name in self.hub.tokens and self.headers.get("Authorization") != "Bearer registry-token":
            realm = f'Bearer realm="{self.hub.endpoint}/token",service="fake",scope="repository:{name}:pull"'
            self.respond(401, b"{}", {"WWW-Authenticate": realm})
        elif files is None:
            self.respond(404, b"{}")
        elif kind == "manifests":
            content = manifest(files)
            known = ("latest", "v1", f"sha256:{sha256(content)}")
            self.respond(200 if reference in known else 404, content)
        else:
            found = [data for data in files.values() if f"sha256:{sha256(data)}" == reference]
            self.ranged(found[0], {})

    def bucket(self, path: str, query: dict[str, str]) -> None:
        bucket, _, key = path.partition("/")
        objects = {
            f"{prefix}/{name}": data
            for prefix, files in self.hub.repositories.items()
            for name, data in files.items()
            if f"{prefix}/".startswith(f"{bucket}/")
        }
        signed = self.headers.get("Authorization") or query.get("X-Amz-Signature")
        if bucket in self.hub.tokens and self.hub.tokens[bucket] not in (
            (self.headers.get("Authorization") or "") + query.get("X-Amz-Credential", "") if signed else ""
        ):
            self.respond(403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>", XML)
        elif query.get("list-type") == "2":
            found = [name.removeprefix(f"{bucket}/") for name in objects]
            keys = "".join(
                f"<Contents><Key>{escape(name)}</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified>"
                f"<ETag>any</ETag><Size>1</Size></Contents>"
                for name in found
                if name.startswith(query["prefix"])
            )
            head = f"<Name>{bucket}</Name><Prefix/><KeyCount>1</KeyCount><IsTruncated>false</IsTruncated>"
            body = f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{head}{keys}</ListBucketResult>'
            self.respond(200, body.encode(), XML)
        elif path not in objects:
            self.respond(404, b"<Error><Code>NoSuchKey</Code><Message>no</Message></Error>", XML)
        else:
            self.object(objects[path], query, with_sha256=key.endswith("config.json"))

    def object(self, data: bytes, query: dict[str, str], *, with_sha256: bool) -> None:
        tag = in_parts(data) if len(data) > PART_BYTES else hashlib.md5(data).hexdigest()
        headers = {"ETag": f'"{tag}"'}
        if with_sha256:
            headers |= {"x-amz-checksum-sha256": base64.b64encode(hashlib.sha256(data).digest()).decode()}
        if "partNumber" in query:
            self.respond(206, data[:PART_BYTES], headers)
        else:
            self.ranged(data, headers)


@contextmanager
def running_origins() -> Iterator[FakeHub]:
    """All of them behind one ``endpoint``."""
    with running_hub(handler=OriginsHandler) as hub:
        yield hub
