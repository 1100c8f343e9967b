"""A call that is given more than its array holds raises an error before MPI goes beyond it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from mpiwatch.communicators import CheckedWin, watch

D = MPI.DOUBLE
ROOTED = "Bcast", "Reduce", "Gather", "Gatherv", "Scatter", "Scatterv"
Call = Callable[[], object]


def array(n: int) -> np.ndarray:
    return np.zeros(n)


def wrong_messages(comm: MPI.Intracomm, right: int, left: int) -> Iterator[tuple[str, Call]]:
    """Yield messages of more than their array of four values holds, in every form that mpi4py takes."""
    for message in (
        [array(4), 5, D],
        (array(4), 5, "d"),
        [array(4), 5],
        [array(4), (4, 1)],
        [array(4), (4, 1), D],
        [array(4), 2, 3, D],
        [array(4), 9, MPI.INT],
        [bytearray(32), 5, D],
        [array(4), 3, D.Create_vector(1, 1, 2).Create_resized(0, 16).Commit()],
        [array(4)[:2], 2, D.Create_vector(2, 1, 3).Commit()],
        [array(8), D.Create_vector(3, 1, 4).Create_resized(0, 8).Commit()],
        [array(4)[1:], 1, D.Create_indexed([1], [-2]).Commit()],
    ):
        for name in "Send", "Ssend", "Rsend", "Bsend", "Isend", "Issend", "Irsend", "Ibsend", "Send_init":
            yield name, lambda name=name, m=message: getattr(comm, name)(m, right, 1)  # type: ignore[misc]
        for name in "Recv", "Irecv", "Recv_init":
            yield name, lambda name=name, m=message: getattr(comm, name)(m, left, 1)  # type: ignore[misc]
        yield "Sendrecv", lambda m=message: comm.Sendrecv(array(1), right, 1, m, left, 1)  # type: ignore[misc]
        yield "Sendrecv", lambda m=message: comm.Sendrecv(m, right, 1, array(4), left, 1)  # type: ignore[misc]
        yield "Sendrecv_replace", lambda m=message: comm.Sendrecv_replace(m, right, 1, left, 1)  # type: ignore[misc]


def wrong_collectives(comm: MPI.Intracomm) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield collectives whose arguments reach one value too far."""
    p = comm.size
    each, full = array(p), array(2 * p)
    yield "Bcast", ([each, p + 1, D],)
    for name in "Reduce", "Allreduce", "Scan", "Exscan":
        yield name, ([each, p + 1, D], [full, p + 1, D])
        yield name, ([full, p + 1, D], [each, p + 1, D])
        yield name, (MPI.IN_PLACE, [each, p + 1, D])
    for name in "Gather", "Allgather":
        yield name, ([each, p + 1, D], [full, 1, D])
        yield name, ([full, 2, D], [each, 2, D])
    yield "Scatter", ([each, 2, D], full)
    yield "Scatter", (full, [each, p + 1, D])
    yield "Alltoall", ([each, 2, D], full)
    yield "Alltoall", (full, [each, 2, D])
    yield "Alltoall", (MPI.IN_PLACE, [each, 2, D])
    yield "Reduce_scatter_block", ([each, 2, D], [full, 2, D])
    yield "Reduce_scatter_block", (MPI.IN_PLACE, [each, 2, D])
    yield "Reduce_scatter", ([each, p + 1, D], full)
    ones, places = [1] * p, list(range(p))
    for counts in (
        [each, [1] * (p - 1) + [2]],
        [each, (ones, [place + 1 for place in places])],
        [each, (ones, [place + 1 for place in places]), D],
        [each, ones, [place + 1 for place in places], D],
        [each, [1] * (p - 1) + [2], D],
        [each, np.array([1] * (p - 1) + [2]), "d"],
        [each, (1, 2), D] if p > 1 else [each, 2, D],
    ):
        yield "Gatherv", (array(1), counts)
        yield "Allgatherv", (array(1), counts)
        yield "Scatterv", (counts, array(1))
        yield "Alltoallv", (counts, [full, 1])
        yield "Alltoallv", ([full, 1], counts)
    far = [each, ([1] * p, [8 * place + 8 for place in places]), [D] * p]
    near = [full, ([1] * p, [8 * place for place in places]), [D] * p]
    yield "Alltoallw", (far, near)
    yield "Alltoallw", (near, far)


