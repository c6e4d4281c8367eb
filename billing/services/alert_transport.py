"""One HTTP POST to an address that a subscriber named: no redirect is followed, and the machine that is reached is the
one whose address was checked (billing.core.destinations)."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import urllib3
from django.conf import settings

from billing.core.destinations import (
    Destination,
    PrivateDestination,
    may_connect,
    parse_destination,
    parse_networks,
)
from billing.core.sentences import sentence
from ledger.core.sentences import Told

TIMEOUT = urllib3.Timeout(connect=5, read=10, total=15)
ANSWER_BYTES = 4096


class NotReached(Told):
    """No answer came: name not found, refused, timed out. It holds no part of the address's path or query."""


@dataclass(frozen=True, slots=True)
class Answer:
    """retry_after_s: what the receiver asked for, where it is a plain number of seconds."""

    status: int
    body: bytes
    retry_after_s: int | None


def post(url: str, body: bytes, headers: dict[str, str]) -> Answer:
    """Send `body`, at most 15 s.

    Raises:
        BadDestination: the address cannot be used or leads where it may not.
        NotReached: nobody answered.
    """
    destination = parse_destination(url)
    address = _resolve(destination)
    pool = _pool(destination, address)
    try:
        response = pool.urlopen(
            "POST",
            destination.target,
            body=body,
            headers={"Host": destination.netloc, "User-Agent": "gpu-ledger", **headers},
            redirect=False,
            retries=False,
            preload_content=False,
        )
        answer = Answer(
            response.status, response.read(ANSWER_BYTES), _seconds(response.headers.get("Retry-After"))
        )
        response.release_conn()
        return answer
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        # The error's own text may hold the address with its token.
        raise NotReached(sentence("not_reached", error=type(error).__name__)) from None
    finally:
        pool.close()


def check_destination(url: str) -> None:
    """Whether `post` would send anything there, as far as is known now: a name that nobody knows may be found later.

    Raises:
        BadDestination: the address cannot be used.
        PrivateDestination: it leads where it may not.
    """
    try:
        _resolve(parse_destination(url))
    except NotReached:
        return


def _resolve(destination: Destination) -> str:
    """One address of the host; all of them have to be allowed, so that a name with two faces leads nowhere."""
    try:
        found = socket.getaddrinfo(destination.host, destination.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise NotReached(sentence("host_without_address")) from None
    addresses = [str(entry[4][0]).partition("%")[0] for entry in found]
    allowed = parse_networks(settings.WEBHOOK_PRIVATE_NETWORKS)
    if not addresses or not all(may_connect(address, allowed) for address in addresses):
        raise PrivateDestination(sentence("address_private"))
    return addresses[0]


def _pool(destination: Destination, address: str) -> urllib3.HTTPConnectionPool:
    """Connects to the checked address, not to the name: it could resolve differently a second time."""
    if destination.scheme == "http":
        return urllib3.HTTPConnectionPool(address, destination.port, timeout=TIMEOUT, maxsize=1)
    return urllib3.HTTPSConnectionPool(
        address,
        destination.port,
        timeout=TIMEOUT,
        maxsize=1,
        cert_reqs="CERT_REQUIRED",
        server_hostname=destination.host,
        assert_hostname=destination.host,
    )


def _seconds(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 7 else None
