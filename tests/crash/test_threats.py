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
import socket
import stat
import sys
from pathlib import Path

import pytest

from crash.terrain import NOBODY, as_nobody, folder_for_all, result
from ground import needs
from lifehold import Lock, once
from lifehold.local import ground_probe, rename
from lifehold.local.files import HOST
from lifehold.local.ground import ground_of
from lifehold.ops import clear, doctor_tries, removal, watch_out
from lifehold.ops.watch import Watch
from lifehold.ops.watch_config import Config
from lifehold.registry import maker
from lifehold.runtime import process

pytestmark = needs("root", "linux", "proc", "all processes")
THIRD = 1234
EVIL = b"EVIL"
CALLS = (
    "open os.rename os.remove os.link os.symlink os.mkdir os.rmdir os.chmod os.chown os.truncate "
    "os.utime os.listdir os.scandir fcntl.flock fcntl.fcntl"
).split()
NAMES = {  # of each form of lock, in the folder that is attacked
    "terraform": ".s.lock.info", "number": "job.pid", "uucp": "LCK..tty", "link": "SingletonLock",
}  # fmt: skip
KINDS = ("soft", "link", "generation", "directory", "folder")


class Ground:
    """`room/d`: nobody's, with the lock in it. `vault`: root's. `third`: another user's."""

    def __init__(self, base: Path, form: str, kind: str = "") -> None:
        self.base, self.form, self.kind = base, form, kind
        self.room, self.vault, self.third = base / "room", base / "vault", base / "third"
        self.folder = self.room / "d"
        self.path = self.folder / NAMES.get(form, "x.lock")

    def make(self) -> None:
        """As root; the lock itself is made by the attacker."""
        for each in (self.room, self.vault, self.third):
            shutil.rmtree(each, ignore_errors=True)
            each.mkdir()
        for folder, words in ((self.vault, b"of root"), (self.third, b"of the third")):
            for name in (*NAMES.values(), "x.lock", "x.lock.token", ".x.lock.history", "out.prom"):
                (folder / name).write_bytes(words)
                (folder / name).chmod(0o600)
        for each in (self.third, *self.third.iterdir()):
            os.chown(each, THIRD, THIRD)
        os.chown(self.room, NOBODY, NOBODY)

    def snapshot(self) -> list[object]:
        found: list[object] = []
        for folder in (self.vault, self.third):
            for each in (folder, *sorted(folder.iterdir())):
                seen = each.lstat()
                words = each.read_bytes() if each.is_file() else b""
                found.append((each, seen.st_ino, seen.st_mode, seen.st_uid, words))
        return found

    def faults(self) -> list[str]:
        """What root must never have left behind."""
        found = []
        for place, _, names in os.walk(self.base):
            for name in names:
                path = os.path.join(place, name)
                seen = os.lstat(path)
                if seen.st_uid != 0 or not stat.S_ISREG(seen.st_mode):
                    continue
                if seen.st_mode & 0o7000:
                    found.append(f"{path} is root's, with mode {seen.st_mode:o}")
                if EVIL in Path(path).read_bytes():
                    found.append(f"{path} is root's, with the words of another")
        return found


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


ATTACKS = {
    "swapped for root's": (lambda g: swap(g, g.vault), None),
    "swapped for root's and back": (lambda g: swap(g, g.vault), swap_back),
    "swapped for a third's and back": (lambda g: swap(g, g.third), swap_back),
    "stolen": (steal, None),
    "replaced": (replace, None),
    "hard link": (hard_link, None),
    "fifo": (fifo, None),
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


def tell(ground: Ground) -> None:
    config = Config((), log=str(ground.path), textfile=str(ground.folder / "out.prom"))
    watch_out.Teller(config)._log("{}")
    watch_out.write_textfile(config.textfile, "x 1\n")


def examine(ground: Ground) -> None:
    place = ground_of(str(ground.folder))
    ground_probe.probe(str(ground.folder), anew=True)
    doctor_tries.tried(str(ground.folder), place)


LOOK_FIRST = (clear_it, watch_it)


def play(ground: Ground, work, attacker: Attacker, attack: str, at: int) -> int:
    """Root's work in a child, attacked before call number `at`. How many calls it made."""
    ends = os.pipe()
    child = os.fork()
    if not child:
        count, inside = 0, work in LOOK_FIRST  # what they only look at is looked at again
        decide = clear.Case.of

        def about(word: str) -> bool:
            anchored = word.startswith("/proc/self/fd/") and "/." in word
            return anchored or word.startswith((str(ground.base), ".lifehold", ground.path.name))

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

        look, swap_names = os.lstat, removal.exchange

        def lstat(path, **more):
            sys.audit("open", path)
            return look(path, **more)

        def exchange(one, other, at=rename.AT_FDCWD):
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
            removal.PATIENCE, removal.STALL = 0.02, 0.005
            os.lstat = HOST.lstat = lstat
            removal.exchange = exchange
            clear.Case.of = decided
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
                    before = ground.snapshot()
                    made = play(ground, work, attacker, attack, at)
                    calls = made if at < 0 else calls
                    assert made > 0, "root's work did nothing, or did not end"
                    wrong = ground.faults()
                    if ground.snapshot() != before:
                        changed = set(map(str, ground.snapshot())) ^ set(map(str, before))
                        wrong.append(f"changed elsewhere: {sorted(changed)}")
                    fell += [f"{attack} before call {at} of {calls}: {each}" for each in wrong]
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
    for module in (ground_probe, doctor_tries):  # another Python is another test
        monkeypatch.setattr(module, "other_process", lambda *words: 3)
    monkeypatch.setattr(doctor_tries, "PATIENCE", 0.01)


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


def test_a_doctor_of_root_removes_nothing_but_what_it_made():
    assert attacked(examine, "number", ("swapped for root's", "stolen")) > 50


# Not generation: whoever owns its folder may put a link there, and the records of a program of
# root's stand where it leads (the page says so).
@pytest.mark.parametrize("kind", ["kernel", "soft", "link", "directory", "folder"])
def test_a_lock_of_root_for_all_opens_nothing_but_what_it_made(kind):
    attacked(lock_it_for_all, "none", ("stolen",), kind)


def test_a_once_of_root_for_all_opens_nothing_but_what_it_made():
    attacked(run_once_for_all, "none", ("stolen",))


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
    monkeypatch.setattr("lifehold.local.places.MACHINE", str(tmp_path / "machine"))
    with folder_for_all(0o1777) as folder:
        monkeypatch.setenv("LIFEHOLD_DIR", str(folder))
        own = folder / ".cleared.history"
        {"fifo": lambda: os.mkfifo(own), "file": own.touch, "folder": own.mkdir,
         "link": lambda: own.symlink_to(folder / "elsewhere")}[trap]()  # fmt: skip
        os.chown(own, NOBODY, NOBODY, follow_symlinks=False)
        lock = folder / "LCK..x"
        lock.write_text("4190001\n")
        assert clear.clear(str(lock)).action == clear.REMOVED
        assert [entry.name for entry in clear.logged()] == [str(lock)]
        assert not own.is_file() or own.read_bytes() == b""
        log = tmp_path / "machine" / ".cleared.history"
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