def check_every_call_names_the_rank_what_it_was_given_and_what_its_array_holds(comm: MPI.Intracomm) -> None:
    own = watch().Dup()
    right, left = (own.rank + 1) % own.size, (own.rank - 1) % own.size
    calls: list[tuple[str, Call]] = list(wrong_messages(own, right, left))
    for name, arguments in wrong_collectives(own):
        for call in name, f"I{name.lower()}", f"{name}_init":
            root = {"root": own.rank} if name in ROOTED else {}
            if hasattr(own, call):
                calls.append(
                    (call, lambda c=call, a=arguments, r=root: getattr(own, c)(*a, **r))  # type: ignore[misc]
                )
    for name, call in calls:
        with pytest.raises(
            ValueError, match=f"^rank {own.rank}: {name} was given .* of a buffer that holds "
        ):
            call()
    own.Free()


def check_the_error_says_in_bytes_and_in_values_what_does_not_fit(comm: MPI.Intracomm) -> None:
    own = watch().Dup()
    with pytest.raises(ValueError) as caught:
        own.Allgather(array(2), [array(2 * own.size)[1:], 2, D])
    assert str(caught.value) == (
        f"rank {own.rank}: Allgather was given 2 × MPI_DOUBLE for each of {own.size} ranks, which are bytes "
        f"0 to {16 * own.size} of a buffer that holds {16 * own.size - 8} bytes ({2 * own.size - 1} float64)"
        "; MPI would read or write beyond it"
    ).replace(" for each of 1 ranks", "")
    own.Free()


def check_in_place_is_for_the_root_alone(comm: MPI.Intracomm) -> None:
    """Elsewhere, the MPI library would let the root wait forever."""
    own = watch().Dup()
    other = (own.rank + 1) % own.size  # the root is another rank, if there is one
    data = array(2 * own.size)
    calls: dict[str, tuple[Any, ...]] = {
        "Reduce": (MPI.IN_PLACE, data, MPI.SUM, other),
        "Gather": (MPI.IN_PLACE, data, other),
        "Gatherv": (MPI.IN_PLACE, data, other),
        "Scatter": (data, MPI.IN_PLACE, other),
        "Scatterv": (data, MPI.IN_PLACE, other),
    }
    for name, arguments in calls.items() if own.size > 1 else ():
        with pytest.raises(
            ValueError, match=f"^{name} was given MPI.IN_PLACE .* rank {own.rank}: only the root"
        ):
            getattr(own, name)(*arguments)
    own.Free()


def check_a_window_checks_the_buffer_of_an_access(comm: MPI.Intracomm) -> None:
    window = CheckedWin.Create(array(8), 8, comm=comm)
    window.Fence()
    for name in "Put", "Get", "Accumulate", "Rput", "Rget", "Raccumulate":
        with pytest.raises(
            ValueError, match=f"^rank {comm.rank}: {name} was given 5 × MPI_DOUBLE, which are"
        ):
            getattr(window, name)([array(4), 5, D], 0)
    with pytest.raises(ValueError, match=": Get_accumulate was given 5 × MPI_DOUBLE, "):
        window.Get_accumulate(array(5), [array(4), 5, D], target_rank=0)
    window.Put([array(4), 9, D], MPI.PROC_NULL)
    window.Put([array(4), 4, D], comm.rank, [4, 4, D])
    window.Fence()
    window.Free()


