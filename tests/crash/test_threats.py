"""Root works in a folder of another user, who swaps, links and renames at each call in turn.

The claims of docs/explanation/threat-model.md. Root clears, watches, locks and examines in a folder
of nobody's. An attacker with the rights of nobody changes that folder just before the first file
call of root's, in the next run before the second, and so on to the last. Whatever it does and when:
- no file of root's has a special bit, or the attacker's words;
- what root and a third user own elsewhere stays as it was, and nothing is added there.
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
from pathlib import Path

import pytest

from crash.terrain import NOBODY, as_nobody, folder_for_all, result
from ground import needs
from lifehold import (
    Lock,
    OnceFailed,
    ReadWriteLock,
    Semaphore,
    UnsafeGround,
    WouldBlock,
    locked_file,
    once,
)
from lifehold.audit import fix, source
from lifehold.cli.main import main
from lifehold.compat import filelock, liblockfile, lockfolder
from lifehold.fence import FencedFile
from lifehold.local import files, ground_probe, proc_locks
from lifehold.local.files import HOST, Files
from lifehold.local.ground import ground_of
from lifehold.ops import clear, doctor, foreign_verdict, history, watch
from lifehold.ops.watch import Config, Watch
from lifehold.recipes.once_build import build_once
from lifehold.registry import maker
from lifehold.runtime import process
from lifehold.runtime.blocking import finish

pytestmark = needs("root", "linux", "proc", "all processes")
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
KINDS = ("soft", "link", "generation", "directory", "folder")


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
        return os.read(fd, 1 << 20)
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


def run_a_command(ground: Ground) -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # `run` keeps its own until it ends
    try:
        main(["run", "--wait", "0", "--kind", ground.kind, str(ground.path), "--", "true"])
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


def attacked(work, form: str, attacks, kind: str = "") -> int:
    """Every attack before every call. How many runs; raises AssertionError with all that fell."""
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
    assert not fell, "\n".join(fell[:20])
    return runs


@pytest.fixture(autouse=True)
def names(tmp_path_factory, monkeypatch):
    """And everything that root's work may load is loaded: a child imports nothing."""
    folder = tmp_path_factory.mktemp("names")
    monkeypatch.setenv("LIFEHOLD_DIR", str(folder))
    for module in (ground_probe, doctor):  # another Python is another test
        monkeypatch.setattr(module, "other_process", lambda *words: 3)
    monkeypatch.setattr(doctor, "PATIENCE", 0.01)
    for module in (foreign_verdict, proc_locks):  # nobody else comes there, and each look is long
        monkeypatch.setattr(module, "processes", lambda: [os.getppid(), os.getpid()])


