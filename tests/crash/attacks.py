"""Root works in a folder of another user, who changes it just before a certain call of root's.

    python -m crash.attacks WORK FORM KIND ATTACK...       as root; says what fell

An attacker with the rights of nobody changes that folder just before the first file call of root's,
in the next run before the second, and so on to the last. Each run is a process; it is forked from
one that has nothing but this in its memory, because a fork of all the tests would take ten times as
long.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from crash.terrain import NOBODY, folder_for_all
from lifehold import Lock, ReadWriteLock, Semaphore, locked_file, once
from lifehold.audit import fix, source
from lifehold.cli.main import main as command
from lifehold.compat import filelock, liblockfile, lockfolder, portalocker, zc_lockfile
from lifehold.fence import FencedFile
from lifehold.local import files, ground_probe, proc_locks
from lifehold.local.files import HOST
from lifehold.local.ground import ground_of
from lifehold.ops import clear, doctor, foreign_verdict, watch
from lifehold.ops.watch import Config, Watch
from lifehold.runtime import process
from lifehold.runtime.blocking import finish

THIRD = 1234
EVIL = b"EVIL"
CALLS = (
    "open os.rename os.remove os.link os.symlink os.mkdir os.rmdir os.chmod os.chown os.truncate "
    "os.utime os.listdir os.scandir fcntl.flock fcntl.fcntl"
).split()
NAMES = {  # of each form of lock, in the folder that is attacked
    "terraform": ".s.lock.info", "number": "job.pid", "uucp": "LCK..tty", "link": "SingletonLock",
    "source": "app.py",
}  # fmt: skip
PARTS = ("d", "x.lock")  # of the path, where they are looked up one by one


class Ground:
    """`room/d`: nobody's, with the lock in it. `vault`: root's. `third`: another user's."""

    def __init__(self, base: Path, form: str, kind: str = "") -> None:
        self.base, self.form, self.kind = base, form, kind
        self.room, self.vault, self.third = base / "room", base / "vault", base / "third"
        self.folder = self.room / "d"
        self.path = self.folder / NAMES.get(form, "x.lock")
        self.before: list[tuple[str, int, int, int, bytes]] | None = None  # of what lies elsewhere

    def make(self) -> None:
        """As root; the lock itself is made by the attacker.

        What lies elsewhere is made again only when it is not as it was.
        """
        shutil.rmtree(self.room, ignore_errors=True)
        self.room.mkdir()
        os.chown(self.room, NOBODY, NOBODY)
        if self.before is None or self.snapshot() != self.before:
            self.make_elsewhere()
            self.before = self.snapshot()

    def make_elsewhere(self) -> None:
        for each in (self.vault, self.third):
            shutil.rmtree(each, ignore_errors=True)
            each.mkdir()
        for folder, words in ((self.vault, b"of root"), (self.third, b"of the third")):
            beside = ("x.lock.token", ".x.lock.history", "out.prom")
            lock = () if self.form == "none" else ("x.lock",)  # or what would be made there
            for name in (*NAMES.values(), *lock, *beside):
                (folder / name).write_bytes(words)
                (folder / name).chmod(0o600)
        for each in (self.third, *self.third.iterdir()):
            os.chown(each, THIRD, THIRD)

    def snapshot(self) -> list[tuple[str, int, int, int, bytes]]:
        """What root and the third own elsewhere."""
        found = []
        for folder in (self.vault, self.third):
            for each in (str(folder), *(f"{folder}/{name}" for name in os.listdir(folder))):
                seen = os.lstat(each)
                words = contents(each) if stat.S_ISREG(seen.st_mode) else b""
                found.append((each, seen.st_ino, seen.st_mode, seen.st_uid, words))
        return sorted(found)

    def faults(self) -> list[str]:
        """What root must never have left behind."""
        found = []
        after = self.snapshot()
        if changed := {*map(str, after)} ^ {*map(str, self.before or ())}:
            found.append(f"changed elsewhere: {sorted(changed)}")
        for place, folders, names in os.walk(self.base):
            if place == str(self.base) and not changed:  # those two are as they were
                folders[:] = set(folders) - {self.vault.name, self.third.name}
            for name in names:
                path = os.path.join(place, name)
                seen = os.lstat(path)
                if name == "secret" and os.lstat(place).st_mode & 0o077:
                    found.append(f"{place} of root's is open to others")
                if seen.st_uid != 0 or not stat.S_ISREG(seen.st_mode):
                    continue
                if seen.st_mode & 0o7000:
                    found.append(f"{path} is root's, with mode {seen.st_mode:o}")
                if EVIL in contents(path):
                    found.append(f"{path} is root's, with the words of another")
        return found


