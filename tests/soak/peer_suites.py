"""The tests that the original tools bring along, run with ours in their place.

    python -m soak.peer_suites [--keep FOLDER]      (in tests/, src on the path)

Fetches the Debian source packages `liblockfile` and `util-linux` by apt-get (about 8 MB) into a
temporary folder, or FOLDER. Of the first: run-tests.sh, with our `dotlockfile` first in PATH. Of
the second: tests/ts/misc/flock, with TS_CMD_FLOCK our `flock`. Each runs with the real tool too, as
the control. Nothing of them is kept here. Exit 1 when one of ours fails that the real one passes.
"""

from __future__ import annotations

import argparse
import glob
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = "deb-src http://deb.debian.org/debian bookworm main\n"
COMMAND = "#!{python}\nimport sys\nfrom lifehold.cli.main import main\nsys.exit(main())\n"


def fetch(folder: Path) -> None:
    """Both source packages, unpacked as far as they are needed."""
    if glob.glob(f"{folder}/*.orig.tar.*"):
        return
    (folder / "sources.list").write_text(SOURCES)
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    options = [
        f"Dir::Etc::sourcelist={folder}/sources.list", "Dir::Etc::sourceparts=-",
        f"Dir::State::lists={folder}/lists", f"Dir::Cache={folder}/cache",
    ]  # fmt: skip
    apt = ["apt-get", "-qq", *(word for each in options for word in ("-o", each))]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run(
        [*apt, "source", "--download-only", "liblockfile", "util-linux"], cwd=folder, check=True
    )


def unpack(folder: Path, name: str, *members: str) -> Path:
    (archive,) = glob.glob(f"{folder}/{name}_*.orig.tar.*")
    subprocess.run(["tar", "xf", archive, "--wildcards", *members], cwd=folder, check=True)
    found = glob.glob(f"{folder}/{name}-*") + glob.glob(f"{folder}/{name}")
    return next(Path(each) for each in found if os.path.isdir(each))


def ours(folder: Path) -> Path:
    """A folder with our commands under the names of theirs."""
    binaries = folder / "ours"
    binaries.mkdir(exist_ok=True)
    for name in ("dotlockfile", "flock"):
        (binaries / name).write_text(COMMAND.format(python=sys.executable))
        (binaries / name).chmod(0o755)
    return binaries


def dotlockfile(source: Path, path: str) -> int:
    """run-tests.sh looks into its own folder first, where nothing has been built."""
    return subprocess.run(
        ["sh", "run-tests.sh"], cwd=source, env={**os.environ, "PATH": path}, check=False
    ).returncode


def flock(source: Path, command: str) -> int:
    """The test compares with its own expected output; its harness wants two more folders."""
    tests = source / "tests"
    environment = {
        **os.environ, "TS_CMD_FLOCK": command, "TS_OPT_noskip_commands": "yes", "LC_ALL": "C",
    }  # fmt: skip
    words = ["bash", "ts/misc/flock", f"--srcdir={source}", f"--builddir={source}", "--verbose"]
    done = subprocess.run(words, cwd=tests, env=environment, check=False)
    for each in glob.glob(f"{tests}/diff/misc/flock*"):
        print(Path(each).read_text())
    shutil.rmtree(tests / "output", ignore_errors=True)
    shutil.rmtree(tests / "diff", ignore_errors=True)
    return done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="peer-suites-") as name:
        folder = (options.keep or Path(name)).absolute()
        folder.mkdir(exist_ok=True)
        fetch(folder)
        binaries = ours(folder)
        mail = unpack(folder, "liblockfile", "*/run-tests.sh")
        util = unpack(folder, "util-linux", "*/tests/*.sh", "*/tests/ts/misc/flock",
                      "*/tests/expected/misc/flock*")  # fmt: skip
        path = os.environ["PATH"]
        runs = {
            "run-tests.sh, real dotlockfile": lambda: dotlockfile(mail, path),
            "run-tests.sh, ours": lambda: dotlockfile(mail, f"{binaries}:{path}"),
            "misc/flock, real flock": lambda: flock(util, shutil.which("flock") or "flock"),
            "misc/flock, ours": lambda: flock(util, shlex.quote(f"{binaries}/flock")),
        }
        codes = {}
        for which, run in runs.items():
            print(f"== {which}", flush=True)
            codes[which] = run()
    for name, code in codes.items():
        print(f"{'passed' if code == 0 else f'status {code}':10} {name}")
    return int(any(code for name, code in codes.items() if name.endswith("ours")))


if __name__ == "__main__":
    raise SystemExit(main())
