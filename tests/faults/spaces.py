"""Faults of identity: PID namespaces, host names, boot ids, clocks of namespaces, used numbers."""

from __future__ import annotations

import subprocess
import time
import uuid
from pathlib import Path

from faults import otherboot
from faults.cell import fault
from faults.party import NEW_PIDS

BOOT_ID = "/proc/sys/kernel/random/boot_id"
NUMBER = "300"  # a process number that is given twice


@fault("PID 1 of another PID namespace, same host name", "root", "unshare")
def pid_one(scene):
    """Each is process 1 of its own namespace: the number says nothing about the other."""
    holder, other = scene.party(*NEW_PIDS), scene.party(*NEW_PIDS)
    scene.holds(holder.ready())
    scene.is_refused(other.ready())
    scene.is_robbed_never(other, 0.2)
    other.tell("acquire", "None")
    time.sleep(0.15)  # it waits by now, and no process number will tell it of the end
    at = holder.kill()
    scene.recovers(other, at, scene.row.proof_by(witness=True), asked=True)
    scene.goes_on(other)


@fault("killed in a PID namespace, seen from outside", "root", "unshare")
def from_outside(scene):
    holder, other = scene.party(*NEW_PIDS), scene.party()
    scene.holds(holder.ready())
    scene.is_refused(other.ready())
    at = holder.kill()
    scene.recovers(other, at, scene.row.proof_by(witness=True))
    scene.goes_on(other)


@fault("its PID given to another process", "root", "unshare")
def recycled(scene):
    """In one namespace the dead holder's number is forced upon a process that lives."""
    with Inside(scene) as space:
        holder = space.party(NUMBER)
        scene.holds(holder.ready())
        other = space.party()
        scene.is_refused(other.ready())
        at = holder.kill()
        holder.ended()
        stranger = space.party(NUMBER)
        assert stranger.ready().ask("here")["pid"] == int(NUMBER)
        at = max(at, time.monotonic())
        scene.recovers(other, at, scene.row.proof)
        scene.goes_on(other)


def reading(row):
    return "its twins would be readers, beside each other" if row.reads else ""


@fault("its PID and its start tick given to another", "root", "unshare", unless=reading)
def recycled_in_the_same_tick(scene):
    """A program that forks and ends at once, until two holders have both numbers in common.

    The record that is left is of the first, the process that lives is the second.
    """
    with Inside(scene) as space:
        other = space.party()
        other.ready()
        twins = space.party(script="twins").ready()
        if not (found := twins.answer(within=120)).get("same"):  # it gives up after 20 s
            scene.cell.note = "no two had one tick"
            return
        scene.cell.note = f"pid {found['pid']}, start tick {found['start']} twice"
        scene.recovers(other, time.monotonic(), scene.row.proof)
        scene.goes_on(other)


@fault("boot id of another boot, the holder killed", "root", "unshare")
def other_boot(scene):
    """As after a restart: the record names a boot that is over, and a number that may be used."""
    with OtherBoot(scene) as under:
        holder, other = scene.party(*under), scene.party()
        scene.holds(holder.ready())
        other.ready()
        assert holder.ask("here")["boot_id"] != other.ask("here")["boot_id"] is not None
        at = holder.kill()
        scene.recovers(other, at, scene.row.proof)
        scene.goes_on(other)


@fault("a boot id mounted over the kernel's, the holder alive, then killed", "root", "unshare")
def mounted_boot(scene):
    """As some containers have it: it proves nothing, and nobody takes the living for dead by it."""
    with OtherBoot(scene, mounted=True) as under:
        holder, other = scene.party(*under), scene.party()
        scene.holds(holder.ready())
        scene.is_refused(other.ready())
        scene.is_robbed_never(other, 0.3)
        at = holder.kill()
        scene.recovers(other, at, scene.row.proof_by(witness=True))
        scene.goes_on(other)


