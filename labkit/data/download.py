"""Downloading a file in as many goes as it takes.

pooch checks and keeps files, but begins a broken download again from nothing. Here what has come stays beside
the file to be, and the next go asks for the rest: a range request, RFC 9110, section 14.
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
PATIENCE_S = (10, 30)  # to be connected; for the next bytes
PARTIAL, UNSATISFIABLE = 206, 416


class Resuming:
    """A downloader for pooch that goes on where the last one ended, in this process or an earlier one.

    `part` keeps what has come so far; `alive` is called with each block. A broken connection is made anew for
    as long as each brings something; one that brings nothing is an error.
    """

    def __init__(self, part: Path, alive: Callable[[], None]) -> None:
        self.part, self.alive = part, alive

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        """Download `url` to `output_file`, whole. A requests.RequestException if that cannot be."""
        with tqdm(desc=Path(url).name, unit="B", unit_scale=True, delay=0.5) as bar:
            atomic_write = False
            while not atomic_write:
                before, broke = self._have(), "it ended too early"
                try:
                    atomic_write = self._go_on(url, before, bar)
                except (requests.Timeout, HTTPError) as error:
                    broke = f"{error}"
                except requests.HTTPError:
                    raise  # the server's answer, and it would be the same again
                except requests.ConnectionError:
                    broke = "no connection"
                if not atomic_write and self._have() <= before:
                    raise requests.ConnectionError(broke)
        os.replace(self.part, output_file)

    def _have(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _go_on(self, url: str, have: int, bar: tqdm) -> bool:
        """Append what is missing, by one request; return whether all is there then."""
        # As stored: a server may otherwise pack what it sends, and ranges would count packed bytes.
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
        with requests.get(url, headers=headers, stream=True, timeout=PATIENCE_S) as answer:
            if answer.status_code == UNSATISFIABLE:
                if re.fullmatch(rf"bytes \*/{have}", answer.headers.get("Content-Range", "")):
                    return True  # the last go ended just after the last byte
                self.part.unlink()  # longer than the file itself: not a beginning of it
                return self._go_on(url, 0, bar)
            answer.raise_for_status()
            offset = 0
            if answer.status_code == PARTIAL:
                said = answer.headers.get("Content-Range", "")
                if not re.match(rf"bytes {have}-\d+/", said):
                    raise requests.HTTPError(f"asked for bytes from {have} on, got {said!r} from {url}")
                offset = have
            length = answer.headers.get("Content-Length")
            total = offset + int(length) if length is not None else None
            bar.total, bar.n = total, offset
            with self.part.open("ab" if offset else "wb") as file:
                for block in answer.raw.stream(BLOCK, decode_content=False):
                    file.write(block)
                    bar.update(len(block))
                    self.alive()
        return total is None or self._have() == total
