"""Rows and tables from the times of the cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labkit.bench.rows import Row, rows_of
from labkit.bench.training import cases
from labkit.bench.training.cases import Case, Time

Times = Mapping[Case, Time]


def setup_rows(model: str, times: Times, place: str) -> list[Row]:
    """Return rows of our set-ups against DDP and our all-reduce, of the parts, and of what overlap hides.

    A part is compared with the iteration, so its ratio is a fraction, and those of a set-up add up to 1.
    """
    found = []
    by_name = {case.setup: case for case in times}
    iteration = {name: 1e3 * times[case].iteration for name, case in by_name.items()}
    for name, case in by_name.items():
        where = f"{model}/{case.size}/{name}/{place}"
        against = (cases.TORCH_ALONE,) if case.p == 1 else (cases.DDP, cases.ALLREDUCE)
        if name not in cases.BY_PYTORCH:
            medians = {other: iteration[other] for other in (name, *against) if other in iteration}
            found += rows_of(where, medians, "ms")
        for part, time in parts(times, case).items():
            found += rows_of(f"{where}/{part}", {part: 1e3 * time, "iteration": iteration[name]}, "ms")
        if name in (cases.OVERLAP, cases.DDP):
            for hidden, whole in communication(times, name):
                medians = {"hidden": 1e3 * hidden, "communication": 1e3 * whole}
                found += rows_of(f"{where}/hidden", medians, "ms")
    return found


def parts(times: Times, case: Case) -> dict[str, float]:
    """Return the parts (s) of a case's iteration, by name.

    DDP communicates within the backward pass, so its exposed communication cannot be timed: it is what this
    pass takes longer than without communication (`no_sync`).
    """
    own = times[case].parts
    without = times.get(case._replace(setup=cases.DDP_NO_SYNC))
    if case.setup == cases.DDP and without:
        own["exposed"] += own["compute"] - without.compute
        own["compute"] = without.compute
    return own


def communication(times: Times, setup: str) -> list[tuple[float, float]]:
    """Return how much communication (s) an overlapping set-up hides, and how much there is, in one pair.

    Return no pair if a set-up to compare with was not measured, or if communication takes no time.
    """
    iteration = {case.setup: time.iteration for case, time in times.items()}
    if setup == cases.DDP:
        whole, nothing = cases.DDP_NO_OVERLAP, cases.DDP_NO_SYNC
    else:
        (whole,) = {cases.RING, cases.SHARED_MEMORY} & iteration.keys() or {""}
        nothing = cases.NO_AVERAGING
    if not {setup, whole, nothing} <= iteration.keys() or iteration[whole] <= iteration[nothing]:
        return []
    return [(iteration[whole] - iteration[setup], iteration[whole] - iteration[nothing])]


def scaling_rows(model: str, times: Times, place: str, kind: str) -> list[Row]:
    """Return rows of images per second against p times those of one rank: the ratio is the efficiency."""
    found = []
    for case in times:
        if case.p > 1:
            ideal = case.p * images_per_s(times, _alone(times, case))
            where = f"{model}/{kind}/{case.size}/{case.setup}/{place}"
            found += rows_of(where, {case.setup: images_per_s(times, case), "linear": ideal}, "images/s")
    return found


def images_per_s(times: Times, case: Case) -> float:
    """Return how many images all ranks together train on in a second."""
    return case.batch / times[case].iteration


def _alone(times: Times, case: Case) -> Case:
    """Return the case of one rank that this case's speed-up refers to, by the same library."""
    name = cases.TORCH_ALONE if case.setup in cases.BY_PYTORCH else cases.ALONE
    (found,) = (each for each in times if each.setup == name)
    return found


def setup_table(times: Times) -> str:
    """Return the set-ups with their times, images per second and parts, as text in aligned columns."""
    ddp = next((time.iteration for case, time in times.items() if case.setup == cases.DDP), None)
    lines = [
        f"{'set-up':14}  {'report C':8}  {'ranks':>6}  {'iteration':>9}  {'images/s':>8}  "
        f"{'compute':>7}  {'wait':>7}  {'exposed':>7}  {'rest':>6}{'  × DDP' if ddp else ''}"
    ]
    for case, time in times.items():
        ratio = f"{time.iteration / ddp:5.2f}" if ddp else ""
        compute, wait, exposed, rest = (1e3 * part for part in parts(times, case).values())
        lines.append(
            f"{case.setup:14}  {cases.IN_REPORT.get(case.setup, ''):8}  {case.size:>6}  "
            f"{1e3 * time.iteration:9.1f}  {images_per_s(times, case):8.1f}  "
            f"{compute:7.1f}  {wait:7.1f}  {exposed:7.1f}  {rest:6.1f}  {ratio}".rstrip()
        )
    lines.append("Times in ms: an iteration, and its parts. Exposed: communication that the backward pass")
    lines.append("does not hide. With overlap and DDP, waiting for the slowest rank is part of it.")
    for name, subject in ((cases.OVERLAP, "Overlap"), (cases.DDP, "PyTorch's DDP")):
        for hidden, whole in communication(times, name):
            if hidden > 0:
                part = f"{1e3 * hidden:.0f} of {1e3 * whole:.0f} ms of communication"
                lines.append(f"{subject} hides {part} ({100 * hidden / whole:.0f} %).")
            else:  # communication takes cores from the backward pass
                lines.append(
                    f"{subject} hides no communication: it makes the iteration {-1e3 * hidden:.0f} ms longer."
                )
    return "\n".join(lines)


def scaling_table(times: Times) -> str:
    """Return images per second, speed-up and efficiency by number of ranks, as text in aligned columns."""
    lines = [f"{'set-up':14}   ranks  iteration  images/s  speed-up  efficiency"]
    for case, time in times.items():
        rate = images_per_s(times, case)
        speed_up = rate / images_per_s(times, _alone(times, case))
        lines.append(
            f"{case.setup:14}  {case.size:>6}  {1e3 * time.iteration:9.1f}  {rate:8.1f}  {speed_up:8.2f}  "
            f"{speed_up / case.p:10.2f}"
        )
    lines.append("Times in ms. The speed-up compares images per second with one rank's, by the same library.")
    lines.append("The efficiency is speed-up / p.")
    return "\n".join(lines)


def core_limit(ranks: Sequence[int], cores: int) -> str:
    """Return a line that says which numbers of ranks have too few cores for a linear speed-up, or nothing."""
    limits = ", ".join(f"{cores / p:.2f} on {p} ranks" for p in ranks if p > cores)
    if not limits:
        return ""
    return (
        f"\nThe ranks share {cores} core{'s' if cores > 1 else ''}: the speed-up is at most {cores}, the "
        f"efficiency at most {limits}."
    )
