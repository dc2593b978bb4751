"""The command as `python -m lifehold`; installed, it begins in `lifehold_command`.

Ctrl-C ends it by the signal while it is being loaded: the package itself has seen to that, and here
is seen to it for who runs this module in another way.
"""

import gc
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # without `enum`, which costs 4 ms

if signal.getsignal(signal.SIGINT) == signal.default_int_handler:  # a caller may ignore it
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> int:
    """The exit code of the command line of this process."""
    gc.disable()  # what is loaded is no garbage: looking for some is 4 % of a start
    try:
        from .cli.main import main as command

        if sys.argv[1:2] == ["run"]:
            from .cli import run  # noqa: F401
        gc.freeze()
    finally:
        gc.enable()
    return command()


if __name__ == "__main__":
    sys.exit(main())
