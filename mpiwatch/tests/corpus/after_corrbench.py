"""Programs modelled on MPI-CorrBench, a public and independent benchmark of MPI errors.

Its C programs call MPI once or twice, and pass one wrong argument or leave out one call; without an argument
on the command line they are wrong, with one they are right. The tables follow them: a template, the values of
a right program, and for each error the values that it replaces. The Python is new and keeps to C's habits:
every buffer has its count and datatype. Errors that Python cannot express (an uninitialised pointer, a
missing MPI_Init) are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from corpus.program import CALL, GLOBAL, INVALID, LOCAL, PARAMETER, REQUEST, Program, by_rank

N = "N = 10\nbuf, other = np.zeros(N, 'i'), np.zeros(N, 'i')\nhalf = np.zeros(N // 2, 'i')\n"
READS = "a program that reads a buffer leaves no trace"

Values = dict[str, str]
Errors = dict[str, tuple[str, Values]]

# Errors of one argument of a message, for its send (s…) and its receive (r…).
BUFFERS: Errors = {
    "null-buffer": (INVALID, {"buf": "None"}),
    "negative-count": (INVALID, {"count": "-1"}),
    "count-beyond": (INVALID, {"count": "N * 2"}),
    "short-buffer": (INVALID, {"buf": "half"}),
    "null-type": (INVALID, {"type": "MPI.DATATYPE_NULL"}),
    "wide-type": (INVALID, {"type": "MPI.DOUBLE"}),
    "float-for-int": (PARAMETER, {"type": "MPI.FLOAT"}),
}
ENVELOPES: Errors = {
    "null-comm": (INVALID, {"comm": "MPI.COMM_NULL"}),
    "negative-rank": (INVALID, {"rank": "-7"}),
    "rank-beyond": (INVALID, {"rank": "size"}),
    "negative-tag": (INVALID, {"tag": "-9"}),
    "tag-beyond": (INVALID, {"tag": "comm.Get_attr(MPI.TAG_UB) + 1"}),
    "other-tag": (PARAMETER, {"tag": "99"}),
    "other-comm": (PARAMETER, {"comm": "MPI.COMM_SELF", "rank": "0"}),
}
MESSAGE = """if rank == 0:
    {sbefore}{sends}{scomm}.{send}([{sbuf}, {scount}, {stype}], {srank}, {stag}){sends_end}
elif rank == 1:
    {rbefore}{recvs}{rcomm}.{recv}([{rbuf}, {rcount}, {rtype}], {rrank}, {rtag}){recvs_end}
