"""A server that takes connections and never gets to the end of an answer."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

#: Where it stops: connections wait to be accepted, the request is read and not answered, half an answer is sent.
Phase = Literal["connect", "headers", "body"]

_HALF = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n" + b'{"data": ['


@dataclass
class HangingServer:
    """`url` (ends in /v1) is what to give as remote.base_url; `reached` is set once somebody hangs;
    `requests` is what was read, piece by piece."""

    url: str
    reached: threading.Event = field(default_factory=threading.Event)
    requests: list[bytes] = field(default_factory=list)


@contextmanager
def hanging_server(phase: Phase) -> Iterator[HangingServer]:
    """Serve on a free loopback port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1 if phase == "connect" else 16)
    server = HangingServer(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
    stop = threading.Event()
    held: list[socket.socket] = []
    if phase == "connect":
        # A full queue of connections: the next one is neither taken nor refused.
        for _ in range(4):
            full = socket.socket()
            full.setblocking(False)
            full.connect_ex(listener.getsockname())
            held.append(full)
        server.reached.set()

    def serve() -> None:
        listener.settimeout(0.05)
        with selectors.DefaultSelector() as selector:
            while not stop.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    pass
                else:
                    held.append(connection)
                    selector.register(connection, selectors.EVENT_READ)
                for key, _ in selector.select(0):
                    connection = held[[one.fileno() for one in held].index(key.fd)]
                    request = connection.recv(65536)
                    if not request:
                        selector.unregister(connection)
                        continue
                    server.requests.append(request)
                    if phase == "body" and not server.reached.is_set():
                        connection.sendall(_HALF)
                    server.reached.set()

    thread = threading.Thread(target=serve)
    if phase != "connect":
        thread.start()
    try:
        yield server
    finally:
        stop.set()
        if phase != "connect":
            thread.join()
        for connection in [*held, listener]:
            connection.close()
