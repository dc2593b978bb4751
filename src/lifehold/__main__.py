"""The command: `lifehold`, and `python -m lifehold`.

Promise: Ctrl-C while the command is being loaded ends it as it ends any program, by the signal and
without a word. Python's own handler would raise KeyboardInterrupt in the middle of an import, where
nobody catches it. As soon as `main` can, it hears Ctrl-C again. Not promised: the same while Python
itself starts and loads the package.
"""

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
    from .cli.main import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
