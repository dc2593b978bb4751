"""`python -m soak.nfs_between [--lease S ...] [--fault F ...] [KIND ...]`: NFS between machines.

Boots three kernels, each a process (User Mode Linux) with a name, a boot id and an NFS client id of
its own: a server of NFSv4.2 on ext4, whose delegations are on as everywhere, and two machines that
mount it. One holds a lock of each kind, the other waits for it; then the holder is killed, stopped,
or its machine is cut off, or the server falls silent or starts anew. Told is how long the other
waits, and whether any check of the holder said `held` after its loss was told, or beside the next.

Needs root (a bridge in a network namespace of its own), a C compiler and mkfs.ext4. Packages are
kept in `--cache`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from soak.nfs import CACHE
from soak.nfs_image import image
from soak.nfs_machine import MACHINES, Missing, said

ROLES = {"server": 1, "one": 2, "other": 3}
KINDS = ["generation", "link", "soft", "directory", "readwrite"]
TTL = 3.0
SILENT = 8.0  # seconds for which the server says nothing
SETTLED = 4.0  # seconds for which the other has waited when the fault comes
TRIES = 3  # of a fault, where the machine was too busy for the holder's heartbeat
CLOCK = 0.1  # by which the clocks of the guests may differ
INSIDE = "LIFEHOLD_SOAK_NFS_BETWEEN"


class Guest:
    """One kernel; what it is told to do, and what it says, lies in a folder of its own."""

    def __init__(self, machine, initramfs, role, lease, share, disk):
        self.role, self.room, self.count = role, share / role, 0
        self.room.mkdir()
        order = f"{role},{ROLES[role]},{lease},{share}"
        words, env = machine.command(initramfs, order)
        words += [f"eth0=tuntap,tap{ROLES[role]}", *([f"ubd0={disk}"] if role == "server" else [])]
        words = ["mem=768M" if str(word).startswith("mem=") else word for word in words]
        self.log = open(share / f"{role}.log", "wb")  # noqa: SIM115
        self.process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT, env=env,
            start_new_session=True,
        )  # fmt: skip

    def wait_for(self, name, seconds):
        end = time.monotonic() + seconds
        while not (self.room / name).exists():
            if time.monotonic() > end or self.process.poll() is not None:
                raise Missing(f"{self.role}: no {name} within {seconds:g} s: {self.said()}")
            time.sleep(0.05)
        return (self.room / name).read_text()

    def said(self):
        return Path(self.log.name).read_text(errors="replace")[-500:]

    def begin(self, script):
        """Have it do something; the number of that."""
        self.count += 1
        (self.room / f"{self.count}.sh").write_text(script + "\n")
        (self.room / f"{self.count}.go").touch()
        return self.count

    def do(self, script, seconds=60.0):
        """What it said."""
        number = self.begin(script)
        self.wait_for(f"{number}.done", seconds)
        return (self.room / f"{number}.out").read_text()

    def cut(self, *, off):
        ip("link", "set", f"tap{ROLES[self.role]}", *(["nomaster"] if off else ["master", "br0"]))

    def end(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()


def ip(*words):
    said("ip", *words)


def network():
    """A bridge with a tap for each machine."""
    ip("link", "add", "br0", "type", "bridge")
    ip("link", "set", "br0", "up")
    for number in ROLES.values():
        ip("tuntap", "add", f"tap{number}", "mode", "tap")
        ip("link", "set", f"tap{number}", "master", "br0")
        ip("link", "set", f"tap{number}", "up")


class Scene:
    """The three machines, with a server of one lease."""

    def __init__(self, cache, lease, share):
        machine = MACHINES["uml"](cache)
        initramfs = image(machine, "nfs_between_init.sh")
        disk = share / "disk"
        with disk.open("wb") as file:
            file.truncate(256 << 20)
        said("mkfs.ext4", "-q", disk)
        self.share, self.lease, self.guests = share, lease, {}
        try:
            for role in ROLES:
                guest = self.guests[role] = Guest(machine, initramfs, role, lease, share, disk)
            for guest in self.guests.values():
                if guest.wait_for("up", 120.0).strip() != "1":
                    raise Missing("its kernel gives no delegations")
        except BaseException:
            self.end()
            raise

    def end(self):
        for guest in self.guests.values():
            guest.end()

    def __getattr__(self, role):
        return self.guests[role]


class Trial:
    """One fault, with a holder and a waiter of each kind."""

    def __init__(self, scene, fault, kinds, number=1):
        self.scene, self.fault, self.kinds = scene, fault, kinds
        self.name = f"{fault}-{number}"
        (scene.share / self.name).mkdir()
        scene.one.do(f"mkdir /m/{self.name}")

    def holders(self, role, seconds):
        self.scene.guests[role].begin(
            "\n".join(
                f"python3 -m soak.nfs_between_hold {kind} {TTL} /m/{self.name}/{kind} {seconds} "
                f"/host/{self.name}/{kind}.{role} &"
                for kind in self.kinds
            )
            + "\nwait"
        )

    def events(self, kind, role):
        try:
            text = (self.scene.share / self.name / f"{kind}.{role}").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]

    def first(self, kind, role, *whats):
        return next((each for each in self.events(kind, role) if each["what"] in whats), None)

    def until(self, role, *whats, within):
        """Whether it came for every kind."""
        end = time.monotonic() + within
        while time.monotonic() < end:
            if all(self.first(kind, role, *whats) for kind in self.kinds):
                return True
            time.sleep(0.1)
        return False

    def play(self):
        """From which instant on the other could have it."""
        self.holders("one", 600 if self.fault in ("kill", "stop", "cut") else 40 + self.scene.lease)
        self.until("one", "got", "refused", within=60)
        self.holders("other", 2 + SILENT)
        self.until("other", "began", within=60)
        time.sleep(SETTLED)
        at = getattr(self, f"_{self.fault}")()
        self.until("one", "released", "refused", within=60 + self.scene.lease)
        self.until("other", "released", "refused", within=60)
        return at

    def is_spoiled(self, at):
        """Whether a holder lost its lease before any fault: this machine was too busy for it."""
        before = at - (SILENT if self.fault == "silence" else 0) - 1.0
        if self.fault == "restart":
            before -= 5.0
        told = [self.first(kind, "one", "told") for kind in self.kinds]
        return any(each and each["at"] < before for each in told)

    def _patience(self):
        return 3 * self.scene.lease + 30

    def _signal(self, name):
        pids = [str(self.first(kind, "one", "began")["pid"]) for kind in self.kinds]
        self.scene.one.do(f"kill -{name} {' '.join(pids)}")

    def _kill(self):
        at = time.time()
        self._signal("KILL")
        self.until("other", "got", within=self._patience())
        for kind in self.kinds:  # it will say no more
            with (self.scene.share / self.name / f"{kind}.one").open("a") as file:
                file.write('{"what": "released", "at": 0, "killed": true}\n')
        return at

    def _stop(self):
        at = time.time()
        self._signal("STOP")
        self.until("other", "got", within=self._patience())
        self._signal("CONT")
        return at

    def _cut(self):
        at = time.time()
        self.scene.one.cut(off=True)
        try:
            self.until("other", "got", within=self._patience())
            time.sleep(2.0)
        finally:
            self.scene.one.cut(off=False)
        return at

    def _silence(self):
        os.kill(self.scene.server.process.pid, signal.SIGSTOP)
        time.sleep(SILENT)
        os.kill(self.scene.server.process.pid, signal.SIGCONT)
        at = time.time()
        self.until("other", "got", within=self._patience())
        return at

    def _restart(self):
        self.scene.server.do("rpc.nfsd 0; sleep 1; timeout 20 rpc.nfsd -N 3 4")
        at = time.time()
        self.until("other", "got", within=self._patience())
        return at

    # ---- what it shows

    def row(self, kind, at):
        """In seconds from the fault, or from when the server answers again; None: never."""
        got, told = self.first(kind, "other", "got"), self.first(kind, "one", "told")
        held = [each["at"] for each in self.events(kind, "one") if each["what"] == "held"]
        late = [each["at"] for each in self.events(kind, "one")
                if each["what"] == "held" and not each["left"]]  # fmt: skip
        if told:
            late += [each for each in held if each > told["at"] + CLOCK]
        beside = [each for each in held if got and each > got["at"] + CLOCK]
        tokens = [each and each["token"] for each in (self.first(kind, "one", "got"), got)]
        ended = self.first(kind, "one", "released")
        let_go = self.first(kind, "other", "released")
        last = [each["at"] for each in self.events(kind, "other") if each["what"] == "held"][-1:]
        return {
            "lease": self.scene.lease, "fault": self.fault, "kind": kind,
            "taken": round(got["at"] - at, 1) if got else None,
            "told": round(told["at"] - at, 1) if told else None,
            "late": len(late), "beside": len(beside),
            "let go": round(let_go["at"] - last[0], 1) if let_go and last else None,
            "grows": None in tokens or tokens[1] > tokens[0],
            "errors": [each["why"] for role in ("one", "other") for each in self.events(kind, role)
                       if each["what"] in ("failed", "refused")][:3],
            "end": (ended or {}).get("why", ""),
        }  # fmt: skip


FAULTS = ["kill", "stop", "cut", "silence", "restart"]


def play(cache, leases, faults, kinds, echo=print):
    """The rows. In a network namespace of its own. Raises Missing."""
    network()
    found = []
    for lease in leases:
        with tempfile.TemporaryDirectory(prefix="lifehold-between-") as folder:
            scene = Scene(cache, lease, Path(folder))
            try:
                for fault in faults:
                    for number in range(1, TRIES + 1):
                        trial = Trial(scene, fault, kinds, number)
                        at = trial.play()
                        if not trial.is_spoiled(at):
                            break
                    for kind in kinds:
                        found.append(trial.row(kind, at))
                        echo(json.dumps(found[-1]), flush=True)
            finally:
                scene.end()
    return found


def wrong(row):
    """What is said against a row, in words."""
    found = [f"{row[what]} checks said held {words}" for what, words in
             (("late", "after the loss was told"), ("beside", "beside the next holder"))
             if row[what]]  # fmt: skip
    if row["taken"] is None:
        found.append("never taken over")
    elif row["taken"] > allowed(row):
        found.append(f"taken over after {row['taken']} s")
    if not row["grows"]:
        found.append("its token does not grow")
    return found + row["errors"]


def allowed(row):
    """Seconds until the other must have it.

    A restarted server lets nobody in for one lease, and its client asks it every 15 s.
    """
    return TTL + 1.0 + (row["lease"] + 15.0 if row["fault"] == "restart" else 0.0)


def main():
    parser = argparse.ArgumentParser(prog="python -m soak.nfs_between", description=__doc__)
    parser.add_argument("--cache", default=CACHE)
    parser.add_argument("--lease", type=int, action="append")
    parser.add_argument("--fault", choices=FAULTS, action="append")
    parser.add_argument("kinds", nargs="*", default=KINDS)
    options = parser.parse_args()
    if not os.environ.get(INSIDE):
        program = shutil.which("unshare")
        if program is None or os.getuid():
            sys.exit("not run: needs root and unshare(1)")
        words = [program, "--net", sys.executable, "-m", "soak.nfs_between", *sys.argv[1:]]
        os.execve(program, words, os.environ | {INSIDE: "1"})
    try:
        found = play(
            options.cache, options.lease or [10, 90], options.fault or FAULTS, options.kinds
        )
    except Missing as why:
        sys.exit(f"not run: {why}")
    bad = [(row, why) for row in found if (why := wrong(row))]
    for row, why in bad:
        print(f"WRONG lease {row['lease']} {row['fault']} {row['kind']}: {'; '.join(why)}")
    return 1 if bad or not found else 0


if __name__ == "__main__":
    sys.exit(main())
