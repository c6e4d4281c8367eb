"""Where a webhook may go: http or https, no credentials in the address, no address inside the own network by default.

A subscriber names the address, the ledger's machine makes the call: without this, whoever may subscribe could reach
what only that machine can.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from billing.core.sentences import sentence
from ledger.core.sentences import Told

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
_NAT64 = IPv6Network("64:ff9b::/96")


class BadDestination(Told):
    """The address cannot be used; it says why without repeating it."""


class PrivateDestination(BadDestination):
    """The address leads into a network that no setting allows."""


@dataclass(frozen=True, slots=True)
class Destination:
    """scheme, host and port of an address, and what is asked for there (path and query)."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = {"http": 80, "https": 443}[self.scheme]
        return host if self.port == usual else f"{host}:{self.port}"


def parse_destination(url: str) -> Destination:
    """Raises BadDestination."""
    if any(ord(character) <= 32 or ord(character) == 127 for character in url) or "\\" in url:
        raise BadDestination(sentence("address_with_spaces"))
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise BadDestination(sentence("address_unreadable")) from None
    if parts.scheme not in ("http", "https"):
        raise BadDestination(sentence("address_not_http"))
    if parts.username is not None or parts.password is not None:
        raise BadDestination(sentence("address_with_password"))
    if not parts.hostname or not url.isascii():
        raise BadDestination(sentence("address_without_host"))
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Destination(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), target)


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Raises ValueError for what is no network, such as 10.0.0.0/8."""
    return tuple(ip_network(text) for text in texts)


def may_connect(address: str, allowed: Sequence[Network]) -> bool:
    """Whether a resolved address is a public one, or inside a network that the setting allows."""
    ip: Address = ip_address(address)
    inner = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    ip = inner or ip
    if any(ip.version == network.version and ip in network for network in allowed):
        return True
    if isinstance(ip, IPv6Address) and (ip in _NAT64 or ip.sixtofour is not None or ip.teredo is not None):
        return False
    return ip.is_global and not ip.is_multicast
