# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small HTTP server for GET requests with ready answers: in one thread, where slow clients delay only themselves."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import time
from typing import Callable, NamedTuple

REQUEST_S = 10.0
"""How long a client may take to send a request or to take an answer."""
IDLE_S = 90.0
"""How long a connection stays open between requests: longer than the usual scrape interval."""
MOST_CONNECTIONS = 64
_MOST_REQUEST = 16 * 1024
_END = b"\r\n\r\n"
_STATUS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Too Large",
    503: "Unavailable",
}


class Answer(NamedTuple):
    status: int
    content_type: str
    body: bytes


Answerer = Callable[[str], Answer]


class _Connection:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = bytearray()
        self.sending = memoryview(b"")
        self.close_after = False
        self.deadline = time.monotonic() + REQUEST_S


class Server:
    """Listens on an address and answers by path; *tls* encrypts, and asks for certificates when it says so."""

    def __init__(self, address: tuple[str, int], answer: Answerer, tls: ssl.SSLContext | None = None) -> None:
        self._answer = answer
        self._tls = tls
        self._connections: dict[int, _Connection] = {}
        self._selector = selectors.DefaultSelector()
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(address, family=family, backlog=32)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def serve(self, stopped: Callable[[], bool]) -> None:
        """Answer requests until *stopped*, which is asked once a second."""
        while not stopped():
            self.step(1.0)

    def step(self, timeout: float) -> None:
        for key, _events in self._selector.select(timeout):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fd in self._connections:
                self._advance(self._connections[key.fd])
        now = time.monotonic()
        for connection in [one for one in self._connections.values() if one.deadline <= now]:
            self._close(connection)

    def close(self) -> None:
        for connection in list(self._connections.values()):
            self._close(connection)
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            sock, _address = self._listener.accept()
        except OSError:
            return  # the client has gone already
        sock.setblocking(False)
        if self._tls is not None:
            try:
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            except OSError:  # reset by the client since
                sock.close()
                return
        if len(self._connections) >= MOST_CONNECTIONS:
            self._close(min(self._connections.values(), key=lambda one: one.deadline))
        self._connections[sock.fileno()] = _Connection(sock)
        self._selector.register(sock, selectors.EVENT_READ)

    def _close(self, connection: _Connection) -> None:
        fd = connection.sock.fileno()
        self._selector.unregister(connection.sock)
        del self._connections[fd]
        connection.sock.close()

    def _advance(self, connection: _Connection) -> None:
        """Take a connection one answer further, or until it would block; all others have their turn before the next."""
        try:
            if not connection.sending and not self._take_request(connection):
                data = connection.sock.recv(65536)
                if not data:
                    self._close(connection)
                    return
                connection.received += data
                self._take_request(connection)
            while connection.sending:
                connection.sending = connection.sending[connection.sock.send(connection.sending) :]
                if not connection.sending and not self._sent(connection):
                    return
        except ssl.SSLWantReadError:
            events = selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            events = selectors.EVENT_WRITE
        except BlockingIOError:
            events = selectors.EVENT_WRITE if connection.sending else selectors.EVENT_READ
        except OSError:  # reset by the client, or no TLS that we speak: its own affair
            self._close(connection)
            return
        else:
            # A request that has come already does not show as something to read.
            events = selectors.EVENT_WRITE if _END in connection.received else selectors.EVENT_READ
        self._selector.modify(connection.sock, events)

    def _sent(self, connection: _Connection) -> bool:
        """Get ready for the next request; return whether the connection is still open."""
        if connection.close_after:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_WR)
            self._close(connection)
            return False
        connection.deadline = time.monotonic() + IDLE_S
        return True

    def _take_request(self, connection: _Connection) -> bool:
        """Answer the first request that was received; return whether there was one."""
        head, found, rest = bytes(connection.received).partition(_END)
        if not found:
            if len(head) > _MOST_REQUEST:
                self._send(connection, Answer(431, "text/plain", b"request too large\n"), True, True)
            return False
        connection.received = bytearray(rest)
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._send(connection, Answer(400, "text/plain", b"not a request of HTTP/1\n"), True, True)
            return True
        method, path, protocol = words
        headers = {
            name.strip().lower(): value.strip().lower()
            for name, _colon, value in (line.partition(":") for line in lines[1:])
        }
        has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        close = has_body or headers.get("connection") == "close" or protocol == "HTTP/1.0"
        if method not in ("GET", "HEAD"):
            answer, close = Answer(405, "text/plain", b"only GET and HEAD\n"), True
        else:
            answer = self._answer(path.partition("?")[0])
        self._send(connection, answer, method != "HEAD", close)
        return True

    def _send(self, connection: _Connection, answer: Answer, with_body: bool, close: bool) -> None:
        head = (
            f"HTTP/1.1 {answer.status} {_STATUS[answer.status]}\r\n"
            f"Content-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(answer.body)}\r\n"
            "X-Content-Type-Options: nosniff\r\n"
            f"Connection: {'close' if close else 'keep-alive'}\r\n\r\n"
        )
        connection.sending = memoryview(head.encode("latin-1") + (answer.body if with_body else b""))
        connection.close_after = close
        connection.deadline = time.monotonic() + REQUEST_S
