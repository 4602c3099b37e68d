"""`python -m service.engine MODULE FD`: the zygote, from which engines are forked. It imports MODULE, if one is named.

Then it waits on the socket FD. Each message brings the other end of a wire, and a socket for the answer: it forks an
engine, which answers with its process id. Only `supervision.zygote` starts it.
With ENGINE before MODULE it is one engine itself, at this end of a wire.

Why a fork is safe here:
- Threads and locks: it has one thread, which waits for a message, so that nothing holds a lock. NumPy starts none
  (`OPENBLAS_NUM_THREADS`), nor do PyTorch, OpenMP and CUDA before their first use, which an engine makes. Should a
  library start one all the same, each engine runs this module anew (`exec`): it imports for itself.
- Descriptors: an engine closes the socket FD. Nothing else is open but the standard streams.
- Signals: SIGTERM is ignored in all of them. There is no handler.
- Random numbers: `random` seeds itself anew in a fork. No generator of PyTorch or NumPy is used; noise is a function of
  the request. The seed of hashes is the same in all engines, and nothing depends on it.
- The compiled kernels are loaded before a fork. Their threads start with a model.
"""

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
from functools import partial

from model.machine import frames
from model.machine.child import die_with_parent, name_process, title_process
from model.machine.forking import fork_for_parent, n_threads
from service import logs
from service.engine.messages import Wire
from service.engine.supervision.launch import ENGINE, PID_BYTES
from service.engine.tape import Tape
from service.engine.worker import Worker


def main() -> None:
    *words, module, descriptor = sys.argv[1:]
    die_with_parent()
    # Systemd signals every process of a unit; the service drains and then ends us by closing the wire.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    gc.disable()  # until everything is imported: what imports make is no garbage
    if module:
        with contextlib.suppress(Exception):  # the runner's import meets the same fault and reports it
            importlib.import_module(module)
    gc.freeze()  # a collection would write to the pages that engines share
    sock = socket.socket(fileno=int(descriptor))
    if words == [ENGINE]:
        serve(sock)
    else:
        name_process("noria-zygote")
        fork_engines(sock, module)


def fork_engines(control: socket.socket, module: str) -> None:
    """Fork an engine for each wire that comes, until the service closes its end."""
    anew = n_threads() > 1
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not descriptors:
            return
        wire, answer = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        with wire, answer:
            fork_for_parent(partial(begin, control, wire, answer, module, anew))


def begin(control: socket.socket, wire: socket.socket, answer: socket.socket, module: str, anew: bool) -> None:
    """Run the engine at this end of a wire, in a session of its own, which its own children share."""
    os.setsid()
    control.close()
    with answer:
        answer.send(os.getpid().to_bytes(PID_BYTES))
    if anew:
        wire.set_inheritable(True)
        os.execv(sys.executable, [sys.executable, "-P", "-m", "service.engine", ENGINE, module, str(wire.fileno())])
    serve(wire)


def serve(sock: socket.socket) -> None:
    """Run one engine. The wire's first message names its runner, format and level of its log, and its tape."""
    name_process("noria-engine")
    try:
        (runner, log_format, log_level, tape), _ = frames.receive(sock)
    except OSError:  # the service needs it no more
        return
    logs.configure(log_format, log_level, "engine")
    # The hard way out, because this thread may be deep inside a long computation.
    worker = Worker(Wire(sock), end=lambda: os._exit(0), on_load=begin_to_load)
    worker.tape = Tape(tape)
    worker.run(runner)


def begin_to_load(name: str) -> None:
    """Take the title for the model of this name, and collect garbage from now on, but not among what is imported."""
    title_process("noria-engine", name, "-m", "service.engine")
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    main()
