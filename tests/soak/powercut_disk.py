"""A disk that keeps a log of all that is written to it, and of each flush: what dm-log-writes does.

    python powercut_disk.py IMAGE MOUNT LOG      (until it is unmounted)

`MOUNT/disk` is the content of IMAGE. A file system on it, by a loop device, knows nothing of that.
`entries(log)` reads the log; `Disk` is what the disk may hold after a power cut at any of its
entries: all that was written before the last flush, and of the rest all, or some, or a torn one.
"""

import errno
import os
import random
import stat
import struct
import sys
import time
from pathlib import Path

HEAD = struct.Struct("<cQQQ")  # W or F, CLOCK_MONOTONIC in ns, offset, length
SECTOR = 512


def entries(log):
    """(kind, time, offset, where its bytes stand in the log, length) of each entry."""
    found = []
    with Path(log).open("rb") as file:
        while len(head := file.read(HEAD.size)) == HEAD.size:
            kind, at, offset, length = HEAD.unpack(head)
            size = length if kind == b"W" else 0
            found.append((kind, at, offset, file.tell(), size))
            file.seek(size, os.SEEK_CUR)
    return found


class Disk:
    """What the power left, for one cut after another, in the order of the log."""

    def __init__(self, image, log, image_then):
        self.log, self.entries, self.image = Path(log), entries(log), Path(image_then)
        with Path(image).open("rb") as file:
            self._copy(file)
        self._flushed = 0  # all entries before this one are on `image`

    def _copy(self, file):
        with self.image.open("wb") as made:
            os.ftruncate(made.fileno(), os.fstat(file.fileno()).st_size)
            while block := file.read(1 << 20):
                if block.strip(b"\0"):
                    made.write(block)
                else:
                    made.seek(len(block), os.SEEK_CUR)

    def cut(self, number, made, seed=None):
        """The disk when entry `number` was about to be written, into the file `made`.

        `seed`: what was not flushed yet is lost in part, chosen by it; the last write is torn.
        """
        flushes = [n for n in range(self._flushed, number) if self.entries[n][0] == b"F"]
        last = flushes[-1] if flushes else self._flushed
        with self.log.open("rb") as log, self.image.open("r+b") as image:
            for n in range(self._flushed, last):
                self._write(log, image, n)
            self._flushed = last
        with self.image.open("rb") as file, Path(made).open("wb") as image:
            os.ftruncate(image.fileno(), os.fstat(file.fileno()).st_size)
            while block := file.read(1 << 20):
                if block.strip(b"\0"):
                    image.write(block)
                else:
                    image.seek(len(block), os.SEEK_CUR)
        with self.log.open("rb") as log, Path(made).open("r+b") as image:
            dice = random.Random(seed)
            for n in range(last, number):
                if seed is None or dice.random() < 0.6:
                    torn = seed is not None and n == number - 1
                    self._write(log, image, n, dice if torn else None)

    def _write(self, log, image, number, dice=None):
        kind, _, offset, where, size = self.entries[number]
        if kind != b"W":
            return
        if dice is not None and size > SECTOR:
            size = dice.randrange(1, size // SECTOR + 1) * SECTOR
        log.seek(where)
        image.seek(offset)
        image.write(log.read(size))


def serve(image, mount, log):
    import mfusepy

    class Logged(mfusepy.Operations):
        """One file, and the log of what is done to it."""

        use_ns = True

        def __init__(self):
            self.disk = os.open(image, os.O_RDWR)
            self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

        def getattr(self, path, fh=None):
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
            if path != "/disk":
                raise mfusepy.FuseOSError(errno.ENOENT)
            size = os.fstat(self.disk).st_size
            return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": size}

        def readdir(self, path, fh):
            return [".", "..", "disk"]

        def open(self, path, flags):
            return 0

        def read(self, path, size, offset, fh):
            return os.pread(self.disk, size, offset)

        def write(self, path, data, offset, fh):
            now = time.monotonic_ns()
            os.writev(self.log, [HEAD.pack(b"W", now, offset, len(data)), data])
            return os.pwrite(self.disk, data, offset)

        def fsync(self, path, datasync, fh):
            os.write(self.log, HEAD.pack(b"F", time.monotonic_ns(), 0, 0))

    mfusepy.FUSE(Logged(), mount, foreground=True, nothreads=True, fsname="logged")


if __name__ == "__main__":
    serve(*sys.argv[1:4])
