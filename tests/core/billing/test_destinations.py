"""Where a webhook may go, and where not."""

from __future__ import annotations

import pytest

from billing.core.destinations import BadDestination, may_connect, parse_destination, parse_networks


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("https://hooks.example.org/a?token=1", ("https", "hooks.example.org", 443, "/a?token=1")),
        ("http://hooks.example.org:8080", ("http", "hooks.example.org", 8080, "/")),
        ("https://[2001:db8::1]/x#part", ("https", "2001:db8::1", 443, "/x")),
    ],
)
def test_addresses(url: str, parts: tuple[str, str, int, str]) -> None:
    found = parse_destination(url)
    assert (found.scheme, found.host, found.port, found.target) == parts


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/",
        "file:///etc/passwd",
        "gopher://example.org/",
        "https://user:secret@example.org/",
        "https://example.org/a b",
        "https://example.org/\r\nX-Evil: 1",
        "https://example.org\\@evil.example/",
        "https:///nohost",
        "https://example.org:99999/",
        "https://exämple.org/",
        "//example.org/",
        "",
    ],
)
def test_refused_addresses(url: str) -> None:
    with pytest.raises(BadDestination) as refusal:
        parse_destination(url)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111"])
def test_public_addresses_may_be_reached(address: str) -> None:
    assert may_connect(address, ())


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::a00:1",
        "2002:7f00:1::",
        "2001:0:0:1::",
    ],
)
def test_others_may_not(address: str) -> None:
    assert not may_connect(address, ())


def test_unless_a_network_is_named() -> None:
    allowed = parse_networks(["10.0.0.0/8", "fd00::/8"])
    assert [
        may_connect(one, allowed) for one in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::7", "192.168.1.1")
    ] == [
        True,
        True,
        True,
        False,
    ]
    with pytest.raises(ValueError):
        parse_networks(["10.0.0.0/8.0"])
