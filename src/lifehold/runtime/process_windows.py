"""Who lives, asked of Windows.

**Never run on Windows by this project**; tested against a simulated kernel32.

A process is its number and the instant of its creation, in units of 100 ns since 1601, which stand
for the start ticks of Linux. OpenProcess rounds a number down to a multiple of four, so the number
of what was opened is asked again. A process that has ended stays as long as somebody has a handle
to it: that is its zombie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.mask import masked_command
from ..core.owner import Sighting
from . import fork

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

QUERY_LIMITED, SYNCHRONIZE = 0x1000, 0x00100000
INVALID_PARAMETER = 87
ENDED = 0  # WAIT_OBJECT_0
_host: WindowsProcesses | None = None


class WindowsProcesses:
    """`kernel32`, `last_error`: the system's, or simulated."""

    def __init__(self, kernel32: Any, last_error: Callable[[], int]) -> None:
        self._kernel32, self._last_error = kernel32, last_error
        self._ctypes = fork.lazily("ctypes")

    def look(self, pid: int) -> Sighting:
        """What runs under this number."""
        handle = self._kernel32.OpenProcess(QUERY_LIMITED | SYNCHRONIZE, 0, pid)
        if not handle:
            return Sighting(exists=self._last_error() != INVALID_PARAMETER)  # or hidden from us
        try:
            if self._kernel32.GetProcessId(handle) != pid:
                return Sighting(exists=False)
            return Sighting(
                exists=True,
                is_zombie=self._kernel32.WaitForSingleObject(handle, 0) == ENDED,
                start_ticks=self._created_at(handle),
                command=self._image(handle),
            )
        finally:
            self._kernel32.CloseHandle(handle)

    def _created_at(self, handle: Any) -> int | None:
        times = [self._ctypes.c_uint64() for _ in range(4)]  # creation, exit, kernel, user
        references = [self._ctypes.byref(each) for each in times]
        if not self._kernel32.GetProcessTimes(handle, *references):
            return None
        return int(times[0].value)

    def _image(self, handle: Any) -> str | None:
        """The path of its program; its arguments cannot be asked."""
        name = self._ctypes.create_unicode_buffer(1024)
        length = self._ctypes.c_uint32(1024)
        reference = self._ctypes.byref(length)
        if not self._kernel32.QueryFullProcessImageNameW(handle, 0, name, reference):
            return None
        return masked_command([name.value])


def look(pid: int) -> Sighting:
    """What runs under this number, by the real kernel32."""
    global _host
    if _host is None:
        ctypes = fork.lazily("ctypes")
        kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
        word, pointer, yes = ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int
        calls = {
            "OpenProcess": (pointer, word, yes, word),
            "GetProcessId": (word, pointer),
            "WaitForSingleObject": (word, pointer, word),
            "GetProcessTimes": (yes, pointer, pointer, pointer, pointer, pointer),
            "QueryFullProcessImageNameW": (yes, pointer, word, pointer, pointer),
            "CloseHandle": (yes, pointer),
        }
        for name, (result, *arguments) in calls.items():
            call = getattr(kernel32, name)
            call.restype, call.argtypes = result, arguments
        _host = WindowsProcesses(kernel32, ctypes.get_last_error)
    return _host.look(pid)
