"""A file system that lies as a file server may: done and reported as failed, old attributes.

    python lying_mount.py STORE MOUNT key=value ...

`link=N`, `rename=N`, `unlink=N`: every Nth one is done, and its reply says that it was not (EEXIST,
ENOENT). `old=SECONDS`: stat(2) and listings are that old, but for what this mount changed itself;
open(2) asks the store. `locks=server`: flock(2) and record locks are those of the store, for all of
its mounts; `locks=none`: ENOSYS; `locks=enolck`: ENOLCK.
`ino=own`: inode numbers are the mount's own, so that two names of one file have two.
Each mount is one client: two of them on one store are two hosts.
"""

import ctypes
import errno
import fcntl
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import mfusepy

F_OFD_SETLK = 37
FORM = "hhqqi4x"
UTIME_NOW = (1 << 30) - 1


class Lying(mfusepy.Operations):
    """Passes all on to `store`, and lies where it is told to."""

    use_ns = True

    def __init__(self, store, options):
        self.store = store
        self.every = {name: int(options.get(name, 0)) for name in ("link", "rename", "unlink")}
        self.done = dict.fromkeys(self.every, 0)
        self.old, self.locks = float(options.get("old", 0)), options.get("locks", "server")
        self.known, self.lists = {}, {}

    def at(self, path):
        return self.store + path

    def changed(self, *paths):
        for path in paths:
            self.known.pop(path, None)
            self.lists.pop(os.path.dirname(path), None)

    def lie(self, what, error):
        self.done[what] += 1
        if self.every[what] and self.done[what] % self.every[what] == 0:
            raise mfusepy.FuseOSError(error)

    # ---- what a client remembers

    def getattr(self, path, fh=None):
        now, known = time.monotonic(), self.known.get(path)
        if known is None or now - known[0] >= self.old:
            try:
                found = os.lstat(self.at(path))
            except FileNotFoundError:
                found = None
            self.known[path] = known = now, found
        if known[1] is None:
            raise mfusepy.FuseOSError(errno.ENOENT)
        names = "st_mode st_nlink st_uid st_gid st_size st_ino".split()
        told = {name: getattr(known[1], name) for name in names}
        times = {f"st_{each}time": getattr(known[1], f"st_{each}time_ns") for each in "amc"}
        return told | times

    def readdir(self, path, fh):
        now, known = time.monotonic(), self.lists.get(path)
        if known is None or now - known[0] >= self.old:
            with os.scandir(self.at(path)) as found:
                names = [(each.name, {"st_ino": each.inode(), "st_mode": 0}, 0) for each in found]
            self.lists[path] = known = now, names
        return [(".", {"st_ino": 1, "st_mode": 0}, 0), *known[1]]

    # ---- files

    def create(self, path, mode, fi=None):
        self.changed(path)
        return os.open(self.at(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def open(self, path, flags):
        self.changed(path)
        return os.open(self.at(path), flags & (os.O_ACCMODE | os.O_TRUNC | os.O_APPEND))

    def read(self, path, size, offset, fh):
        return os.pread(fh, size, offset)

    def write(self, path, data, offset, fh):
        self.changed(path)
        return os.pwrite(fh, data, offset)

    def truncate(self, path, length, fh=None):
        self.changed(path)
        os.truncate(self.at(path), length)

    def fsync(self, path, datasync, fh):
        os.fsync(fh)

    def release(self, path, fh):
        os.close(fh)

    def utimens(self, path, times=None):
        self.changed(path)
        if times is None or UTIME_NOW in times:
            os.utime(self.at(path))
        else:
            os.utime(self.at(path), ns=times)

    def chmod(self, path, mode):
        self.changed(path)
        os.chmod(self.at(path), mode)

    # ---- names

    def mkdir(self, path, mode):
        self.changed(path)
        os.mkdir(self.at(path), mode)

    def rmdir(self, path):
        self.changed(path)
        os.rmdir(self.at(path))

    def unlink(self, path):
        self.changed(path)
        os.unlink(self.at(path))
        self.lie("unlink", errno.ENOENT)

    def link(self, target, source):
        self.changed(target, source)
        os.link(self.at(source), self.at(target))
        self.lie("link", errno.EEXIST)

    def rename(self, old, new):
        self.changed(old, new)
        os.rename(self.at(old), self.at(new))
        self.lie("rename", errno.ENOENT)

    # ---- locks

    def refuse(self):
        if self.locks != "server":
            raise mfusepy.FuseOSError(errno.ENOLCK if self.locks == "enolck" else errno.ENOSYS)

    def flock(self, path, fh, op):
        self.refuse()
        fcntl.flock(fh, op | fcntl.LOCK_NB)

    def lock(self, path, fh, cmd, lock):
        self.refuse()
        wished = ctypes.cast(lock, ctypes.POINTER(ctypes.c_short))[0]
        fcntl.fcntl(fh, F_OFD_SETLK, struct.pack(FORM, wished, os.SEEK_SET, 0, 0, 0))


def serve(store, mount, options):
    mfusepy.FUSE(
        Lying(store, options), mount, foreground=True, nothreads=True, attr_timeout=0,
        entry_timeout=0, negative_timeout=0, direct_io=True, use_ino=options.get("ino") != "own",
        fsname="lying",
    )  # fmt: skip


def tried():
    """Mount one and read a file through it, or raise. In a mount namespace of its own."""
    with tempfile.TemporaryDirectory(prefix="ground-") as folder:
        store, mount = Path(folder, "store"), Path(folder, "mount")
        store.mkdir()
        mount.mkdir()
        (store / "x").write_text("here")
        command = [sys.executable, __file__, str(store), str(mount)]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            until = time.monotonic() + 60
            while not mount.is_mount():
                if server.poll() is not None:
                    raise OSError(server.stderr.read().strip().splitlines()[-1])
                if time.monotonic() > until:
                    raise OSError("the mount does not come up")
                time.sleep(0.01)
            assert (mount / "x").read_text() == "here"
        finally:
            subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
            server.kill()
            server.communicate()


if __name__ == "__main__":
    if sys.argv[1] == "--try":
        tried()
    else:
        serve(*sys.argv[1:3], dict(word.split("=") for word in sys.argv[3:]))
