"""What is wrong with a job script (exercise 9.2): with its lines, and with what it does when it is run.

It runs with a stand-in for `mpiexec`, in a process of its own; where the system allows a sandbox, in one.
Of the machine's commands it finds only TOOLS. What starts jobs elsewhere (ELSEWHERE) is a stand-in that
notes the call: otherwise a check would submit real jobs, which may submit themselves again.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import argparse
import random
import re
import shlex
import shutil
import subprocess
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from labkit.checks import sandbox
from labkit.checks.launching import clean_environment, scratch_folder
from labkit.checks.limits import limit, processes
from labkit.checks.transport import read_bytes
from labkit.children import end, start_child

# For mpiexec: it works on for a second after SIGUSR1, as ranks do, and notes that it has come to its end.
FAKE_MPIEXEC = """#!/bin/bash
trap 'echo USR1 >> "$RECORD.events"; left=20' USR1
echo $$ > "$RECORD.pid"
printf '%s\\n' "$OMP_NUM_THREADS,$OPENBLAS_NUM_THREADS" "$@" > "$RECORD.part" && mv "$RECORD.part" "$RECORD"
for ((left = TICKS; left > 0; left--)); do "$SLEEP" 0.05; done
echo mpiexec >> "$RECORD.events"
exit "$CODE"
"""
# For what would start a job elsewhere.
NOTES_CALLS = """#!/bin/bash
printf '%s\\n' "${0##*/} $*" >> "$RECORD.calls"
"""
# For sleep, so that a script that kills mpiexec after a minute does so before mpiexec comes to its end.
SHORT_SLEEP = '#!/bin/bash\nexec "$SLEEP" 0.01\n'
# Runs the script, notes its end, and waits until mpiexec has ended or was killed: ten seconds at most, or
# three if the script never called it. If $WARNED is set, sends the script SIGUSR1 when mpiexec runs and the
# script catches it, or three seconds after mpiexec's start.
RUN = """bash "$@" &
script=$!
catches() { while read -r name mask; do [ "$name" = SigCgt: ] && return $((!(0x$mask & 512))); done < "$1"; }
if [ "$WARNED" ]; then
    until [ -e "$RECORD" ] || ! kill -0 $script; do "$SLEEP" 0.02; done
    for tick in {1..60}; do
        [ ! -e /proc/$$ ] || catches /proc/$script/status && echo caught >> "$RECORD.events" && break
        "$SLEEP" 0.05
    done
    kill -USR1 $script
fi
wait $script
code=$?
echo script >> "$RECORD.events"
for tick in {1..200}; do
    grep -q mpiexec "$RECORD.events" && break
    if [ -s "$RECORD.pid" ]; then
        kill -0 "$(cat "$RECORD.pid")" || break
    elif [ $tick -gt 60 ]; then
        break  # the script has not called it
    fi
    "$SLEEP" 0.05
