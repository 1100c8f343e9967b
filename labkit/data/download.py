"""Download a file, resuming as often as necessary.

pooch checks and stores files, but restarts an interrupted download from the beginning. Here the received
bytes stay in a .part file, and the next attempt requests the rest: a range request, RFC 9110, section 14.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import requests
from tqdm.auto import tqdm
from urllib3.exceptions import HTTPError

BLOCK = 1 << 16
TIMEOUTS_S = (10, 30)  # for the connection; for the next bytes
# With a server that sends less, in WITHIN_S or in each of CONNECTIONS in a row, a download would take days.
LEAST_BYTES, WITHIN_S, CONNECTIONS = 1 << 16, 60.0, 5
PARTIAL, UNSATISFIABLE = 206, 416


class ResumingDownloader:
    """A downloader for pooch that resumes interrupted downloads, of this process or an earlier one.

    The file `part` holds the bytes received so far. Call `heartbeat` with each block. Reconnect as long as
    the connections deliver something: a connection without any bytes is an error, and so are CONNECTIONS in a
    row with fewer than LEAST_BYTES each, or fewer than LEAST_BYTES in WITHIN_S.
    """

    def __init__(self, part: Path, heartbeat: Callable[[], None]) -> None:
        self.part, self.heartbeat = part, heartbeat
        self._arrived, self._since = 0, monotonic()

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        """Download `url` completely to `output_file`; raise requests.RequestException if that fails."""
        with tqdm(desc=Path(url).name, unit="B", unit_scale=True, delay=0.5) as bar:
            complete, few = False, 0
            while not complete:
                before, reason = self._received(), "the connection ended too early"
                try:
                    complete = self._resume(url, before, bar)
                except (requests.Timeout, HTTPError) as error:
                    reason = f"{error}"
                except requests.HTTPError:
                    raise  # the server refused; it would refuse again
                except requests.ConnectionError:
                    reason = "no connection"
                arrived = self._received() - before
                few = few + 1 if arrived < LEAST_BYTES else 0
                if not complete and arrived <= 0:
                    raise requests.ConnectionError(reason)
                if not complete and few == CONNECTIONS:
                    raise requests.RequestException(
                        f"{few} connections in a row ended too early, the last one after {arrived} bytes"
                    )
        os.replace(self.part, output_file)

    def _received(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _check_pace(self, arrived: int) -> None:
        """Raise requests.RequestException if the server sends too slowly."""
        self._arrived += arrived
        if self._arrived >= LEAST_BYTES:
            self._arrived, self._since = 0, monotonic()
        elif monotonic() - self._since > WITHIN_S:
            raise requests.RequestException(
                f"only {self._arrived} bytes came in {WITHIN_S:g} s; the partial file is kept for next time"
            )

    def _resume(self, url: str, received: int, bar: tqdm) -> bool:
        """Request the rest of the file and append it; return whether the file is then complete."""
        # "identity", since ranges would count packed bytes if the server compressed its response.
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={received}-"} if received else {})}
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUTS_S) as response:
            if response.status_code == UNSATISFIABLE:
                if re.fullmatch(rf"bytes \*/{received}", response.headers.get("Content-Range", "")):
                    return True  # the previous attempt received everything
                self.part.unlink()  # longer than the file itself, so not a part of it
                return self._resume(url, 0, bar)
            response.raise_for_status()
            offset = 0
            if response.status_code == PARTIAL:
                content_range = response.headers.get("Content-Range", "")
                if not re.match(rf"bytes {received}-\d+/", content_range):
                    raise requests.HTTPError(
                        f"requested bytes from {received} on, got {content_range!r} from {url}"
                    )
                offset = received
            length = response.headers.get("Content-Length")
            total = offset + int(length) if length is not None else None
            bar.total, bar.n = total, offset
            with self.part.open("ab" if offset else "wb") as file:
                # read1 (urllib3 2) does not wait until a whole block has arrived.
                read = getattr(response.raw, "read1", response.raw.read)
                while block := read(BLOCK, decode_content=False):
                    file.write(block)
                    bar.update(len(block))
                    self.heartbeat()
                    self._check_pace(len(block))
        return total is None or self._received() == total
