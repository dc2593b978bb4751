"""Whether a folder is safe for locks: the ground probe, explained, with a kind to use.

Promise: `unsafe` only for what was seen to fail, `safe` only where one kernel alone can mount the
file system, or a second host was asked and excluded both ways; else `unproven`. L1  A kind that
stands on a kernel lock is never safe where others may mount. Whatever was tried is removed again.
"""

from __future__ import annotations

import os

from .. import registry
from ..core.errors import InvalidArgument, SystemRefused
from ..core.mask import printable
from ..core.value import value
from ..local.ground import Place, mount_of
from ..local.ground_probe import PROVEN, REFUTED, UNPROVEN, Finding, probe
from . import doctor_peer, doctor_tries
from .who import FolderMissing

SAFE, UNSURE, UNSAFE = "safe", "unproven", "unsafe"
OF = {PROVEN: SAFE, UNPROVEN: UNSURE, REFUTED: UNSAFE}
# Kind of lock -> what must exclude for it, and what is said of it where all of that does.
KINDS = {
    "kernel": (("flock",), "free at once when its holder ends"),
    "generation": (("link", "rename"), "needs no kernel lock, only link(2); give it a ttl"),
    "soft": (("link", "rename", "flock"), "a file whose presence is the lock, with a witness"),
    "link": (("link",), "as liblockfile's"),
    "directory": (("rename", "mkdir"), "a folder whose presence is the lock"),
    "folder": (("exclusive create", "rename"), "as lockfolder's"),
}  # fmt: skip

LEASE = (
    "a kernel lock is the lease of the file server of {} there: it may drop that of a machine that "
    "is cut off, which is not told"
)


@value
class Kind:
    """One kind of lock here: `verdict` is SAFE, UNSURE or UNSAFE."""

    name: str
    verdict: str
    why: str


@value
class Report:
    """What is known of a folder. `advice`: what to do; `kind`: the one to use, "" for none."""

    folder: str
    place: Place
    verdict: str
    findings: tuple[Finding, ...]
    kinds: tuple[Kind, ...]
    kind: str
    advice: str
    peer: str = ""


def examine(folder: str, *, peer: str = "") -> Report:
    """The report. `peer`: `ssh:HOST` runs the other half there, in the folder of the same path.

    Raises FolderMissing, InvalidArgument.
    """
    folder = os.path.abspath(folder)
    if not os.path.isdir(folder):
        raise FolderMissing(f"'{printable(folder)}' is not a folder")
    place, options = mount_of(folder)
    looked = doctor_tries.looked_at(folder, options)
    try:
        survey = probe(folder, anew=True)
        found = [*survey.findings, *doctor_tries.tried(folder, place)]
        if peer:
            found = doctor_peer.joined(found, doctor_peer.ask(folder, peer))
    except SystemRefused:  # of the peer
        raise
    except OSError as error:
        found = [Finding("writing", REFUTED, f"nothing can be made here: {error.strerror}")]
    kinds = tuple(_kind(name, found, place) for name in KINDS)
    automatic = registry.choose(f"{folder.rstrip('/')}/lock", None)[0]
    best = _best(kinds, "kernel" if place.one_kernel else registry.ON_A_FILE_SERVER)
    verdict = best.verdict if best is not None else UNSAFE
    rights = next(each for each in looked if each.what == "rights")
    if rights.verdict == REFUTED:
        verdict = UNSAFE
    advice = _advice(best, automatic, peer, found, rights)
    return Report(folder, place, verdict, (*found, *looked), kinds, best.name if best else "",
                  advice, peer)  # fmt: skip


def _best(kinds: tuple[Kind, ...], first: str) -> Kind | None:
    """The kind to use: `first` where nothing speaks against it."""
    able = [each for each in kinds if each.verdict != UNSAFE]
    able.sort(key=lambda each: (each.name != first, each.verdict != SAFE))
    return able[0] if able else None


def _kind(name: str, found: list[Finding], place: Place) -> Kind:
    needs, words = KINDS[name]
    verdicts = {each.what: each for each in found}
    missing = [each for each in needs if each not in verdicts]
    if missing:
        return Kind(name, UNSAFE, "nothing can be made here")
    worst = max((verdicts[each] for each in needs), key=lambda each: ORDER.index(each.verdict))
    if worst.verdict == PROVEN and "flock" in needs and not place.one_kernel:
        return Kind(name, UNSURE, LEASE.format(place.kind or "an unknown file system"))  # L1
    if worst.verdict == PROVEN:
        return Kind(name, SAFE, words)
    if worst.verdict == UNPROVEN and name == "kernel":
        return Kind(name, UNSURE, LEASE.format(place.kind or "an unknown file system"))
    if worst.verdict == UNPROVEN:
        return Kind(name, UNSURE, f"{worst.what}: {worst.why}; only a ttl frees it after a crash")
    return Kind(name, UNSAFE, f"{worst.what}: {worst.why}")


ORDER = (PROVEN, "good", "warning", "not tried", UNPROVEN, REFUTED)


def _advice(
    best: Kind | None, automatic: str, peer: str, found: list[Finding], rights: Finding
) -> str:  # fmt: skip
    if best is None:
        return "no lock can stand here: use a folder on another file system, or a server"
    text = f"use kind='{best.name}'"
    text += ", which is what kind='auto' does" if best.name == automatic else ""
    if best.name != "kernel" and not all(each.verdict == PROVEN for each in found):
        text += "; give it a ttl, and check the fencing token where the data is"
    apart = next((each.why for each in found if each.what == doctor_peer.PEER), "")
    if apart:
        text += f". Nothing was tried between two hosts: {apart}"
    elif best.verdict == UNSURE and not peer:
        text += ". No fault was seen, but from one host: ask a second one with --peer ssh:HOST"
    if rights.verdict == REFUTED:
        return f"first: {rights.why.partition(': ')[2]}. Then {text}"
    return text


def refuse_peer(peer: str) -> None:
    """Raises InvalidArgument for what is no peer."""
    if peer and not (peer.startswith("ssh:") and len(peer) > 4 and peer[4] != "-"):
        raise InvalidArgument(f"--peer is ssh:HOST, with HOST as ssh(1) takes it, not {peer!r}")
