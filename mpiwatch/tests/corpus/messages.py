"""Messages: sends and receives that do not match, requests, reliance on buffering, races."""

from __future__ import annotations

from collections.abc import Iterator

from corpus.program import (
    BUFFERING,
    CALL,
    LOCAL,
    PAIRS,
    PARAMETER,
    RACE,
    RECEIVES,
    REQUEST,
    SENDS,
    Call,
    Program,
    by_rank,
)

NOT_READ = "a program that reads a buffer leaves no trace"


def matching() -> Iterator[Program]:
    """Sends and receives without a counterpart, or with other parameters than their counterpart."""
    for send, receive in PAIRS:
        name = f"{send}-{receive}"
        sending, receiving = Call(send, "x", 1, 7), Call(receive, "y", 0, 7)
        yield Program(f"p2p-{name}", CALL, True, by_rank(sending.lines, receiving.lines))
        back = by_rank(
            [*sending.lines, *Call(receive, "y", 1, 8).lines],
            [*receiving.lines, *Call(send, "x", 0, 8).lines],
        )
        if PAIRS.index((send, receive)) % 2:
            yield Program(f"p2p-back-{name}", BUFFERING, True, back)
        wrong = [Call(send, "x", 1, 9).lines, receiving.lines]
        yield Program(f"p2p-tag-{name}", PARAMETER, False, by_rank(*wrong))
    for send in SENDS:
        yield Program(f"p2p-no-receive-{send}", CALL, False, by_rank(Call(send, "x", 1, 7).lines, []))
    for receive in RECEIVES:
        yield Program(f"p2p-no-send-{receive}", CALL, False, by_rank([], Call(receive, "y", 0, 7).lines))
        both = [Call(receive, "y", 1, 7).lines, Call(receive, "y", 0, 7).lines]
        yield Program(f"p2p-both-receive-{receive}", CALL, False, by_rank(*both))
    for send, receive in (
        ("Send", "Recv"),
        ("Isend", "Irecv"),
        ("Send_init", "Recv_init"),
        ("Issend", "Recv"),
    ):
        name = f"{send}-{receive}"
        for what, sent, taken in (
            ("dtype", "np.arange(4, dtype=np.int64)", "y"),
            (
                "dtype-mpi",
                "[np.arange(4, dtype=np.int32), 4, MPI.INT]",
                "[np.zeros(4, np.float32), 4, MPI.FLOAT]",
            ),
            ("count", "np.zeros(8)", "y"),
        ):
            wrong = [Call(send, sent, 1, 7).lines, Call(receive, taken, 0, 7).lines]
            yield Program(f"p2p-{what}-{name}", PARAMETER, False, by_rank(*wrong))
        longer = [Call(send, "x", 1, 7).lines, Call(receive, "np.zeros(9)", 0, 7).lines]
        yield Program(f"p2p-longer-buffer-{name}", PARAMETER, True, by_rank(*longer))
        other = [Call(send, "x", 2, 7).lines, [], Call(receive, "y", 1, 7).lines]
        yield Program(f"p2p-source-{name}", PARAMETER, False, by_rank(*other), 3)
    mixed = by_rank(Call("send", "x", 1, 7).lines, Call("Recv", "y", 0, 7).lines)
    yield Program("p2p-object-array", PARAMETER, False, mixed)
    mixed = by_rank(Call("Send", "x", 1, 7).lines, Call("recv", "", 0, 7).lines)
    yield Program("p2p-array-object", PARAMETER, False, mixed)
    for send, receive in PAIRS[:3]:
        text = by_rank(Call(send, "x", 1, 7).lines, Call(receive, "y", 0, 7).lines).replace(
            "comm.R", "other.R"
        )
        text = text.replace("comm.I", "other.I") if "Irecv" in receive else text
        body = "other = comm.Dup()\n" + text + "other.Free()\n"
        yield Program(f"p2p-comm-{send}-{receive}", PARAMETER, False, body)
    for probe in "Probe", "probe", "Mprobe":
        take = ["comm.Recv(y, source=0, tag=7)"] if probe != "Mprobe" else ["m.Recv(y)"]
        line = f"{'m = ' * (probe == 'Mprobe')}comm.{probe}(source=0, tag=7)"
        right = by_rank(["comm.Send(x, dest=1, tag=7)"], [line, *take])
        yield Program(f"p2p-{probe}", CALL, True, right)
        wrong_tag = by_rank(["comm.Send(x, dest=1, tag=8)"], [line, *take])
        yield Program(f"p2p-{probe}-tag", PARAMETER, False, wrong_tag)
        both = by_rank(
            [line.replace("source=0", "source=1"), "comm.Send(x, dest=1, tag=7)"],
            [line, "comm.Send(x, dest=0, tag=7)"],
        )
        yield Program(f"p2p-{probe}-both", CALL, False, both)


