"""Stores for `FencedObject`: memory, a folder, and S3 through a client of the user's own.

Each promises what `ObjectStore` asks for: compare and replace in one step, and an etag that never
comes back. In a folder the step is made under a kernel lock; S3 makes it by If-Match and
If-None-Match, and since there are servers which speak S3 and pass these over, the first write
tries whether they are heeded.
"""

from __future__ import annotations

import os
from urllib.parse import quote

from ...core.errors import InvalidArgument, UnsafeGround
from ...local import ground
from ...local.descriptors import files_for
from ...local.refusals import make_folders, refused
from ...lock import Lock
from ...runtime import fork
from .objects import Stored, opened, sealed
from .pair import Pair

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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

    def _pair(self, key: str) -> Pair:
        name = quote(key, safe="")
        if len(name) > LONGEST:
            raise InvalidArgument(f"the key {key!r} is too long for the name of a file")
        path = f"{self._folder}/{name}{SUFFIX}"
        return Pair(files_for(path), path, self._durable, self._mode)

    def get(self, key: str) -> Stored | None:
        pair = self._pair(key)
        try:
            body = pair.bare()
        except OSError as error:
            raise refused(pair.path, error) from error
        if body is None:
            return None
        data, token, nonce = opened(body, key)
        return Stored(data, nonce, token)

    def put_if(self, key: str, data: bytes | None, token: int, etag: str | None) -> bool:
        pair = self._pair(key)
        make_folders(pair.files, pair.path)
        with Lock(f"{pair.path}.lock", kind="kernel", mode=self._mode) as held:
            found = self.get(key)
            if (None if found is None else found.etag) != etag:
                return False
            held.check()
            try:
                pair.place(pair.path, sealed(data, token))
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
    ) -> None:  # fmt: skip
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
