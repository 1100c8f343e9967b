"""The filter of a sandbox's system calls.

It refuses calls that leave the sandbox, or that take memory which no process is charged for.

The memory of an anonymous file or of a System V segment belongs to no process, so nothing that adds up
processes would see it. The other calls make or enter namespaces, mount, or open parts of the kernel that no
exercise needs.
"""

from __future__ import annotations

import errno
import platform
import struct

# Numbers from <asm/unistd.h>, by machine; `architecture` is AUDIT_ARCH_… of <linux/audit.h>.
EVERYWHERE = {
    **{"io_uring_setup": 425, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432},
    **{"fspick": 433, "mount_setattr": 442, "memfd_secret": 447},
}
X86_64 = {
    "architecture": 0xC000003E,
    **{"clone": 56, "clone3": 435},
    **{"unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161},
    **{"memfd_create": 319, "shmget": 29, "semget": 64, "msgget": 68},
    **{"ptrace": 101, "add_key": 248, "request_key": 249, "keyctl": 250, "bpf": 321},
    **{"perf_event_open": 298, "userfaultfd": 323, "open_by_handle_at": 304},
    **EVERYWHERE,
}
AARCH64 = {
    "architecture": 0xC00000B7,
    **{"clone": 220, "clone3": 435},
    **{"unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51},
    **{"memfd_create": 279, "shmget": 194, "semget": 190, "msgget": 186},
    **{"ptrace": 117, "add_key": 217, "request_key": 218, "keyctl": 219, "bpf": 280},
    **{"perf_event_open": 241, "userfaultfd": 282, "open_by_handle_at": 265},
    **EVERYWHERE,
}
MACHINES = {"x86_64": X86_64, "aarch64": AARCH64}
X32 = 0x40000000  # is set in the numbers of a second set of calls on x86_64
NAMESPACES = 0x7E020000  # the flags of `clone` that make namespaces

# From <linux/bpf_common.h> and <linux/seccomp.h>.
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # offsets in `struct seccomp_data`
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000


def call_filter(machine: str = "") -> bytes:
    """Return the filter as a program of the kernel (BPF); empty for a machine that is not in MACHINES."""
    numbers = dict(MACHINES.get(machine or platform.machine(), {}))
    if not numbers:
        return b""
    architecture, clone, clone3 = (numbers.pop(name) for name in ("architecture", "clone", "clone3"))
    lines = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        *_refused(ANY_BIT, X32, errno.ENOSYS),
        *_refused(
            EQUAL, clone3, errno.ENOSYS
        ),  # the C library then calls `clone`, whose flags a filter can read
    ]
    for number in numbers.values():
        lines += _refused(EQUAL, number, errno.EPERM)
    lines += [
        (EQUAL, 0, 3, clone),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        *_refused(ANY_BIT, NAMESPACES, errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _refused(test: int, value: int, error: int) -> list[tuple[int, int, int, int]]:
    """Return the lines that let a call fail if the loaded number passes a test."""
    return [(test, 0, 1, value), (RETURN, 0, 0, REFUSE | error)]
