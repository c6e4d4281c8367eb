"""A Kubernetes API server that plays back what was recorded, over HTTP, to whatever client asks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Obj = dict[str, Any]


@dataclass
class Answer:
    """A status and a body. A watch body is a list of pieces, sent as they are."""

    body: Obj | list[bytes]
    status: int = 200
    breaks_off: bool = False
    """End the connection in the middle, as a proxy that is restarted does."""


@dataclass
class Asked:
    path: str
    query: dict[str, str]
    token: str


@dataclass
class Recording:
    """Per path: answers to gets (the last one is given for ever), and to watches, one after another."""

    gets: dict[str, list[Answer]] = field(default_factory=dict)
    watches: dict[str, list[Answer]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    address: str = ""

    def watched(self, path: str) -> list[str]:
        """The versions that watches of a path began from."""
        return [
            asked.query["resourceVersion"]
            for asked in self.asked
            if asked.path == path and asked.query.get("watch") == "true"
        ]

    def listed(self, path: str) -> int:
        return sum(asked.path == path and "watch" not in asked.query for asked in self.asked)


def listing(kind: str, version: str, *items: Obj, more: str = "", api_version: str = "v1") -> Answer:
    """A page of a typed list, whose items carry neither kind nor apiVersion, as real ones do."""
    bare = [{name: value for name, value in i.items() if name not in ("kind", "apiVersion")} for i in items]
    metadata = {"resourceVersion": version} | ({"continue": more} if more else {})
    return Answer({"kind": f"{kind}List", "apiVersion": api_version, "metadata": metadata, "items": bare})


def change(kind: str, obj: Obj) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def versioned(obj: Obj, version: str) -> Obj:
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": version}}


def bookmark(version: str, kind: str = "Pod") -> bytes:
    return change("BOOKMARK", {"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": version}})


GONE_STATUS: Obj = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "message": "too old resource version: 100 (900)",
    "reason": "Expired",
    "code": 410,
}


def refusal(status: int, message: str) -> Answer:
    return Answer({"kind": "Status", "message": message, "code": status}, status)


@contextmanager
def playing(recording: Recording) -> Iterator[Recording]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(recording))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    recording.address = f"http://127.0.0.1:{server.server_port}"
    yield recording
    server.shutdown()
    server.server_close()
    thread.join()


def _handler(recording: Recording) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = dict(parse_qsl(url.query))
            recording.asked.append(Asked(url.path, query, self.headers.get("Authorization", "")))
            if query.get("watch") == "true":
                self._watch(url.path, query)
            else:
                answers = recording.gets.get(url.path, [refusal(404, "the server could not find it")])
                self._plain(answers.pop(0) if len(answers) > 1 else answers[0])

        def _plain(self, answer: Answer) -> None:
            body = json.dumps(answer.body).encode()
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _watch(self, path: str, query: dict[str, str]) -> None:
            answers = recording.watches.get(path, [])
            if not answers:
                # Nothing happens until the time is up, as on a quiet cluster.
                time.sleep(min(float(query["timeoutSeconds"]), 0.5))
                answer = Answer([])
            else:
                answer = answers.pop(0)
            if not isinstance(answer.body, list):
                self._plain(answer)
                return
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in answer.body:
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            if answer.breaks_off:
                self.close_connection = True
            else:
                self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: object) -> None: ...

    return Handler
