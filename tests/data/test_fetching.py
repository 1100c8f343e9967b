"""Fetching data sets: from a server on this machine that misbehaves in the ways that real ones do."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from labkit import data
from labkit.cli import main
from labkit.data import FetchError
from tests.made_sets import files_of, made, put, source_of

PARTS = made("mnist", 300, 20)
FILES = files_of("mnist", PARTS)
IMAGES = "train-images-idx3-ubyte.gz"


class Server(ThreadingHTTPServer):
    """Serves `files`; `asked` holds (file, range) of every request, `sent` the bytes of bodies by file.

    The k-th answer that concerns `breaks_for` is broken off after breaks[k] bytes of its body.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = dict(FILES)
        self.asked: list[tuple[str, str | None]] = []
        self.sent: dict[str, int] = {}
        self.breaks: list[int] = []
        self.breaks_for = IMAGES
        self.ranges = True
        self.gate: threading.Event | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        name, wanted = self.path[1:], self.headers["Range"]
        self.server.asked.append((name, wanted))
        if name not in self.server.files:
            self.send_error(404)
            return
        body, start = self.server.files[name], 0
        if wanted and self.server.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
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
        self.wfile.write(rest)
        self.wfile.flush()
        if self.server.gate:
            self.server.gate.wait()
        self.server.sent[name] = self.server.sent.get(name, 0) + len(rest)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def cache(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; "mnist" is the set that the server has."""
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(data.SOURCES, "mnist", source_of("mnist", PARTS, FILES, server.address))
    return tmp_path / "mnist"


def asked_for(server: Server, name: str = IMAGES) -> list[str | None]:
    return [wanted for file, wanted in server.asked if file == name]


def assert_fetched(cache: Path) -> None:
    """Check that the set can be read, and that the cache holds it and nothing unfinished."""
    assert data.is_cached("mnist")
    got = data.load("mnist")
    assert got.y_train.tolist() == PARTS["train"][1].tolist()
    names = {path.name for path in cache.iterdir()} - {".lock"}
    assert names == {*FILES, *(name.removesuffix(".gz") for name in FILES), "unpacked.json"}


def test_a_set_is_fetched_once_and_kept(cache: Path, server: Server) -> None:
    assert not data.is_cached("mnist")
    assert data.fetch("mnist") == cache
    assert sorted(server.asked) == sorted((name, None) for name in FILES)
    assert_fetched(cache)
    data.fetch("mnist")
    assert len(server.asked) == len(FILES)


def test_a_broken_download_goes_on_where_it_ended(cache: Path, server: Server) -> None:
    size = len(FILES[IMAGES])
    server.breaks = [size // 2, size // 4]
    data.fetch("mnist")
    assert_fetched(cache)
    assert asked_for(server) == [None, f"bytes={size // 2}-", f"bytes={size // 2 + size // 4}-"]
    assert server.sent[IMAGES] == size  # not a byte twice


def test_a_server_that_breaks_at_once_is_given_up_and_what_came_before_is_kept(
    cache: Path, server: Server
) -> None:
    size = len(FILES[IMAGES])
    server.breaks = [size // 2, 0]
    with pytest.raises(FetchError):
        data.fetch("mnist")
    assert (cache / f"{IMAGES}.part").stat().st_size == size // 2
    assert not data.is_cached("mnist")
    data.fetch("mnist")
    assert asked_for(server)[-1] == f"bytes={size // 2}-"
    assert_fetched(cache)


def test_the_next_mirror_goes_on_where_the_first_ended(
    cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(FILES[IMAGES])
    server.breaks = [size // 3, 0]
    twice = source_of("mnist", PARTS, FILES, server.address, server.address)
    monkeypatch.setitem(data.SOURCES, "mnist", twice)
    data.fetch("mnist")
    assert asked_for(server) == [None, f"bytes={size // 3}-", f"bytes={size // 3}-"]
    assert_fetched(cache)


def test_a_server_without_ranges_sends_all_of_it_again(cache: Path, server: Server) -> None:
    server.ranges = False
    server.breaks = [len(FILES[IMAGES]) // 2]
    data.fetch("mnist")
    assert_fetched(cache)
    assert len(asked_for(server)) == 2


@pytest.mark.parametrize("beginning", ["complete", "too long", "damaged"])
def test_whatever_an_earlier_go_left_the_file_is_the_original(
    beginning: str, cache: Path, server: Server
) -> None:
    whole = FILES[IMAGES]
    left = {"complete": whole, "too long": whole + b"x", "damaged": b"?" + whole[1:100]}[beginning]
    put(cache, {f"{IMAGES}.part": left})
    data.fetch("mnist")
    assert_fetched(cache)
    requests = {"complete": 1, "too long": 2, "damaged": 2}[beginning]
    assert len(asked_for(server)) == requests
    assert (
        server.sent.get(IMAGES, 0)
        == {
            "complete": 0,
            "too long": len(whole),
            "damaged": 2 * len(whole) - 100,
        }[beginning]
    )


def test_a_file_with_another_checksum_is_refused_and_not_kept(cache: Path, server: Server) -> None:
    server.files[IMAGES] = server.files[IMAGES][:-1] + b"?"
    with pytest.raises(FetchError) as error:
        data.fetch("mnist")
    digest = hashlib.sha256(server.files[IMAGES]).hexdigest()
    assert digest in str(error.value) and data.SOURCES["mnist"].files[IMAGES] in str(error.value)
    assert [path.name for path in cache.iterdir()] == [".lock"]
    assert len(asked_for(server)) == 1


def test_off_line_the_message_says_what_to_do(
    cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(data.SOURCES, "mnist", source_of("mnist", PARTS, FILES))
    for call in (data.load, data.fetch):
        with pytest.raises(FetchError) as error:
            call("mnist")
        said = str(error.value)
        assert "no connection" in said and 'load("digits", shape=(1, 28, 28))' in said
        assert str(cache) in said
        for name, known in data.SOURCES["mnist"].files.items():
            assert f"{name}  SHA-256 {known}" in said
    with pytest.raises(FetchError, match="labkit data fetch mnist"):
        data.stored("mnist")
    done = CliRunner().invoke(main, ["data", "fetch", "mnist"])
    assert done.exit_code == 1 and "Off line, take the embedded set" in done.output
    assert "Traceback" not in done.output

    put(cache, FILES)  # as the message says
    done = CliRunner().invoke(main, ["data", "fetch", "mnist"])
    assert done.exit_code == 0 and str(cache) in done.output
    assert_fetched(cache)
    assert server.asked == []


def test_a_damaged_file_put_there_by_hand_is_fetched_or_told_of(
    cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = FILES[IMAGES][:-5]
    put(cache, {**FILES, IMAGES: damaged})
    with monkeypatch.context() as off_line:
        off_line.setitem(data.SOURCES, "mnist", source_of("mnist", PARTS, FILES))
        with pytest.raises(FetchError) as error:
            data.fetch("mnist")
        assert f"the one in the cache has SHA-256 {hashlib.sha256(damaged).hexdigest()}" in str(error.value)
        assert (cache / IMAGES).read_bytes() == damaged
    data.fetch("mnist")
    assert server.asked == [(IMAGES, None)]
    assert_fetched(cache)


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "record"])
def test_unpacked_files_that_have_changed_are_unpacked_again(damage: str, cache: Path) -> None:
    data.fetch("mnist")
    file = cache / IMAGES.removesuffix(".gz")
    content = bytearray(file.read_bytes())
    content[5000] ^= 1
    if damage == "flip":
        file.write_bytes(content)
    elif damage == "cut":
        file.write_bytes(content[:-1])
    elif damage == "remove":
        file.unlink()
    else:
        (cache / "unpacked.json").write_text('{"from": []}')
    got = data.load("mnist")
    assert (got.x_train * 255).round().astype(int).sum() == PARTS["train"][0].astype(int).sum()
    assert json.loads((cache / "unpacked.json").read_text())["from"] == dict(data.SOURCES["mnist"].files)


FETCH = """
import sys
from labkit import data
from tests.made_sets import files_of, made, source_of

parts = made("mnist", 300, 20)
data.SOURCES["mnist"] = source_of("mnist", parts, files_of("mnist", parts), sys.argv[1])
print("ready", flush=True)
data.fetch("mnist")
assert data.load("mnist").y_train.tolist() == parts["train"][1].tolist()
print("done", flush=True)
"""


def process(server: Server) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, server.address],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_processes_that_fetch_at_once_download_once(cache: Path, server: Server) -> None:
    server.gate = threading.Event()  # the first download lasts until all processes have come
    jobs = [process(server) for _ in range(3)]
    said = [job.stdout.readline() for job in jobs if job.stdout]
    assert said == ["ready\n"] * 3
    waiting = 0
    # Two of the three say that they wait; then the server lets the download end.
    threads = []
    heard = threading.Semaphore(0)
    outputs: list[list[str]] = [[], [], []]

    def listen(k: int) -> None:
        for line in jobs[k].stdout or ():
            outputs[k].append(line)
            if "waiting for it" in line:
                heard.release()

    for k in range(3):
        threads.append(threading.Thread(target=listen, args=(k,)))
        threads[-1].start()
    try:
        while waiting < 2 and heard.acquire(timeout=60):
            waiting += 1
        assert waiting == 2, outputs
    finally:
        server.gate.set()
        for job in jobs:
            job.wait(timeout=60)
        for thread in threads:
            thread.join()
    assert [job.returncode for job in jobs] == [0, 0, 0], outputs
    assert sorted(server.asked) == sorted((name, None) for name in FILES)
    assert_fetched(cache)


def test_a_process_killed_half_way_leaves_nothing_that_could_be_read_and_the_next_goes_on(
    cache: Path, server: Server
) -> None:
    server.gate = threading.Event()
    size = len(FILES[IMAGES])
    server.breaks = [size // 2]
    job = process(server)
    part = cache / f"{IMAGES}.part"
    while job.poll() is None and not (part.exists() and part.stat().st_size):
        pass
    job.kill()
    job.wait()
    if job.stdout:
        job.stdout.close()
    server.gate.set()
    left = part.stat().st_size
    assert 0 < left <= size // 2
    assert not data.is_cached("mnist") and not (cache / IMAGES).exists()
    server.breaks = []
    data.fetch("mnist")
    assert asked_for(server)[-1] == f"bytes={left}-"
    assert_fetched(cache)


def test_a_cache_that_may_only_be_read_serves(cache: Path, server: Server) -> None:
    data.fetch("mnist")
    before = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    (cache / ".lock").unlink()  # root may write everywhere: so see that nothing is written
    before.pop(cache / ".lock")
    data.load("mnist")
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == before


def test_the_list_says_what_is_here(cache: Path) -> None:
    said = CliRunner().invoke(main, ["data", "list"]).output
    assert [line.split()[0] for line in said.splitlines()[:4]] == list(data.DATASETS)
    assert "mnist    not here yet" in said and str(cache.parent) in said
    data.fetch("mnist")
    assert "mnist    in the cache" in CliRunner().invoke(main, ["data", "list"]).output


def test_a_cache_that_cannot_be_made_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path / "file"))
    done = CliRunner().invoke(main, ["data", "fetch", "mnist"])
    assert done.exit_code == 1 and "cannot write to the cache" in done.output, done.output
    assert server.asked == []
