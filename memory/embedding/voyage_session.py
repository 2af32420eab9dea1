"""The HTTP session that the voyageai SDK is given in place of its own.

Its own one asks ~/.netrc: a `default` entry there is sent to the service in place of the key. It connects three times
before it gives up, closes nothing, and takes an answer of 529 for a good one; and the SDK drops all headers but
two. `voyageai.requestssession` is its hook for another session, one for the whole process; which provider is asking is
known by the thread.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from schemas.errors import RecalldError, Terminal

#: What to raise for an answer with such a status, headers and body.
ReadStatus = Callable[[int, Mapping[str, str], object], RecalldError]

#: More connections than requests in flight, so that none is thrown away after use.
_CONNECTIONS = 64

_setting_up = threading.Lock()
_asking = threading.local()


class _AskersSession:
    """What the SDK takes for its session: that of the provider that is asking in this thread."""

    proxies: Mapping[str, str] = {}

    def request(self, *arguments: Any, **options: Any) -> Any:
        return _asking.session.request(*arguments, **options)

    def close(self) -> None:
        """The provider closes its own."""


def load_sdk() -> Any:
    """The voyageai module, set up for us. Takes 0.7 s and 50 MB the first time: it imports aiohttp, PIL and langchain.

    Raises:
        Terminal: it is not installed.
    """
    with _setting_up:
        try:
            voyageai: Any = importlib.import_module("voyageai")
        except ImportError as error:
            raise Terminal('the voyageai package is not installed: pip install "recalld[voyage]"') from error
        voyageai.requestssession = _AskersSession
        # It logs whole requests, which are memory; VOYAGE_LOG would even print them.
        logging.getLogger("voyage").setLevel(logging.WARNING)
        voyageai.util.VOYAGE_LOG = None
        return voyageai


def make_session(*, headers: Mapping[str, str], read_status: ReadStatus) -> Any:
    """A `requests.Session` that sends the headers with every request and raises what `read_status` says."""
    requests = importlib.import_module("requests")

    def add_headers(request: Any) -> Any:
        request.headers.update(headers)
        return request

    def refuse(response: Any, **_: object) -> None:
        # A file may lie elsewhere; texts are sent nowhere but to the address in the settings.
        moved = response.is_redirect and response.request.method == "GET"
        if not 200 <= response.status_code < 300 and not moved:
            cause = requests.HTTPError(response.status_code, response=response)
            raise read_status(response.status_code, response.headers, _body(response)) from cause

    session = requests.Session()
    # Having this, it asks no ~/.netrc.
    session.auth = add_headers
    session.hooks["response"].append(refuse)
    for scheme in ("https://", "http://"):
        session.mount(scheme, requests.adapters.HTTPAdapter(max_retries=0, pool_maxsize=_CONNECTIONS))
    return session


@contextmanager
def asking(session: Any) -> Iterator[None]:
    """Let the SDK use this session in this thread."""
    _asking.session = session
    try:
        yield
    finally:
        del _asking.session


def _body(response: Any) -> object:
    try:
        return response.json()
    except ValueError:
        return response.text
