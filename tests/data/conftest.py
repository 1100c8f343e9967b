"""A server of data files on this machine that fails on demand, and a cache that fetches from it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from labkit import data
from tests.made_sets import archive_files, random_samples, source_for

SAMPLES = random_samples("mnist", 300, 20)
FILES = archive_files("mnist", SAMPLES)
IMAGES = "train-images-idx3-ubyte.gz"


class Server(ThreadingHTTPServer):
    """Serve `files`; `requests` holds (file, range) of every request, `sent` the bytes of bodies by file.

    The k-th response with the file `breaks_for` ends after breaks[k] bytes of its body. With `drips`, a body
    is sent byte by byte, a hundred in a second.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = dict(FILES)
        self.requests: list[tuple[str, str | None]] = []
        self.sent: dict[str, int] = {}
        self.breaks: list[int] = []
        self.breaks_for = IMAGES
        self.ranges = True
        self.drips = False
        self.gate: threading.Event | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    """Handle one request."""

    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        name, byte_range = self.path[1:], self.headers["Range"]
        self.server.requests.append((name, byte_range))
        if name not in self.server.files:
            self.send_error(404)
            return
        body, start = self.server.files[name], 0
        if byte_range and self.server.ranges:
            start = int(byte_range.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        rest = body[start:]
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if name == self.server.breaks_for and self.server.breaks:
            rest = rest[: self.server.breaks.pop(0)]
            self.close_connection = True
        with suppress(OSError):  # the client has given up
            for at in range(len(rest)) if self.server.drips else ():
                self.wfile.write(rest[at : at + 1])
                time.sleep(0.01)
        if self.server.drips:
            return
        self.wfile.write(rest)
        self.wfile.flush()
        if self.server.gate:
            self.server.gate.wait()
        self.server.sent[name] = self.server.sent.get(name, 0) + len(rest)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(name="server")
def _server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(name="cache")
def _cache(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache folder; the server has the data set "mnist"."""
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(data.SOURCES, "mnist", source_for("mnist", SAMPLES, FILES, server.address))
    return tmp_path / "mnist"


def requested_ranges(server: Server, name: str = IMAGES) -> list[str | None]:
    return [byte_range for file, byte_range in server.requests if file == name]


def assert_fetched(cache: Path) -> None:
    """Check that the data set can be read, and that the cache holds its files and no others."""
    assert data.is_cached("mnist")
    loaded = data.load("mnist")
    assert loaded.y_train.tolist() == SAMPLES["train"][1].tolist()
    names = {path.name for path in cache.iterdir()} - {".lock"}
    assert names == {*FILES, *(name.removesuffix(".gz") for name in FILES), "unpacked.json"}
