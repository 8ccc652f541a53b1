"""A small JSON server over HTTP/1.1: bodies have a limit, every answer is JSON, a thread per connection."""

import json
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType, TracebackType
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from .errors import AgentgymError, short

BODY_MAX_BYTES = 16 << 20
# Clients leave idle connections after a few seconds; one that stays this long holds a thread for nothing.
IDLE_S = 60


class Refusal(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(status, body)
        self.status, self.body = status, body


class Asked:
    """What a request says."""

    def __init__(self, query: Mapping[str, str], body: bytes) -> None:
        self.query, self.body = query, body

    def fields(self, **wanted: type) -> list[Any]:
        """Fields of the JSON body, of these types; every one that is missing or wrong is named."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise Refusal(422, {"detail": [{"loc": ["body"], "msg": f"no JSON: {error}"}]}) from error
        if not isinstance(found, dict):
            raise Refusal(422, {"detail": [{"loc": ["body"], "msg": "a JSON object is expected"}]})
        wrong = [
            {"loc": ["body", key], "msg": f"{kind.__name__} is expected, found {json.dumps(found.get(key))[:80]}"}
            for key, kind in wanted.items()
            if not isinstance(found.get(key), kind) or (kind is int and isinstance(found[key], bool))
        ]
        if wrong:
            raise Refusal(422, {"detail": wrong})
        return [found[key] for key in wanted]


Routes = Mapping[tuple[str, str], Callable[[Asked], Any]]


class JsonServer:
    """Serves routes, `{("POST", "/step"): function}`; `with JsonServer(…) as server` runs it in the background."""

    def __init__(self, routes: Routes, port: int, host: str = "127.0.0.1") -> None:
        handler = type("Handler", (_Handler,), {"routes": routes})
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        kind = type("Server", (_Server,), {"address_family": family})
        try:
            self._server: ThreadingHTTPServer = kind((host, port), handler)
        except (OSError, OverflowError) as error:
            raise AgentgymError(f"cannot listen on {host} port {port}: {error}; choose another --port, or 0 for a free one") from error
        name = f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)

    def __enter__(self) -> "JsonServer":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def run(self) -> None:
        """Says where it listens and serves until SIGTERM or Ctrl-C; what is printed meanwhile goes to stderr."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _interrupt)
        print(f"listening on {self.url}", flush=True)
        try:
            with redirect_stdout(sys.stderr), self:
                threading.Event().wait()
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no trace's worth."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):
            print(f"a request failed: {short(error)}", file=sys.stderr)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    disable_nagle_algorithm = True
    routes: Routes = {}

    def log_message(self, format: str, *args: Any) -> None:
        """No line per request."""

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def _answer(self, method: str) -> None:
        url = urlsplit(self.path)
        try:
            body = self._body()
            route = self.routes.get((method, url.path))
            if route is None:
                known = any(path == url.path for _, path in self.routes)
                raise Refusal(405, {"detail": "Method Not Allowed"}) if known else Refusal(404, {"detail": "Not Found"})
            status, found = 200, route(Asked(dict(parse_qsl(url.query)), body))
        except Refusal as refusal:
            status, found = refusal.status, refusal.body
        except Exception as error:  # Nothing that a route raises ends the server, or passes as an answer.
            status, found = 500, {"error": short(error)}
        payload = json.dumps(found, allow_nan=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(payload)

    def _body(self) -> bytes:
        # What is not read of a body would be taken for the next request.
        stays, self.close_connection = self.close_connection, True
        if "Transfer-Encoding" in self.headers:
            raise Refusal(411, {"detail": "a body needs a Content-Length"})
        length = self.headers.get("Content-Length", "0").strip()
        if not length.isascii() or not length.isdigit():
            raise Refusal(400, {"detail": f"Content-Length is {length[:40]!r}; a number of bytes is expected"})
        if int(length) > BODY_MAX_BYTES:
            raise Refusal(413, {"detail": f"a body of {length} bytes; at most {BODY_MAX_BYTES} are read"})
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise Refusal(400, {"detail": f"{len(body)} of {length} bytes arrived"})
        self.close_connection = stays
        return body