def contents(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        return os.read(fd, 1 << 14)
    finally:
        os.close(fd)


# ---- what nobody does


def lock_of(ground: Ground) -> None:
    """A dead lock, made by the attacker."""
    ground.folder.mkdir()
    if ground.form == "none":
        return
    path, gone = ground.path, 4_190_000
    while process.look(gone).exists:
        gone -= 1
    if ground.form == "terraform":
        told = {"ID": "EVIL", "Who": f"x@{socket.gethostname()}", "Operation": "EVIL"}
        path.write_text(json.dumps(told))
        (ground.folder / "s").touch()
    elif ground.form == "link":
        path.symlink_to(f"{socket.gethostname()}-{gone}")
        return
    elif ground.form in NAMES:
        path.write_text(f"{gone}\n")
    else:
        if not (child := os.fork()):
            Lock(path, kind=ground.kind).acquire(wait=0)
            os.kill(os.getpid(), 9)
        os.waitpid(child, 0)
        return
    path.chmod(0o4777)


def swap(ground: Ground, target: Path) -> None:
    os.rename(ground.folder, ground.room / "away")
    os.symlink(target, ground.folder)


def swap_back(ground: Ground) -> None:
    os.unlink(ground.folder)
    os.rename(ground.room / "away", ground.folder)


def steal(ground: Ground) -> None:
    """Keep whatever root has put there under another name, and put links in its place."""
    for each in list(ground.folder.iterdir()):
        if each.name.startswith(".lifehold") or each == ground.path:
            kept = each.with_name(f"kept-{os.urandom(4).hex()}")
            each.rename(kept)
            each.symlink_to(ground.vault if kept.is_dir() else ground.vault / ground.path.name)


def put_roots_in_its_place(ground: Ground) -> None:
    """A folder of root's own, which lies beside the lock, in the place of what root has made."""
    for each in list(ground.folder.iterdir()):
        if each.name.startswith(".lifehold") and each.is_dir():
            each.rename(each.with_name(f"kept-{os.urandom(4).hex()}"))
            os.rename(ground.folder / "roots", each)


def replace(ground: Ground) -> None:
    """Other words and bits in the place of the lock."""
    if ground.path.is_dir() and not ground.path.is_symlink():
        ground.path.rename(ground.folder / "kept")
        ground.path.mkdir(mode=0o777)
        return
    ground.path.unlink()
    ground.path.write_bytes(b"#!/bin/sh\n# EVIL\nid\n")
    ground.path.chmod(0o6777)


def hard_link(ground: Ground) -> None:
    """Where the system permits it: a second name of a file of root's."""
    ground.path.unlink()
    os.link(ground.vault / ground.path.name, ground.path)


def fifo(ground: Ground) -> None:
    ground.path.unlink()
    os.mkfifo(ground.path)


def link_elsewhere(ground: Ground) -> None:
    """A link to root's file, or folder, in the place of the lock."""
    with contextlib.suppress(OSError):
        ground.path.rename(ground.folder / f"kept-{os.urandom(4).hex()}")
    folder = ground.kind in ("generation", "directory", "folder")
    ground.path.symlink_to(ground.vault if folder else ground.vault / "x.lock")


def swap_for_a_link_of_root(ground: Ground) -> None:
    """Two swaps: the folder above, too."""
    os.rename(ground.folder, ground.room / "away")
    os.mkdir(ground.folder)
    os.rmdir(ground.folder)
    os.symlink("../vault", ground.folder)


ATTACKS = {
    "swapped for root's": (lambda g: swap(g, g.vault), None),
    "swapped for root's and back": (lambda g: swap(g, g.vault), swap_back),
    "swapped for a third's and back": (lambda g: swap(g, g.third), swap_back),
    "stolen": (steal, None),
    "root's in its place": (put_roots_in_its_place, None),
    "replaced": (replace, None),
    "hard link": (hard_link, None),
    "fifo": (fifo, None),
    "a link for the lock": (link_elsewhere, None),
    "swapped by a short link": (swap_for_a_link_of_root, swap_back),
}


class Attacker:
    """A process of nobody's that does what it is told, when it is told."""

    def __init__(self, ground: Ground) -> None:
        self.down, self.up = os.pipe(), os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                os.umask(0)
                os.close(self.down[1])
                os.close(self.up[0])
                while word := os.read(self.down[0], 1):
                    with contextlib.suppress(OSError):
                        self.act(ground, word[0])
                    os.write(self.up[1], b".")
            finally:
                os._exit(0)

    def act(self, ground: Ground, word: int) -> None:
        acts = [lock_of, *(each for pair in ATTACKS.values() for each in pair)]
        act = acts[word - 1]
        if act is not None:
            act(ground)

    def do(self, attack: str, second: int = 0) -> None:
        number = 1 if attack == "make" else 2 + 2 * list(ATTACKS).index(attack) + second
        os.write(self.down[1], bytes([number]))
        assert os.read(self.up[0], 1) == b"."

    def end(self) -> None:
        for fd in (*self.down, *self.up):
            os.close(fd)
        os.waitpid(self.pid, 0)


# ---- what root does


def clear_it(ground: Ground) -> None:
    clear.clear(str(ground.path))


def watch_it(ground: Ground) -> None:
    Watch(Config((str(ground.folder),), stale="clear"), lambda alert: None).round()


def lock_it_for_all(ground: Ground) -> None:
    with Lock(ground.path, kind=ground.kind or "kernel", shared=True).acquire(wait=0):
        pass


def run_once_for_all(ground: Ground) -> None:
    once(ground.path, lambda: 7, wait=0, shared=True)


def hold_it(ground: Ground) -> None:
    """All that a holder asks: acquire, look, renew, check, release."""
    leased = {} if ground.kind in ("kernel", "folder") else {"ttl": 30}
    lock = Lock(ground.path, kind=ground.kind, **leased)
    lease = lock.acquire(wait=0)
    try:
        lock.holder()
        lock.locked()
        if leased:
            finish(lock._mechanism.renew(lease._grant))
        lease.check()
    finally:
        lease.release()


def run_once(ground: Ground) -> None:
    once(ground.path, lambda: 7, wait=0)


def write_fenced(ground: Ground) -> None:
    guard = FencedFile(ground.path, 7, wait=0)
    guard.write(b"words")
    guard.read()
    guard.update(lambda data: (data or b"") + b"more")


def write_a_file(ground: Ground) -> None:
    """A new one, then one that is there and is replaced."""
    for mode in ("w", "a"):
        with locked_file(ground.path, mode, wait=0) as file:
            file.write("words")


def share_it(ground: Ground) -> None:
    """The shapes that are made of other locks."""
    for kind in ("kernel", "soft"):
        both = ReadWriteLock(ground.path, kind=kind, **({"ttl": 30} if kind == "soft" else {}))
        for side in (both.reading, both.writing):
            with contextlib.suppress(Exception), side(wait=0) as lease:
                lease.check()
    with contextlib.suppress(Exception), Semaphore(ground.path.with_suffix(".sem"), 2).acquire(0):
        pass


def lock_by_filelock(ground: Ground) -> None:
    for kind in (filelock.FileLock, filelock.SoftFileLock, filelock.StrictSoftFileLock):
        with contextlib.suppress(Exception), kind(str(ground.path) + kind.__name__, timeout=0):
            pass


def lock_by_lockfolder(ground: Ground) -> None:
    lockfolder.init()
    if lockfolder.lock(ground.path):
        lockfolder.have_lock(ground.path)
        lockfolder.unlock(ground.path)


def lock_by_liblockfile(ground: Ground) -> None:
    liblockfile.lockfile_create(ground.path, 0, liblockfile.L_PID)
    liblockfile.lockfile_check(ground.path, liblockfile.L_PID)
    liblockfile.lockfile_touch(ground.path)
    liblockfile.lockfile_remove(ground.path)


def lock_by_zc_lockfile(ground: Ground) -> None:
    zc_lockfile.LockFile(ground.path).close()


def lock_by_portalocker(ground: Ground) -> None:
    with portalocker.TemporaryFileLock(ground.path) as file:
        file.write("mine")


def count_by_portalocker(ground: Ground) -> None:
    with portalocker.BoundedSemaphore(1, "x", "{name}.lock", directory=ground.folder):
        pass


def run_a_command(ground: Ground) -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # `run` keeps its own until it ends
    try:
        command(["run", "--wait", "0", "--kind", ground.kind, str(ground.path), "--", "true"])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def tell(ground: Ground) -> None:
    config = Config((), log=str(ground.path), textfile=str(ground.folder / "out.prom"))
    watch.AlertSender(config)._log("{}")
    watch.write_textfile(config.textfile, "x 1\n")


def mend(ground: Ground) -> None:
    """`audit --fix`, which has read the file before it writes."""
    before = source.contents(str(ground.path))
    fix.put(ground.path, before, before + b"# mended\n")


def examine(ground: Ground) -> None:
    place = ground_of(str(ground.folder))
    ground_probe.probe(str(ground.folder), anew=True)
    doctor.tried(str(ground.folder), place)


Fallen = tuple[int, list[str]]  # how many runs, and what fell in them
LOOK_FIRST = (clear_it, watch_it)


def play(ground: Ground, work, attacker: Attacker, attack: str, at: int) -> int:
    """Root's work in a child, attacked before call number `at`. How many calls it made."""
    ends = os.pipe()
    child = os.fork()
    if not child:
        count, inside = 0, work in LOOK_FIRST  # what they only look at is looked at again
        decide = clear.ClearCase.of

        def about(word: str) -> bool:
            if word.startswith("/proc/self/fd/"):
                return True
            return word.startswith((str(ground.base), ".lifehold", *PARTS, ground.path.name))

        def hook(event: str, args: tuple[object, ...]) -> None:
            nonlocal count, inside
            if inside or event not in CALLS:
                return
            words = [os.fsdecode(each) for each in args if isinstance(each, (str, bytes))]
            if not any(map(about, words)):
                return
            inside = True
            if count == at:
                attacker.do(attack)
            elif count == at + 1 and at >= 0:
                attacker.do(attack, 1)
            count += 1
            inside = False

        look, swap_names = os.lstat, clear.exchange

        def lstat(path, **more):
            sys.audit("open", path)
            return look(path, **more)

        def exchange(one, other, at=files.AT_FDCWD):
            sys.audit("os.rename", one)
            return swap_names(one, other, at)

        def decided(*words):
            nonlocal inside
            inside = False
            return decide(*words)

        try:
            null = os.open("/dev/null", os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            clear.PATIENCE, clear.STALL = 0.02, 0.005
            os.lstat = HOST.lstat = lstat
            clear.exchange = exchange
            clear.ClearCase.of = decided
            sys.addaudithook(hook)
            with contextlib.suppress(Exception):
                work(ground)
            inside = True
            os.write(ends[1], str(count).encode())
        finally:
            os._exit(0)
    os.close(ends[1])
    with open(ends[0]) as told:
        count = told.read()
    os.waitpid(child, 0)
    return int(count or -1)


def attacked(work: Callable[[Ground], None], form: str, kind: str, attacks: list[str]) -> Fallen:
    """Every attack before every call."""
    fell, runs = [], 0
    with folder_for_all() as base:
        ground = Ground(base, form, kind)
        attacker = Attacker(ground)
        try:
            ground.make()
            attacker.do("make")
            with contextlib.suppress(Exception):
                work(ground)  # so that no child has anything to load
            for attack in attacks:
                at, calls = -1, 0
                while at <= calls:
                    ground.make()
                    attacker.do("make")
                    if attack == "root's in its place":
                        (ground.folder / "roots").mkdir(mode=0o700)
                        (ground.folder / "roots" / "secret").touch()
                    made = play(ground, work, attacker, attack, at)
                    calls = made if at < 0 else calls
                    assert made > 0, "root's work did nothing, or did not end"
                    where = f"{attack} before call {at} of {calls}"
                    fell += [f"{where}: {each}" for each in ground.faults()]
                    at, runs = at + 1, runs + 1
        finally:
            attacker.end()
    return runs, fell


def main(work: str, form: str, kind: str, *attacks: str) -> None:
    """What came of it on stdout, as JSON: how many runs, and what fell."""
    for module in (ground_probe, doctor):  # another Python is another test
        module.other_process = lambda *words: 3
    doctor.PATIENCE = 0.01
    for module in (foreign_verdict, proc_locks):  # nobody else comes there, and each look is long
        module.processes = lambda: [os.getppid(), os.getpid()]
    with tempfile.TemporaryDirectory() as names:
        os.environ["LIFEHOLD_DIR"] = names
        done = attacked(globals()[work], form, kind, list(attacks))
    print(json.dumps(done))


if __name__ == "__main__":
    main(*sys.argv[1:])
