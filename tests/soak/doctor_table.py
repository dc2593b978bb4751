"""`python -m soak.doctor_table [--page FILE] [--cache DIR] [--only WORD]`: doctor on real ground.

Makes file systems in files (mkfs of each, loop mounts: root), mounts FUSE servers that lie, and
boots the NFSv4 guest of soak.nfs; runs `lifehold doctor --json` on each and puts a table of what it
said between the marks of FILE. What cannot be made here stands there as not run, with the reason.
Ends with 1 when a verdict is not the one that is expected.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from crash.terrain import file_system, fill, mounted
from faults.mounts import SIZES, lying
from soak import nfs
from soak.doctor_guest import asked
from soak.nfs_machine import MACHINES, Missing

SAFE, UNPROVEN, UNSAFE = "safe", "unproven", "unsafe"
KINDS = ("kernel", "generation", "soft", "link", "directory", "folder")
BEGIN, END = "<!-- table: made by tests/soak/doctor_table.py -->", "<!-- end of the table -->"
PAGE = Path(__file__).parents[2] / "docs/explanation/doctor.md"


@contextlib.contextmanager
def of_kind(kind, base):
    with file_system(kind, SIZES[kind], base) as where:
        yield where, None


@contextlib.contextmanager
def overlay(base):
    with mounted(base / "layers", "-t", "tmpfs", "none") as layers:
        for name in ("lower", "upper", "work"):
            (layers / name).mkdir()
        options = ",".join(f"{n}dir={layers / n}" for n in ("lower", "upper", "work"))
        with mounted(base / "overlay", "-t", "overlay", "-o", options, "none") as where:
            yield where, None


@contextlib.contextmanager
def read_only(base):
    with file_system("ext4", SIZES["ext4"], base) as where:
        subprocess.run(["mount", "-o", "remount,ro", where], check=True, timeout=20)
        yield where, None


@contextlib.contextmanager
def full(base):
    with file_system("ext4", SIZES["ext4"], base) as where:
        fill(where)
        yield where, None


@contextlib.contextmanager
def open_to_all(base):
    with file_system("ext4", SIZES["ext4"], base) as where:
        where.chmod(0o777)
        yield where, None


@contextlib.contextmanager
def fuse(base, *options, both=False):
    with lying(SimpleNamespace(base=base, everybody=[]), *options) as (one, two):
        yield one, two if both else None


GROUNDS = {
    **{kind: (lambda base, kind=kind: of_kind(kind, base), SAFE)
       for kind in ("ext4", "xfs", "btrfs", "tmpfs")},
    "overlay (on tmpfs)": (overlay, SAFE),
    "ext4, read-only": (read_only, UNSAFE),
    "ext4, full": (full, UNSAFE),
    "ext4, world-writable, not sticky": (open_to_all, UNSAFE),
    "FUSE, from one client": (fuse, UNPROVEN),
    "FUSE, with the second": (lambda base: fuse(base, both=True), SAFE),
    "FUSE without locks (ENOSYS)": (lambda base: fuse(base, "locks=none"), UNPROVEN),
    "FUSE without locks (ENOLCK)": (lambda base: fuse(base, "locks=enolck"), UNPROVEN),
    "FUSE whose link and rename lie": (
        lambda base: fuse(base, "link=1", "rename=1"), UNPROVEN),
    "FUSE, attributes 3 s old, with the second": (
        lambda base: fuse(base, "old=3", both=True), SAFE),
}  # fmt: skip
SERVED = {"NFSv4.2, from one client": UNPROVEN, "NFSv4.2, with the second": SAFE}


def played(only):
    """{ground: what doctor said of it, or why it was not run}."""
    found = {}
    for ground, (make, _) in GROUNDS.items():
        if only and only not in ground:
            continue
        with tempfile.TemporaryDirectory(prefix="doctor-") as base:
            try:
                with make(Path(base)) as (folder, other):
                    found[ground] = asked(folder, other)
            except (OSError, subprocess.SubprocessError, AttributeError) as error:
                found[ground] = f"not run: {type(error).__name__}: {error}"
        print(ground, _verdict(found[ground]), flush=True)
    return found


def served(cache, machine):
    """The same of NFSv4."""
    try:
        said = nfs.play(cache, 0, 0.0, ("doctor",), on=machine)
    except Missing as why:
        return dict.fromkeys(SERVED, f"not run: {why}")
    found = {each["ground"]: each["said"] for each in said if each["what"] == "doctor"}
    for ground in SERVED:
        found.setdefault(ground, "not run: the guest did not answer")
        print(ground, _verdict(found[ground]), flush=True)
    return found


def _verdict(said):
    return said if isinstance(said, str) else said.get("verdict", str(said))


def table(found):
    lines = [
        f"| ground | verdict | {' | '.join(f'`{kind}`' for kind in KINDS)} | what decides |",
        "|---" * (len(KINDS) + 3) + "|",
    ]
    for ground, said in found.items():
        if "verdict" not in said:
            lines.append(f"| {ground} | {said} |{' |' * (len(KINDS) + 1)}")
            continue
        kinds = {each["name"]: each["verdict"] for each in said["kinds"]}
        cells = " | ".join(kinds[kind] for kind in KINDS)
        lines.append(f"| {ground} | **{said['verdict']}** | {cells} | {_why(said)} |")
    return "\n".join(lines)


def _why(said):
    """The worst that was found, in its own words."""
    for verdict in ("refuted", "unproven", "warning"):
        found = [f"{each['what']}: {each['why']}" for each in said["findings"]
                 if each["verdict"] == verdict and each["what"] != "umask"]  # fmt: skip
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            return found[0].replace("|", "/") + more
    return "all was tried, and excluded"


def main():
    parser = argparse.ArgumentParser(prog="python -m soak.doctor_table", description=__doc__)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--cache", default=nfs.CACHE)
    parser.add_argument("--machine", choices=sorted(MACHINES), default="uml")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    found = played(options.only)
    if not options.only or options.only in "NFSv4.2":
        found |= served(options.cache, options.machine)
    print(made := table(found))
    if not options.only:
        text = options.page.read_text()
        head, _, rest = text.partition(BEGIN)
        _, _, tail = rest.partition(END)
        options.page.write_text(f"{head}{BEGIN}\n\n{made}\n\n{END}{tail}")
    expected = {ground: verdict for ground, (_, verdict) in GROUNDS.items()} | SERVED
    wrong = [ground for ground, said in found.items()
             if "verdict" in said and said["verdict"] != expected[ground]]  # fmt: skip
    print("not as expected:", wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
