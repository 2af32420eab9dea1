"""Reading an HTTP answer from whatever pieces arrive."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recalld.client.exchange import Incomplete, NotHttp, Response, reading, request_bytes


def read(pieces: Iterable[bytes]) -> Response:
    """The answer that these pieces make; the connection ends behind them."""
    answer = reading()
    next(answer)
    try:
        for piece in pieces:
            if piece:
                answer.send(piece)
        answer.send(b"")
    except StopIteration as whole:
        response: Response = whole.value
        return response
    raise AssertionError("asked for more after the end")


def chunked(body: bytes, sizes: list[int], *, extension: bytes, trailers: bytes) -> bytes:
    sent, rest = b"", body
    for size in sizes:
        piece, rest = rest[:size], rest[size:]
        if piece:
            sent += b"%x%s\r\n%s\r\n" % (len(piece), extension, piece)
    if rest:
        sent += b"%X\r\n%s\r\n" % (len(rest), rest)
    return sent + b"0\r\n" + trailers + b"\r\n"


@st.composite
def answers(draw: st.DrawFn) -> tuple[int, bytes, bytes]:
    status = draw(st.sampled_from([200, 400, 404, 500]))
    body = draw(st.binary(max_size=300))
    before = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\n"]))
    if draw(st.booleans()):
        head, sent = b"content-LENGTH:  %d \r\n" % len(body), body
    else:
        head = b"Transfer-Encoding: Chunked\r\n"
        sent = chunked(
            body,
            draw(st.lists(st.integers(1, 80), max_size=6)),
            extension=draw(st.sampled_from([b"", b";name=value"])),
            trailers=draw(st.sampled_from([b"", b"Digest: x\r\n"])),
        )
    return status, body, before + b"HTTP/1.1 %d Some Words\r\nServer: x\r\n%s\r\n%s" % (status, head, sent)


@given(answers(), st.lists(st.integers(1, 40), max_size=30))
def test_an_answer_is_the_same_however_it_is_cut(made: tuple[int, bytes, bytes], cuts: list[int]):
    status, body, sent = made
    pieces, rest = [], sent
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    assert read([*pieces, rest]) == Response(status, body, True)


@given(answers(), st.data())
def test_an_answer_that_ends_too_early_is_never_taken_for_a_whole_one(
    made: tuple[int, bytes, bytes], data: st.DataObject
):
    end = data.draw(st.integers(0, len(made[2]) - 1))
    with pytest.raises(Incomplete):
        read([made[2][:end]])


@pytest.mark.parametrize(
    ("sent", "body", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nall of it", b"all of it", False),
        (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\n{}", b"{}", True),
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}", b"{}", True),
        (b"HTTP/1.1 204 None\r\n\r\n", b"", True),
        (b"HTTP/1.1 200 OK\r\nConnection: keep-alive, Close\r\nContent-Length: 2\r\n\r\n{}", b"{}", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", b"{}", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}", b"{}", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}", b"{}", True),
        # Nobody asked for what follows: the next answer over this connection would be it.
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n", b"{}", False),
    ],
)
def test_where_an_answer_ends_and_whether_its_connection_can_be_used_again(sent: bytes, body: bytes, reusable: bool):
    assert read([sent])[1:3] == (body, reusable)


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 two OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nName : value\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 300,
        b"x" * 100_000,
    ],
)
def test_what_is_no_http_is_refused(sent: bytes):
    with pytest.raises(NotHttp):
        read([sent])


def test_a_request_names_its_host_and_carries_token_and_length():
    sent = request_bytes("POST", "/v1/search", authority="[::1]:7373", token="secret", content="{水}".encode())
    head, _, body = sent.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /v1/search HTTP/1.1",
        b"Host: [::1]:7373",
        b"Accept: application/json",
        b"User-Agent: recalld-client",
        b"Authorization: Bearer secret",
        b"Content-Type: application/json",
        b"Content-Length: 5",
    ]
    assert body == "{水}".encode()
