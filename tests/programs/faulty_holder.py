"""The process that holds hosts, with a fault in one of its steps: see faulty.py."""

from __future__ import annotations

import sys

from labkit.hosts import holder
from tests.programs import faulty

if __name__ == "__main__":
    faulty.inject("holder")
    holder.main(int(sys.argv[1]), [int(bandwidth) for bandwidth in sys.argv[2:]])
