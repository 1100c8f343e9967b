"""All that the lab uses of ipyparallel beyond its documented interface, and all that it replaces there.

A new major version of ipyparallel changes this package and nothing else. tests/cluster/test_adapter.py checks
each part against the installed version; docs/upstream.md says which faults of ipyparallel are worked around.

- `files`: the names and contents of the files that describe a cluster; it needs the standard library alone
- `launchers`: clusters and how their controllers are started
- `controller`, `engine`: the programs that run in place of ipyparallel's
- `functions`: calls of functions (`apply`, `map`) on an engine
- `client`: a client, its results and its errors
- `magics`: `%%px` and its relatives
- `requests`: requests of a notebook that its kernel (ipykernel's) answers while a cell runs

It imports nothing of `labkit.cluster` but itself.
"""
