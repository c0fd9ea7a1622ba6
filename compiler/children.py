"""Child processes that run what may crash, hang or grow: TVM, and the kernels that it builds.

A child executes `compiler/_child.py`. It is asked for one function call at a time, by
frames of JSON on two private pipes, and it dies with its parent, whatever kills the parent. A crash, a
deadline and an exception are all a `ChildError` for the caller, never an event of the calling process. Two things are
not the call's own doing, and never said to be: a child that somebody else kills (SIGKILL: an operator, the kernel when
memory runs out) is replaced and the call made again, `LIVES` times in all; a full disk is an OSError.

`once` runs one call in a fresh process. `worker` gives a lasting child, which pays for its imports once; it is
started again after it died, and replaced when it has grown. A child that is given modules is forked from a nursery
that has imported them (one a process and list of modules), so that a new one costs milliseconds; without, it is
executed anew, which nothing of another process has touched.
"""

import atexit
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import queue
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NoReturn

import orjson

from littledragon.compiler._child import BEGUN, FUNCTION, MAX_FRAME

Kind = Literal["crashed", "deadline", "raised"]

MAX_LOG: Final = 1 << 20
"""A child's standard output and error are cut to nothing whenever they exceed this, bytes."""
MAX_GROWTH: Final = 3 << 29
"""A lasting child is replaced once it holds so many bytes more than after its first answer."""
LIVES: Final = 4
"""So many children in a row must be killed by somebody else before that is told of the call."""
MEMORY_SHARE: Final = 0.5
"""Of this machine's memory: what a child may hold that is given a limit, so that it fails before others are killed."""
_INTERRUPTED: Final = "interrupted"
_TICK_S: Final = 0.5
_BORN_S: Final = 300.0
"""How long a nursery may take over its imports, on the busiest machine."""
_PR_SET_CHILD_SUBREAPER: Final = 36
_COMMAND: Final = (sys.executable, "-P", "-m", "littledragon.compiler._child")
_KILLED_S: Final = 10.0
"""How long a killed process may take to go: one that waits for a device may not go at all."""
_SETTLE_S: Final = 1.0
"""How long a child that closed its pipe may take to die by itself."""
_FULL: Final = re.compile(
    rf"{os.strerror(errno.ENOSPC)}|{os.strerror(errno.EDQUOT)}|\d+ requested and \d+ written", re.ASCII
)
"""What Python, LLVM, the linker and numpy say where a file cannot grow."""


