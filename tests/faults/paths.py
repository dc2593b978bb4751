"""Faults of the path: what the lock lies on is removed, replaced, overwritten, or read-only."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time

from crash.terrain import fill, mounted
from faults.cell import fault
from soak import canary


def gone(path):
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def taken_away(scene, put=None):
    """By hand, while it is held: who does that lets others in, and the holder has to be told."""
    holder, other = scene.party(), scene.party()
    scene.holds(holder.ready())
    other.ready()
    canary.killed(scene.yard, holder.name)  # the hand is on the section, too
    path = scene.row.at(scene.path)
    gone(path)
    if put is not None:
        put(path)
        before = os.lstat(path)
        scene.is_denied(other, "is a", "folder", "empty")
        after = os.lstat(path)
        if (before.st_ino, before.st_mode) != (after.st_ino, after.st_mode):
            scene.cell.complaints.append("what came in its place was replaced")
        gone(path)
    scene.recovers(other, time.monotonic(), scene.row.proof)
    scene.is_told(holder)
    scene.goes_on(other)


@fault("its file removed while held")
def removed(scene):
    taken_away(scene)


@fault("replaced by a symbolic link while held")
def by_a_link(scene):
    taken_away(scene, lambda path: path.symlink_to("nowhere"))


@fault("replaced by a FIFO while held")
def by_a_fifo(scene):
    taken_away(scene, os.mkfifo)


@fault(
    "replaced by a directory while held",
    unless=lambda row: (
        "a folder of bids is one, and so was removed" if row.name == "folder" else ""
    ),
)
def by_a_directory(scene):
    taken_away(scene, os.mkdir)


GROUP = 65534
BY_FLOCK = ("kernel", "readwrite", "reader", "semaphore")  # what need not be written to be locked
DEEP = b'{"lifehold":1,' + b"[" * 2000


def unreadable(row):
    return "" if row.witness or row.leased else "nothing but its record tells of it"


@fault("hostile content in its record while held", unless=unreadable)
def hostile(scene):
    """Never stale at once, whatever is in it; the holder that lives keeps it or is told."""
    holder, other = scene.party(), scene.party()
    scene.holds(holder.ready())
    other.ready()
    record = scene.row.at(scene.path)
    record = max(record.iterdir()) if scene.row.folder else record
    good, dice = record.read_bytes(), random.Random(scene.row.name)
    rubbish = [b"", b"\0" * 1024, b"{", good[:40], good[: len(good) // 2], b"\xff" * 3000, DEEP,
               good.replace(b'"lifehold":1', b'"lifehold":9'), b"-1\n", b"0\n"]  # fmt: skip
    rubbish += [dice.randbytes(dice.randrange(1200)) for _ in range(10)]
    for content in rubbish:
        record.write_bytes(content)
        answer = other.ask("acquire", "0")
        if "got" in answer:
            scene.cell.double += 1
            scene.cell.note = repr(content[:40])
            other.ask("leave")
        elif not answer["ours"]:
            scene.cell.complaints.append(f"{content[:40]!r}: {answer['error']}: {answer['text']}")
    record.write_bytes(good)
    at = holder.kill()
    scene.recovers(other, at, scene.row.lease if scene.row.leased else scene.row.proof)
    scene.goes_on(other)


@fault("read-only mount", "root", "tmpfs")
def read_only(scene):
    """Refused in words, and no lock is left when it can be written again; a kernel lock works."""
    with mounted(scene.folder, "-t", "tmpfs", "none"):
        first, other = scene.party(), scene.party()
        scene.holds(first.ready())
        scene.goes_on(first)
        first.__exit__()  # who keeps a file open for writing keeps the mount from changing
        subprocess.run(["mount", "-o", "remount,ro", scene.folder], check=True)
        other.ready()
        if scene.row.name in BY_FLOCK:
            scene.holds(other)
            third = scene.ready()
            scene.is_refused(third)
            third.__exit__()
            scene.goes_on(other)
        else:
            scene.is_denied(other, "ead-only", "only be read")
        subprocess.run(["mount", "-o", "remount,rw", scene.folder], check=True)
        scene.recovers(other, time.monotonic(), scene.row.proof)
        scene.goes_on(other)
        other.__exit__()


@fault("full disk: taken, held, killed", "root", "tmpfs")
def full(scene):
    """A small tmpfs, where a file can be made and not written: records of no bytes."""
    with mounted(scene.folder, "-t", "tmpfs", "-o", "size=256k", "none"):
        holder, other = scene.party(), scene.party()
        scene.holds(holder.ready())
        filler = fill(scene.folder)
        answer = other.ready().ask("acquire", "0")
        if "got" in answer:
            scene.cell.double += 1
        elif "NotAcquired" not in answer["kinds"] and "No space" not in answer["text"]:
            scene.cell.complaints.append(f"on a full disk: {answer['error']}: {answer['text']}")
        if "held" not in holder.ask("check"):
            scene.cell.complaints.append("a full disk took the lock away")
        holder.kill()
        holder.ended()
        answer = other.ask("acquire", "0")
        if "got" in answer:
            answer = other.ask("leave")  # to hand a result on needs some space
        if "released" not in answer and "No space" not in answer["text"]:
            scene.cell.complaints.append(f"on a full disk: {answer['error']}: {answer['text']}")
        filler.unlink()
        scene.recovers(other, time.monotonic(), scene.row.proof)
        scene.goes_on(other)
        other.__exit__()


@fault("two users, umask 022, shared=True", "root")
def two_users(scene):
    """In a folder with the set-group-id bit; each is killed in turn, the other comes after."""
    make = scene.row.make[:-1] + ", shared=True)"
    os.chown(scene.folder, 0, GROUP)
    scene.folder.chmod(0o2777)

    def user(uid):
        party = scene.ready(make=make)
        party.ask("become", uid, GROUP)
        return party

    holder = user(65534)
    scene.holds(holder)
    for uid in (1, 65534):
        other = user(uid)
        scene.is_refused(other)
        at = holder.kill()
        scene.recovers(other, at, scene.row.proof)
        holder = other
    scene.goes_on(holder)