"""
RIGHT = {
    **{"sbuf": "buf", "scount": "N", "stype": "MPI.INT", "srank": "1", "stag": "5", "scomm": "comm"},
    **{"rbuf": "other", "rcount": "N", "rtype": "MPI.INT", "rrank": "0", "rtag": "5", "rcomm": "comm"},
    **{"sbefore": "", "rbefore": "", "sends": "", "sends_end": "", "recvs": "", "recvs_end": ""},
}


def _message(send: str, recv: str, values: Values) -> str:
    waits = {}
    for key, call in ("sends", send), ("recvs", recv):
        if call[0] == "I":
            waits |= {key: "request = ", f"{key}_end": "\n    request.Wait()"}
    return N + MESSAGE.format(**RIGHT | {"send": send, "recv": recv} | waits | values)


def messages() -> Iterator[Program]:
    """Wrong arguments of a send or a receive, and messages that do not match."""
    for send, recv in ("Send", "Recv"), ("Isend", "Recv"), ("Send", "Irecv"):
        name = f"{send}-{recv}"
        yield Program(f"cb-{name}", PARAMETER, True, _message(send, recv, {}))
        for side in "sr":
            call = send if side == "s" else recv
            if name != "Send-Recv" and call in ("Send", "Recv"):
                continue
            for what, (category, values) in (BUFFERS | ENVELOPES).items():
                if call == "Recv" and what == "negative-tag":
                    values = {"tag": "-3"}  # noqa: PLW2901
                wrong = {side + key: value for key, value in values.items()}
                yield Program(f"cb-{call}-{what}", category, False, _message(send, recv, wrong))
        pairs = {"long": {"rcount": "N // 2"}, "chars": {"rtype": "MPI.CHAR", "rcount": "4 * N"}}
        pairs["shorts"] = {"rtype": "MPI.SHORT", "rcount": "2 * N"}
        for what, values in pairs.items():
            yield Program(f"cb-{name}-{what}", PARAMETER, False, _message(send, recv, values))
        fewer = _message(send, recv, {"scount": "N // 2"})
        yield Program(f"cb-{name}-fewer", PARAMETER, True, fewer)


# Collectives: the lines of a right program, with names for what the errors replace.
COLLECTIVES = {
    "Bcast": "{comm}.Bcast([{sbuf}, {scount}, {stype}], {root})",
    "Reduce": "{comm}.Reduce([{sbuf}, {scount}, {stype}], [{rbuf}, {rcount}, {rtype}], {op}, {root})",
    "Allreduce": "{comm}.Allreduce([{sbuf}, {scount}, {stype}], [{rbuf}, {rcount}, {rtype}], {op})",
    "Gather": "{comm}.Gather([{sbuf}, {scount}, {stype}], [{rbuf}, {rcount}, {rtype}], {root})",
    "Allgather": "{comm}.Allgather([{sbuf}, {scount}, {stype}], [{rbuf}, {rcount}, {rtype}])",
    "Scatter": "{comm}.Scatter([{sbuf}, {scount}, {stype}], [{rbuf}, {rcount}, {rtype}], {root})",
    "Alltoall": "{comm}.Alltoall([{sbuf}, {scount}, {stype}], [{rbuf}, {rcount}, {rtype}])",
    "Scan": "{comm}.Scan([{sbuf}, {scount}, {stype}], [{rbuf}, {rcount}, {rtype}], {op})",
}
REDUCTIONS = "Reduce", "Allreduce", "Scan"
OF_COLLECTIVES: Errors = {
    "null-comm": (INVALID, {"comm": "MPI.COMM_NULL"}),
    "root-beyond": (INVALID, {"root": "size"}),
    "negative-root": (INVALID, {"root": "-1"}),
    "other-root": (PARAMETER, {"root": "rank"}),
    "null-op": (INVALID, {"op": "MPI.OP_NULL"}),
    "op-of-pairs": (INVALID, {"op": "MPI.MAXLOC"}),
    "other-op": (PARAMETER, {"op": "[MPI.SUM, MPI.MAX][rank]"}),
    "one-more": (PARAMETER, {"scount": "M + rank", "rcount": "M + rank"}),
    "chars-received": (PARAMETER, {"rtype": "MPI.CHAR"}),
}


def _collective(name: str, values: Values) -> str:
    small = (
        "M = 3\nfull, part = np.zeros(M * size, 'i'), np.zeros(M, 'i')\nhalf, many = part[:1], 9 * M * size\n"
    )
    sent = "full" if name in ("Scatter", "Alltoall") else "part"
    taken = {"Gather": "full", "Allgather": "full", "Alltoall": "np.zeros_like(full)"}
    right = {"sbuf": sent, "scount": "M", "stype": "MPI.INT", "comm": "comm", "root": "0", "op": "MPI.SUM"}
    right |= {"rbuf": taken.get(name, "np.zeros(M, 'i')"), "rcount": "M", "rtype": "MPI.INT"}
    wanted = {key: value.replace("N * 2", "many") for key, value in values.items()}
    return small + COLLECTIVES[name].format(**right | wanted) + "\n"


def collectives() -> Iterator[Program]:
    """Wrong arguments of a collective, on all ranks, and calls that one rank does not make."""
    for name, call in COLLECTIVES.items():
        right = _collective(name, {})
        yield Program(f"cb-{name}", CALL, True, right)
        for side in "sr":
            for what, (category, values) in BUFFERS.items():
                if "{" + side + "buf}" not in call or (name == "Bcast" and what == "float-for-int"):
                    continue
                wrong = {side + key: value for key, value in values.items()}
                if name in REDUCTIONS and what in ("float-for-int", "wide-type", "null-type"):
                    wrong = {"stype": values["type"], "rtype": values["type"]}
                    if side == "r":
                        continue
                yield Program(f"cb-{name}-{side}-{what}", category, False, _collective(name, wrong))
        for what, (category, values) in OF_COLLECTIVES.items():
            others = {"one-more": name not in REDUCTIONS, "chars-received": name in REDUCTIONS}
            if any("{" + key + "}" not in call for key in values) or others.get(what):
                continue
            text = _collective(name, values)
            text = text.replace("M, 'i'", "M + 1, 'i'") if what == "one-more" else text
            yield Program(f"cb-{name}-{what}", category, False, text)
        lines = right.splitlines()
        missing = [*lines[:-1], "if rank == 0:", f"    {lines[-1]}"]
        yield Program(f"cb-{name}-missing", CALL, False, "\n".join(missing) + "\n")
        before = [*lines[:-1], "if rank == 0:", "    comm.Barrier()", lines[-1]]
        yield Program(f"cb-{name}-misplaced-barrier", CALL, False, "\n".join(before) + "\n")


WINDOW = """mem = np.zeros(N, 'i')
win = MPI.Win.Create({mem}, {unit}, comm=comm)
{fence}
if rank == 0:
    win.{call}([{buf}, {count}, {type}], {rank}, {target})
    {touch}
{end}
{free}
"""
OF_WINDOWS: Errors = {
    "null-buffer": (INVALID, {"buf": "None"}),
    "negative-count": (INVALID, {"count": "-1", "target": "[0, N, MPI.INT]"}),
    "count-beyond": (INVALID, {"count": "N * 2", "target": "[0, N, MPI.INT]"}),
    "short-buffer": (INVALID, {"buf": "half"}),
    "size-not-matching": (PARAMETER, {"buf": "half", "count": "N // 2", "target": "[0, N, MPI.INT]"}),
    "wide-type": (INVALID, {"type": "MPI.DOUBLE", "target": "[0, N, MPI.DOUBLE]"}),
    "float-for-int": (PARAMETER, {"type": "MPI.FLOAT", "target": "[0, N, MPI.FLOAT]"}),
    "null-type": (INVALID, {"type": "MPI.DATATYPE_NULL"}),
    "rank-beyond": (INVALID, {"rank": "size"}),
    "place-beyond": (INVALID, {"target": "[5, N, MPI.INT]"}),
    "negative-place": (INVALID, {"target": "[-1, N, MPI.INT]"}),
    "window-too-small": (INVALID, {"mem": "mem[:5]"}),
    "target-beyond": (INVALID, {"target": "[0, N * 2, MPI.INT]"}),
    "negative-unit": (INVALID, {"unit": "-1"}),
    "no-epoch": (REQUEST, {"fence": "", "end": ""}),
    "no-first-fence": (REQUEST, {"fence": ""}),
    "no-last-fence": (REQUEST, {"end": ""}),
    "fence-on-one-rank": (CALL, {"end": "if rank == 0: win.Fence()"}),
    "not-unlocked": (REQUEST, {"fence": "if rank == 0: win.Lock(1)", "end": "comm.Barrier()"}),
    "lock-in-fence": (REQUEST, {"touch": "win.Lock(1); win.Unlock(1)"}),
    "origin-changed": (LOCAL, {"touch": "other[0] = 42"}),
    "never-freed": (REQUEST, {"free": ""}),
    "freed-on-one-rank": (CALL, {"free": "if rank == 0: win.Free()"}),
    "memory-freed": (
        INVALID,
        {"mem": "place", "end": "win.Fence(); MPI.Free_mem(place)"},
    ),
    "overlapping-windows": (
        GLOBAL,
        {"free": "more = MPI.Win.Create(mem[5:], 4, comm=comm)\nmore.Free(); win.Free()"},
    ),
}


def _window(call: str, values: Values) -> str:
    right = {"mem": "mem", "unit": "4", "fence": "win.Fence()", "call": call, "buf": "other", "count": "N"}
    right |= {"type": "MPI.INT", "rank": "1", "target": "0", "touch": "", "end": "win.Fence()"}
    place = "place = MPI.Alloc_mem(4 * N)\n" if "place" in values.get("mem", "") else ""
    return N + place + WINDOW.format(**right | {"free": "win.Free()"} | values)


def windows() -> Iterator[Program]:
    """Wrong arguments of an access to a window, and epochs that are not opened or closed."""
    for call in "Get", "Put", "Accumulate":
        yield Program(f"cb-{call}", GLOBAL, True, _window(call, {}))
        locked = {"fence": "if rank == 0: win.Lock(1)", "touch": "win.Unlock(1)", "end": "comm.Barrier()"}
        yield Program(f"cb-{call}-locked", GLOBAL, True, _window(call, locked))
        last = {"buf": "half", "count": "N // 2", "target": "[5, 5, MPI.INT]"}
        yield Program(f"cb-{call}-last-half", GLOBAL, True, _window(call, last))
        for what, (category, values) in OF_WINDOWS.items():
            yield Program(f"cb-{call}-{what}", category, False, _window(call, values))
        read = _window(call, {"touch": "s = other.sum()"})
        if call == "Get":
            yield Program("cb-Get-read-early", LOCAL, False, read, blind=READS)


TYPES = {
    "contiguous": ("MPI.INT.Create_contiguous({a})", {"a": "4", "beyond": "40", "negative": "-1"}),
    "vector-count": ("MPI.INT.Create_vector({a}, 1, 2)", {"a": "4", "beyond": "16", "negative": "-1"}),
    "vector-block": ("MPI.INT.Create_vector(2, {a}, 4)", {"a": "2", "beyond": "9", "negative": "-1"}),
    "vector-stride": ("MPI.INT.Create_vector(2, 1, {a})", {"a": "4", "beyond": "16"}),
    "indexed": ("MPI.INT.Create_indexed([1, 1], [0, {a}])", {"a": "5", "beyond": "12"}),
    "hvector": ("MPI.INT.Create_hvector(2, 1, {a})", {"a": "8", "beyond": "64"}),
    "struct": ("MPI.Datatype.Create_struct([1, 1], [0, {a}], [MPI.INT] * 2)", {"a": "8", "beyond": "64"}),
    "resized": ("MPI.INT.Create_resized(0, {a})", {"a": "4", "beyond": "64"}),
}
TYPED = """t = {make}{commit}
if rank == 0:
    comm.Send([buf, {count}, t], 1)
