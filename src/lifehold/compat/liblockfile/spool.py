"""The mail spool: a folder that only the group `mail` may write.

Rule, liblockfile's: /DIR/NAME.lock is the lock of a mailbox when /DIR/NAME is a regular file of
ours and the group of the set-gid dotlockfile may write DIR. Then, and only when the folder refuses
us, that program is run: a script, as ours is, cannot be set-gid. Where there is none, that is said.
"""

from __future__ import annotations

import errno
import os
import stat

from ...runtime import fork
from .status import L_ERROR, L_SUCCESS, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence
else:
    subprocess = fork.later("subprocess", globals())

# Not by PATH: there `dotlockfile` may be anybody's, and ours.
PROGRAMS = ("/usr/bin/dotlockfile", "/usr/local/bin/dotlockfile", "/bin/dotlockfile")


def set_gid_program(programs: Sequence[str] = PROGRAMS) -> tuple[str, int] | None:
    """The system's set-gid dotlockfile and its group; None where there is none."""
    for program in programs:
        try:
            found = os.stat(program)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and found.st_mode & stat.S_ISGID:
            return program, found.st_gid
    return None


def is_mailbox_lock(path: str, group: int | None) -> bool:
    """Whether this is the lock of a mailbox of ours. `group`: None for whatever it may be."""
    box, dot, end = path.rpartition(".")
    if not dot or end != "lock":
        return False
    try:
        found, folder = os.lstat(box), os.stat(os.path.dirname(box) or ".")
    except OSError:
        return False
    mine = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()
    return mine and bool(folder.st_mode & stat.S_IWGRP) and group in (None, folder.st_gid)


def by_the_program(
    option: str,
    path: str,
    refused: Status,
    *,
    by_pid: bool = False,
    programs: Sequence[str] = PROGRAMS,
) -> Status:
    """`refused`, or what the set-gid dotlockfile answers, where this is its task.

    `option`: -l or -u; one try, the patience is ours. `by_pid`: with -p it writes the number of its
    parent, which is this process: right for L_PID, and for L_PPID there is no way to say it.
    """
    if refused.errno != errno.EACCES:
        return refused
    found = set_gid_program(programs)
    if not is_mailbox_lock(path, found and found[1]):
        return refused
    if found is None:
        return Status(
            int(refused),
            f"{refused.why}. It is the lock of a mailbox, in a folder that a group may write: only "
            "a set-gid program may lock there, which this one cannot be, and there is no set-gid "
            f"dotlockfile on this system (looked for {', '.join(programs)}): install it, on Debian "
            "the package liblockfile-bin",
            errno.EACCES,
        )
    if os.geteuid() == 0:  # better not, says the original
        return Status(L_ERROR, refused.why, errno.EACCES)
    words = [found[0], option, "-r", "0", "-q", "-p" if by_pid else "-N"]
    try:
        words.append(os.path.abspath(path))
        # It goes back to where it was started, and fails where its group may not enter.
        code = subprocess.run(words, cwd="/", check=False).returncode
    except OSError as error:
        return Status(L_ERROR, f"{found[0]} cannot be run: {error.strerror}", error.errno or 0)
    if code < 0 or code == L_ERROR:
        return Status(L_ERROR, f"{found[0]} failed", errno.EINTR)
    if option == "-u" and code:
        return Status(-1, f"{found[0]} could not remove it", errno.EACCES)
    return Status(code, "" if code == L_SUCCESS else f"{found[0]} answered {code}", errno.EAGAIN)
