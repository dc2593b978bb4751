"""The first module of the installed command: Ctrl-C ends it by the signal from here on.

Promise: Ctrl-C while the command is being loaded ends it as it ends any program, without a word.
Python's own handler would raise KeyboardInterrupt in the middle of an import, where nobody catches
it. It stands outside of the package, which is loaded before any of its modules. As soon as `main`
can, it hears Ctrl-C again. Not promised: the same while Python itself starts.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # without `enum`, which costs 4 ms

try:
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:  # a caller may ignore it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
except KeyboardInterrupt:  # in these very lines
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGINT)


def main() -> int:
    """The exit code of the command line of this process."""
    import gc  # not before: Ctrl-C may come while it is found
    import sys

    gc.disable()  # what is loaded is no garbage: looking for some is 4 % of a start
    try:
        from lifehold.cli.main import main as command

        if sys.argv[1:2] == ["run"]:
            from lifehold.cli import run  # noqa: F401
        gc.freeze()
    finally:
        gc.enable()
    return command()


if __name__ == "__main__":
    raise SystemExit(main())
