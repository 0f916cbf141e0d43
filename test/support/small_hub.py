"""Model hub on loopback: HTTP server with ranges, hashes and injectable faults."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class SmallHub:
    """One repository, `owner/name`, with files in memory.

    `break_after` ends one response after that many bytes of a file; `corrupt` names a file whose body differs from
    its hash; `requests` lists (method, path, range header).
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.break_after: int | None = None
        self.corrupt = ""
        self.requests: list[tuple[str, str, str]] = []
        self.endpoint = ""

    def info(self) -> dict[str, object]:
        """Return the API's description of the repository."""
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 100},
            }
            for name, data in self.files.items()
        ]
        return {"id": "owner/name", "modelId": "owner/name", "sha": COMMIT, "tags": [], "siblings": siblings}

    def tree(self) -> list[dict[str, object]]:
        """Return the repository's files as listed by the tree API."""
        return [
            {
                "type": "file",
                "path": name,
                "size": len(data),
                "oid": hashlib.sha1(data, usedforsecurity=False).hexdigest(),
                "lfs": {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 100},
            }
            for name, data in self.files.items()
        ]

    @contextmanager
    def serve(self) -> Iterator[SmallHub]:
        """Listen on loopback while the block runs."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join(timeout=5)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *arguments: object) -> None:
                """Log nothing, to keep the test output clean."""

            def do_HEAD(self) -> None:
                self.answer(body=False)

            def do_GET(self) -> None:
                self.answer(body=True)

            def answer(self, body: bool) -> None:
                path = unquote(urlparse(self.path).path)
                hub.requests.append((self.command, path, self.headers.get("Range", "")))
                if path.startswith("/api/models/owner/name/tree/"):
                    self.send(200, json.dumps(hub.tree()).encode(), {"Content-Type": "application/json"}, body)
                elif path.startswith("/api/models/owner/name"):
                    self.send(200, json.dumps(hub.info()).encode(), {"Content-Type": "application/json"}, body)
                elif path.startswith(f"/owner/name/resolve/{COMMIT}/") and path.split(f"{COMMIT}/")[1] in hub.files:
                    self.send_file(path.split(f"{COMMIT}/")[1], body)
                else:
                    self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)

            def send_file(self, name: str, body: bool) -> None:
                data = hub.files[name]
                headers = {
                    "X-Repo-Commit": COMMIT,
                    "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
                    "Accept-Ranges": "bytes",
                }
                if name == hub.corrupt:
                    data = data[:-1] + bytes([data[-1] ^ 1])
                requested = self.headers.get("Range", "")
                start = int(requested.removeprefix("bytes=").split("-")[0]) if requested.startswith("bytes=") else 0
                if start:
                    headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
                self.send(206 if start else 200, data[start:], headers, body)

            def send(self, status: int, data: bytes, headers: dict[str, str], body: bool) -> None:
                self.send_response(status)
                for key, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(key, value)
                self.end_headers()
                if not body:
                    return
                if hub.break_after is not None and hub.break_after < len(data) and "ETag" in headers:
                    cut, hub.break_after = hub.break_after, None
                    self.wfile.write(data[:cut])
                    self.wfile.flush()
                    self.close_connection = True
                    self.connection.close()
                    return
                self.wfile.write(data)

        return Handler
