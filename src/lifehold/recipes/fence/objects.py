"""`FencedObject`: an object of a store with conditional writes, which refuses a late writer.

    guard = FencedObject(S3Objects(boto3.client("s3"), "bucket"), "report.csv", lease)
    guard.advance()                     # before the first read: older tokens are refused from here
    rows = guard.read().data
    guard.write(rows + more)            # StaleToken, when a later holder has been here

Promise: no write replaces one that was made under a newer token. Such a store compares no numbers,
only "is it still what I have read?"; so the token is read with the object, compared here, and the
write asks for just that object. How it could fail, and what keeps it:
- The object changed in between: the store refuses, and all begins again with the new token.
- The mark of an object comes back, as S3's ETag does with the same bytes: the write of a successor
  who only advanced would not be noticed. So each write carries a nonce (`sealed`).
- A reply is lost: a store that sends a request again says that its first one was done (by the
  nonce); an error is the caller's, who may write again under the same token.
"""

from __future__ import annotations

import json
import os

from ...core.errors import CorruptRecord, StoreUnavailable
from ...core.fence import LARGEST, admit
from ...core.value import value
from .file import as_bytes
from .pair import Fenced
from .rule import check_name, token_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from .rule import Carrier

    class ObjectStore(Protocol):
        """What is asked of a store; both are one step of the store's own."""

        def get(self, key: str) -> Stored | None:
            """What is there now, None when nothing is."""
            ...

        def put_if(self, key: str, data: bytes | None, token: int, etag: str | None) -> bool:
            """Store these if what is there has still that etag; None: if nothing is there.

            False: it has not. Every put must change the etag, also one of the same bytes; a
            request that was sent twice and done once is done.
            """
            ...


TRIES = 100  # how often an object may change between our look and our write
FRONT = b'{"lifehold":1,"kind":"fenced",'


@value
class Stored:
    """An object. `data`: None when its fence was moved before anything was written."""

    data: bytes | None
    etag: str
    token: int


class FencedObject:
    """The object `key` of a store, which only the newest holder may write.

    `lease`: whose token guards the writes, or that token; None is for reading alone.
    """

    __slots__ = ("_lease", "_store", "key")

    def __init__(
        self, store: ObjectStore, key: str, lease: Carrier | int | None = None
    ) -> None:  # fmt: skip
        self._store, self.key, self._lease = store, check_name(key), lease

    def advance(self) -> None:
        """Refuse older tokens from now on; to be called before the first read under a lease.

        The object is written again with the new token. Raises StaleToken.
        """
        self._replace(lambda data: data, only_newer=True)

    def read(self) -> Fenced:
        """(data, token, fence); of an object the token is the fence. `data`: None for none."""
        found = self._store.get(self.key)
        if found is None:
            return Fenced(None, None, 0)
        return Fenced(found.data, found.token, found.token)

    def write(self, data: bytes) -> None:
        """Replace the object. Raises StaleToken when a later holder has been here.

        Raises StoreUnavailable when others replace it all the time.
        """
        content = as_bytes(self.key, data)
        self._replace(lambda _: content)

    def update(self, change: Callable[[bytes | None], bytes]) -> bytes:
        """`write(change(data))` with no other writer in between; what was written.

        `change` may be called again, with newer data, and gets None when there is none.
        """
        made = self._replace(lambda data: as_bytes(self.key, change(data)))
        assert made is not None, "change makes bytes"
        return made

    def _replace(
        self, change: Callable[[bytes | None], bytes | None], *, only_newer: bool = False
    ) -> bytes | None:
        token = token_of(self._lease, self.key)
        for _ in range(TRIES):
            found = self._store.get(self.key)
            if found is not None:
                admit(self.key, token, found.token)
                if only_newer and found.token == token:
                    return found.data
            made = change(None if found is None else found.data)
            if self._store.put_if(self.key, made, token, None if found is None else found.etag):
                return made
        raise StoreUnavailable(
            f"{self.key!r}: it was changed by others {TRIES} times in a row, between a look and a "
            "write: is it written without the lock?",
            name=self.key,
        )


def sealed(data: bytes | None, token: int) -> bytes:
    """The bytes of an object: a line with its token and a nonce, then the data."""
    more = {"token": token, "void": data is None, "nonce": os.urandom(8).hex()}
    line = FRONT + json.dumps(more, separators=(",", ":")).encode()[1:]
    return line + b"\n" + (data or b"")


def opened(body: bytes, key: str) -> tuple[bytes | None, int, str]:
    """(data, token, nonce) of an object. One without our line has token 0, and counts as data."""
    line, end, data = body.partition(b"\n")
    if not line.startswith(FRONT):
        return body, 0, ""
    try:
        told = json.loads(line)
        token, void, nonce = int(told["token"]), bool(told["void"]), str(told["nonce"])
        if not end or not 0 <= token <= LARGEST + 1:
            raise ValueError(line)
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptRecord(
            f"{key!r} begins as a fenced object and is none: write it anew by other means",
            name=key,
        ) from error
    return None if void else data, token, nonce
