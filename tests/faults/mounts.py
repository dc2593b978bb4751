"""Faults of the file system itself: others than the usual, and one that lies to its clients."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

from crash.terrain import file_system, mounted
from faults.cell import fault
from faults.party import NEW_PIDS
from faults.rows import HEARTBEAT, TTL
from faults.spaces import OtherBoot

SIZES = {"ext4": 32, "xfs": 320, "btrfs": 128, "tmpfs": 16}  # MiB, about the smallest of each
SERVER = Path(__file__).with_name("lying_mount.py")
PROOFS = ("witness", "process", "restarted", "pid")  # what a verdict on shared ground may not say


def killed_and_stopped(scene):
    holder, waiter = scene.party(), scene.party()
    scene.holds(holder.ready())
    scene.is_refused(waiter.ready())
    waiter.tell("acquire", "None")
    at = holder.kill()
    scene.recovers(waiter, at, scene.row.proof, asked=True)
    if scene.row.leased:
        following = scene.ready()
        at = waiter.stop()
        scene.recovers(following, at, scene.row.lease)
        waiter.resume()
        scene.is_told(waiter)
        waiter = following
    scene.goes_on(waiter)
    for party in scene.everybody:
        party.__exit__()


for _kind in SIZES:

    @fault(f"killed and stopped on {_kind}", "root", _kind, ci=lambda row: row.kind == "soft")
    def on_a_file_system(scene, kind=_kind):
        with file_system(kind, SIZES[kind], scene.base) as where:
            scene.move(where)
            killed_and_stopped(scene)


@fault("killed and stopped on overlay", "root", "overlay", ci=lambda row: row.kind == "link")
def on_overlay(scene):
    """As in most containers: what was below is copied up when it is opened for writing."""
    with mounted(scene.base / "layers", "-t", "tmpfs", "none") as layers:
        for name in ("lower", "upper", "work"):
            (layers / name).mkdir()
        options = ",".join(f"{n}dir={layers / n}" for n in ("lower", "upper", "work"))
        with mounted(scene.base / "overlay", "-t", "overlay", "-o", options, "none") as where:
            scene.move(where)
            killed_and_stopped(scene)


# ---- two hosts and a server between them


@contextlib.contextmanager
def lying(scene, *options):
    """Two mounts of one store, as two hosts have them: (folder of one, folder of the other)."""
    store = scene.base / "store"
    store.mkdir()
    library = Path(importlib.util.find_spec("mfusepy").origin).parent
    servers, folders = [], []
    try:
        for name in ("one", "two"):
            folder = scene.base / name
            folder.mkdir()
            folders.append(folder)
            servers.append(subprocess.Popen(
                [sys.executable, SERVER, store, folder, *options],
                env=os.environ | {"PYTHONPATH": str(library)}, stderr=subprocess.PIPE,
            ))  # fmt: skip
        until = time.monotonic() + 60
        while not all(map(os.path.ismount, folders)):
            assert time.monotonic() < until, "the FUSE mounts do not come up"
            assert all(server.poll() is None for server in servers), servers[0].stderr.read()
            time.sleep(0.01)
        yield folders
    finally:
        for party in scene.everybody:
            party.__exit__()
        for folder, server in zip(folders, servers, strict=False):
            subprocess.run(["umount", "-l", folder], check=False, capture_output=True)
            server.terminate()
            server.communicate()


def only_the_lease(scene, party):
    """L2  No verdict came from a process number, a boot id or a witness."""
    told = party.ask("evidence")["evidence"]
    wrong = [
        each for each in told if not any(word in each for word in ("unchanged", "not renewed"))
    ]
    if wrong or not told or any(word in each for word in PROOFS for each in told):
        scene.cell.complaints.append(f"taken over on shared ground on this evidence: {told}")


def two_hosts(scene, one, two):
    """Of their own boot id, host name, mounts and process numbers, each with its own mount."""
    bound = scene.row.lease + 3 * HEARTBEAT  # a waiter looks now and then: no event comes
    with OtherBoot(scene, *NEW_PIDS) as under:
        holder = scene.party(*under, path=one / "lock")
        other = scene.party(*NEW_PIDS, path=two / "lock")
        scene.holds(holder.ready())
        scene.is_refused(other.ready())
        scene.is_robbed_never(other, TTL * 1.5)
        at = holder.kill()
        scene.recovers(other, at, bound)
        only_the_lease(scene, other)
        following = scene.ready(*under, path=one / "lock")
        at = other.stop()
        scene.recovers(following, at, bound)
        other.resume()
        scene.is_told(other)
        scene.goes_on(following)
        last = scene.ready(path=two / "lock")
        scene.holds(last)
        scene.goes_on(last)


FUSE = ("root", "unshare", "fuse")


def local(row):
    return "" if row.shared else "it is refused there, or is a lease only where it has a ttl"


@fault(
    "two hosts, FUSE: replies of link, rename, unlink lie",
    *FUSE,
    unless=local,
    ci=lambda row: row.kind != "link",
)
def lying_replies(scene):
    with lying(scene, "link=1", "rename=2", "unlink=2") as (one, two):
        two_hosts(scene, one, two)


@fault(
    "two hosts, FUSE: attributes and listings 3 s old",
    *FUSE,
    unless=local,
    ci=lambda row: row.kind == "soft",
)
def old_attributes(scene):
    with lying(scene, "old=3") as (one, two):
        two_hosts(scene, one, two)


@fault(
    "two hosts, FUSE: lies, old attributes, no flock",
    *FUSE,
    unless=local,
    ci=lambda row: row.kind != "generation",
)
def no_flock(scene):
    """Who needs a lock of the file system says so; `generation` needs none."""
    with lying(scene, "link=2", "rename=2", "unlink=2", "old=1", "locks=none") as (one, two):
        if not scene.row.flock:
            two_hosts(scene, one, two)
            return
        party = scene.ready(path=one / "lock")
        answer = party.ask("acquire", "0")
        if "got" in answer:  # to take it over would need one
            scene.cell.note = "taken; what is stale is refused in words"
            party.kill()
            other = scene.ready(path=two / "lock")
            answer = other.ask("acquire", str(TTL * 2))
        else:
            scene.cell.note = "refused in words"
        if "UnsafeGround" not in answer.get("kinds", ()):
            scene.cell.complaints.append(f"without flock: {answer}")


def read_there(row):
    return local(row) or ("its writers are refused; a reader waits" if row.reads else "")


@fault("two hosts, FUSE: two names of a file have two inode numbers", *FUSE, unless=read_there)
def own_numbers(scene):
    """As many such mounts have it. Nobody may be inside twice; to be refused in words is right."""
    with lying(scene, "ino=own") as (one, two):
        parties = [scene.ready(path=folder / "lock") for folder in (one, two)]
        answers = [party.ask("acquire", "1") for party in parties]
        for answer in answers:
            if "got" not in answer and not answer["ours"]:
                scene.cell.complaints.append(f"{answer['error']}: {answer['text']}")
        if any("got" in answer for answer in answers):
            scene.cell.note = "taken"
        else:
            scene.cell.note = answers[0]["text"].partition(": ")[2][:80]
            if "UnsafeGround" not in answers[0]["kinds"] and not scene.row.reads:
                scene.cell.complaints.append(f"not refused for what it is: {answers[0]['text']}")