@pytest.mark.parametrize(
    ("form", "attacks"),
    [
        ("terraform", ("swapped for root's and back", "stolen", "replaced")),
        ("number", ("swapped for root's and back", "hard link", "fifo")),
        ("uucp", ("swapped for a third's and back", "hard link", "replaced")),
        ("link", ("swapped for root's and back", "stolen")),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_root_clears_gives_a_user_no_right_of_root(form, attacks):
    assert attacked(clear_it, form, attacks) > 20


@pytest.mark.parametrize("kind", KINDS)
def test_what_root_clears_of_our_own_kinds_gives_a_user_no_right_of_root(kind):
    attacks = ("swapped for root's and back", "stolen")
    assert attacked(clear_it, "own", attacks[: 2 if kind == "generation" else 1], kind) > 10


def test_a_watch_of_root_that_clears_gives_a_user_no_right_of_root():
    assert attacked(watch_it, "terraform", ("swapped for root's and back",)) > 20


def test_what_a_watch_of_root_notes_goes_to_no_file_of_another():
    assert attacked(tell, "number", ATTACKS) > 20


def test_what_root_mends_gives_a_user_no_right_of_root():
    assert attacked(mend, "source", ATTACKS) > 50


def test_a_doctor_of_root_removes_nothing_but_what_it_made():
    assert attacked(examine, "number", ("swapped for root's", "stolen")) > 50


@pytest.mark.parametrize("kind", ["kernel", *KINDS])
def test_a_lock_of_root_for_all_opens_nothing_but_what_it_made(kind):
    attacked(lock_it_for_all, "none", ("stolen",), kind)


def test_a_once_of_root_for_all_opens_nothing_but_what_it_made():
    attacked(run_once_for_all, "none", ("stolen",))


@pytest.mark.parametrize("kind", ["generation", "directory", "folder"])
def test_a_lock_of_root_for_all_opens_no_folder_that_root_had_there(kind):
    attacked(lock_it_for_all, "none", ("root's in its place",), kind)


SWAPS = ("swapped for root's", "swapped for root's and back", "swapped for a third's and back")


@pytest.mark.parametrize("kind", ["kernel", *KINDS])
def test_a_lock_of_root_follows_nobody_out_of_the_folder_it_was_named_in(kind):
    attacks = (SWAPS[1], "a link for the lock")
    assert attacked(hold_it, "none", attacks, kind) > 20


@pytest.mark.parametrize("kind", ["soft", "link", "generation", "directory", "folder"])
def test_what_root_takes_over_in_a_folder_of_others_leads_it_nowhere(kind):
    assert attacked(hold_it, "own", (SWAPS[1],), kind) > 20


@pytest.mark.parametrize(
    "work",
    [run_once, write_fenced, write_a_file, share_it,
     lock_by_filelock, lock_by_lockfolder, lock_by_liblockfile],
    ids=lambda work: work.__name__,
)  # fmt: skip
def test_what_is_made_of_a_lock_of_root_follows_nobody_either(work):
    assert attacked(work, "none", (SWAPS[1],)) > 20


@pytest.mark.parametrize("kind", ["kernel", "soft", "generation"])
def test_a_command_that_root_runs_under_a_lock_follows_nobody(kind):
    assert attacked(run_a_command, "none", (SWAPS[1],), kind) > 20


# ---- what root did in such folders before, it does


@pytest.fixture
def theirs():
    """nobody's folder, in a folder of nobody's."""
    with folder_for_all() as base:
        folder = base / "home" / "d"
        folder.mkdir(parents=True)
        for each in (folder.parent, folder):
            os.chown(each, NOBODY, NOBODY)
        yield folder


def held_and_again(path: Path, kind: str, **more: object) -> None:
    """Two holds one after the other, and one that is refused meanwhile."""
    tokens = []
    for _ in range(2):
        with Lock(path, kind=kind, **more).acquire(wait=0) as lease:
            lease.check()
            tokens.append(lease.token)
            with pytest.raises(WouldBlock):
                Lock(path, kind=kind, **more).acquire(wait=0)
    assert tokens[0] < tokens[1]


@pytest.mark.parametrize("kind", ["kernel", *KINDS])
def test_root_locks_in_a_users_folder_and_in_one_of_its_own_below_it(theirs, kind):
    own = theirs / "roots"
    own.mkdir(0o700)
    for folder in (theirs, own, theirs / "made" / "anew"):
        held_and_again(folder / "x.lock", kind)


@pytest.mark.parametrize("kind", ["kernel", *KINDS])
def test_root_goes_by_a_users_link_to_another_folder_of_that_user(theirs, kind):
    link = theirs.parent / "current"
    result(as_nobody(os.symlink, "d", link))
    held_and_again(link / "x.lock", kind)
    assert Lock(theirs / "x.lock", kind=kind).holder() is None


@pytest.mark.parametrize("kind", ["kernel", *KINDS])
def test_root_goes_by_no_link_of_a_user_to_a_folder_that_is_not_that_users(theirs, kind):
    vault = theirs.parent.parent / "vault"
    vault.mkdir()
    link = theirs.parent / "current"
    result(as_nobody(os.symlink, vault, link))
    with pytest.raises(UnsafeGround, match="nobody"):
        Lock(link / "x.lock", kind=kind).acquire(wait=0)
    assert not list(vault.iterdir())


@pytest.mark.parametrize("kind", ["kernel", *KINDS])
def test_root_locks_in_a_sticky_folder_of_roots_as_anybody_does(kind):
    with folder_for_all(0o1777) as folder:
        held_and_again(folder / "x.lock", kind)
        theirs = folder / "theirs"
        result(as_nobody(os.mkdir, theirs))
        held_and_again(theirs / "x.lock", kind)


def test_the_results_and_fences_of_root_are_kept_in_a_users_folder(theirs):
    assert [once(theirs / "o", lambda: each, wait=0) for each in (1, 2)] == [1, 1]
    guard = FencedFile(theirs / "data", 7)
    guard.write(b"words")
    assert (guard.read().data, guard.read().token) == (b"words", 7)


LEFTOVERS = (".out.removed-0123456789abcdef-0", ".out.building-0123456789abcdef")


@pytest.mark.parametrize("mode", [0o700, 0o000], ids=["open", "closed"])
@pytest.mark.parametrize("name", LEFTOVERS)
def test_a_build_of_root_removes_nothing_that_a_user_has_renamed(theirs, name, mode, caplog):
    roots = theirs / "backup"
    roots.mkdir(0o700)
    (roots / "dump").write_text("root's")
    mine = theirs / LEFTOVERS[0].replace("0", "1")
    result(as_nobody(mine.mkdir))
    mine.chmod(mode)
    result(as_nobody(roots.rename, theirs / name))
    for _ in range(2):
        build_once(theirs / "out", fill)
        shutil.rmtree(theirs / "out")
    assert [each.read_text() for each in theirs.rglob("dump")] == ["root's"]
    assert not mine.exists()  # that user could remove it, too
    (told,) = [each.getMessage() for each in caplog.records if "leftover" in each.getMessage()]
    assert "rights of nobody" in told


def test_what_a_killed_build_of_root_left_goes_and_what_it_put_in_place_stays(theirs):
    if not bears_attributes(theirs):
        pytest.skip("no attributes on this file system")
    killed_build(theirs / "out")
    (left,) = theirs.glob(".out.building-*")
    assert (left / "x").exists()
    build_once(theirs / "out", fill)
    assert not list(theirs.glob(".out.*-*"))
    result(as_nobody((theirs / "out").rename, theirs / LEFTOVERS[1]))
    build_once(theirs / "out", fill)
    assert len(list(theirs.glob(".out.removed-*/x"))) == 1


def test_what_a_killed_build_gave_to_a_user_in_a_folder_of_root_goes(tmp_path):
    left = tmp_path / LEFTOVERS[1]
    (left / "roots").mkdir(parents=True)
    (left / "roots" / "x").touch()
    os.chown(left, NOBODY, NOBODY)
    build_once(tmp_path / "out", fill)
    assert not list(tmp_path.glob(".out.*-*"))


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_a_folder_that_a_user_puts_in_the_place_of_a_build_of_root_is_left_alone(theirs, ends):
    roots = theirs / "backup"
    roots.mkdir(0o700)
    (roots / "dump").touch()

    def build(staging: str) -> None:
        fill(staging)
        result(as_nobody(os.rename, staging, theirs / "taken"))
        result(as_nobody(roots.rename, staging))
        if ends == "badly":
            raise ValueError("the build")

    with pytest.raises(OnceFailed, match="not there" if ends == "well" else "the build"):
        build_once(theirs / "out", build)
    assert len(list(theirs.rglob("dump"))) == 1
    assert not (theirs / "out").exists()


def fill(staging: str) -> None:
    Path(staging, "x").touch()


def killed_build(target: Path) -> None:
    def build(staging: str) -> None:
        fill(staging)
        os.kill(os.getpid(), signal.SIGKILL)

    if not (child := os.fork()):
        build_once(target, build)
    os.waitpid(child, 0)


def bears_attributes(folder: Path) -> bool:
    try:
        os.setxattr(folder, "user.lifehold.test", b"")
        os.removexattr(folder, "user.lifehold.test")
    except OSError:
        return False
    return True


def test_a_users_data_that_root_writes_stays_the_users_and_gets_no_rights(theirs):
    path = theirs / "data"
    result(as_nobody(theirs_with_mode, path, 0o640))
    guard = FencedFile(path, 7)
    guard.update(lambda data: data + b" and root's")
    guard.write(path.read_bytes() + b", again")
    found = path.stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (NOBODY, 0o640)
    assert path.read_bytes() == b"words and root's, again"
    result(as_nobody(os.chmod, path, 0o4755))
    with pytest.raises(UnsafeGround, match="runs as its owner"):
        guard.update(lambda data: data)
    assert path.stat().st_uid == NOBODY


def theirs_with_mode(path: Path, mode: int) -> None:
    path.write_bytes(b"words")
    path.chmod(mode)


def test_only_root_among_strangers_walks_its_paths(tmp_path, theirs):
    seams = {
        type(Lock(folder / "x.lock", kind="generation")._mechanism.files)
        for folder in (tmp_path, Path("/var/lib"))
    }
    assert seams == {Files}
    assert result(as_nobody(seam_of, theirs / "x.lock")) == "Files"
    assert seam_of(theirs / "x.lock") == "AnchoredFiles"


def seam_of(path: Path) -> str:
    return type(Lock(path, kind="kernel")._mechanism.files).__name__


# ---- what is left is the owner's, and the log is root's


def again(path: Path, kind: str) -> object:
    with Lock(path, kind=kind).acquire(wait=0) as lease:
        return lease.token


def killed(path: Path, kind: str) -> None:
    if not (child := os.fork()):
        Lock(path, kind=kind).acquire(wait=0)
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)


@pytest.mark.parametrize("mode", [0o755, 0o1777], ids=["a folder of theirs", "sticky"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_root_clears_stays_its_owners_who_gets_in_next(kind, mode):
    with folder_for_all(mode) as folder:
        if mode == 0o755:
            os.chown(folder, NOBODY, NOBODY)
        path = folder / "x.lock"
        maker(kind)
        result(as_nobody(killed, path, kind))
        done = clear.clear(str(path))
        stays = clear.FREED if kind in ("generation", "folder") else clear.REMOVED
        assert done.action == stays, done.why
        owners = {each: each.lstat().st_uid for each in folder.rglob("*")}
        assert set(owners.values()) <= {NOBODY}, owners
        assert result(as_nobody(again, path, kind))


def test_a_program_of_root_leaves_a_users_numbered_lock_to_the_user():
    with folder_for_all(0o755) as folder:
        os.chown(folder, NOBODY, NOBODY)
        path = folder / "x.lock"
        maker("generation")
        first = result(as_nobody(again, path, "generation"))
        second = again(path, "generation")
        assert first < second < result(as_nobody(again, path, "generation"))


def test_root_clears_its_own_in_a_sticky_folder_and_refuses_by_name_where_two_may_swap():
    with folder_for_all(0o1777) as folder:
        (folder / "LCK..own").write_text("4190001\n")
        assert clear.clear(str(folder / "LCK..own")).action == clear.REMOVED
        inner = folder / "in"
        inner.mkdir()
        (inner / "LCK..x").write_text("4190001\n")
        os.chown(inner / "LCK..x", THIRD, THIRD)
        inner.chmod(0o777)
        os.chown(folder, NOBODY, NOBODY)
        done = clear.clear(str(inner / "LCK..x"))
        assert done.action == clear.REMOVED, done.why
        (inner / "LCK..x").write_text("4190001\n")
        os.chown(inner, THIRD, THIRD)
        done = clear.clear(str(inner / "LCK..x"))
        assert (done.action, (inner / "LCK..x").exists()) == (clear.KEPT, True)
        assert "nobody" in done.why


@pytest.mark.parametrize("trap", ["fifo", "file", "link", "folder"])
def test_the_audit_log_of_root_is_roots_in_a_folder_of_names_that_is_open_to_all(
    trap, monkeypatch, tmp_path
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("lifehold.local.lock_names.MACHINE", str(tmp_path / "machine"))
    with folder_for_all(0o1777) as folder:
        monkeypatch.setenv("LIFEHOLD_DIR", str(folder))
        own = folder / ".cleared.history"
        {"fifo": lambda: os.mkfifo(own), "file": own.touch, "folder": own.mkdir,
         "link": lambda: own.symlink_to(folder / "elsewhere")}[trap]()  # fmt: skip
        os.chown(own, NOBODY, NOBODY, follow_symlinks=False)
        lock = folder / "LCK..x"
        lock.write_text("4190001\n")
        assert clear.clear(str(lock)).action == clear.REMOVED
        assert [entry.name for entry in history.logged()] == [str(lock)]
        assert not own.is_file() or own.read_bytes() == b""
        log = tmp_path / "machine" / ".cleared.history"
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
