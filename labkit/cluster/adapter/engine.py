"""An ipyparallel engine that starts sooner: a process that has all imports forks it.

With `--fork NUMBER MPIEXEC`, this program forks all engines of a world of MPICH (labkit/forked_ranks.py).
With `--serve`, it forks one for each stand-in that Open MPI's mpiexec starts (labkit/forking.py). The options
on the command line are ipyparallel's.

ipyparallel starts a nanny for each engine, a process that relays signals to it and reports its end. A forked
engine has none: it takes signals itself, in the thread for control messages, and the controller, which is on
the same machine, watches its process. Elsewhere an engine forks its nanny.
"""

from __future__ import annotations

import importlib
import math
import os
import pickle
import signal
import sys
import time
from types import FrameType
from typing import Any

import psutil

from labkit import forking
from labkit.forked_ranks import are_mpich, fork_ranks
from labkit.guard import Guard
from mpiwatch.processes import may_watch_processes, start_time
from mpiwatch.sessions import is_cell

AGAIN_S = 1.5  # from an interrupt of a program until it gets another one

IMPORTED = (
    *("ipykernel.debugger", "ipyparallel.engine.app", "ipyparallel.engine.nanny"),
    *("IPython.core.completerlib", "IPython.core.oinspect", "IPython.extensions.storemagic", "sqlite3"),
    *("tornado.platform.asyncio", "tornado.queues"),
    *("labkit.cluster.engine_setup", "labkit.cluster.completion.on_ranks"),
    *("mpiwatch.communicators", "numpy.random"),
    # What connect() and the notebooks' first cells import on each rank.
    *("labkit.alt_text", "labkit.cluster.engine_guards", "labkit.cluster.failed_frame"),
    *("labkit.cluster.places.files", "labkit.cluster.reloading", "labkit.cluster.text_bars"),
    *("labkit.cluster.tracebacks", "labkit.priority"),
    *("labkit.comm", "labkit.data", "labkit.exercises.checking", "labkit.exercises.watching"),
    *("labkit.nn", "labkit.train.loop"),
)

WATCHED = "labkit-watched"  # in the metadata of an engine's registration: its pid and when it was started

# The methods by which a nanny (below) looks after its engine. It learns of the engine's end in two ways.
NANNY_STEPS = "wait_for_parent_thread", "pipe_handler", "notify_exit", "signal_request", "dispatch_control"


def main() -> None:
    """Run an engine; with `--fork` or `--serve`, fork engines."""
    how, *words = sys.argv[1:]
    is_forked = how in (forking.FORK, forking.SERVE)
    if how == forking.FORK:
        import_all()
        sys.argv[1:] = fork_engines(*words)
    elif how == forking.SERVE:
        import_all()
        sys.argv[1:] = forking.serve()[1:]
    run_engine(has_nanny=not (is_forked and may_watch_processes()))


def fork_engines(number: str, mpiexec: str, *arguments: str) -> tuple[str, ...]:
    """Fork so many engines, and return in each of them, with the engines' arguments.

    If mpi4py's MPI is not MPICH, as mpiexec is, let that start the engines: connect() says what is wrong.
    """
    if not are_mpich():
        os.execv(mpiexec, [mpiexec, "-n", number, *forking.stand_in(), __spec__.name, *arguments])
    fork_ranks(int(number))
    return arguments


def import_all() -> None:
    """Import what an engine needs, without initialising MPI: each engine does that after it is forked."""
    import mpi4py  # noqa: PLC0415

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = True
    sys.modules["debugpy"] = None  # type: ignore[assignment]  # no engine has a debugger; it takes long to import
    for module in IMPORTED:
        importlib.import_module(module)
    del sys.modules["debugpy"]


def run_engine(*, has_nanny: bool) -> None:
    """Run an ipyparallel engine; the command line is ipyparallel's."""
    from ipyparallel.engine import app  # noqa: PLC0415  (`import_all` comes first)
    from ipyparallel.engine.kernel import IPythonParallelKernel  # noqa: PLC0415
    from traitlets import Bool  # noqa: PLC0415

    class Engine(app.IPEngine):
        """An engine whose cells import modules as those of a kernel do.

        `to_work_dir`, `init_engine` and `register` are not documented; the first two put the current folder
        before all modules.
        """

        enable_nanny = Bool(has_nanny).tag(config=True)

        def to_work_dir(self) -> None:
            super().to_work_dir()
            put_folder_behind_python()

        def init_engine(self) -> None:
            super().init_engine()
            put_folder_behind_python()

        async def register(self) -> None:
            if not self.enable_nanny:
                self.session.metadata = {WATCHED: [os.getpid(), start_time(os.getpid())]}
            await super().register()
            self.session.metadata = {}

    app.Heart = heart_in_the_engines_context()
    if has_nanny:
        app.start_nanny = fork_nanny()  # now, before MPI, threads and sockets exist
    take_signals(IPythonParallelKernel)
    interrupt_programs_only(IPythonParallelKernel)
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None:  # else the engine initialises it as it imports it
        mpi.Init_thread()
    Engine.launch_instance()


