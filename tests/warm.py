"""An interpreter that has its imports behind it, and forks a process for each script it is given.

A fresh interpreter takes longer for the imports of some libraries than a test for its claim. Each
script runs at the top of the program, and its process ends as any other does.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

SERVER = """
import json as _json, os as _os, sys as _sys
from posix import dup2 as _dup2, fork as _fork, read as _read, waitpid as _waitpid, write as _write
{preload}
import gc as _gc; _gc.collect(); _gc.freeze()
def _asked():
    left = b""
    while b"\\n" not in left:
        more = _read(0, 1 << 16)
        if not more:
            _os._exit(0)
        left += more
    return _json.loads(left)
while True:
    _order = _asked()
    _pid = _fork()
    if not _pid:
        break
    _write(1, b"%d\\n" % _pid)
    _write(1, b"%d\\n" % _waitpid(_pid, 0)[1])
for _number, _path in enumerate(_order["files"]):
    _fd = _os.open(_path, _os.O_RDWR)
    _dup2(_fd, _number)
    _os.close(_fd)
_os.chdir(_order["cwd"])
_sys.argv[1:] = _order["words"]
exec(compile(_order["script"], "<script>", "exec"))
"""


class Warm:
    """One such interpreter. `words`: options of it; `env`: in place of ours."""

    def __init__(self, preload: str, *words: str, env: dict[str, str] | None = None) -> None:
        self._server = subprocess.Popen(
            [sys.executable, *words, "-c", SERVER.format(preload=preload)], env=env,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        )  # fmt: skip

    def start(self, script: str, *words: str, cwd: Path) -> int:
        """Begin a process, one at a time; its number."""
        self._files = tempfile.TemporaryDirectory(prefix="warm-")
        self._paths = [Path(self._files.name, name) for name in ("in", "out", "err")]
        for path in self._paths:
            path.touch()
        order = {"script": script, "words": words, "cwd": str(cwd),
                 "files": list(map(str, self._paths))}  # fmt: skip
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(order).encode() + b"\n")
        self._server.stdin.flush()
        self._pid = self._answer(60)
        return self._pid

    def end(self, within: float = 120) -> subprocess.CompletedProcess[str]:
        """Wait for its end; killed when it does not come."""
        try:
            status = self._answer(within)
        except subprocess.TimeoutExpired:
            os.kill(self._pid, signal.SIGKILL)
            self._answer(60)
            raise
        finally:
            _, out, err = (path.read_text() for path in self._paths)
            self._files.cleanup()
        code = os.waitstatus_to_exitcode(status)
        return subprocess.CompletedProcess([], code, out, err)

    def run(
        self, script: str, *words: str, cwd: Path, within: float = 120
    ) -> subprocess.CompletedProcess[str]:
        self.start(script, *words, cwd=cwd)
        return self.end(within)

    def _answer(self, within: float) -> int:
        """The next line of the server, which writes each in one piece."""
        assert self._server.stdout is not None
        if not select.select([self._server.stdout], [], [], within)[0]:
            raise subprocess.TimeoutExpired("a script of its own", within)
        return int(self._server.stdout.readline())

    def close(self) -> None:
        self._server.kill()
        self._server.wait()
        for pipe in (self._server.stdin, self._server.stdout):
            assert pipe is not None
            pipe.close()