done
exit $code
"""
RUN_FOLDER = "my run"  # a word in quotation marks, or else two
MOST_TEXT = 1 << 16  # characters of a script
# Commands that submit a job: in a job script, the job would submit itself again and again.
SUBMIT = (
    "sbatch",
    "qsub",
    "bsub",
    "condor_submit",
    "msub",
    "oarsub",
    "flux",
    "at",
    "batch",
    "crontab",
    "systemd-run",
)
ELSEWHERE = (
    *SUBMIT,
    *(
        "mpirun",
        "srun",
        "salloc",
        "scontrol",
        "scancel",
        "squeue",
        "sacct",
        "sinfo",
        "qdel",
        "qstat",
        "bkill",
        "jsrun",
    ),
    *("ssh", "scp", "sftp", "rsync", "rsh", "pdsh", "curl", "wget", "nc", "mail", "sendmail"),
)
TOOLS = (
    *(
        "[",
        "awk",
        "basename",
        "bash",
        "cat",
        "chmod",
        "cmp",
        "cp",
        "cut",
        "date",
        "dd",
        "df",
        "diff",
        "dirname",
        "du",
    ),
    *(
        "echo",
        "env",
        "expr",
        "false",
        "find",
        "flock",
        "free",
        "gawk",
        "getconf",
        "grep",
        "gzip",
        "head",
        "hostname",
    ),
    *(
        "id",
        "install",
        "kill",
        "ln",
        "logger",
        "ls",
        "lscpu",
        "mkdir",
        "mkfifo",
        "mktemp",
        "mv",
        "nice",
        "nl",
        "nohup",
    ),
    *(
        "nproc",
        "numactl",
        "od",
        "paste",
        "pgrep",
        "pidof",
        "pkill",
        "printenv",
        "printf",
        "ps",
        "pwd",
        "python",
    ),
    *(
        "python3",
        "readlink",
        "realpath",
        "rm",
        "rmdir",
        "sed",
        "seq",
        "setsid",
        "sh",
        "sha256sum",
        "sort",
        "split",
    ),
    *(
        "stat",
        "stdbuf",
        "sync",
        "tac",
        "tail",
        "tar",
        "taskset",
        "tee",
        "test",
        "time",
        "timeout",
        "touch",
        "tr",
    ),
    *("true", "truncate", "tty", "uname", "uniq", "uptime", "wc", "which", "whoami", "xargs", "yes"),
)
START_S = 30.0  # for a sandbox, on a busy machine
# The parts of the exercise, each with its share of the points.
OPTIONS_PART, RESUME, SIGNAL, EXIT_CODE = "options", "start and resume", "signal", "exit code"
PARTS = {OPTIONS_PART: 2, RESUME: 3, SIGNAL: 3, EXIT_CODE: 1}
OPTIONS = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
for names in ("-N", "--nodes"), ("-c", "--cpus-per-task"), ("-t", "--time"):
    OPTIONS.add_argument(*names)
for name in "--ntasks-per-node", "--signal", "--open-mode":
    OPTIONS.add_argument(name)
OPTIONS.add_argument("--requeue", action="store_true")


def lines_above_commands(script):
    """Return the lines above the first command: comments and empty lines."""
    lines = script.splitlines()
    first = next((k for k, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines))
    return lines[:first]


def sbatch_options(script):
    """Return the #SBATCH options above the first command that the exercise asks for, as a dict."""
    lines = [line for line in lines_above_commands(script) if line.startswith("#SBATCH")]
    words = [word for line in lines for word in shlex.split(line.removeprefix("#SBATCH"), comments=True)]
    words = [re.sub("^-(.)=", r"-\1==", word) for word in words]  # to SLURM, -N=4 has the value =4
    options = vars(OPTIONS.parse_known_args(words)[0])
    return {name.replace("_", "-"): value for name, value in options.items()}


