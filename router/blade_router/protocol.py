"""The client's side of HTTP: uvicorn's protocol with a limit on the head of a request, which it lacks.

Without one a client that sends headers for ever fills the memory.
"""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 128 * 1024
"""Request line and headers. A head that is longer and goes on after that gets a 400."""


class LimitedProtocol(HttpToolsProtocol):
    _head_bytes = 0
    _in_body = False

    def data_received(self, data: bytes) -> None:
        if not self._in_body:
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response(f"The head of the request is larger than {MAX_HEAD_BYTES} bytes.")
                return
            self._head_bytes += len(data)  # maybe with a part of the body: so only the next read may be refused
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        self._head_bytes = 0
        super().on_message_complete()
