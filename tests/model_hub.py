"""A real HTTP server that serves models as the hub does: a redirect to another path, ranges, and faults on request.

with ModelHub(folder) as hub:
    hub.break_after = 1000
    ...  # give hub.url as the hub
    assert hub.ranges == [0, 1000]
"""

from __future__ import annotations

import hashlib
import http.server
from contextlib import suppress
from pathlib import Path

from memory.embedding.providers.model_catalogue import ListedModel, ModelFile
from tests.stub_server import StubServer

REVISION = "0123456789abcdef0123456789abcdef01234567"


class ModelHub(StubServer):
    """Serves `folder` as the repository `people/tiny` at `REVISION`.

    `break_after` bytes of a body the connection ends, `breaks` times (None: always). `ignores_ranges` sends all of
    a file whatever was asked for. `spoils` changes a byte. `status` is answered instead of a file. `moves_to` is
    another server that the redirect names. `ranges` are the first bytes of the bodies that were asked for. `states`
    are headers that replace those in which the hub states facts about a file of its main branch.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.break_after: int | None = None
        self.breaks: int | None = None
        self.ignores_ranges = False
        self.spoils = False
        self.status = 200
        self.moves_to: str | None = None
        self.ranges: list[int] = []
        self.states: dict[str, str] = {}

    @property
    def url(self) -> str:
        """Address of the hub."""
        return self.root

    def model(self, *names: str, **facts: object) -> ListedModel:
        """The catalogue's entry of these files of the folder."""
        files = []
        for name in names or ("onnx/model.onnx", "tokenizer.json"):
            data = (self.folder / name).read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            files.append(ModelFile(Path(name).name, "people/tiny", REVISION, name, len(data), digest))
        given = {"dimensions": 32, "tokens": 64, "prompts": {"query": "query: ", "document": "passage: "}, **facts}
        return ListedModel("tiny", "people/tiny", "English", "MIT", 1.0, files=tuple(files), **given)  # type: ignore[arg-type]

    def _serve(self, request: http.server.BaseHTTPRequestHandler) -> None:
        asked = f"/people/tiny/resolve/{REVISION}/"
        name = request.path.removeprefix("/people/tiny/resolve/main/")
        if self.status == 200 and request.command == "HEAD" and (self.folder / name).is_file():
            data = (self.folder / name).read_bytes()
            stated = {"X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Linked-Size": str(len(data))}
            self._say(request, 302, {"X-Repo-Commit": REVISION, **stated, **self.states, "Location": f"/cdn/{name}"})
        elif request.command == "HEAD":
            self._say(request, 200 if self.status == 200 and request.path.startswith("/cdn/") else 404)
        elif self.status != 200:
            self._say(request, self.status)
        elif request.path.startswith(asked):
            place = f"{self.moves_to or ''}/cdn/{request.path.removeprefix(asked)}"
            self._say(request, 302, {"Location": place})
        elif request.path.startswith("/cdn/"):
            self._send(request, self.folder / request.path.removeprefix("/cdn/"))
        else:
            self._say(request, 404)

    def _send(self, request: http.server.BaseHTTPRequestHandler, path: Path) -> None:
        data = path.read_bytes()
        if self.spoils:
            data = data[:-1] + bytes([data[-1] ^ 1])
        assert request.headers["Accept-Encoding"] == "identity"
        start = int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self.ranges.append(start)
        partial = "Range" in request.headers and not self.ignores_ranges
        body = data[start:] if partial else data
        headers = {"Content-Length": str(len(body)), "ETag": hashlib.sha256(data).hexdigest()}
        if partial:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        request.send_response(206 if partial else 200)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        if self.break_after is not None and len(body) > self.break_after and self.breaks != 0:
            self.breaks = None if self.breaks is None else self.breaks - 1
            body = body[: self.break_after]
            request.close_connection = True
        with suppress(OSError):
            request.wfile.write(body)

    @staticmethod
    def _say(request: http.server.BaseHTTPRequestHandler, status: int, headers: dict[str, str] | None = None) -> None:
        request.send_response(status)
        for name, value in {"Content-Length": "0", **(headers or {})}.items():
            request.send_header(name, value)
        request.end_headers()
