"""TLS termination, with certificates that are reloaded while the router runs."""

import asyncio
import logging
import ssl
from pathlib import Path

logger = logging.getLogger("blade_router.tls")

POLL_SECONDS = 1.0
"""Seconds between checks of the files."""

Signature = tuple[tuple[int, int, int], ...]


class Certificate:
    """A certificate chain and its key in PEM files, which may change.

    ``context`` stays the same object: handshakes after a change use the new pair, open connections go on with the old.

    Raises:
        OSError: from the constructor, when a file cannot be read.
        ssl.SSLError: from the constructor, when the files are no certificate and key that belong together.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = (certificate, key)
        self.context = _server_context()
        self._seen = self._signature()
        self.context.load_cert_chain(certificate, key)

    async def watch(self, interval: float = POLL_SECONDS) -> None:
        """Reload the files whenever they change, until cancelled."""
        while True:
            await asyncio.sleep(interval)
            self.refresh()

    def refresh(self) -> bool:
        """Reload the files if they have changed; a broken or incomplete pair changes nothing and is logged."""
        try:
            seen = self._signature()
            if seen == self._seen:
                return False
            self._seen = seen
            _server_context().load_cert_chain(*self._files)  # a broken pair would leave the live context half changed
            self.context.load_cert_chain(*self._files)
        except (OSError, ssl.SSLError) as error:
            logger.warning(
                "the certificate in %s cannot be reloaded, the previous one stays: %s", self._files[0], error
            )
            return False
        logger.info("the certificate in %s was reloaded", self._files[0])
        return True

    def _signature(self) -> Signature:
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in (path.stat() for path in self._files))


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
