"""Fetch data sets from a server on this machine that fails in the ways real servers do."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from labkit import data
from labkit.cli import main
from labkit.data import FetchError, download
from tests.data.conftest import FILES, IMAGES, SAMPLES, Server, assert_fetched, requested_ranges
from tests.made_sets import source_for, write_files


def test_a_data_set_is_downloaded_once(cache: Path, server: Server) -> None:
    assert not data.is_cached("mnist")
    assert data.fetch("mnist") == cache
    assert sorted(server.requests) == sorted((name, None) for name in FILES)
    assert_fetched(cache)
    data.fetch("mnist")
    assert len(server.requests) == len(FILES)


def test_an_interrupted_download_is_resumed(cache: Path, server: Server) -> None:
    size = len(FILES[IMAGES])
    server.breaks = [size // 2, size // 4]
    data.fetch("mnist")
    assert_fetched(cache)
    assert requested_ranges(server) == [None, f"bytes={size // 2}-", f"bytes={size // 2 + size // 4}-"]
    assert server.sent[IMAGES] == size  # no byte twice


def test_a_connection_without_progress_is_an_error_and_keeps_the_received_bytes(
    cache: Path, server: Server
) -> None:
    size = len(FILES[IMAGES])
    server.breaks = [size // 2, 0]
    with pytest.raises(FetchError):
        data.fetch("mnist")
    assert (cache / f"{IMAGES}.part").stat().st_size == size // 2
    assert not data.is_cached("mnist")
    data.fetch("mnist")
    assert requested_ranges(server)[-1] == f"bytes={size // 2}-"
    assert_fetched(cache)


def test_connections_that_all_end_after_a_byte_are_given_up(cache: Path, server: Server) -> None:
    server.breaks = [1] * 100
    with pytest.raises(
        FetchError, match="5 connections in a row ended too early, the last one after 1 bytes"
    ):
        data.fetch("mnist")
    assert len(requested_ranges(server)) == 5
    assert (cache / f"{IMAGES}.part").stat().st_size == 5
    server.breaks = []
    data.fetch("mnist")
    assert_fetched(cache)


def test_a_dripping_server_is_given_up(cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "WITHIN_S", 0.3)
    server.drips = True
    with pytest.raises(FetchError, match=r"only \d+ bytes came in 0.3 s"):
        data.fetch("mnist")
    assert (cache / f"{IMAGES}.part").stat().st_size > 0
    assert not data.is_cached("mnist")


def test_the_next_mirror_resumes_the_download(
    cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(FILES[IMAGES])
    server.breaks = [size // 3, 0]
    twice = source_for("mnist", SAMPLES, FILES, server.address, server.address)
    monkeypatch.setitem(data.SOURCES, "mnist", twice)
    data.fetch("mnist")
    assert requested_ranges(server) == [None, f"bytes={size // 3}-", f"bytes={size // 3}-"]
    assert_fetched(cache)


def test_a_server_without_ranges_sends_the_whole_file_again(cache: Path, server: Server) -> None:
    server.ranges = False
    server.breaks = [len(FILES[IMAGES]) // 2]
    data.fetch("mnist")
    assert_fetched(cache)
    assert len(requested_ranges(server)) == 2


@pytest.mark.parametrize("part", ["complete", "too long", "damaged"])
def test_any_part_file_of_an_earlier_attempt_leads_to_the_original(
    part: str, cache: Path, server: Server
) -> None:
    whole = FILES[IMAGES]
    left = {"complete": whole, "too long": whole + b"x", "damaged": b"?" + whole[1:100]}[part]
    write_files(cache, {f"{IMAGES}.part": left})
    data.fetch("mnist")
    assert_fetched(cache)
    expected = {"complete": 1, "too long": 2, "damaged": 2}[part]
    assert len(requested_ranges(server)) == expected
    assert (
        server.sent.get(IMAGES, 0)
        == {
            "complete": 0,
            "too long": len(whole),
            "damaged": 2 * len(whole) - 100,
        }[part]
    )


def test_a_file_with_a_wrong_checksum_is_refused_and_removed(cache: Path, server: Server) -> None:
    server.files[IMAGES] = server.files[IMAGES][:-1] + b"?"
    with pytest.raises(FetchError) as error:
        data.fetch("mnist")
    digest = hashlib.sha256(server.files[IMAGES]).hexdigest()
    assert digest in str(error.value) and data.SOURCES["mnist"].files[IMAGES] in str(error.value)
    assert [path.name for path in cache.iterdir()] == [".lock"]
    assert len(requested_ranges(server)) == 1


def test_without_a_connection_the_message_says_what_to_do(
    cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(data.SOURCES, "mnist", source_for("mnist", SAMPLES, FILES))
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
    result = CliRunner().invoke(main, ["data", "fetch", "mnist"])
    assert result.exit_code == 1 and "Offline, use the embedded data set" in result.output
    assert "Traceback" not in result.output

    write_files(cache, FILES)  # as the message says
    result = CliRunner().invoke(main, ["data", "fetch", "mnist"])
    assert result.exit_code == 0 and str(cache) in result.output
    assert_fetched(cache)
    assert server.requests == []


def test_a_damaged_file_in_the_cache_is_downloaded_again_or_reported(
    cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = FILES[IMAGES][:-5]
    write_files(cache, {**FILES, IMAGES: damaged})
    with monkeypatch.context() as offline:
        offline.setitem(data.SOURCES, "mnist", source_for("mnist", SAMPLES, FILES))
        with pytest.raises(FetchError) as error:
            data.fetch("mnist")
        assert f"the file in the cache has SHA-256 {hashlib.sha256(damaged).hexdigest()}" in str(error.value)
        assert (cache / IMAGES).read_bytes() == damaged
    data.fetch("mnist")
    assert server.requests == [(IMAGES, None)]
    assert_fetched(cache)


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "record"])
def test_changed_unpacked_files_are_unpacked_again(damage: str, cache: Path) -> None:
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
    loaded = data.load("mnist")
    assert (loaded.x_train * 255).round().astype(int).sum() == SAMPLES["train"][0].astype(int).sum()
    assert json.loads((cache / "unpacked.json").read_text())["from"] == dict(data.SOURCES["mnist"].files)


def test_a_read_only_cache_suffices(cache: Path, server: Server) -> None:
    data.fetch("mnist")
    before = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    (cache / ".lock").unlink()  # root may write everywhere, so check that nothing is written
    before.pop(cache / ".lock")
    data.load("mnist")
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == before


def test_labkit_data_list_shows_what_is_cached(cache: Path) -> None:
    output = CliRunner().invoke(main, ["data", "list"]).output
    assert [line.split()[0] for line in output.splitlines()[:4]] == list(data.DATASETS)
    assert "mnist    not cached" in output and str(cache.parent) in output
    data.fetch("mnist")
    assert "mnist    in the cache" in CliRunner().invoke(main, ["data", "list"]).output


def test_an_impossible_cache_folder_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path / "file"))
    result = CliRunner().invoke(main, ["data", "fetch", "mnist"])
    assert result.exit_code == 1 and "cannot write to the cache" in result.output, result.output
    assert server.requests == []
