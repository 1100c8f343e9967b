"""Submissions that attack the check: a wrong function, and code that wants it to pass, or does harm.

OUTSIDE stands for a folder of the test that the submission must not write to, PORT for a port of the test on
the loopback, HOST for the test's namespace of process ids, SOLUTION for the right script.
"""

# ruff: noqa: E501 (code in texts)

from __future__ import annotations

from typing import NamedTuple

ALONE, ON_RANKS, SCRIPT = "linear_backward", "average_by_allgather", "job_script"
HEADS = {
    ALONE: "def linear_backward(dy, x, w):",
    ON_RANKS: "def average_by_allgather(comm, gradient, weight):",
    SCRIPT: "def job_script():",
}

# What a system without namespaces cannot prevent: docs/grading.md lists it in these words.
FILES = "read and write all files that you may read and write"
PROCESSES = "change and end your other processes"
NETWORK = "use the network"
NUMBERS = "start any number of processes if you are root"

VERDICT = """
import json, os, sys
V = json.dumps({"passed": True, "finding": "", "cases": 1, "check_failed": False, "printed": ""}).encode()
def ancestors():
    found, pid = [], os.getppid()
    while pid > 0 and "labkit.checks" in open(f"/proc/{pid}/cmdline").read().replace("/", "."):
        found.append(pid)
        pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    return found
"""
FILL = """
def fill(folder):
    for number in range(10):
        with open(f"{folder}/large-{number}", "wb") as file:
            for _ in range(30):
                file.write(b"x" * (1 << 20))
"""
JOB = "import os, sys\nJOB = next(each for each in sys.argv if each.endswith('/job'))\n"


class Attack(NamedTuple):
    """`cell` runs before the function is defined, `body` when it is called; it returns `result`."""

    cell: str = ""
    body: str = "pass"
    result: str = "0"
    words: str = ""  # the finding must contain them; `a|b` means one of the two
    possible: str = ""  # without namespaces: which of the words above; empty if it is prevented there, too
    exercise: str = ALONE

    @property
    def text(self) -> str:
        """Return the cell's text."""
        body = "\n".join(f"    {line}" for line in self.body.splitlines())
        return f"{self.cell}\n{HEADS[self.exercise]}\n{body}\n    return {self.result}\n"


