"""Save a run repeatedly, killed at a later moment each time: python killed_saves.py DIRECTORY EVERY.

Moment k is the k-th call or return of a labkit function while saving. After each kill, every visible file
must be byte for byte the old one or the new one, and `prepare` must remove all other files.
"""

import os
import signal
import sys
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

from labkit.nn import Model, softmax_regression
from labkit.train import Epoch, Step, prepare
from labkit.train.run_record import save_measurements, save_weights

OLD, NEW = softmax_regression(3, 2, seed=1), softmax_regression(3, 2, seed=2)


def save(directory: Path, model: Model, epochs: list[Epoch], run: dict[str, Any]) -> None:
    """Save as a run does."""
    save_weights(directory, model)
    steps = [Step(1, 1, rank, done=1.0, loss=epochs[rank].local_loss) for rank in (0, 1)]
    save_measurements(directory, model, epochs, steps, {"ranks": 2, **run})


def rows(loss: float) -> list[Epoch]:
    """Return measurements of two ranks."""
    by_name = {"W": loss, "b": loss}
    measured = {"gradient_mean": by_name, "gradient_norm": by_name, "contribution": by_name}
    return [Epoch(1, r, loss, loss, loss, loss, **measured) for r in (0, 1)]


def contents(directory: Path) -> dict[str, bytes]:
    """Return the files that are not hidden."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if not path.name.startswith(".")}


def save_until_call(kill_at: int, directory: Path) -> None:
    """Save in this process, killed at moment `kill_at`; exit with status 0 if saving ends before."""
    calls = count(1)

    def at_call(frame: FrameType, event: str, argument: object) -> None:
        if "labkit" in Path(frame.f_code.co_filename).parts and next(calls) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(at_call)
    save(directory, NEW, rows(0.25), {"made": "again"})
    os._exit(0)


def main() -> None:
    """Kill a save at every EVERYth moment and check the files."""
    os.fsync = lambda file: None  # slow, and it matters to killed machines only
    top = Path(sys.argv[1])
    directory, reference = top / "run", top / "reference"
    with prepare(reference), prepare(directory):
        save(reference, NEW, rows(0.25), {"made": "again"})
        save(directory, OLD, rows(0.5), {})
    new = contents(reference)
    old = contents(directory)
    moments = seen_old = seen_new = leftovers = 0
    for kill_at in count(1, int(sys.argv[2])):
        for name, data in old.items():
            (directory / name).write_bytes(data)
        child = os.fork()
        if child == 0:
            save_until_call(kill_at, directory)
        _, status = os.waitpid(child, 0)
        found = contents(directory)
        leftovers += len(list(directory.iterdir())) - len(found)
        assert found.keys() == old.keys() == new.keys()
        for name, data in found.items():
            assert data in (old[name], new[name]), f"killed at moment {kill_at}: half a {name}: {data!r}"
            seen_old += data == old[name]
            seen_new += data == new[name]
        with prepare(directory):
            pass
        assert len(list(directory.iterdir())) == len(found), "a leftover is still there"
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0 and found == new
            break
        moments += 1
    assert moments > 20 and seen_old and seen_new and leftovers, (moments, seen_old, seen_new, leftovers)
    print(f"{moments} moments")


main()
