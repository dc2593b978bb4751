"""What a store in SQLite promises and what not, in sentences."""

from __future__ import annotations

TOGETHER = (
    "processes of this machine exclude each other, containers that share the file too; another "
    "machine must not open it"
)
CLOCK = "leases run by the kernel's clock that counts suspend; a step of UTC moves none"
DEATH = (
    "a holder whose process is proven dead is followed at once; one in another PID namespace when "
    "its ttl has passed"
)
TOKENS = "tokens repeat only when an older copy of the file is put in its place: then bump them"
ALWAYS = (TOGETHER, CLOCK, DEATH, TOKENS)
FULL = "synchronous=full: every step is on the disk before it is answered"
NORMAL = (
    "synchronous=normal: a power loss may take the last steps, and has ended their holders too; "
    "tokens stay below a ceiling that is on the disk, and start above it after a restart"
)


def sentences(kind: str, version: str, synchronous: str) -> tuple[str, ...]:
    """`kind` of file system; `version` of SQLite."""
    place = f"in one file on {kind or 'an unknown file system'}, SQLite {version} with WAL"
    return place, *ALWAYS, FULL if synchronous == "full" else NORMAL
