"""Download a file, resuming as often as necessary.

The received bytes stay in a .part file, and the next attempt, of this process or a later one, requests the
rest: a range request, RFC 9110, section 14. Imported only for a download: requests takes time and memory.
"""

from __future__ import annotations

import re
from pathlib import Path

import requests
from tqdm.auto import tqdm
from urllib3.exceptions import HTTPError

BLOCK = 1 << 16
TIMEOUTS_S = (10, 30)  # for the connection; for the next bytes
LEAST_BYTES = 1 << 14  # that a connection has to deliver: otherwise a download could take days
PARTIAL, UNSATISFIABLE = 206, 416


def download(url: str, part: Path) -> None:
    """Download `url` completely to the file `part`, which may hold the first bytes already.

    Reconnect after each connection that has delivered at least LEAST_BYTES. Raise requests.RequestException
    if one has delivered less; `part` is kept for the next attempt.
    """
    with tqdm(desc=Path(url).name, unit="B", unit_scale=True, delay=0.5) as bar:
        complete = False
        while not complete:
            before, reason = _size(part), "the connection ended too early"
            try:
                complete = _resume(url, part, bar)
            except (requests.Timeout, HTTPError) as error:
                reason = f"{error}"
            except requests.HTTPError:
                raise  # the server refused; it would refuse again
            except requests.ConnectionError:
                reason = "no connection"
            arrived = _size(part) - before
            if not complete and arrived < LEAST_BYTES:
                raise requests.ConnectionError(f"{reason}, after {max(0, arrived)} bytes")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _resume(url: str, part: Path, bar: tqdm) -> bool:
    """Request the rest of the file and append it; return whether the file is then complete."""
    received = _size(part)
    # "identity", since ranges would count packed bytes if the server compressed its response.
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={received}-"} if received else {})}
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUTS_S) as response:
        content_range = response.headers.get("Content-Range", "")
        if response.status_code == UNSATISFIABLE:
            if content_range == f"bytes */{received}":
                return True  # the previous attempt received everything
            part.unlink()  # longer than the file itself, so not a part of it
            return _resume(url, part, bar)
        response.raise_for_status()
        if response.status_code != PARTIAL:
            received = 0  # the server sends the whole file again
        elif not re.match(rf"bytes {received}-\d+/", content_range):
            raise requests.HTTPError(f"requested bytes from {received} on, got {content_range!r} from {url}")
        length = response.headers.get("Content-Length")
        bar.total, bar.n = received + int(length) if length is not None else None, received
        with part.open("ab" if received else "wb") as file:
            # read1 (urllib3 2) does not wait until a whole block has arrived.
            read = getattr(response.raw, "read1", response.raw.read)
            while block := read(BLOCK, decode_content=False):
                file.write(block)
                bar.update(len(block))
    return bar.total is None or _size(part) == bar.total
