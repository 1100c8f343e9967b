"""Download a file, resuming as often as necessary.

pooch checks and stores files, but restarts an interrupted download from the beginning. Here the received
bytes stay in a .part file, and the next attempt requests the rest: a range request, RFC 9110, section 14.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
from tqdm.auto import tqdm
from urllib3.exceptions import HTTPError

BLOCK = 1 << 16
TIMEOUTS_S = (10, 30)  # for the connection; for the next bytes
PARTIAL, UNSATISFIABLE = 206, 416


class ResumingDownloader:
    """A downloader for pooch that resumes interrupted downloads, of this process or an earlier one.

    The file `part` holds the bytes received so far. Call `heartbeat` with each block. Reconnect as long as
    each connection delivers some bytes; a connection that delivers none is an error.
    """

    def __init__(self, part: Path, heartbeat: Callable[[], None]) -> None:
        self.part, self.heartbeat = part, heartbeat

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        """Download `url` completely to `output_file`; raise requests.RequestException if that fails."""
        with tqdm(desc=Path(url).name, unit="B", unit_scale=True, delay=0.5) as bar:
            complete = False
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
                if not complete and self._received() <= before:
                    raise requests.ConnectionError(reason)
        os.replace(self.part, output_file)

    def _received(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

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
                for block in response.raw.stream(BLOCK, decode_content=False):
                    file.write(block)
                    bar.update(len(block))
                    self.heartbeat()
        return total is None or self._received() == total
