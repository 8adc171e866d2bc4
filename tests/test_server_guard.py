"""Who may ask: keys, Host and Origin, sizes, slow and broken HTTP; and that nothing of what is said is written down."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Iterator

import pytest
from server_fakes import Live, served_engine, serving

from edgespec.errors import ConfigError
from edgespec.server import run
from edgespec.server.app import MAX_BODY
from edgespec.server.stream import Patience

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving(served_engine("yes"), hosts=["edge.example"], patience=Patience(body_s=0.3)) as live:
        yield live


def raw(live: Live, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", live.port), timeout=20) as link:
        link.sendall(data)
        parts = []
        while part := link.recv(65536):
            parts.append(part)
        return b"".join(parts)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:99", "127.0.0.1:1", "[::1]:8080", "192.168.1.5", "edge.example"]
)
def test_hosts_that_are_known(live: Live, host: str) -> None:
    assert live.ask("/health", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "localhost@evil.example",
     "[::1].evil.example", "", "127.1", "0x7f000001"],
)  # fmt: skip
def test_names_that_a_page_may_have_rebound_are_refused(live: Live, host: str) -> None:
    reply = live.ask(CHAT, HELLO, headers={"Host": host})
    assert reply.status == 403
    assert reply.error["type"] == "permission_error"


def test_no_host_and_two_hosts(live: Live) -> None:
    assert b" 403 " in raw(live, b"GET /health HTTP/1.0\r\n\r\n").split(b"\r\n")[0]
    twice = b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert raw(live, twice).split(b" ")[1] in {b"400", b"403"}


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:{port}", 200),
        ("http://127.0.0.1:1", 403),
        ("http://localhost:{port}", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("file://", 403),
        ("http://[", 403),
        ("", 403),
    ],
)
def test_other_origins_are_refused_and_no_cors_header_is_sent(live: Live, origin: str, status: int) -> None:
    headers = {"Origin": origin.format(port=live.port), "Content-Type": "text/plain"}
    for method, body in (("POST", HELLO), ("OPTIONS", None)):
        reply = live.ask(CHAT, body, method=method, headers=headers)
        assert reply.status == (405 if (status, method) == (200, "OPTIONS") else status)
        assert not [name for name in reply.headers if name.startswith("access-control")]
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "server" not in reply.headers


def test_a_key_is_wanted_for_all_but_health(monkeypatch: pytest.MonkeyPatch) -> None:
    real, compared = hmac.compare_digest, []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    with serving(served_engine("yes"), api_key="s3cret") as live:
        for given in (None, "Bearer wrong", "Bearer", "Bearer s3cre", "Basic s3cret", "s3cret", "Bearer s3cret s3cret"):
            reply = live.ask(CHAT, HELLO, headers={} if given is None else {"Authorization": given})
            assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
            assert reply.headers["www-authenticate"] == "Bearer"
        for path in ("/metrics", "/props", "/v1/models", "/nowhere"):
            assert live.ask(path).status == 401
        assert live.ask("/health").status == 200
        for given in ("Bearer s3cret", "bearer  s3cret"):
            assert live.ask(CHAT, HELLO, headers={"Authorization": given}).status == 200
    assert len({len(side) for pair in compared for side in pair}) == 1, "the time of a comparison tells the length"


def test_bodies_are_bounded_and_must_come_in_time(live: Live) -> None:
    big = live.ask(CHAT, b"x" * (MAX_BODY + 1))
    assert big.status == 413
    assert "4 MiB" in big.error["message"]
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    huge = raw(live, head + b"Content-Length: 99999999999999999999\r\n\r\n")
    assert b" 413 " in huge.split(b"\r\n")[0]
    chunks = 5 * (b"100000\r\n" + b"x" * 2**20 + b"\r\n") + b"0\r\n\r\n"
    assert b" 413 " in raw(live, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks).split(b"\r\n")[0]
    slow = raw(live, head + b"Content-Length: 100\r\n\r\n{")
    assert b" 408 " in slow.split(b"\r\n")[0]
    assert b"did not arrive" in slow


def test_a_head_must_come_in_time(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run._Protocol, "head_s", 0.1)
    assert raw(live, b"GET /health HTTP/1.1\r\nHost: loc") == b""
    assert raw(live, b"") == b""
    link = live.connect()
    assert live.ask("/health", connection=link).status == 200
    assert link.sock is not None
    link.sock.sendall(b"GET /he")
    assert link.sock.recv(65536) == b""
    link.close()


def test_what_is_no_http_is_told_so_in_the_same_form(live: Live) -> None:
    for junk in (b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.1\r\nHost: a\r\nBad Header\r\n\r\n"):
        answer = raw(live, junk + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b'"type":"invalid_request_error"' in answer
    assert live.ask("/health").status == 200


def test_a_websocket_is_not_served(live: Live) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "x"}
    assert live.ask("/v1/models", headers=upgrade).status == 200  # as if it had not been asked for


def test_a_bug_is_a_500_without_a_word_of_what_was_said(capfd: pytest.CaptureFixture[str]) -> None:
    engine = served_engine("yes")
    with serving(engine) as live:
        engine.render = lambda messages, **_: 1 / len(messages[0].content.replace("my secret", ""))  # type: ignore[method-assign, assignment]
        reply = live.ask(CHAT, {"messages": [{"role": "user", "content": "my secret"}]})
        assert (reply.status, reply.error["message"]) == (500, "internal error (ZeroDivisionError)")
        assert live.ask(CHAT, {"messages": [{"role": "user", "content": "my secretx"}]}).status == 500
        live.until(lambda: len(live.logged) == 2)
        (first, second), logged = live.logged, "\n".join(live.logged)
        live.logged.clear()
    told = capfd.readouterr()
    assert first.startswith("internal error: ZeroDivisionError in")
    assert second
    assert "secret" not in logged + told.out + told.err


def test_nothing_of_what_is_said_is_printed(live: Live, capfd: pytest.CaptureFixture[str]) -> None:
    live.chat("my secret")
    live.ask(CHAT, b'{"my secret')
    live.ask("/my-secret")
    told = capfd.readouterr()
    assert (told.out, told.err, live.logged) == ("", "", [])


@pytest.mark.parametrize(
    ("host", "exposed"),
    [("127.0.0.1", False), ("127.0.0.5", False), ("::1", False), ("0.0.0.0", True), ("10.1.2.3", True)],
)
def test_which_addresses_other_machines_may_reach(host: str, exposed: bool) -> None:
    assert run.is_exposed(host) is exposed


def test_pieces_of_a_stream_are_sent_at_once() -> None:
    with run.bind("localhost", 0) as sock:
        assert sock.proto == socket.IPPROTO_TCP  # by which asyncio decides whether to switch Nagle's algorithm off


def test_addresses_that_cannot_be_listened_on() -> None:
    with run.bind("127.0.0.1", 0) as sock, pytest.raises(ConfigError, match=r"in use; choose another"):
        run.bind("127.0.0.1", sock.getsockname()[1])
    with pytest.raises(ConfigError, match="no such address"):
        run.bind("999.1.1.1", 0)