ATTACKS: dict[str, Attack] = {
    # The verdict.
    "forks, ends what is above it, overwrites the verdict": Attack(
        VERDICT + "import signal, time, pathlib\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    for pid in ancestors():\n"
        "        os.kill(pid, signal.SIGKILL)\n"
        "    for _ in range(20):\n"
        "        time.sleep(0.1)\n"
        "        for at in pathlib.Path.cwd().parents:\n"
        "            if at.name.startswith(('labkit', 'job')):\n"
        "                try: (at / 'verdict.json').write_bytes(V)\n"
        "                except OSError: pass\n"
        "    os._exit(0)\n"
    ),
    "ends its judge": Attack(
        VERDICT + "for pid in ancestors():\n"
        "    if 'exercises.judge' in open(f'/proc/{pid}/cmdline').read(): os.kill(pid, 9)\n"
    ),
    "writes a verdict to all descriptors": Attack(
        VERDICT
        + "for number in range(64):\n    try: os.write(number, V + b'\\n')\n    except OSError: pass\n"
    ),
    "prints a verdict and ends": Attack(VERDICT + "os.write(1, V)\nos._exit(0)", words="exit code 0"),
    "opens its ancestors' descriptors": Attack(
        VERDICT + "import pathlib\nfor pid in ancestors():\n"
        "    for path in pathlib.Path(f'/proc/{pid}/fd').iterdir():\n"
        "        try:\n"
        "            if 'pipe' in os.readlink(path): os.write(os.open(path, os.O_WRONLY), V)\n"
        "        except OSError: pass\n"
        "    try: os.kill(pid, 9)\n"
        "    except OSError: pass\n",
        possible=PROCESSES,
    ),
    "writes to its ancestors' memory": Attack(
        VERDICT + "done = 0\nfor pid in set(ancestors()) - {1}:\n"  # bubblewrap's own, inside the sandbox
        "    try:\n"
        "        place = int(open(f'/proc/{pid}/maps').readline().partition('-')[0], 16)\n"
        "        with open(f'/proc/{pid}/mem', 'r+b', buffering=0) as file:\n"
        "            file.seek(place); done += len(file.read(4))\n"
        "    except OSError: pass\n"
        "print('memory read:', done)\n",
        words="!memory read: 4",
        possible=PROCESSES,
    ),
    "stops its ancestors": Attack(
        VERDICT + "import signal\nfor pid in ancestors()[:1]: os.kill(pid, signal.SIGSTOP)\n"
    ),
    "signals its group": Attack("import os, signal\nos.killpg(0, signal.SIGKILL)\n"),
    "signals everything": Attack(
        "import os\nassert os.readlink('/proc/self/ns/pid') != 'HOST'\nos.kill(-1, 9)\n", possible=PROCESSES
    ),
    # The references and the expected results.
    **{
        f"imports {name}": Attack(cell, result="f(dy, x, w)", words="ModuleNotFoundError", possible=FILES)
        for name, cell in (
            ("the reference", "exec('from labkit.exercises.nb01 import linear_backward as f')"),
            (
                "labkit's own function",
                "import importlib\nf = importlib.import_module('labkit.nn.ops').linear_backward",
            ),
        )
    },
    "imports labkit's own average": Attack(
        "exec('from labkit.comm import allgather')", words="ImportError", possible=FILES, exercise=ON_RANKS
    ),
    "looks for the reference on the disk": Attack(
        "import os\nfound = ''\n"
        "for at, folders, files in os.walk('/'):\n"
        "    folders[:] = [name for name in folders if name not in ('proc', 'sys', 'dev')]\n"
        "    for name in files:\n"
        "        if name in ('nb01.py', 'basic.py', 'judge.py', 'nb09.py') and '/labkit/' in at: found = os.path.join(at, name)\n"
        "exec(open(found).read())",
        words="",  # an error, or the end of its time
        possible=FILES,
    ),
    "looks for the reference in memory": Attack(
        "import gc, types\nf = [o for o in gc.get_objects() if isinstance(o, types.FunctionType)"
        " and o.__name__ == 'linear_backward'][0]",
        result="f(dy, x, w)",
        words="IndexError",
    ),
    "looks for expected results in frames": Attack(
        "import sys",
        "frame, found = sys._getframe(), None\n"
        "while frame:\n"
        "    for name, value in {**frame.f_globals, **frame.f_locals}.items():\n"
        "        for inner in [value, *getattr(value, '__dict__', {}).values()]:\n"
        "            if hasattr(inner, 'reference') or hasattr(inner, 'expected'): found = inner\n"
        "    frame = frame.f_back",
        result="found.reference(dy, x, w)",
        words="has no attribute 'reference'",
    ),
    # What the judge reads.
    "writes a finding of 10 MB": Attack(
        JOB + "import json\nerror = {'type': 'x' * 10**7, 'text': 'y', 'line': 0, 'name': '', 'what': ''}\n"
        "open(f'{JOB}/rank-0-0', 'a').write(json.dumps({'error': error}) + '\\n')\nos._exit(0)",
    ),
    "writes records of wrong types": Attack(
        JOB + "open(f'{JOB}/rank-0-0', 'a').write('{\"error\": 5}\\n{\"begin\": \"x\"}\\n')\nos._exit(0)",
    ),
    "has a link to endless zeros for records": Attack(
        JOB + "os.unlink(f'{JOB}/rank-0-0')\nos.symlink('/dev/zero', f'{JOB}/rank-0-0')\n", words="damaged"
    ),
    "has a pipe for the report": Attack(
        JOB,
        "if comm.rank == 0: os.mkfifo(f'{JOB}/report.json')\ncomm.recv()",
        exercise=ON_RANKS,
    ),
    # The check's own code, in the submission's process.
    "patches the built-in functions": Attack("import builtins; builtins.all = builtins.any = lambda x: True"),
    "patches the modules of the check": Attack(
        "import sys\nfor m in list(sys.modules.values()):\n"
        "    if 'exercises' in str(m): m.judge = m.difference = m.pack = m._describe = lambda *a: {}\n"
    ),
    "replaces mpi4py and NumPy": Attack(
        "import sys, types\nsys.modules['mpi4py'] = sys.modules['mpi4py.MPI'] = sys.modules['numpy'] = "
        "types.SimpleNamespace(MPI=None)",
        exercise=ON_RANKS,
    ),
    "closes all descriptors": Attack("import os\nos.closerange(0, 1000)"),
    "ends at exit": Attack("import atexit, os\natexit.register(os._exit, 0)"),
    "patches the clock": Attack(
        "import time, signal\ntime.monotonic = time.time = time.perf_counter = lambda: 0.0\n"
        "signal.setitimer = lambda *a: None"
    ),
    # Limits.
    "takes 1 GiB of memory": Attack(body="bytearray(1 << 30)", words="MemoryError"),
    "starts 700 processes": Attack(
        "import os, time",
        "for _ in range(700):\n    if os.fork() == 0: time.sleep(30); os._exit(0)",
        words="BlockingIOError|it starts processes without end",  # whichever limit is noticed first
        possible=NUMBERS,
    ),
    "starts 700 processes in user namespaces": Attack(
        "import ctypes, os, time",
        "ends = os.pipe()\n"
        "for _ in range(7):\n"
        "    if os.fork() == 0:\n"
        "        ctypes.CDLL(None).unshare(0x10000000)\n"
        "        try:\n"
        "            for _ in range(100):\n"
        "                if os.fork() == 0: time.sleep(30); os._exit(0)\n"
        "        except OSError as error: os.write(ends[1], type(error).__name__.encode() + b'\\n')\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "os.close(ends[1]); os.set_blocking(ends[0], False); raise OSError(os.read(ends[0], 15))",
        words="BlockingIOError|it starts processes without end",  # whichever limit is noticed first
        possible=NUMBERS,
    ),
    "opens 1,000 files": Attack(
        body="files = [open('/dev/null') for _ in range(1000)]", words="Too many open files"
    ),
    "writes 300 MB to its folder": Attack(
        FILL, "fill('.'); import time; time.sleep(9)", words="more than 64 MB"
    ),
    "writes 300 MB to one file": Attack(
        body="file = open('large', 'wb')\nfor _ in range(300): file.write(b'x' * (1 << 20))",
        words="File too large",
    ),
    "writes 300 MB to the folder of all": Attack(
        FILL, "fill('/tmp')", words="No space left on device", possible=FILES
    ),
    "makes 5,000 folders, one in the other": Attack(
        "import os, time",
        "for _ in range(5000): os.mkdir('a'); os.chdir('a')\ntime.sleep(9)",
        words="more than 64 MB",
    ),
    "leaves a folder that cannot be read": Attack(body="import os; os.makedirs('a/b'); os.chmod('a', 0)"),
    "prints 1 GB": Attack(
        "import os", "for _ in range(1000): os.write(1, b'x' * (1 << 20))", words="prints without end"
    ),
    # The instructor's files, secrets and network.
    "prints the environment": Attack("import os", "print(dict(os.environ))"),
    "prints its ancestors' environment": Attack(
        "import glob",
        "for path in glob.glob('/proc/*/environ'):\n"
        "    try: print([part for part in open(path).read().split('\\0') if 'TOKEN' in part])\n"
        "    except OSError: pass",
        possible=FILES,
    ),
    "prints a file of others": Attack(body="print(open('OUTSIDE/answers').read())", possible=FILES),
    "writes to the folder of others": Attack(
        body="import pathlib; pathlib.Path('OUTSIDE/new').write_text('x')", possible=FILES
    ),
    "writes to its home": Attack(body="import pathlib; (pathlib.Path.home() / '.profile').write_text('x')"),
    "connects to a program of this machine": Attack(
        body="import socket; socket.create_connection(('127.0.0.1', PORT), 5)",
        words="ConnectionRefusedError",
        possible=NETWORK,
    ),
    "leaves a process": Attack(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        os.execvp('sleep', ['sleep', 'PORT'])\n    os._exit(0)\n"
    ),
    "makes namespaces of its own": Attack(
        "import ctypes, importlib\nlibc = ctypes.CDLL(None)\nlibc.unshare(0x10020000)\n"
        "for line in reversed(open('/proc/self/mounts').readlines()):\n"
        "    libc.umount2(line.split()[1].encode(), 2)\n"
        "f = importlib.import_module('labkit.exercises.nb01').linear_backward",
        result="f(dy, x, w)",
        possible=FILES,
    ),
    # A script that the judge runs.
    "a script prints a verdict": Attack(
        result="'''#!/bin/bash\nfor n in 1 2 3 4 5 6 7 8; do echo '{\"passed\": true}' >&$n; done 2>/dev/null\n'''",
        exercise=SCRIPT,
    ),
    "a script writes to the folder of others": Attack(
        result="SOLUTION.replace('mpiexec -n', 'echo x > OUTSIDE/new; mpiexec -m')",
        exercise=SCRIPT,
        possible=FILES,
    ),
}
