"""What `labkit lab` keeps for an open tab: who can read it, and when it is made anew."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from labkit.cli import server_secrets
from labkit.cli.server_secrets import ServerSecrets, folder_of


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(server_secrets, "FREE_S", 0.3)
    return tmp_path / "home"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder that is served."""
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def port() -> int:
    """Return a port that is free."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


@pytest.fixture
def listener(port: int) -> Iterator[Callable[[], None]]:
    """Return a function that lets another program listen on the port."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def listen() -> None:
            other.bind(("127.0.0.1", port))
            other.listen()

        yield listen


def serve(root: Path, port: int) -> str:
    """Do what `labkit lab` does from its start to its end; return the token."""
    used = ServerSecrets(root)
    used.keep(port)
    used.close()
    return used.token


def cookie_secret(root: Path) -> bytes:
    return (folder_of(root) / "cookie_secret").read_bytes()


def assert_new(root: Path, token: str, secret: bytes) -> None:
    """Check that a server of a folder gets new secrets, which only this user can read, and keeps them."""
    used = ServerSecrets(root)
    try:
        assert not used.are_old and used.token != token
        used.keep(used.port)
        assert used.cookie_secret_file == folder_of(root) / "cookie_secret"
        assert cookie_secret(root) != secret and len(cookie_secret(root)) >= 32
        for path in folder_of(root), used.cookie_secret_file, folder_of(root) / "server.json":
            assert path.stat().st_mode & 0o077 == 0, path
    finally:
        used.close()
    again = ServerSecrets(root)
    again.close()
    assert again.are_old and again.token == used.token


def test_the_next_server_of_a_folder_has_the_same_secrets(root: Path, port: int) -> None:
    token = serve(root, port)
    secret = cookie_secret(root)
    again = ServerSecrets(root)
    again.close()
    assert (again.token, again.port, again.are_old) == (token, port, True)
    assert cookie_secret(root) == secret


def test_a_second_server_of_a_folder_has_secrets_of_its_own_and_changes_nothing(
    root: Path, port: int
) -> None:
    token = serve(root, port)
    first = ServerSecrets(root)
    secret = cookie_secret(root)
    second = ServerSecrets(root)
    assert second.token != first.token == token
    assert second.cookie_secret_file is None and not second.are_old
    second.keep(port + 1)
    second.close()
    first.close()
    again = ServerSecrets(root)
    again.close()
    assert (again.token, again.port, cookie_secret(root)) == (token, port, secret)


def test_servers_of_two_folders_do_not_fight_over_a_port(root: Path, tmp_path: Path) -> None:
    folders = [root, tmp_path / "other"]
    folders[1].mkdir()
    # Neither runs while the other starts for the first time.
    secrets = []
    for folder in folders:
        used = ServerSecrets(folder)
        used.keep(used.port)
        used.close()
        secrets.append((used.token, used.port))
    assert len({port for _, port in secrets}) == 2
    running = [ServerSecrets(folder) for folder in folders]
    for used in running:
        used.close()
    assert [(used.token, used.port) for used in running] == secrets


