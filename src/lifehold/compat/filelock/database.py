"""Which database may be a lock: one that nobody uses for anything else."""

from __future__ import annotations

from sqlite3 import DatabaseError


def refuse_others_database(head: bytes, path: str, schema: bool) -> None:
    """Raises ValueError for a database that is more than a lock.

    `head`: its first bytes; `schema`: it may have none of its own that is large.
    """
    if not head:
        return
    own = f"{path!r}; give ReadWriteLock a file of its own"
    if not head.startswith(b"SQLite format 3\0"):
        raise DatabaseError(f"file is not a database: {own}")
    if 2 in head[18:20]:
        raise ValueError(f"refusing a WAL-mode lock database: {own}")
    if schema and len(head) > 108 and (head[100] != 13 or overlong(head)):
        raise too_large(path)


def too_large(path: str) -> ValueError:
    return ValueError(
        f"refusing a lock database whose schema is too large to load: {path!r}; give ReadWriteLock "
        "a file of its own"
    )


def overlong(head: bytes) -> bool:
    """Whether a row of the schema is longer than its page can hold."""
    for number in range(int.from_bytes(head[103:105], "big")):
        at = int.from_bytes(head[108 + 2 * number : 110 + 2 * number], "big")
        length = 0
        for byte in head[at : at + 9]:
            length = length << 7 | byte & 0x7F
            if byte < 0x80:
                break
        if length > len(head):
            return True
    return False
