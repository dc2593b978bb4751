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
from urllib.parse import quote

from ...core.errors import (
    CorruptRecord,
    InvalidArgument,
    LifeholdError,
    StoreUnavailable,
    UnsafeGround,
)
from ...core.fence import LARGEST, admit
from ...core.value import value
from ...local import ground
from ...local.handles import files_for
from ...local.refusals import make_folders, refused
from ...lock import Lock
from ...runtime import fork
from .file import Fenced, FencedPair, as_bytes, natural
from .rule import check_name, token_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

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

    def __init__(self, store: ObjectStore, key: str, lease: Carrier | int | None = None) -> None:
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
        token, void, nonce = natural(told["token"], LARGEST + 1), told["void"], told["nonce"]
        if not end or type(void) is not bool or type(nonce) is not str:
            raise ValueError(line)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptRecord(
            f"{key!r} begins as a fenced object and is none: write it anew by other means",
            name=key,
        ) from error
    return None if void else data, token, nonce


# ------------------------------------------------------------------------------------------------
# Stores for `FencedObject`: memory, a folder, and S3 through a client of the user's own.
#
# Each promises what `ObjectStore` asks for: compare and replace in one step, and an etag that never
# comes back. In a folder the step is made under a kernel lock; S3 makes it by If-Match and
# If-None-Match, and since there are servers which speak S3 and pass these over, the first write
# tries whether they are heeded.


__all__ = ["FolderObjects", "MemoryObjects", "S3Objects"]

LONGEST = 200  # bytes of a file name, which gets suffixes
SUFFIX = ".object"  # so that no key has the name of another one's lock
REFUSED = frozenset(
    {"PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey", "404", "409", "412"}
)
MISSING = frozenset({"NoSuchKey", "404"})


class MemoryObjects:
    """In the memory of this process: for tests."""

    def __init__(self) -> None:
        self._objects: dict[str, Stored] = {}
        self._puts = 0

    def get(self, key: str) -> Stored | None:
        return self._objects.get(key)

    def put_if(self, key: str, data: bytes | None, token: int, etag: str | None) -> bool:
        with fork.gate:
            found = self._objects.get(key)
            if (None if found is None else found.etag) != etag:
                return False
            self._puts += 1
            self._objects[key] = Stored(data, str(self._puts), token)
            return True


class FolderObjects:
    """In the files of a folder, each with a line before its data. For processes of one machine.

    `durable`, `mode`: as of `FencedFile`. Raises UnsafeGround where other machines may write.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, durable: bool = True, mode: int | None = None
    ) -> None:
        self._folder = os.path.abspath(os.fspath(folder))
        self._durable, self._mode = durable, mode
        if ground.is_unproven(self._folder + "/x"):
            raise UnsafeGround(
                f"{self._folder!r} lies on a file system that another machine may mount: keep "
                "objects in a store with conditional writes of its own",
                name=self._folder,
            )

    def _pair(self, key: str) -> FencedPair:
        name = quote(key, safe="")
        if len(name) > LONGEST:
            raise InvalidArgument(f"the key {key!r} is too long for the name of a file")
        path = f"{self._folder}/{name}{SUFFIX}"
        return FencedPair(files_for(path), path, self._durable, self._mode)

    def get(self, key: str) -> Stored | None:
        return self._look(self._pair(key), key)[0]

    def _look(self, pair: FencedPair, key: str) -> tuple[Stored | None, Any]:
        """What is there, and the stat(2) of its file."""
        try:
            body, found = pair.bare()
        except OSError as error:
            raise refused(pair.path, error) from error
        if body is None:
            return None, None
        data, token, nonce = opened(body, key)
        return Stored(data, nonce, token), found

    def put_if(self, key: str, data: bytes | None, token: int, etag: str | None) -> bool:
        pair = self._pair(key)
        make_folders(pair.files, pair.path)
        with Lock(f"{pair.path}.lock", kind="kernel", mode=self._mode) as held:
            found, file = self._look(pair, key)
            if (None if found is None else found.etag) != etag:
                return False
            held.check()
            try:
                pair.place(sealed(data, token), held.check, file)
            except LifeholdError:
                raise
            except OSError as error:
                raise refused(pair.path, error) from error
            return True


class S3Objects:
    """In a bucket. `client`: as `boto3.client("s3")` makes it, which is not imported here.

    `prefix`: before every key. The object begins with a line that carries its token: readers take
    `FencedObject(...).read()`. `trusted=True`: do not try the server's conditional writes first.
    Raises UnsafeGround for a server that does not heed them.
    """

    def __init__(
        self, client: Any, bucket: str, *, prefix: str = "", trusted: bool = False
    ) -> None:
        self._client, self._bucket, self._prefix = client, bucket, prefix
        self._tried = trusted

    def get(self, key: str) -> Stored | None:
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)
        except Exception as error:
            if _code(error) in MISSING:
                return None
            raise
        with answer["Body"] as body:
            data, token, _ = opened(body.read(), key)
        return Stored(data, answer["ETag"], token)

    def put_if(self, key: str, data: bytes | None, token: int, etag: str | None) -> bool:
        if not self._tried:
            self._try_the_server()
            self._tried = True
        name, body = self._prefix + key, sealed(data, token)
        return self._put(name, body, etag) or self._is_there(name, body)

    def _is_there(self, name: str, body: bytes) -> bool:
        """Whether it was stored after all: a client that heard nothing sends its request again."""
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=name)
        except Exception as error:
            if _code(error) in MISSING:
                return False
            raise
        with answer["Body"] as found:
            return bool(found.read() == body)

    def _put(self, name: str, body: bytes, etag: str | None) -> bool:
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        try:
            self._client.put_object(Bucket=self._bucket, Key=name, Body=body, **condition)
        except Exception as error:
            if _code(error) in REFUSED:
                return False
            raise
        return True

    def _try_the_server(self) -> None:
        name = f"{self._prefix}.lifehold-probe-{os.urandom(8).hex()}"
        try:
            heeded = self._put(name, b"1", None) and not self._put(name, b"2", None)
            heeded = heeded and not self._put(name, b"3", '"00000000000000000000000000000000"')
        finally:
            self._client.delete_object(Bucket=self._bucket, Key=name)
        if not heeded:
            raise UnsafeGround(
                f"the server of bucket {self._bucket!r} passes over If-Match or If-None-Match, so "
                "a late write would replace a newer one: use a server with conditional writes",
                name=self._bucket,
            )


def _code(error: Exception) -> str:
    """The code of botocore's ClientError, "" for anything else."""
    response = getattr(error, "response", None)
    found = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    return str(found or "")