def check_calls_that_fit_are_left_alone(comm: MPI.Intracomm) -> None:
    own = watch().Dup()
    p, rank = own.size, own.rank
    right, left = (rank + 1) % p, (rank - 1) % p
    grid = np.arange(12.0).reshape(3, 4) + 100 * rank
    column = D.Create_vector(3, 1, 4).Commit()
    # A column that begins in the first row: the datatype leaves the row, and stays in the grid.
    got = array(3)
    own.Sendrecv([grid[0, 1:], 1, column], right, 1, [got, 3, D], left, 1)
    assert got.tolist() == [1 + 100 * left, 5 + 100 * left, 9 + 100 * left]
    # Both ends lie outside of the slice, but not of the array.
    before = D.Create_hindexed([1], [-8]).Commit()
    own.Sendrecv([grid[1], 1, before], right, 1, [got, 1, D], left, 1)
    assert got[0] == 3 + 100 * left
    # MPI ignores the buffers of messages to no rank, and those of other ranks than the root.
    own.Send([array(1), 9, D], MPI.PROC_NULL)
    own.Recv([array(1), 9, D], MPI.PROC_NULL)
    own.Sendrecv([array(1), 9, D], MPI.PROC_NULL, 0, [array(1), 9, D], MPI.PROC_NULL)
    all_ = array(p)
    own.Gather([grid, 1, D], [all_, 1, D] if rank == 0 else [array(0), 1, D], root=0)
    own.Scatter([all_, 1, D] if rank == 0 else [array(0), 1, D], [got, 1, D], root=0)
    own.Reduce([grid, 2, D], [got, 2, D] if rank == 0 else [array(0), 2, D], root=0)
    own.Gatherv(array(1), [all_, (1, 1)] if rank == 0 else None, root=0)
    own.Alltoallv([all_, (1, None)], [all_.copy(), [1] * p, None, D])
    own.Allgather(MPI.IN_PLACE, [all_, 1, D])
    own.Bcast([array(0), 0, D])
    place = np.array([7.0])
    address = D.Create_hindexed([1], [MPI.Get_address(place)]).Commit()
    own.Bcast([MPI.BOTTOM, 1, address])
    own.Reduce_scatter_block(MPI.IN_PLACE, [array(p), 1, D])
    for made in column, before, address:
        made.Free()
    own.Free()


def check_a_message_that_is_longer_than_its_buffer_is_named_with_its_size(comm: MPI.Intracomm) -> None:
    if comm.size == 1 and MPI.get_vendor()[0] == "Open MPI":
        return  # it shortens the message of a rank to itself, and neither error nor status tells
    own = watch().Dup()
    right, left = (own.rank + 1) % own.size, (own.rank - 1) % own.size
    for buffer, room in (np.zeros(4, np.float32), "16 bytes (4 float32)"), ([array(4), 2, D], "16 bytes"):
        expected = (
            rf"^rank {own.rank}: \w+ was sent 32 bytes by rank {left} \(tag 1\), but its buffer has room for "
        )
        with pytest.raises(MPI.Exception, match=expected + re.escape(room)):
            own.Sendrecv(array(4), right, 1, buffer, left, 1)
        sending = own.Isend(array(4), right, 1)
        with pytest.raises(MPI.Exception, match=expected + re.escape(room)):
            own.Recv(buffer, left, 1)
        sending.Wait()
    own.Free()


def check_a_message_that_ends_within_an_item_is_named_with_its_size(comm: MPI.Intracomm) -> None:
    own = watch().Dup()
    right, left = (own.rank + 1) % own.size, (own.rank - 1) % own.size
    expected = rf"^rank {own.rank}: \w+ was sent 12 bytes by rank {left} .* has 8 bytes \(float64\)"
    sent, buffer = np.zeros(3, np.float32), np.zeros(4)
    with pytest.raises(MPI.Exception, match=expected):
        own.Sendrecv(sent, right, 1, buffer, left, 1)
    sending = own.Isend(sent, right, 1)
    with pytest.raises(MPI.Exception, match=expected):
        own.Recv(buffer, left, 1)
    sending.Wait()
    own.Free()