def heart_in_the_engines_context() -> Any:
    """Return ipyparallel's class for what answers the controller's pings, with two threads less.

    ipyparallel gives it a context of ZeroMQ of its own, which has two threads. The attribute `device` is not
    documented.
    """
    import zmq  # noqa: PLC0415  (`import_all` comes first)
    from ipyparallel.controller import heartmonitor  # noqa: PLC0415

    class Heart(heartmonitor.Heart):
        def start(self) -> Any:
            self.device.context_factory = zmq.Context.instance
            return super().start()

    return Heart


def take_signals(kernel: Any) -> None:
    """Let an engine without a nanny take the signals that clients send. `kernel` is the class of its kernel.

    `control_msg_types` is not documented: the names of methods that answer control messages.
    """
    kill = os.kill  # engine_guards puts another function in its place, for what cells call

    def signal_request(engine: Any, stream: Any, identity: Any, parent: Any) -> None:
        number = parent["content"]["sig"]
        number = getattr(signal, number) if isinstance(number, str) else number
        engine.session.send(stream, "signal_reply", {"status": "ok"}, parent=parent, ident=identity)
        kill(os.getpid(), number)

    kernel.signal_request = signal_request
    kernel.control_msg_types = [*kernel.control_msg_types, "signal_request"]


def interrupt_programs_only(kernel: Any) -> None:
    """Let an interrupt stop what a client runs on an engine, and nothing else; `kernel`: its kernel's class.

    An interrupt that comes while IPython shows a cell's error, or while the answer is sent, would lose the
    answer: the client would wait for it until it ends the engines. On a busy machine this takes seconds.
    An interrupt that comes before the program begins has no effect, so the client repeats it. A program gets
    another one only after AGAIN_S, since it may be cleaning up.

    ipykernel calls `pre_handler_hook` before it handles a message, to set the handler of SIGINT.
    """
    interrupted_s = -math.inf

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal interrupted_s
        if is_in_program(frame) and time.monotonic() > interrupted_s + AGAIN_S:
            interrupted_s = time.monotonic()
            raise KeyboardInterrupt

    def pre_handler_hook(engine: Any) -> None:
        nonlocal interrupted_s
        interrupted_s = -math.inf
        engine.saved_sigint_handler = signal.signal(signal.SIGINT, interrupt)

    kernel.pre_handler_hook = pre_handler_hook


def is_in_program(frame: FrameType | None) -> bool:
    """Return whether this frame, or one that has called it, is of a cell or of a client's function."""
    while frame is not None:
        if is_cell(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def put_folder_behind_python() -> None:
    """Let cells import modules from the current folder, but after Python's own, as IPython does in kernels.

    So `import helper` finds the student's helper.py, and random.py does not take the place of Python's own,
    which the lab needs. Before, modules come from the environment alone (the option -P).
    """
    sys.path[:] = [place for place in sys.path if place]
    packages = (number for number, place in enumerate(sys.path) if place.endswith("-packages"))
    sys.path.insert(next(packages, len(sys.path)), "")


def fork_nanny() -> Any:
    """Fork a process that waits to become the nanny; return a replacement for ipyparallel's `start_nanny`.

    ipyparallel starts it as a new program, which imports all of ipyparallel once more.

    `app.start_nanny` and the pickled arguments that `nanny.main` reads from its standard input are private to
    ipyparallel.
    """
    from ipyparallel.engine import nanny  # noqa: PLC0415

    class Nanny(nanny.KernelNanny):
        """A nanny that passes signals on in spite of errors.

        It ends although it could not report the end of its engine.
        """

        _finish_called: bool

        def guard(self) -> Guard:
            return Guard("an engine's nanny", self.log.error, answers=(psutil.NoSuchProcess,))

        def finish(self) -> None:
            if not self._finish_called:
                self._finish_called = True
                self.guard().insist("notify_exit", self.notify_exit)
                self.loop.add_callback(self.loop.stop)

        def dispatch_control(self, stream: Any, raw_msg: Any) -> None:
            # Not repeated: after an error in the reply, the signal has been sent already.
            self.guard().do("dispatch_control", super().dispatch_control, stream, raw_msg)

        def signal_request(self, content: Any) -> Any:
            # The client repeats its request only after a second.
            answer = self.guard().insist("signal_request", super().signal_request, content)
            return answer or super().signal_request(content)  # after too many errors, the last is the answer

    nanny.KernelNanny = Nanny
    arguments_out, arguments_in = os.pipe()
    url_out, url_in = os.pipe()
    if os.fork() == 0:
        os.setsid()  # signals of the terminal are not meant for the nanny
        os.dup2(arguments_out, 0)
        os.dup2(url_in, 1)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115  (line-buffered: it sends one line)
        # Close all other files, above all the socket by which mpiexec notices that a rank ends.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        try:
            nanny.main()
        finally:
            os._exit(0)
    os.close(arguments_out)
    os.close(url_in)

    def start_nanny(**arguments: Any) -> tuple[str, Any]:
        with open(arguments_in, "wb") as file:
            pickle.dump({**arguments, "pid": os.getpid()}, file)
        # It stays open until the engine ends, which is how the nanny notices.
        pipe = open(url_out, encoding="utf-8")  # noqa: SIM115
        url = pipe.readline().strip()
        if not url:
            raise RuntimeError("the engine's nanny did not start")
        return url, pipe

    return start_nanny


if __name__ == "__main__":
    main()