def seconds_of(limit):
    """Return SLURM's `MM`, `MM:SS` or `HH:MM:SS`, with or without `D-` in front, in seconds."""
    days, _, clock = limit.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if days:
        parts += [0] * (3 - len(parts))
    hours, minutes, seconds = parts if len(parts) == 3 else (0, *parts, 0)[:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def option_faults(script):
    """Yield what is wrong with the #SBATCH lines."""
    first = script.partition("\n")[0]
    if not (first.startswith("#!") and "bash" in first):
        yield "the first line is not `#!/bin/bash`: sbatch refuses the script, or another shell runs it"
    lines = script.splitlines()
    for line in lines[len(lines_above_commands(script)) :]:
        if line.startswith("#SBATCH"):
            yield f"`{line}` stands below the first command; SLURM does not read it"
    try:
        options = sbatch_options(script)
    except (ValueError, argparse.ArgumentError) as error:
        yield f"an #SBATCH line cannot be read ({error}): write one option per line, as --name=value"
        return
    for name, expected in {"nodes": "4", "ntasks-per-node": "1", "cpus-per-task": "1"}.items():
        if options[name] != expected:
            yield f"expected --{name}={expected}, found {options[name] or 'none'}"
    try:
        limit = seconds_of(options["time"] or "0")
    except ValueError:
        limit = 0
    if not 0 < limit <= 1800:
        limit_text = options["time"] or "none"
        yield f"expected a time limit of at most half an hour, as --time=HH:MM:SS, found {limit_text}"
    target, _, before = (options["signal"] or "").partition("@")
    before = before or "60"
    known = target in ("B:USR1", "B:SIGUSR1", "B:10") and before.isdecimal()
    if not known or not 30 <= int(before) <= 60:
        signal_text = options["signal"] or "none"
        yield f"expected --signal=B:USR1@S with S from 30 to 60, in seconds, found {signal_text}"
    if known and 0 < limit <= int(before):
        yield f"the signal comes {before} s before the limit of {limit} s: in MM:SS, minutes come first"
    if not options["requeue"]:
        yield "a job that loses a node is not put back into the queue: --requeue"
    if options["open-mode"] != "append":
        yield "a second start overwrites the first one's output: --open-mode=append"


def pairs(words):
    """Return the options --name value or --name=value of a command, in any order, as a sorted list."""
    split = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    return sorted(zip(split[::2], split[1::2], strict=True)) if len(split) % 2 == 0 else split


def call_faults(where, tasks, run_folder, recorded, has_checkpoint):
    """Yield what is wrong with a call of mpiexec: numbers of threads, then the words, as recorded."""
    threads, *words = recorded
    for name, number in zip(("OMP", "OPENBLAS"), threads.split(","), strict=True):
        if number != "1":
            yield f"{where}: {name}_NUM_THREADS is not 1 where mpiexec starts"
    start = ["--out", str(run_folder), "--model", "lenet5", "--data", "digits", "--epochs", "4"]
    resume = ["--resume", str(run_folder)]
    wanted = ["labkit", "train", *(resume if has_checkpoint else start)]
    if words and words[0] == f"-n{tasks}":
        words[:1] = ["-n", tasks]
    called = words[:4] == ["-n", tasks, *wanted[:2]] or words[:4] == ["-np", tasks, *wanted[:2]]
    if not called or pairs(words[4:]) != pairs(wanted[2:]):
        expected = shlex.join(["mpiexec", "-n", tasks, *wanted])
        yield f"{where}: expected `{expected}`, the script called `{shlex.join(['mpiexec', *words])}`"


def end_faults(where, warned, events, code, code_of_script):
    """Yield a part and what is wrong with the end of a script, from what has happened and exit codes.

    `events` holds what has happened, in this order.
    """
    end_part = SIGNAL if warned else EXIT_CODE
    if warned and "caught" not in events:
        yield SIGNAL, "the script does not catch SIGUSR1 while mpiexec runs: set a trap, do not block it"
    elif "mpiexec" not in events:
        text = "the script killed mpiexec. Pass SIGUSR1 on and kill nothing: the ranks train until the limit"
        yield end_part, text
    elif events.index("script") < events.index("mpiexec"):
        why = ", after SIGUSR1, which interrupts `wait`: go on and wait again" if warned else ": wait for it"
        yield end_part, f"{where}: the script ended before mpiexec{why}"
    elif warned and "USR1" not in events:
        yield SIGNAL, "SIGUSR1 reached the script, and the script did not pass it on to mpiexec"
    elif code_of_script != code:
        after = " after SIGUSR1" if warned else ""
        yield EXIT_CODE, f"mpiexec ended with exit code {code}{after}, the script with {code_of_script}"


def faults_by_part(script):
    """Yield a part of the exercise, and what is wrong with it, for each fault of a script."""
    if len(script) > MOST_TEXT:
        text = f"the script has {len(script):,} characters; a job script has a few hundred"
        yield from ((part, text) for part in PARTS)
        return
    yield from ((OPTIONS_PART, text) for text in option_faults(script))
    yield from run_faults(script)


def run_faults(script):
    """Yield a part and what is wrong with the commands, found by running them with a stand-in for mpiexec.

    A script that cannot be judged any further has a fault in each part of its run.
    """
    # Random, so that the script cannot know the codes. An interrupted `wait` could also return the first.
    codes = random.choice([*range(129, 138), *range(139, 160)]), random.randrange(10, 100)
    for checkpoint, tasks, code in zip((False, True), ("4", "3"), codes, strict=True):
        with scratch_folder() as folder:
            faults = list(_faults_of_a_run(script, folder.resolve(), checkpoint, tasks, code))
        yield from faults
        if {RESUME, SIGNAL, EXIT_CODE} <= {part for part, _ in faults}:
            return


def _in_each_part(text):
    """Return a fault that leaves nothing of a run to be judged."""
    return [(part, text) for part in (RESUME, SIGNAL, EXIT_CODE)]


def _faults_of_a_run(script, scratch, warned, tasks, code):
    """Run the script once, in a folder; yield a part and what is wrong with its calls and its end."""
    is_sandboxed = not sandbox.refusal()
    inside = Path(sandbox.FOLDER) if is_sandboxed else scratch  # as the script sees its folder
    settings = {
        "RECORD": str(inside / "record"),
        "CODE": str(code),
        "SLEEP": str(shutil.which("sleep")),
        "OMP_NUM_THREADS": "",
        "OPENBLAS_NUM_THREADS": "",
        "SLURM_NTASKS": tasks,
        "TICKS": "100" if warned else "4",
        "WARNED": "1" if warned else "",
    }
    env, bash = shutil.which("env") or "env", shutil.which("bash") or "bash"
    command = [
        env,
        f"PATH={inside / 'bin'}",
        bash,
        "-c",
        RUN,
        "bash",
        str(inside / "job.sh"),
        str(inside / RUN_FOLDER),
    ]
    silent = subprocess.DEVNULL
    start = partial(start_child, env={**clean_environment(), **settings}, stdout=silent, stderr=silent)
    with ExitStack() as stack:
        folder = scratch
        if is_sandboxed:
            handover = sandbox.Handover()
            stack.callback(handover.close)
            job = start(sandbox.command(command, scratch, group=handover.group), stdin=handover.theirs)
            stack.callback(end, job)
            folder = handover.folder(START_S)
            _write_files(folder, script, warned)
            handover.start_command()
        else:
            _write_files(folder, script, warned)
            job = start(command, preexec_fn=partial(limit, processes()))
            stack.callback(end, job)
        where = f"with {'a' if warned else 'no'} checkpoint in the folder and {tasks} tasks"
        try:
            job.wait(timeout=30)
        except subprocess.TimeoutExpired:
            yield from _in_each_part(
                f"{where}: the script still runs, although no mpiexec has to be waited for"
            )
            return
        end(job)
        words, events, calls = (
            read_bytes(folder / name, MOST_TEXT).decode(errors="replace").splitlines()
            for name in ("record", "record.events", "record.calls")
        )
        called = f"`{calls[0]}`" if calls else ""
        if calls and calls[0].split()[0] in SUBMIT:
            yield from _in_each_part(
                f"{where}: the script calls {called}: a job that submits jobs does so at each start. "
                "With --requeue, SLURM starts it again by itself"
            )
            return
        if not words:
            also = f", but {called}" if called else ""
            yield from _in_each_part(f"{where}: the script ended without calling mpiexec{also}")
            return
        of_call = call_faults(where, tasks, inside / RUN_FOLDER, words, has_checkpoint=warned)
        yield from ((RESUME, text) for text in of_call)
        yield from end_faults(where, warned, events, code, job.returncode)


def _write_files(folder, script, warned):
    """Write the script and the commands that it finds, and make the folder of its run."""
    run_folder = folder / RUN_FOLDER
    run_folder.mkdir()
    run_folder.chmod(0o777)  # in a sandbox that root has made, the script has another user
    if warned:
        (run_folder / "checkpoint.npz").touch()
    (folder / "job.sh").write_text(script)
    commands = folder / "bin"
    commands.mkdir()
    for name in TOOLS:
        path = shutil.which(name)
        if path is not None:
            (commands / name).symlink_to(path)
    texts = {"mpiexec": FAKE_MPIEXEC, "sleep": SHORT_SLEEP}
    texts.update(dict.fromkeys(ELSEWHERE, NOTES_CALLS))
    for name, text in texts.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
