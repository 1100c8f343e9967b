"""Download a file, resuming as often as necessary.

The received bytes stay in a .part file, and the next attempt, of this process or a later one, requests the
rest: a range request, RFC 9110, section 14. Imported only for a download: requests takes time and memory.
"""

from __future__ import annotations

import re
from pathlib import Path
from time import monotonic

import requests
from tqdm.auto import tqdm
from urllib3.exceptions import HTTPError

BLOCK = 1 << 16
TIMEOUTS_S = (10, 30)  # for the connection; for the next bytes
# With a server that sends less, in WITHIN_S or in each of CONNECTIONS in a row, a download would take days.
LEAST_BYTES, WITHIN_S, CONNECTIONS = 1 << 16, 60.0, 5
PARTIAL, UNSATISFIABLE = 206, 416


def download(url: str, part: Path) -> None:
    """Download `url` completely to the file `part`, which may hold the first bytes already.

    Reconnect as long as the connections deliver something. Raise requests.RequestException if a connection
    delivers nothing, CONNECTIONS in a row deliver fewer than LEAST_BYTES each, or one delivers fewer in
    WITHIN_S; `part` is kept for the next attempt.
    """
    with tqdm(desc=Path(url).name, unit="B", unit_scale=True, delay=0.5) as bar:
        complete, few = False, 0
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
            few = few + 1 if arrived < LEAST_BYTES else 0
            if not complete and arrived <= 0:
                raise requests.ConnectionError(reason)
            if not complete and few == CONNECTIONS:
                raise requests.RequestException(
                    f"{few} connections in a row ended too early, the last one after {arrived} bytes"
                )


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
        arrived, since = 0, monotonic()
        with part.open("ab" if received else "wb") as file:
            # read1 (urllib3 2) does not wait until a whole block has arrived.
            read = getattr(response.raw, "read1", response.raw.read)
            while block := read(BLOCK, decode_content=False):
                file.write(block)
                bar.update(len(block))
                arrived += len(block)
                if arrived >= LEAST_BYTES:
                    arrived, since = 0, monotonic()
                elif monotonic() - since > WITHIN_S:
                    raise requests.RequestException(
                        f"only {arrived} bytes came in {WITHIN_S:g} s; the partial file is kept for next time"
                    )
    return bar.total is None or _size(part) == bar.total
