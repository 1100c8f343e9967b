"""Fetch data sets from a server on this machine that fails in the ways real servers do."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from labkit import data
from labkit.cli import main
from labkit.data import FetchError
from labkit.data.fetching import Block
from tests.cluster_fixtures import wait_until
from tests.made_sets import archive_files, random_samples, source_for, write_files

SAMPLES = random_samples("mnist", 300, 20)
FILES = archive_files("mnist", SAMPLES)
IMAGES = "train-images-idx3-ubyte.gz"
WHOLE = FILES[IMAGES]
SIZE = len(WHOLE)
HALF = SIZE // 2


class Server(ThreadingHTTPServer):
    """Serve `files`; `requests` holds the file of every request, `sent` the bytes of bodies by file.

    The k-th response with the file IMAGES ends after breaks[k] bytes of its body. With a `gate`, the last
    byte of a response is sent when the gate is open.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = dict(FILES)
        self.requests: list[str] = []
        self.sent: dict[str, int] = {}
        self.breaks: list[int] = []
        self.gate: threading.Event | None = None
        self.address = f"http://127.0.0.1:{self.server_port}/"

    def requests_of_images(self) -> int:
        return self.requests.count(IMAGES)


class Handler(BaseHTTPRequestHandler):
    """Handle one request."""

    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        name = self.path[1:]
        self.server.requests.append(name)
        body = self.server.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if name == IMAGES and self.server.breaks:
            body = body[: self.server.breaks.pop(0)]
            self.close_connection = True
        self.server.sent[name] = self.server.sent.get(name, 0) + len(body)  # before the client has it
        with suppress(OSError):  # the client has given up
            if self.server.gate:
                self.wfile.write(body[:-1])
                self.server.gate.wait()
                body = body[-1:]
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(name="server")
def _server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
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
    monkeypatch.setitem(data.SOURCES, "mnist", source_for("mnist", FILES, server.address))
    return tmp_path / "mnist"


def assert_fetched(cache: Path) -> None:
    """Check that the data set can be read, and that the cache holds its files and no others."""
    assert data.is_cached("mnist")
    loaded = data.load("mnist")
    assert loaded.y_train.tolist() == SAMPLES["train"][1].tolist()
    assert (loaded.x_train * 255).round().astype(int).sum() == SAMPLES["train"][0].astype(int).sum()
    names = {path.name for path in cache.iterdir()}
    unpacked = {f"{split}.{what}" for split in SAMPLES for what in ("images", "labels")}
    assert names == {*FILES, *unpacked, "splits.json"}


def labkit_data(*words: str, status: int = 0) -> str:
    result = CliRunner().invoke(main, ["data", *words])
    assert result.exit_code == status and "Traceback" not in result.output, result.output
    return result.output


def test_a_data_set_is_downloaded_once_and_then_only_read(cache: Path, server: Server) -> None:
    listed = labkit_data("list")
    assert [line.split()[0] for line in listed.splitlines()[:5]] == list(data.DATASETS)
    assert "mnist    not cached" in listed and str(cache.parent) in listed
    assert data.fetch("mnist") == cache
    assert sorted(server.requests) == sorted(FILES)
    # Root may write everywhere, so check that nothing is written.
    before = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    data.fetch("mnist")
    assert_fetched(cache)
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == before
    assert "mnist    in the cache" in labkit_data("list")
    assert len(server.requests) == len(FILES)


