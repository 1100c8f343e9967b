"""What counts as a package on top of mpiwatch is remembered, for speed, and corrected by `register`."""

from __future__ import annotations

import pytest

from mpiwatch import packages


def test_a_package_counts_as_soon_as_it_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "libraries", "wrappers":
        monkeypatch.setattr(packages, name, [*getattr(packages, name)])
    asked = packages.is_library, packages.is_wrapper
    try:
        assert not any(is_one("tower.top") for is_one in asked)
        packages.register("tower")
        assert packages.is_library("tower.top") and not packages.is_wrapper("tower.top")
        packages.register("tower", wraps=True)
        assert packages.is_wrapper("tower.top") and not packages.is_library("towers")
    finally:
        for is_one in asked:
            is_one.cache_clear()
