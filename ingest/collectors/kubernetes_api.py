"""The Kubernetes API through the official client: credentials and TLS are its business, the bytes are ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from urllib3 import Timeout
from urllib3.exceptions import HTTPError

from ingest.collectors.contract import CollectorError
from ingest.collectors.table import CollectTable

GONE = 410
CONNECT_SECONDS = 10
GRACE_SECONDS = 15
"""The server ends a watch by itself; it is given this long to do so."""


class ApiError(CollectorError):
    """The API server refused; `status` is its HTTP code, 0 where it never answered."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Listed:
    items: list[dict[str, Any]]
    version: str
    """`resourceVersion` of the list: a watch goes on from here."""


class KubernetesApi:
    def __init__(self, table: CollectTable) -> None:
        self.timeout_s = table.whole("timeout_seconds", 60, least=1)
        self._page = table.whole("page_size", 500, least=1)
        self._client = _client(table)
        self.address = str(self._client.configuration.host)

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        with self._open(path, query or {}, self.timeout_s) as answer:
            try:
                value = msgspec.json.decode(answer.read())
            except (HTTPError, OSError) as error:
                raise ApiError(0, f"{self.address}{path} broke off: {error}") from error
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ApiError(0, f"{self.address}{path} did not answer with JSON") from error
        if not isinstance(value, dict):
            raise ApiError(0, f"{self.address}{path} is not the Kubernetes API")
        return value

    def list_all(self, path: str, query: Mapping[str, Any]) -> Listed:
        """Every object, page by page. Where a page expired on the way, all of them again in one piece."""
        try:
            return self._pages(path, {**query, "limit": self._page})
        except ApiError as error:
            if error.status != GONE:
                raise
            return self._pages(path, dict(query))

    def _pages(self, path: str, query: dict[str, Any]) -> Listed:
        items: list[dict[str, Any]] = []
        while True:
            page = self.get(path, query)
            metadata = page.get("metadata") or {}
            # Items of a typed list carry neither apiVersion nor kind.
            kind = {
                "apiVersion": page.get("apiVersion"),
                "kind": str(page.get("kind", "")).removesuffix("List"),
            }
            items += [{**kind, **item} for item in page.get("items") or []]
            if not metadata.get("continue"):
                return Listed(items, str(metadata.get("resourceVersion", "")))
            query = {**query, "continue": metadata["continue"]}

    def watch(self, path: str, query: Mapping[str, Any], version: str, seconds: int) -> Iterator[bytes]:
        """The lines of a watch from `version` on; a line that broke off is dropped, the next watch brings it again."""
        asked = {
            **query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": seconds,
        }
        rest = b""
        with self._open(path, asked, seconds + GRACE_SECONDS) as answer:
            try:
                for piece in answer.stream(None):
                    *lines, rest = (rest + piece).split(b"\n")
                    yield from filter(None, lines)
            except (HTTPError, OSError) as error:
                raise ApiError(0, f"{self.address}{path}: the watch broke off: {error}") from error

    def _open(self, path: str, query: Mapping[str, Any], timeout_s: int) -> Any:
        headers: dict[str, str] = {"Accept": "application/json"}
        self._client.update_params_for_auth(headers, [], ["BearerToken"])
        try:
            answer = self._client.rest_client.pool_manager.request(
                "GET",
                self.address + path,
                fields={name: str(value) for name, value in query.items()},
                headers=headers,
                preload_content=False,
                retries=False,  # the collector itself goes on where it was
                timeout=Timeout(connect=CONNECT_SECONDS, read=timeout_s),
            )
            if answer.status != 200:
                with answer:
                    raise ApiError(answer.status, f"{self.address}{path}: {_said(answer)}")
        except (HTTPError, OSError) as error:
            why = str(error).rpartition("): ")[2]  # without the connection's own picture of itself
            raise ApiError(0, f"{self.address} cannot be reached: {why}") from error
        return answer


def _client(table: CollectTable) -> Any:
    """A server and a token, a kubeconfig, or the service account of the Pod this runs in."""
    # Only now: it takes a second and a half to import, and most processes never watch anything.
    from kubernetes import client, config
    from kubernetes.config.config_exception import ConfigException

    server, ca_file = table.text("server"), table.text("ca_file")
    kubeconfig, context = table.text("kubeconfig"), table.text("context")
    token = table.secret("token")
    settings = client.Configuration()
    try:
        if server:
            settings.host = server.rstrip("/")
            settings.ssl_ca_cert = ca_file or None
            if token:
                settings.api_key["authorization"] = f"Bearer {token}"
        elif kubeconfig:
            config.load_kube_config(kubeconfig, context=context or None, client_configuration=settings)
        else:
            config.load_incluster_config(client_configuration=settings)
    except ConfigException as error:
        name = "kubeconfig" if kubeconfig else "server"
        raise table.wrong(name, f"is needed outside a cluster, or wrong: {error}") from error
    return client.ApiClient(settings)


def _said(answer: Any) -> str:
    """The server's own sentence, with its code."""
    try:
        return f"{answer.status} {msgspec.json.decode(answer.read())['message']}"
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        return f"{answer.status} {answer.reason}"
