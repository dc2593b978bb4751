"""Every exit code of the command, and which error ends with which. The one table.

Promise: a code says what a script must do next (sysexits.h, as mail and cron understand it). `run`
passes the code of its CMD on; its own codes are told apart by the line on stderr.
"""

from __future__ import annotations

from ..core.errors import (
    CorruptRecord,
    InvalidArgument,
    LeaseLost,
    NotAcquired,
    StoreUnavailable,
    SystemRefused,
    UnsafeGround,
)
from ..core.mask import printable

DONE = 0
FREE = 1  # who: nobody holds it
NOT_READY = 1  # store check: leases cannot be kept there as it is
SUSPECT = 3  # who: held by somebody whose life cannot be proven, or who is gone
USAGE = 64  # EX_USAGE
CORRUPT = 65  # EX_DATAERR
NO_INPUT = 66  # EX_NOINPUT
NO_STORE = 69  # EX_UNAVAILABLE
BUG = 70  # EX_SOFTWARE: an error that nobody expected; its traceback is on stderr
REFUSED = 71  # EX_OSERR
LOST = 74  # EX_IOERR
HELD = 75  # EX_TEMPFAIL: try again later
UNSAFE = 78  # EX_CONFIG
NOT_EXECUTABLE = 126
NOT_FOUND = 127
SIGNAL = 128  # plus its number


# The first class that fits decides.
TABLE: tuple[tuple[type[BaseException], int], ...] = (
    (NotAcquired, HELD),
    (InvalidArgument, USAGE),
    (CorruptRecord, CORRUPT),
    (StoreUnavailable, NO_STORE),
    (SystemRefused, REFUSED),
    (LeaseLost, LOST),
    (UnsafeGround, UNSAFE),
    (KeyboardInterrupt, SIGNAL + 2),
    (BrokenPipeError, SIGNAL + 13),
    (OSError, REFUSED),
)


def code_of(error: BaseException) -> int:
    """The exit code that an error ends with; BUG for one that is not in the table."""
    if getattr(error, "code", "") == "no_such_input":  # of ops/who, which `run` does not import
        return NO_INPUT
    for kind, code in TABLE:
        if isinstance(error, kind):
            return code
    return BUG


def text_of(error: OSError) -> str:
    """What the system said no to, in words."""
    where = f": {printable(str(error.filename))}" if error.filename else ""
    return f"the system refused: {error.strerror or error}{where}"
