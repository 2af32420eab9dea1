"""Page at `/`, the API's description at `/docs`, and their files.

The folder `page` beside this file holds them as a browser gets them: nothing is built, and nothing is loaded from
elsewhere. Files are read once. A browser checks its copies each time (`ETag`), so that a page and its scripts are
always of one version.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER = Path(__file__).with_name("page")

#: Path of a page -> its file.
PAGES = {"/": "page.html", "/docs": "docs.html"}

#: Files of any other kind in the folder are not served.
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

#: Scripts, styles and pictures of this service only, and no text is ever read as HTML by a script.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; connect-src 'self'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is served."""

    content: bytes
    media_type: str
    etag: str

    def response(self, request: Request) -> Response:
        """Return the file, or 304 if the browser's copy is still right."""
        headers = {**HEADERS, "ETag": self.etag}
        known = (tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(","))
        if self.etag in known:
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


def page_files(folder: Path = FOLDER) -> dict[str, PageFile]:
    """Return file name -> file."""
    return {
        path.name: _page_file(path.read_bytes(), MEDIA_TYPES[path.suffix])
        for path in sorted(folder.iterdir())
        if path.suffix in MEDIA_TYPES
    }


def page_routes() -> list[Route]:
    """Return the routes `/`, `/docs` and `/page/<file>`."""
    files = page_files()
    pages = {path: files[name] for path, name in PAGES.items()}

    def show(request: Request) -> Response:
        return pages[request.url.path].response(request)

    def part(request: Request) -> Response:
        file = files.get(request.path_params["name"])
        if file is None:
            return Response('{"error":"Not Found"}', status_code=404, media_type="application/json")
        return file.response(request)

    return [*(Route(path, show) for path in PAGES), Route("/page/{name}", part)]


def _page_file(content: bytes, media_type: str) -> PageFile:
    return PageFile(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