elif rank == 1:
    {other}comm.Recv([other, {count}, {received}], 0)
{free}
"""


def types() -> Iterator[Program]:
    """Datatypes of the program: wrong arguments, not committed, reaching outside of the buffer."""
    for name, (make, values) in TYPES.items():
        right = {"make": make.format(a=values["a"]), "commit": ".Commit()", "count": "1", "free": "t.Free()"}
        right |= {"other": "", "received": "t"}
        if name == "resized":
            right["count"] = "4"
        yield Program(f"cb-type-{name}", PARAMETER, True, N + TYPED.format(**right))
        wrongs: Errors = {
            "beyond": (INVALID, {"make": make.format(a=values["beyond"])}),
            "count-beyond": (INVALID, {"count": "100"}),
            "not-committed": (INVALID, {"commit": ""}),
            "freed": (INVALID, {"commit": ".Commit()\nt.Free()", "free": ""}),
            "null": (INVALID, {"make": make.format(a=values["a"]).replace("MPI.INT", "MPI.DATATYPE_NULL")}),
            "of-floats": (PARAMETER, {"make": make.format(a=values["a"]).replace("MPI.INT", "MPI.FLOAT")}),
            "received-as-doubles": (PARAMETER, {"received": "MPI.DOUBLE", "count": "2"}),
            "never-freed": (REQUEST, {"free": ""}),
        }
        if "negative" in values:
            wrongs["negative"] = INVALID, {"make": make.format(a=values["negative"])}
        for what, (category, wrong) in wrongs.items():
            yield Program(f"cb-type-{name}-{what}", category, False, N + TYPED.format(**right | wrong))


REQUESTS = {
    "Isend": ("comm.Isend([buf, N, MPI.INT], 1)", "comm.Recv([other, N, MPI.INT], 0)", "buf"),
    "Irecv": ("comm.Irecv([buf, N, MPI.INT], 1)", "comm.Send([other, N, MPI.INT], 0)", "buf"),
}


def requests() -> Iterator[Program]:
    """Calls that are missing around a request, and buffers that are used meanwhile."""
    for name, (call, counterpart, buffer) in REQUESTS.items():
        for what, category, mine, theirs in (
            ("right", None, [f"r = {call}", "r.Wait()"], [counterpart]),
            ("tested", None, [f"r = {call}", "while not r.Test(): pass"], [counterpart]),
            ("no-wait", REQUEST, [f"r = {call}"], [counterpart]),
            ("wait-missing-twice", REQUEST, [f"r = {call}", f"r = {call}", "r.Wait()"], [counterpart] * 2),
            ("wait-before", REQUEST, ["r = None", "r.Wait()", f"r = {call}"], [counterpart]),
            ("changed", LOCAL, [f"r = {call}", f"{buffer}[0] = 7", "r.Wait()"], [counterpart]),
            (
                "overlap",
                LOCAL,
                [f"r = {call}", "q = comm.Irecv([buf[5:], 5, MPI.INT], 1, 8)", "r.Wait()", "q.Wait()"],
                [counterpart, "comm.Send([half, 5, MPI.INT], 0, 8)"],
            ),
            (
                "apart",
                None,
                [f"r = {call}", "q = comm.Irecv([half, 5, MPI.INT], 1, 8)", "r.Wait()", "q.Wait()"],
                [counterpart, "comm.Send([half, 5, MPI.INT], 0, 8)"],
            ),
            ("missing", CALL, [f"r = {call}", "r.Wait()"], []),
            (
                "circle",
                CALL,
                [f"r = {call}", "r.Wait()"],
                ["comm.Recv([half, 5, MPI.INT], 0, 77)", counterpart],
            ),
        ):
            text = N + by_rank(mine, theirs)
            yield Program(f"cb-{name}-{what}", category or REQUEST, category is None, text)


def programs() -> Iterator[Program]:
    """Return all programs after MPI-CorrBench; the right ones with three types of elements."""
    for program in (*messages(), *collectives(), *windows(), *types(), *requests()):
        yield program
        if program.is_correct and "resized" not in program.name:
            for name, code, size in ("FLOAT", "f", 4), ("DOUBLE", "d", 8):
                text = program.body.replace("'i'", f"'{code}'").replace("MPI.INT", f"MPI.{name}")
                text = text.replace("Create(mem, 4,", f"Create(mem, {size},")
                yield replace(program, name=f"{program.name}-{name.lower()}s", body=text)
