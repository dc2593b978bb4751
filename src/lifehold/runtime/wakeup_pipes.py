"""How a waiter in another process is woken: by a line in a pipe of its own.

Promise: who is called is woken within microseconds, and nobody else. A process that waits has one
named pipe in a folder of such while it does, and a thread that reads it. An address is the name
of the pipe and the waiter's mark. The kernel is the witness of its life: a pipe that nobody reads
is a dead process's, in whatever PID namespace it was (L2: the folder is one kernel's).

A call can be lost: the caller dies between its step and the call, or the folder was swept. The
waiter then looks by itself.
"""

from __future__ import annotations

import errno
import os
import stat

from ..core.events import report
from . import fork, native, process

TYPE_CHECKING = False
if TYPE_CHECKING:
    import select
    from collections.abc import Callable
else:
    select = fork.later("select", globals())

LINGER = 1000  # milliseconds that the thread stays after its last waiter: often the next one comes
POLLIN = 1
MARK = 16  # characters of a mark
PLAIN = frozenset("0123456789abcdef.")


class PipeWakeups:
    """The waiters of this process at one store. `beside`: the file whose owner is to call them."""

    def __init__(self, folder: str, shared: bool, beside: str = "") -> None:
        self.folder, self.shared, self.beside = folder, shared, beside
        self._mutex = native.RLock()
        self.rings: dict[str, Callable[[], object]] = {}
        self._fd = -1
        self._pipe = ""  # its name
        self._file = 0  # its inode
        fork.in_child(self._forget_all)

    def _forget_all(self) -> None:
        """A child has no waiters; with our copy of the pipe it would keep the parent alive.

        The pipe's name is forgotten too: its waiters are no dead ones of ours.
        """
        self._mutex = native.RLock()
        self.rings = {}
        self._pipe, self._file = "", 0
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    # ---- waiting

    def listen(self, mark: str, ring: Callable[[], object]) -> str:
        """The address by which others call this waiter; "" where there can be none."""
        with self._mutex:
            self.rings[mark] = ring
            try:
                if self._fd < 0 or not self._there():
                    self._open()
            except (OSError, RuntimeError, AttributeError):  # no folder, no thread, no pipes here
                return ""
            return f"{self._pipe}:{mark}"

    def forget(self, mark: str) -> None:
        self.rings.pop(mark, None)

    def close(self) -> None:
        """The process ends, or nobody has waited for a while."""
        fork.here()  # a child that C code has forked leaves its parent's pipe alone
        with self._mutex:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                try:
                    if self._there():
                        os.unlink(os.path.join(self.folder, self._pipe))
                except OSError:
                    pass
                os.close(fd)

    def _there(self) -> bool:
        """Whether our pipe still has its name."""
        try:
            return os.stat(os.path.join(self.folder, self._pipe)).st_ino == self._file
        except OSError:
            return False

    def _open(self) -> None:
        self.close()
        try:
            os.mkdir(self.folder, 0o777 if self.shared else 0o700)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(self.folder).st_mode):  # L7  a link is not followed
                raise
        owner = self._given() if os.geteuid() == 0 else None
        name = f"{os.getpid()}.{process.namespace('pid') or 0}.{os.urandom(4).hex()}"
        path = os.path.join(self.folder, name)
        os.mkfifo(path, 0o666 if self.shared else 0o600)
        # For both, so that it never ends when a caller closes its side.
        flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        with fork.gate:  # L9  a child that does not know of its copy would keep our pipe alive
            self._pipe, self._fd = name, os.open(path, flags)
        fd = self._fd
        try:
            found = os.fstat(fd)
            self._file = found.st_ino
            if owner is not None and stat.S_ISFIFO(found.st_mode) and found.st_nlink == 1:
                try:
                    os.fchown(fd, owner.st_uid, owner.st_gid)  # L7  as in `_given`
                except OSError:
                    pass  # without that right, root alone calls us, and who may call root's
            native.start_new_thread(self._read, (fd,))
        except BaseException:
            self.close()
            raise

    def _given(self) -> os.stat_result | None:
        """Root's folder is given to who owns the file beside it: whose it is, None for nobody.

        L7  That user may exchange every name there. So nothing is followed, both are looked up in
        one open folder, and nothing is given but an empty folder of root.
        """
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder, name = os.path.split(self.folder)
        above = there = -1
        try:
            above = os.open(os.path.realpath(folder), flags)
            file = os.path.basename(self.beside)
            owner = os.stat(file, dir_fd=above, follow_symlinks=False)
            if not stat.S_ISREG(owner.st_mode) or owner.st_uid == 0:
                return None
            there = os.open(name, flags, dir_fd=above)
            if os.fstat(there).st_uid == 0 and not os.listdir(there):
                os.fchown(there, owner.st_uid, owner.st_gid)
            return owner
        except OSError:
            return None  # then its user is not woken, and looks
        finally:
            for fd in (there, above):
                if fd >= 0:
                    os.close(fd)

    def _read(self, fd: int) -> None:
        """The thread."""
        _signal = fork.lazily("_signal")
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        poller = native.real(select, "poll")()
        poller.register(fd, POLLIN)
        while self._fd == fd:
            if poller.poll(LINGER):
                try:
                    text = native.read(fd, 4096)
                except BlockingIOError:
                    continue
                except OSError:
                    return  # closed meanwhile
                for mark in text.decode("ascii", "replace").split():
                    self.tell(mark)
            elif not self.rings:
                with self._mutex:
                    if not self.rings and self._fd == fd:
                        self.close()

    def tell(self, mark: str) -> bool:
        """Ring a waiter of this process."""
        ring = self.rings.get(mark)
        if ring is None:
            return False
        try:
            ring()
        except Exception as error:  # noqa: BLE001 - the others are to be told all the same
            report(error)
        return True

    # ---- calling

    def call(self, address: str) -> bool | None:
        """Wake a waiter. False: it is proven dead; None: it has no address that we can reach."""
        pipe, _, mark = address.partition(":")
        if self.tell(mark):
            return True
        if pipe == self._pipe:
            return False  # one of ours, who has gone
        return self._reach(pipe, mark.encode("ascii", "replace") + b"\n")

    def ours(self, address: str) -> bool:
        """Whether it is of a waiter of this process."""
        return self._pipe != "" and address.startswith(f"{self._pipe}:")

    def dead(self, address: str) -> bool:
        """Whether this waiter is proven gone: its process is, or it is one of ours and has left."""
        pipe, _, mark = address.partition(":")
        if mark in self.rings:
            return False
        return pipe == self._pipe != "" or self._reach(pipe, b"") is False

    def _reach(self, pipe: str, text: bytes) -> bool | None:
        if not pipe or not PLAIN.issuperset(pipe):
            return None
        fork.here()
        with fork.gate:  # L9  as above: while we call, we have the other's pipe open
            return self._called(os.path.join(self.folder, pipe), text)

    def _called(self, path: str, text: bytes) -> bool | None:
        flags = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(path, os.O_WRONLY | flags)
        except OSError as error:
            if error.errno != errno.ENXIO:
                return None
            _sweep(path)
            return False
        other = -1
        try:
            if not stat.S_ISFIFO(os.fstat(fd).st_mode):
                return None
            if text:
                other = os.open(path, os.O_RDONLY | flags)  # no SIGPIPE if it dies just now
                native.write(fd, text)
        except BlockingIOError:
            pass  # full: it has been called and does not run
        except OSError:
            return None
        finally:
            os.close(fd)
            if other >= 0:
                os.close(other)
        return True


def _sweep(path: str) -> None:
    """A dead process's pipe."""
    try:
        if stat.S_ISFIFO(os.lstat(path).st_mode):
            os.unlink(path)
    except OSError:
        pass