def test_a_folder_that_is_gone_keeps_neither_port_nor_token(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    first = ServerSecrets(other)
    serve(other, first.port)
    first.keep(first.port)
    first.close()
    other.rmdir()
    used = ServerSecrets(root)
    used.close()
    assert used.port == first.port
    assert not folder_of(other).exists()


def test_if_another_program_has_the_port_all_secrets_are_new(
    root: Path, port: int, listener: Callable[[], None]
) -> None:
    token = serve(root, port)
    secret = cookie_secret(root)
    listener()
    assert_new(root, token, secret)


def test_a_server_that_is_still_ending_is_waited_for(
    root: Path, port: int, listener: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after SIGKILL of `labkit lab`: its JupyterLab ends a moment later."""
    token = serve(root, port)
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            ending.close()

    monkeypatch.setattr(server_secrets, "FREE_S", 60.0)
    monkeypatch.setattr(server_secrets.time, "sleep", sleep)
    with socket.socket() as ending:
        ending.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ending.bind(("127.0.0.1", port))
        ending.listen()
        used = ServerSecrets(root)
    used.close()
    assert used.token == token and len(looks) == 2


DAMAGE = {
    "nothing in it": b"",
    "half written": b'{"token": "0123',
    "not text": b"\xff\xfe\x00",
    "another type": b"[1, 2]",
    "no number": b'{"token": "%s", "port": "ssh"}' % (b"0" * 48),
    "too large a number": b'{"token": "%s", "port": 1e999}' % (b"0" * 48),
    "a port of the system": b'{"token": "%s", "port": 22}' % (b"0" * 48),
    "a short token": b'{"token": "0", "port": 8888}',
    "nested deeply": b"[" * 4000,
}


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_record_is_made_anew(root: Path, port: int, content: bytes) -> None:
    token, secret = serve(root, port), cookie_secret(root)
    (folder_of(root) / "server.json").write_bytes(content)
    assert_new(root, token, secret)


@pytest.mark.parametrize("content", [b"", b"short"])
def test_a_cookie_secret_that_is_not_whole_is_made_anew(root: Path, port: int, content: bytes) -> None:
    """With an empty one, everybody could make a cookie that the server accepts."""
    token = serve(root, port)
    (folder_of(root) / "cookie_secret").write_bytes(content)
    assert_new(root, token, content)


@pytest.mark.parametrize("name", ["server.json", "cookie_secret"])
@pytest.mark.parametrize("mode", [0o644, 0o660, 0o602])
def test_a_file_that_others_can_open_is_made_anew(root: Path, port: int, name: str, mode: int) -> None:
    token, secret = serve(root, port), cookie_secret(root)
    (folder_of(root) / name).chmod(mode)
    assert_new(root, token, secret)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["server.json", "cookie_secret"])
def test_a_file_of_another_user_is_made_anew(root: Path, port: int, name: str) -> None:
    token, secret = serve(root, port), cookie_secret(root)
    os.chown(folder_of(root) / name, 12345, 12345)
    assert_new(root, token, secret)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_folder_of_another_user_is_not_used(root: Path, port: int) -> None:
    token = serve(root, port)
    os.chown(folder_of(root), 12345, 12345)
    before = {path: path.read_bytes() for path in folder_of(root).iterdir()}
    used = ServerSecrets(root)
    used.keep(port)
    used.close()
    assert used.token != token and used.cookie_secret_file is None
    assert {path: path.read_bytes() for path in folder_of(root).iterdir()} == before


@pytest.mark.parametrize("name", ["server.json", "cookie_secret"])
def test_a_link_or_a_named_pipe_is_replaced_and_not_read(
    root: Path, port: int, tmp_path: Path, name: str
) -> None:
    token, secret = serve(root, port), cookie_secret(root)
    elsewhere = tmp_path / "elsewhere"
    shutil.copy2(folder_of(root) / name, elsewhere)
    content = elsewhere.read_bytes()
    (folder_of(root) / name).unlink()
    (folder_of(root) / name).symlink_to(elsewhere)
    assert_new(root, token, secret)
    assert elsewhere.read_bytes() == content
    (folder_of(root) / name).unlink()
    os.mkfifo(folder_of(root) / name, 0o600)
    assert_new(root, token, secret)


def test_without_a_home_folder_the_lab_starts_with_new_secrets(home: Path, root: Path, port: int) -> None:
    home.write_text("a file, no folder")
    used = ServerSecrets(root)
    used.keep(port)
    used.close()
    assert len(used.token) == 48 and used.cookie_secret_file is None and not used.are_old


def test_the_record_says_what_is_kept(root: Path, port: int) -> None:
    token = serve(root, port)
    record = json.loads((folder_of(root) / "server.json").read_text())
    assert record == {"root": str(root), "token": token, "port": port}