def requests() -> Iterator[Program]:
    """Requests that are never waited for, started or freed."""
    for kind in [*SENDS, *RECEIVES]:
        is_send = "end" in kind
        call = Call(kind, "x" if is_send else "y", 1, 7)
        pair = (
            {"s": "recv", "i": "recv"}.get(kind[0], "Recv")
            if is_send
            else ("send" if kind[0].islower() else "Send")
        )
        other = Call(pair, "y" if is_send else "x", 0, 7).lines
        if call.wait:
            lines = [*call.make, *call.start, *call.free]
            is_legal = kind == "Send_init"  # it is freed, and MPI lets a send go on whose request is freed
            yield Program(f"request-no-wait-{kind}", REQUEST, is_legal, by_rank(lines, other))
        if call.free:
            lines = [*call.make, *call.wait, *call.free]
            yield Program(f"request-no-start-{kind}", REQUEST, False, by_rank(lines, other))
            yield Program(f"request-never-started-{kind}", REQUEST, False, by_rank(call.make, []))
            lines = [*call.make, *call.start, *call.wait]
            yield Program(f"request-no-free-{kind}", REQUEST, False, by_rank(lines, other))
            lines = [*call.make, *call.start, *call.start, *call.wait, *call.free]
            yield Program(f"request-two-starts-{kind}", REQUEST, False, by_rank(lines, other))
            twice = [*call.make, *call.start, *call.wait, *call.start, *call.wait, *call.free]
            yield Program(f"request-again-{kind}", REQUEST, True, by_rank(twice, [*other, *other]))
    for call in "Waitall", "Waitany", "Waitsome", "Testall":
        post = ["q = [comm.Irecv(y[:2], source=p, tag=1), comm.Irecv(y[2:], source=p, tag=2)]"]
        post += ["q += [comm.Isend(x[:2], dest=p, tag=1), comm.Isend(x[2:], dest=p, tag=2)]"]
        loop = {
            "Waitall": ["MPI.Request.Waitall(q)"],
            "Waitany": ["for _ in q:", "    MPI.Request.Waitany(q)"],
            "Waitsome": ["while MPI.Request.Waitsome(q) is not None:", "    pass"],
            "Testall": ["while not MPI.Request.Testall(q):", "    pass"],
        }[call]
        head = "p = 1 - rank\n" + "\n".join(post) + "\n"
        yield Program(f"request-{call}", REQUEST, True, head + "\n".join(loop) + "\n")
        if call != "Testall":
            less = "q = q[:-1]\n" + "\n".join(loop) + "\n"
            yield Program(f"request-{call}-not-all", REQUEST, False, head + less)