def blind(row):
    return "" if row.witness else "it keeps no witness, and believes the ids on such a disk"


@fault("two hosts by their ids, one disk", "root", "unshare", unless=blind)
def two_hosts(scene):
    """Other boot id, host name, mounts and PID namespace: on one kernel the witness sees through.

    On a shared one no id and no witness is believed (the mounts below).
    """
    with OtherBoot(scene, *NEW_PIDS) as under:
        holder, other = scene.party(*under), scene.party()
        scene.holds(holder.ready())
        scene.is_refused(other.ready())
        scene.is_robbed_never(other, 0.3)
        at = holder.kill()
        scene.recovers(other, at, scene.row.proof)
        scene.goes_on(other)


@fault("holder in another time namespace", "root", "timens")
def time_namespace(scene):
    """Its monotonic clock and the start ticks it reads are a day ahead."""
    holder = scene.party("unshare", "-T", "--boottime", "86400", "--monotonic", "86400", "-f")
    other = scene.party()
    scene.holds(holder.ready())
    scene.is_refused(other.ready())
    scene.is_robbed_never(other, 0.3)
    at = holder.kill()
    scene.recovers(other, at, scene.row.proof)
    scene.goes_on(other)


@fault("observer in another time namespace", "root", "timens")
def observer_in_time(scene):
    holder = scene.party()
    other = scene.party("unshare", "-T", "--boottime", "86400", "--monotonic", "86400", "-f")
    scene.holds(holder.ready())
    scene.is_refused(other.ready())
    scene.is_robbed_never(other, 0.3)
    at = holder.kill()
    scene.recovers(other, at, scene.row.proof)
    scene.goes_on(other)


class OtherBoot:
    """The words that run a command under another boot id and host name, in its own mounts.

    `mounted`: with a boot id that is mounted over the kernel's, instead of one of its own.
    """

    def __init__(self, scene, *more, mounted=False):
        self.file, self.more, self.mounted = Path(scene.base, "boot_id"), more, mounted

    def __enter__(self):
        words = 'hostname elsewhere && exec "$@"'
        if self.mounted:
            self.file.write_text(f"{uuid.uuid4()}\n")
            # /proc of a new PID namespace comes first: it would hide the file
            words = f"mount --bind {self.file} {BOOT_ID} && {words}"
        else:
            words = f"export {otherboot.NAME}={uuid.uuid4()} && {words}"
        return (*(self.more or ("unshare", "-f")), "unshare", "--mount", "--uts",
                "sh", "-c", words, "sh")  # fmt: skip

    def __exit__(self, *_):
        self.file.unlink(missing_ok=True)


class Inside:
    """One PID namespace with several parties; each may be given a number."""

    def __init__(self, scene):
        self.scene = scene

    def __enter__(self):
        self.first = subprocess.Popen(
            [*NEW_PIDS, "sleep", "600"], stdin=subprocess.DEVNULL
        )  # process 1: it reaps nobody, so the dead stay until we have waited; all end with it
        pid, until = self.first.pid, time.monotonic() + 60
        while not (children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            assert time.monotonic() < until
            time.sleep(0.001)
        self.inner = children[0]
        while Path(f"/proc/{self.inner}/comm").read_text().strip() != "sleep":
            assert time.monotonic() < until
            time.sleep(0.001)
        return self

    def party(self, number=None, script=None):
        enter = ("nsenter", "--target", self.inner, "--pid", "--mount")
        if script:
            return self.scene.party(*enter, script=script)
        if number is None:
            return self.scene.party(*enter)
        give = f'echo {int(number) - 1} >/proc/sys/kernel/ns_last_pid; "$@" & wait $!'
        return self.scene.party(*enter, "sh", "-c", f'exec 3<&0; {give.replace("&", "<&3 &", 1)}',
                                "sh")  # fmt: skip

    def __exit__(self, *_):
        self.first.kill()
        self.first.wait()
