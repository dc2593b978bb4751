"""A simulated kernel32: files in a dict, mandatory byte-range locks, processes in a table.

Written from the same documentation as the code under test; that it agrees with Windows is not
shown.
"""

from __future__ import annotations

import ctypes
import threading
from itertools import count

SHARING_ALL, CREATE_NEW = 7, 1


class File:
    serial, instants = count(1), count(1 << 56)

    def __init__(self, kind=0x80):
        self.data, self.kind, self.index = bytearray(), kind, (3 << 32) | next(File.serial)
        self.locks: dict[int, bool] = {}  # handle: exclusive
        self.deleted = False
        self.id = None  # of 128 bits, where the file system has such
        self.created = next(File.instants)


class Kernel32:
    """`classic`: a deleted name stays until its last handle is closed."""

    def __init__(self, classic=False):
        self.classic = classic
        self.mutex = threading.RLock()
        self.files: dict[str, File] = {}
        self.handles: dict[int, File] = {}
        self.numbers = count(4, 4)
        self.error = threading.local()
        self.fail: dict[str, int] = {}  # call: error of its next use
        self.processes: dict[int, dict] = {}

    def last_error(self) -> int:
        return self.error.code

    def _no(self, code):
        self.error.code = code
        return 0

    def _failing(self, call):
        return self.fail.pop(call, 0)

    # ---- files

    def CreateFileW(self, path, access, share, security, disposition, flags, template):
        assert security is None, "children would inherit it"
        assert share == SHARING_ALL
        with self.mutex:
            if code := self._failing("CreateFileW"):
                return self._no(code) - 1
            found = self.files.get(path)
            if found is not None and found.deleted:
                return self._no(5) - 1  # delete pending
            if disposition == CREATE_NEW:
                if found is not None:
                    return self._no(80) - 1
                found = self.files[path] = File()
            elif found is None:
                return self._no(2) - 1
            handle = next(self.numbers)
            self.handles[handle] = found
            return handle

    def CloseHandle(self, handle):
        with self.mutex:
            found = self.handles.pop(handle, None)
            if found is None:
                return self._no(6)
            if isinstance(found, File):
                found.locks.pop(handle, None)
                if found.deleted and found not in self.handles.values():
                    self.files = {p: f for p, f in self.files.items() if f is not found}
            return 1

    def delete(self, path):
        """DeleteFile by somebody else."""
        with self.mutex:
            found = self.files[path]
            if self.classic and found in self.handles.values():
                found.deleted = True
            else:
                del self.files[path]

    def GetFileInformationByHandle(self, handle, reference):
        with self.mutex:
            found = self.handles.get(handle)
            if found is None:
                return self._no(6)
            words = reference._obj
            if not isinstance(found, File):
                return self._no(1)
            words[0], words[7], words[9], words[10] = found.kind, 0xABCD, len(found.data), 1
            words[1], words[2] = found.created & 0xFFFFFFFF, found.created >> 32
            words[11], words[12] = found.index >> 32, found.index & 0xFFFFFFFF
            return 1

    def GetFileInformationByHandleEx(self, handle, what, reference, size):
        assert (what, size) == (18, 24), "FILE_ID_INFO"
        with self.mutex:
            found = self.handles.get(handle)
            if not isinstance(found, File) or found.id is None:
                return self._no(87)
            words = reference._obj
            words[0], words[1], words[2] = 0xABCD, found.id & (1 << 64) - 1, found.id >> 64
            return 1

    def SetFileInformationByHandle(self, handle, what, reference, size):
        assert (what, size) == (6, 8), "FILE_END_OF_FILE_INFO"
        with self.mutex:
            if code := self._failing("SetFileInformationByHandle"):
                return self._no(code)
            data, end = self.handles[handle].data, reference._obj.value
            data[:] = data[:end].ljust(end, b"\0")
            return 1

    # ---- locks

    def LockFileEx(self, handle, flags, reserved, low, high, reference):
        assert (reserved, low, high, _offset(reference)) == (0, 1, 0, 0), "byte 0 and no other"
        assert flags & 1, "it would wait where nobody can interrupt it"
        with self.mutex:
            if code := self._failing("LockFileEx"):
                return self._no(code)
            locks, exclusive = self.handles[handle].locks, bool(flags & 2)
            if locks and (exclusive or any(locks.values())):
                return self._no(33)
            locks[handle] = exclusive
            return 1

    def UnlockFileEx(self, handle, reserved, low, high, reference):
        assert (reserved, low, high, _offset(reference)) == (0, 1, 0, 0)
        with self.mutex:
            if not isinstance(self.handles.get(handle), File):
                return self._no(6)
            return 1 if self.handles[handle].locks.pop(handle, None) is not None else self._no(158)

    def _locked_away(self, handle, begin, writing):
        locks = self.handles[handle].locks
        theirs = [exclusive for other, exclusive in locks.items() if other != handle]
        # Shared locks keep everybody from writing, their holders too; exclusive ones all others.
        return begin == 0 and (any(theirs) or (writing and not all(locks.values())))

    def ReadFile(self, handle, buffer, length, got, reference):
        with self.mutex:
            found, begin = self.handles[handle], _offset(reference)
            if self._locked_away(handle, begin, writing=False):
                return self._no(33)
            data = bytes(found.data[begin : begin + length])
            if not data:
                return self._no(38)
            ctypes.memmove(buffer, data, len(data))
            got._obj.value = len(data)
            return 1

    def WriteFile(self, handle, data, length, done, reference):
        with self.mutex:
            if code := self._failing("WriteFile"):
                return self._no(code)
            found, begin = self.handles[handle], _offset(reference)
            if self._locked_away(handle, begin, writing=True):
                return self._no(33)
            found.data[begin : begin + length] = data
            done._obj.value = length
            return 1

    # ---- processes: {pid: {"created": 100 ns, "ended": bool, "image": str} or an error code}

    def OpenProcess(self, access, inherit, pid):
        found = self.processes.get(pid - pid % 4, 87)
        if isinstance(found, int):
            return self._no(found)
        handle = next(self.numbers)
        self.handles[handle] = (pid - pid % 4, found)
        return handle

    def GetProcessId(self, handle):
        return self.handles[handle][0]

    def WaitForSingleObject(self, handle, milliseconds):
        assert milliseconds == 0
        return 0 if self.handles[handle][1].get("ended") else 258

    def GetProcessTimes(self, handle, created, *others):
        if "created" not in self.handles[handle][1]:
            return self._no(5)
        created._obj.value = self.handles[handle][1]["created"]
        return 1

    def QueryFullProcessImageNameW(self, handle, native, name, length):
        image = self.handles[handle][1].get("image")
        if image is None:
            return self._no(5)
        name.value = image
        length._obj.value = len(image)
        return 1


def _offset(reference):
    overlapped = reference._obj
    return overlapped.OffsetHigh << 32 | overlapped.Offset