def legal_requests() -> Iterator[Program]:
    """Requests that are freed or cancelled, and datatypes that are freed while a call uses them."""
    taken = ["comm.Barrier()", "comm.Recv(y, source=0, tag=7)", "assert y[3] == 3"]
    for kind in "Isend", "Issend":
        freed = [f"request = comm.{kind}(x, dest=1, tag=7)", "request.Free()", "comm.Barrier()"]
        yield Program(f"request-freed-{kind}", REQUEST, True, by_rank(freed, taken))
    begun = ["request = comm.Irecv(y, source=1, tag=7)", "request.Free()"]
    sent = ["comm.Send(x, dest=0, tag=7)"]
    yield Program("request-freed-Irecv", REQUEST, False, by_rank(begun, sent))
    cancelled = [
        "status = MPI.Status()",
        "request = comm.Irecv(z, source=MPI.ANY_SOURCE)",
        "request.Cancel()",
    ]
    cancelled += ["request.Wait(status)", "assert status.Is_cancelled()", "comm.Recv(y, source=1, tag=7)"]
    head = "z = np.zeros(4)\n"
    yield Program("request-cancelled", REQUEST, True, head + by_rank(cancelled, sent))
    arrived = [*cancelled[:2], "comm.Barrier()", "comm.Iprobe(source=1, tag=8)", *cancelled[2:4]]
    arrived += ["if status.Is_cancelled():", "    comm.Recv(y, source=1, tag=7)"]
    begun = ["request = comm.Isend(x, dest=0, tag=7)", "comm.Barrier()", "request.Wait()"]
    yield Program("request-cancelled-late", REQUEST, True, head + by_rank(arrived, begun))
    make = (
        "other = MPI.DOUBLE.Create_vector(2, 1, 2)\nt = other.Create_contiguous(1).Commit()\nother.Free()\n"
    )
    calls = ["Isend([x, 1, t], dest=1, tag=7)", "Irecv([y, 1, t], source=0, tag=7)"]
    lines = [[f"request = comm.{call}", "t.Free()", "comm.Barrier()", "request.Wait()"] for call in calls]
    yield Program("request-freed-datatype", REQUEST, True, make + by_rank(*lines))


def buffering() -> Iterator[Program]:
    """Programs that work only as long as messages are small enough to be buffered."""
    for send, receive in PAIRS:
        if send in ("Ssend", "Issend"):
            continue
        for ranks in (2, 3) if receive in ("Recv", "recv") else (2,):
            sending = Call(send, "x", "(rank + 1) % size", 7, "s").lines
            receiving = Call(receive, "y", "(rank - 1) % size", 7, "r").lines
            ring = "\n".join([*sending, *receiving]) + "\n"
            yield Program(f"buffering-ring{ranks}-{send}-{receive}", BUFFERING, False, ring, ranks)
        posted = Call(receive, "y", "(rank - 1) % size", 7, "r")
        if posted.wait:
            right = [*posted.make, *posted.start, *sending, *posted.wait, *posted.free]
            yield Program(f"buffering-posted-{send}-{receive}", BUFFERING, True, "\n".join(right) + "\n")
    for collective in "comm.Barrier()", "comm.Bcast(z, root=0)", "comm.Allreduce(x, z)":
        name = collective[5:].partition("(")[0]
        for send, receive in ("Send", "Recv"), ("send", "recv"):
            first, second = Call(send, "x", 1, 7).lines, Call(receive, "y", 0, 7).lines
            head = "z = np.zeros(4)\n"
            wrong = head + by_rank([*first, collective], [collective, *second])
            yield Program(f"buffering-{name}-{send}", BUFFERING, False, wrong)
            right = head + by_rank([*first, collective], [*second, collective])
            yield Program(f"buffering-{name}-{send}-right", BUFFERING, True, right)
    yield Program("buffering-Sendrecv", BUFFERING, True, "comm.Sendrecv(x, 1 - rank, 1, y, 1 - rank, 1)\n")
    yield Program(
        "buffering-sendrecv", BUFFERING, True, "comm.sendrecv(1, 1 - rank, 1, None, 1 - rank, 1)\n", 2
    )