def test_after_a_broken_download_the_next_address_is_asked_for_the_whole_file(
    cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.breaks = [HALF]
    twice = source_for("mnist", FILES, server.address, server.address)
    monkeypatch.setitem(data.SOURCES, "mnist", twice)
    data.fetch("mnist")
    assert_fetched(cache)
    assert server.requests_of_images() == 2
    assert server.sent[IMAGES] == HALF + SIZE


def test_a_broken_download_leaves_nothing_and_the_next_begins_anew(cache: Path, server: Server) -> None:
    server.breaks = [HALF]
    with pytest.raises(FetchError, match=f"{IMAGES} cannot be downloaded:\n.*ended too early"):
        data.fetch("mnist")
    assert not (cache / IMAGES).exists() and not data.is_cached("mnist")
    killed = cache / ".unfinished"  # what a killed process leaves
    killed.mkdir()
    (killed / "tmp1").write_bytes(WHOLE[:HALF])
    data.fetch("mnist")
    assert_fetched(cache)


def test_a_file_with_a_wrong_checksum_is_refused_and_removed(cache: Path, server: Server) -> None:
    server.files[IMAGES] = WHOLE[:-1] + b"?"
    with pytest.raises(FetchError) as error:
        data.fetch("mnist")
    digest = hashlib.sha256(server.files[IMAGES]).hexdigest()
    assert digest in str(error.value) and data.SOURCES["mnist"].files[IMAGES] in str(error.value)
    assert list(cache.iterdir()) == []
    assert server.requests_of_images() == 1


def test_without_a_connection_the_message_says_what_to_do(
    cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(data.SOURCES, "mnist", source_for("mnist", FILES))
    for call in (data.load, data.fetch):
        with pytest.raises(FetchError) as error:
            call("mnist")
        message = str(error.value)
        assert "no connection" in message and 'load("digits", shape=(1, 28, 28))' in message
        assert str(cache) in message
        for name, known in data.SOURCES["mnist"].files.items():
            assert f"{name}  SHA-256 {known}" in message
    with pytest.raises(FetchError, match="labkit data fetch mnist"):
        data.open_dataset("mnist")
    assert "Offline, use the embedded data set" in labkit_data("fetch", "mnist", status=1)

    write_files(cache, FILES)  # as the message says
    assert str(cache) in labkit_data("fetch", "mnist")
    assert_fetched(cache)
    assert server.requests == []


def test_a_damaged_file_in_the_cache_is_downloaded_again_or_reported(
    cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = WHOLE[:-5]
    write_files(cache, {**FILES, IMAGES: damaged})
    with monkeypatch.context() as offline:
        offline.setitem(data.SOURCES, "mnist", source_for("mnist", FILES))
        with pytest.raises(FetchError) as error:
            data.fetch("mnist")
        assert f"the file in the cache has SHA-256 {hashlib.sha256(damaged).hexdigest()}" in str(error.value)
        assert (cache / IMAGES).read_bytes() == damaged
    data.fetch("mnist")
    assert server.requests == [IMAGES]
    assert_fetched(cache)


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "record"])
def test_changed_unpacked_files_are_unpacked_again(damage: str, cache: Path) -> None:
    data.fetch("mnist")
    file, record = cache / "train.images", cache / "splits.json"
    content = bytearray(file.read_bytes())
    content[5000] ^= 1
    if damage == "remove":
        file.unlink()
    elif damage == "record":
        record.write_text('{"from": []}')
    else:
        file.write_bytes(content if damage == "flip" else content[:-1])
    data.fetch("mnist")
    assert_fetched(cache)
    assert json.loads(record.read_text())["from"] == dict(data.SOURCES["mnist"].files)


def test_an_impossible_cache_folder_is_reported(
    cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.touch()
    monkeypatch.setenv("LABKIT_DATA", str(cache))
    assert "cannot write to the cache" in labkit_data("fetch", "mnist", status=1)
    assert server.requests == []


def test_concurrent_fetches_download_once(
    cache: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.gate = threading.Event()  # holds the first download until the two others wait
    said: list[str] = []

    def two_wait() -> bool:
        said.append(capsys.readouterr().err)
        return "".join(said).count("is fetching mnist; waiting for it") == 2

    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(data.fetch, "mnist") for _ in range(3)]
        try:
            wait_until(two_wait, "two fetches wait for the third one's download")
            assert not any(job.done() for job in jobs)
        finally:
            server.gate.set()
    assert [job.result() for job in jobs] == [cache] * 3
    assert sorted(server.requests) == sorted(FILES)
    assert_fetched(cache)


def test_a_full_disk_leaves_no_part_of_the_unpacked_files(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, split: str) -> Iterator[Block]:
        yield np.zeros((9, 784), np.uint8), np.zeros(9, np.uint8)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_files(cache / "mnist", FILES)
    monkeypatch.setitem(data.SOURCES, "mnist", replace(data.SOURCES["mnist"], blocks=full))
    with pytest.raises(OSError, match=r"No space left on device: .*train\."):
        data.fetch("mnist")
    assert {path.name for path in (cache / "mnist").iterdir()} == FILES.keys()
