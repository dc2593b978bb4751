"""Names of Redis keys that a cluster keeps on one node.

A cluster hashes what stands between the first { and the next }, or the whole key when that is
nothing. A script, a transaction and a watch work on keys of one slot.
"""

from __future__ import annotations


def in_slot_of(key: bytes) -> bytes | None:
    """The end of another key's name, which puts that key into the slot of `key`.

    Two keys never have the same. What is put before it has no brace. None where there is no such
    name: the whole of `key` counts, and it has a } in it.
    """
    begin = key.find(b"{")
    end = key.find(b"}", begin + 1) if begin != -1 else -1
    if end > begin + 1:
        return key[begin : end + 1] + b":" + key
    return b"{" + key + b"}" if key and b"}" not in key else None