def races() -> Iterator[Program]:
    """Receives from any source: correct ones accept any order of messages, wrong ones rely on an order."""
    for send in "Send", "Isend", "send", "isend":
        for receive in ("Recv", "Irecv") if send[0].isupper() else ("recv", "irecv"):
            anyone = Call(receive, "y", "MPI.ANY_SOURCE", 3).lines
            from_one = Call(receive, "y", 1, 3).lines
            from_two = Call(receive, "y", 2, 3).lines
            sent = Call(send, "x", 0, 3).lines
            name = f"{send}-{receive}"
            yield Program(f"race-{name}", RACE, False, by_rank([*anyone, *from_two], sent, sent), 3)
            late = by_rank([*anyone, *from_one], ["import time", "time.sleep(0.3)", *sent], sent)
            yield Program(f"race-late-{name}", RACE, False, late, 3)
            yield Program(f"race-loop-{name}", RACE, True, by_rank([*anyone, *anyone], sent, sent), 3)
            ordered = by_rank(
                [*anyone, "comm.Barrier()", *from_two], [*sent, "comm.Barrier()"], ["comm.Barrier()", *sent]
            )
            yield Program(f"race-ordered-{name}", RACE, True, ordered, 3)
            tags = [*Call(receive, "y", "MPI.ANY_SOURCE", 3).lines, *Call(receive, "y", 2, 4).lines]
            other = by_rank(tags, sent, Call(send, "x", 0, 4).lines)
            yield Program(f"race-tags-{name}", RACE, True, other, 3)


def touched_buffers() -> Iterator[Program]:
    """Buffers that the program uses while a call is under way."""
    for kind in "Isend", "Issend", "Send_init":
        call, other = Call(kind, "x", 1, 7), Call("Recv", "y", 0, 7).lines
        begun = [*call.make, *call.start]
        lines = [*begun, "x[1] = -5", *call.wait, *call.free]
        yield Program(f"local-write-{kind}", LOCAL, False, by_rank(lines, other))
        after = [*begun, *call.wait, "x[1] = -5", *call.free]
        yield Program(f"local-write-after-{kind}", LOCAL, True, by_rank(after, other))
        reads = [*begun, "s = x.sum()", *call.wait, *call.free]
        yield Program(f"local-read-{kind}", LOCAL, True, by_rank(reads, other))
    for kind in "Irecv", "Recv_init":
        call, other = Call(kind, "y", 1, 7), Call("Send", "x", 0, 7).lines
        begun = [*call.make, *call.start]
        lines = [*begun, "y[1] = -5", *call.wait, *call.free]
        yield Program(f"local-write-{kind}", LOCAL, False, by_rank(lines, other))
        reads = [*begun, "s = y.sum()", *call.wait, *call.free]
        yield Program(f"local-read-{kind}", LOCAL, False, by_rank(reads, other), blind=NOT_READ)
        used = [*begun, "comm.Send(y, dest=1, tag=8)", *call.wait, *call.free]
        taken = [*other, "comm.Recv(y, source=0, tag=8)"]
        yield Program(f"local-sent-{kind}", LOCAL, False, by_rank(used, taken))
    for second, is_correct in (("y[1:3]", False), ("y[2:]", True)):
        two = [
            "a = comm.Irecv(y[:2], source=1, tag=1)",
            f"b = comm.Irecv({second}, source=1, tag=2)",
            "a.Wait()",
            "b.Wait()",
        ]
        sends = ["comm.Send(x[:2], dest=0, tag=1)", "comm.Send(x[2:], dest=0, tag=2)"]
        yield Program(f"local-two-receives-{second}", LOCAL, is_correct, by_rank(two, sends))
    for second, is_correct in (("x", False), ("y", True)):
        line = f"a = comm.Isend(x, dest=1 - rank, tag=1); b = comm.Irecv({second}, source=1 - rank, tag=1)"
        yield Program(f"local-send-receive-{second}", LOCAL, is_correct, f"{line}\na.Wait(); b.Wait()\n")


def programs() -> Iterator[Program]:
    """Return all programs with messages."""
    yield from matching()
    yield from requests()
    yield from legal_requests()
    yield from buffering()
    yield from races()
    yield from touched_buffers()
