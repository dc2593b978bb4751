"""Whether a folder is safe for locks: the ground probe, explained, with a kind to use.

Promise: `unsafe` only for what was seen to fail, `safe` only where one kernel alone can mount the
file system, or a second host was asked and excluded both ways; else `unproven`. Whatever was tried
is removed again.
"""

from __future__ import annotations

import os

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
    best = next((each for verdict in (SAFE, UNSURE) for each in kinds
                 if each.verdict == verdict), None)  # fmt: skip
    verdict = best.verdict if best is not None else UNSAFE
    rights = next(each for each in looked if each.what == "rights")
    if rights.verdict == REFUTED:
        verdict = UNSAFE
    advice = _advice(best, place, rights)
    return Report(folder, place, verdict, (*found, *looked), kinds, best.name if best else "",
                  advice, peer)  # fmt: skip


def _kind(name: str, found: list[Finding], place: Place) -> Kind:
    needs, words = KINDS[name]
    verdicts = {each.what: each for each in found}
    missing = [each for each in needs if each not in verdicts]
    if missing:
        return Kind(name, UNSAFE, "nothing can be made here")
    worst = max((verdicts[each] for each in needs), key=lambda each: ORDER.index(each.verdict))
    if worst.verdict == PROVEN:
        return Kind(name, SAFE, words)
    if worst.verdict == UNPROVEN and name == "kernel":
        return Kind(name, UNSURE, f"the lock is the lease of the file server of {place.kind}")
    if worst.verdict == UNPROVEN:
        return Kind(name, UNSURE, f"{worst.what}: {worst.why}; only a ttl frees it after a crash")
    return Kind(name, UNSAFE, f"{worst.what}: {worst.why}")


ORDER = (PROVEN, "good", "warning", "not tried", UNPROVEN, REFUTED)


def _advice(best: Kind | None, place: Place, rights: Finding) -> str:
    if best is None:
        return "no lock can stand here: use a folder on another file system, or a server"
    text = f"kind='{best.name}' with a ttl, and check the fencing token where the data is"
    if best.verdict == SAFE:
        text = f"use kind='{best.name}'"
        text += ", which is what kind='auto' does" if best.name == "kernel" else ""
    elif best.name == "kernel":
        text = "no fault was seen, but from one host: ask a second one with --peer ssh:HOST"
    if rights.verdict == REFUTED:
        return f"first: {rights.why.partition(': ')[2]}. Then {text}"
    return text


def refuse_peer(peer: str) -> None:
    """Raises InvalidArgument for what is no peer."""
    if peer and not (peer.startswith("ssh:") and len(peer) > 4 and peer[4] != "-"):
        raise InvalidArgument(f"--peer is ssh:HOST, with HOST as ssh(1) takes it, not {peer!r}")