class ChildError(Exception):
    """A call that gave no answer: `kind` says how it ended, `detail` why, in one line."""

    def __init__(self, kind: Kind, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind: Kind = kind
        self.detail = detail

    @property
    def interrupted(self) -> bool:
        """Whether this process ended the child itself, which says nothing of the call."""
        return self.detail == _INTERRUPTED

    def __reduce__(self) -> tuple[type["ChildError"], tuple[Kind, str]]:
        return ChildError, (self.kind, self.detail)


def once(function: str, *, deadline_s: float, **arguments: Any) -> Any:
    """Call `function` ("littledragon.room.module:name") in a fresh process and give its answer.

    Raises:
        ChildError: the process crashed, passed the deadline (start included), or the function raised.
    """
    child = Child()
    try:
        return child.call(function, deadline_s=deadline_s, **arguments)
    finally:
        child.close()


def worker(name: str, modules: tuple[str, ...] = (), *, limited: bool = False) -> "Child":
    """This process's lasting child of that name, made as `Child` is. Threads that share one wait for each other."""
    with _workers_lock:
        found = _workers.get(name)
    if found is None:
        made = Child(modules, limited=limited)
        with _workers_lock:
            found = _workers.setdefault(name, made)
    return found


def keep_in(folder: Path) -> None:
    """Have the children that this process starts from now on make their temporary files in this folder.

    A compiler or a linker that is killed leaves such files: the folder goes, whatever ends this process.
    """
    global _temporary  # noqa: PLW0603
    _temporary = folder


def stop() -> None:
    """End every child of this process, and let no call start another until `go_on`: the process is ending."""
    _stopped.set()
    close_all()


def go_on() -> None:
    """Let calls start children again."""
    _stopped.clear()


def close_all() -> None:
    """End every child of this process: whoever waits for one has a ChildError. A later call starts another."""
    with _workers_lock:
        children, nurseries = list(_children), list(_nurseries.values())
        _workers.clear()
        _nurseries.clear()
    for child in children:
        child.interrupt()
    for child in children:
        child.close()
    for nursery in nurseries:
        nursery.close()


def cpu_s() -> float:
    """CPU seconds that this process has used, and all of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def memory() -> int:
    """The largest a limited child's own data may be, bytes."""
    return int(MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


class Child:
    """A lasting child process; it starts with its first call.

    limited: whether it may hold no more than `memory()`. A process that opens a GPU maps more than it uses: leave it.
    """

    def __init__(self, modules: tuple[str, ...] = (), *, limited: bool = False) -> None:
        self.modules = modules
        self.limited = limited
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._interrupts = 0
        with _workers_lock:
            _children.add(self)

    def _start(self) -> "_Running":
        if _stopped.is_set():
            raise ChildError("crashed", _INTERRUPTED)
        running = self._born() if self.modules else _spawner().start()
        if self.limited:
            running.limit(memory())
        return running

    def _born(self) -> "_Running":
        """From the nursery; from another one, and another, where somebody kills it, or what it has just borne."""
        end = time.monotonic() + _BORN_S
        while True:
            if _stopped.is_set():
                raise ChildError("crashed", _INTERRUPTED)
            nursery = _nursery(self.modules)
            try:
                return _Running(nursery)
            except OSError as error:
                if error.errno is not None or nursery.failed() or time.monotonic() > end:
                    raise

    def start(self) -> None:
        """Start the process now, where none is running."""
        with self._lock:
            if self._running is None:
                self._running = self._start()

    @property
    def pid(self) -> int | None:
        """The process id, where one is running."""
        return self._running.process.pid if self._running else None

    def offspring(self) -> list[int]:
        """Process ids of what its process has started and not yet seen the end of; none where none is running."""
        found: list[int] = []
        running = self._running
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{running.process.pid}/task").iterdir() if running else ():
                found += map(int, (task / "children").read_text(encoding="ascii").split())
        return found

    def call(self, function: str, *, deadline_s: float, holding: bool = False, **arguments: Any) -> Any:
        """Call `function` in the child; the deadline counts from when the child is free.

        With `holding`, the child keeps what the next call asks for, and is not replaced before, however much that is.

        It is called again, with as long a deadline, where the child is killed by somebody else: what it leaves behind
        must not be in the way of a second call.

        Raises:
            ChildError: the child crashed, passed the deadline, or the function raised (the child lives on).
            OSError: the disk is full, or no child can be started.
            ValueError: the function is not one of ours, or the arguments exceed the largest frame.
            TypeError: the arguments are not JSON.
        """
        if not FUNCTION.fullmatch(function):
            raise ValueError(f"{function!r}: must be 'littledragon.<room>.<module>:<function>'")
        question = json.dumps({"call": function, "with": arguments}).encode()
        if len(question) > MAX_FRAME:
            raise ValueError(f"{function}: arguments of {len(question)} bytes exceed the largest frame, {MAX_FRAME}")
        with self._lock:
            running = self._running
            if running and (running.owner != os.getpid() or running.ended() or running.babbles()):
                self._stop()
            answer = self._answer(function, question, deadline_s)
            if not holding and self._running and self._running.grown():
                self._stop()
        if "error" in answer:
            raise _error("raised", f"{answer['error']}: {answer['message']}")
        return answer["ok"]

    def _answer(self, function: str, question: bytes, deadline_s: float) -> dict[str, Any]:
        """The child's answer, or that of the one which takes its place where somebody else kills it."""
        interrupts = self._interrupts
        for last in (False,) * (LIVES - 1) + (True,):
            running = self._running = self._running or self._start()
            if self._interrupts != interrupts:
                self._stop()
                raise ChildError("crashed", _INTERRUPTED)
            try:
                return running.ask(question, time.monotonic() + deadline_s)
            except TimeoutError:
                self._stop()
                raise ChildError("deadline", f"no answer from {function} within {deadline_s:g} s") from None
            except EOFError as error:
                detail = self._stop(silent=True)
                if self._interrupts != interrupts:
                    raise ChildError("crashed", _INTERRUPTED) from None
                if last or not (running.murdered or isinstance(error, _NotBegun)):
                    raise _error("crashed", detail) from None
            except _Garbled as garbled:
                self._stop()
                raise ChildError("crashed", str(garbled)) from None
            except BaseException:
                self._stop()  # interrupted half-way: the pipes are out of step
                raise
        raise AssertionError("the last try raises")

    def interrupt(self) -> None:
        """Kill the process of a call that another thread waits for; nothing where there is none."""
        self._interrupts += 1  # of a call that is just starting a process, too
        running = self._running
        if running is not None and running.owner == os.getpid():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(running.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the child and all that it started. A later call starts another."""
        with self._lock:
            if self._running:
                self._stop()

    def _stop(self, *, silent: bool = False) -> str:
        running, self._running = self._running, None
        assert running is not None
        return running.kill(silent=silent)


class _NotBegun(EOFError):
    """The child died before it began the call."""


class _Garbled(Exception):
    """What came through the pipe is no answer."""


class _Running:
    """A started process and its pipes.

    Raises (when made):
        OSError: it cannot be started.
    """

    def __init__(self, nursery: "_Nursery | None" = None) -> None:
        self.owner = os.getpid()
        self.base_bytes = 0
        self.murdered = False
        """Whether somebody else's SIGKILL ended it; known once it is stopped."""
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            question_out, self.questions = os.pipe()
            theirs.callback(os.close, question_out)
            ours.callback(os.close, self.questions)
            self.answers, answer_in = os.pipe()
            theirs.callback(os.close, answer_in)
            ours.callback(os.close, self.answers)
            self.log: BinaryIO = ours.enter_context(tempfile.TemporaryFile(prefix="dragon-child-", buffering=0))
            fcntl.fcntl(self.log, fcntl.F_SETFL, os.O_APPEND)  # so that cutting it does not leave a hole
            self.process: subprocess.Popen[bytes] | _Adopted
            if nursery is None:
                self.process = _executed(question_out, answer_in, self.log, self.owner)
            else:
                nursery.ask(question_out, answer_in, self.log.fileno())
                theirs.close()
                os.set_blocking(self.answers, False)
                self.process = _Adopted(self._born(nursery))
            ours.pop_all()
        os.set_blocking(self.questions, False)
        os.set_blocking(self.answers, False)

    def _born(self, nursery: "_Nursery") -> int:
        """The process id of the child that the nursery forks, which says it itself."""
        poll, data = select.poll(), bytearray()
        poll.register(self.answers, select.POLLIN)
        end = time.monotonic() + _BORN_S
        while len(data) < 8:
            if poll.poll(1000 * _TICK_S):
                piece = os.read(self.answers, 8 - len(data))
                if not piece:
                    break
                data += piece
            elif nursery.process.poll() is not None or time.monotonic() > end:
                break
        if len(data) < 8:
            raise nursery.barren()
        return int(struct.unpack("<Q", data)[0])

    def ask(self, question: bytes, end: float) -> dict[str, Any]:
        """Send one frame and wait for one.

        Raises:
            TimeoutError: `end` has passed.
            _NotBegun: the child is gone, and had not begun the call.
            EOFError: the child is gone.
            _Garbled: what it sent is no answer.
        """
        self._trim()
        try:
            self._write(struct.pack("<Q", len(question)) + question, end)
            begun = self._read(1, end)
        except EOFError:
            raise _NotBegun from None
        if begun != BEGUN:
            raise _Garbled("it does not begin its answer as agreed")
        (size,) = struct.unpack("<Q", self._read(8, end))
        if size > MAX_FRAME:
            raise _Garbled(f"an answer of {size} bytes exceeds the largest frame, {MAX_FRAME}")
        try:
            answer = _parsed(self._read(size, end))
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or set(answer) not in ({"ok"}, {"error", "message"}):
            raise _Garbled("its answer cannot be read")
        return answer

    def _write(self, data: bytes, end: float) -> None:
        rest = memoryview(data)
        while rest:
            self._wait(self.questions, select.POLLOUT, end)
            try:
                rest = rest[os.write(self.questions, rest[: 1 << 20]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise EOFError from None

    def _read(self, size: int, end: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._wait(self.answers, select.POLLIN, end)
            try:
                piece = os.read(self.answers, min(size - len(data), 1 << 20))
            except BlockingIOError:
                continue
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def _wait(self, fd: int, event: int, end: float) -> None:
        poll = select.poll()
        poll.register(fd, event)
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if poll.poll(min(left, _TICK_S) * 1000):
                return
            self._trim()
            # A grandchild may hold the pipe open after the child is gone.
            if self.ended() and not poll.poll(0):
                raise EOFError

    def _trim(self) -> None:
        if os.fstat(self.log.fileno()).st_size > MAX_LOG:
            os.ftruncate(self.log.fileno(), 0)

    def ended(self) -> bool:
        """Whether the process is gone; leaves it to be reaped, so that its group's number stays taken."""
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def babbles(self) -> bool:
        """Whether there is something to read that nobody has asked for, such as a forked copy's answer."""
        poll = select.poll()
        poll.register(self.answers, select.POLLIN)
        return bool(poll.poll(0))

    def limit(self, size: int) -> None:
        """Let the process's own data grow to this many bytes at most, where the system can limit another process."""
        with contextlib.suppress(OSError, AttributeError):
            resource.prlimit(self.process.pid, resource.RLIMIT_DATA, (size, size))

    def grown(self) -> bool:
        """Whether the child holds much more memory than after its first answer."""
        import psutil

        try:
            held = psutil.Process(self.process.pid).memory_info().rss
        except psutil.Error:
            return False
        self.base_bytes = self.base_bytes or held
        return held - self.base_bytes > MAX_GROWTH

    def kill(self, *, silent: bool = False) -> str:
        """Kill the process group, free everything, and say in one line how the child ended.

        silent: it closed its pipe, so it is about to die by itself: let it, for its own signal to be known.
        """
        os.close(self.questions)
        os.close(self.answers)
        detail = ""
        if self.owner == os.getpid():
            alone = self._settle(_SETTLE_S if silent else 0.0)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            try:
                code = self.process.wait(_KILLED_S)
                killed = code == -signal.SIGKILL
                self.murdered = alone and killed
                detail = self._epitaph("it closed its pipe and lived on" if killed and not alone else _how(code))
            except subprocess.TimeoutExpired:
                detail = f"process {self.process.pid} does not go, though it was killed"
            _bury(self.process.pid)
        self.log.close()
        return detail

    def _settle(self, within_s: float) -> bool:
        """Whether the process ends by itself."""
        end = time.monotonic() + within_s
        while not self.ended():
            if time.monotonic() >= end:
                return False
            time.sleep(0.005)
        return True

    def _epitaph(self, how: str) -> str:
        self.log.seek(max(0, os.fstat(self.log.fileno()).st_size - 4096))
        lines = [line.strip() for line in self.log.read().decode(errors="replace").splitlines() if line.strip()]
        return _one_line(f"{how}: {lines[-1]}" if lines else how)


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _error(kind: Kind, detail: str) -> Exception:
    """What to raise of a call that went wrong: on a full disk that is not the call's fault."""
    if _FULL.search(detail):
        return OSError(errno.ENOSPC, _one_line(detail))
    return ChildError(kind, _one_line(detail))


def _bury(group: int) -> None:
    """Reap what a killed child left behind: orphans of its group are this process's, since it adopts its nurseries'."""
    end = time.monotonic() + 1
    while time.monotonic() < end:
        try:
            if os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG) is None:
                time.sleep(0.002)
        except ChildProcessError:
            return


def _executed(questions: int, answers: int, log: BinaryIO, owner: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [*_COMMAND, str(questions), str(answers), str(owner)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(questions, answers),
        start_new_session=True,
        env=_environment(),
    )


def _environment() -> dict[str, str]:
    return {**os.environ, **({} if _temporary is None else {"TMPDIR": str(_temporary)})}


class _Adopted:
    """A process that was forked elsewhere and is this process's child: what is used of `Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self, timeout: float) -> int:
        """How it ended, as `Popen.returncode` says it. Raises TimeoutExpired."""
        end = time.monotonic() + timeout
        while True:
            try:
                ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG)
            except ChildProcessError:
                return 0  # somebody else has asked
            if ended is not None:
                return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("child", timeout)
            time.sleep(0.002)


class _Nursery:
    """A process that has imported some modules and forks children; those are orphaned at once and adopted here."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self.modules = modules
        self.owner = os.getpid()
        self._lock = threading.Lock()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._socket, theirs = socket.socketpair()
        self._log: BinaryIO = tempfile.TemporaryFile(prefix="dragon-nursery-", buffering=0)  # noqa: SIM115
        with theirs:
            self.process = subprocess.Popen(
                [*_COMMAND, "nurse", str(theirs.fileno()), str(self.owner), *modules],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                # A forked process has one thread: there must be no others when it is forked.
                env={**_environment(), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )

    def ask(self, *descriptors: int) -> None:
        """Ask for a child with these descriptors. Raises OSError where the nursery is gone."""
        try:
            with self._lock:
                socket.send_fds(self._socket, [b"\0"], descriptors)
        except OSError:
            raise self.barren() from None

    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def failed(self) -> bool:
        """Whether it ended, or is about to, and not because somebody killed it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(_SETTLE_S) != -signal.SIGKILL
        return False

    def barren(self) -> OSError:
        """What to raise where no child comes: the last line that it printed."""
        lines: list[str] = []
        with contextlib.suppress(ValueError):  # another thread has found it gone, and closed it
            self._log.seek(max(0, os.fstat(self._log.fileno()).st_size - 4096))
            lines = self._log.read().decode(errors="replace").split("\n")
        said = next((line for line in reversed(lines) if line.strip()), "it said nothing")
        return OSError(f"no child came from the nursery of {', '.join(self.modules)}: {_one_line(said)}")

    def close(self) -> None:
        self._socket.close()
        self._log.close()
        if self.owner == os.getpid():
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_KILLED_S)


class _Spawner:
    """Starts children from one thread that lasts as long as the process.

    The kernel's parent-death signal fires when the *thread* that started a child ends, and the threads that
    call us may be short-lived.
    """

    def __init__(self) -> None:
        self._wanted: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="child-spawner", daemon=True).start()

    def start(self) -> _Running:
        """A child that is executed anew."""
        started: _Running = self.run(_Running)
        return started

    def run(self, make: Callable[[], Any]) -> Any:
        """What `make` gives in that thread, or raises."""
        reply: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._wanted.put((make, reply))
        made = reply.get()
        if isinstance(made, BaseException):
            raise made
        return made

    def _serve(self) -> NoReturn:
        while True:
            make, reply = self._wanted.get()
            try:
                reply.put(make())
            except BaseException as error:
                reply.put(error)


_stopped = threading.Event()
_workers: dict[str, Child] = {}
_children: "weakref.WeakSet[Child]" = weakref.WeakSet()
_nurseries: dict[tuple[str, ...], _Nursery] = {}
_workers_lock = threading.Lock()
_the_spawner: _Spawner | None = None
_temporary: Path | None = None


def _nursery(modules: tuple[str, ...]) -> _Nursery:
    """This process's nursery of these modules; another where the last one is gone."""
    spawner = _spawner()
    with _workers_lock:
        found = _nurseries.get(modules)
        if found is None or not found.alive():
            if found is not None:
                found.close()
            found = _nurseries[modules] = spawner.run(lambda: _Nursery(modules))
        return found


def _spawner() -> _Spawner:
    global _the_spawner  # noqa: PLW0603
    with _workers_lock:
        if _the_spawner is None:
            _the_spawner = _Spawner()
        return _the_spawner


def _forget() -> None:
    """After a fork the children are the other process's, and the spawning thread is gone."""
    global _workers_lock, _the_spawner, _temporary  # noqa: PLW0603
    _workers_lock = threading.Lock()
    _the_spawner = None
    _temporary = None
    _workers.clear()
    _children.clear()
    _nurseries.clear()


os.register_at_fork(after_in_child=_forget)
atexit.register(close_all)


def _parsed(answer: bytes) -> Any:
    """JSON; orjson is four times as fast, but takes no NaN and no infinity."""
    try:
        return orjson.loads(answer)
    except orjson.JSONDecodeError:
        return json.loads(answer)


def _one_line(text: str, limit: int = 400) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
