"""Authorities and certificates, made by openssl as a test needs them."""

from __future__ import annotations

import subprocess
from pathlib import Path

_CONFIG = "[req]\ndistinguished_name = name\n[name]\n"


class Authority:
    """A certificate authority in a folder of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir()
        self._folder = folder
        (folder / "openssl.cnf").write_text(_CONFIG)
        self._request("ca", f"/CN={name}", ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign"], [])

    @property
    def pem(self) -> str:
        return (self._folder / "ca.crt").read_text()

    @property
    def file(self) -> Path:
        return self._folder / "ca.crt"

    def server(self, folder: Path, name: str) -> None:
        """A server's certificate for the DNS name ``name``, as ``tls.crt`` and ``tls.key`` in ``folder``."""
        crt, key = self._issue("server", f"/CN={name}", ["extendedKeyUsage=serverAuth", f"subjectAltName=DNS:{name}"])
        (folder / "tls.crt").write_bytes(crt.read_bytes())
        (folder / "tls.key").write_bytes(key.read_bytes())

    def client(self, name: str, usage: str = "clientAuth") -> tuple[Path, Path]:
        """Files with the certificate and the key of a client of that common name."""
        return self._issue(f"client-{name}-{usage}", f"/CN={name}", [f"extendedKeyUsage={usage}"])

    def _issue(self, file: str, subject: str, extensions: list[str]) -> tuple[Path, Path]:
        self._request(file, subject, extensions, ["-CA", "ca.crt", "-CAkey", "ca.key"])
        return self._folder / f"{file}.crt", self._folder / f"{file}.key"

    def _request(self, file: str, subject: str, extensions: list[str], signer: list[str]) -> None:
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{file}.key"]
        added = [word for extension in extensions for word in ("-addext", extension)]
        certificate = ["-out", f"{file}.crt", "-days", "2", "-subj", subject, "-config", "openssl.cnf"]
        command = ["openssl", "req", "-x509", *key, *certificate, *signer, *added]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
