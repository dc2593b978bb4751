"""Whoever was kept from a file is kept from the mended one too, and nobody becomes its owner."""

from __future__ import annotations

import errno
import os
import struct

import pytest

from crash.terrain import NOBODY, as_nobody, folder_for_all, result
from ground import needs
from lifehold.audit import fix
from lifehold.cli.main import main

ANY = 0xFFFFFFFF
USER, NAMED, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
OLD, NEW = b"x = 1\n", b"x = 3\n"
KNOWN = b'{"schema": "lifehold.audit-baseline/1", "findings": []}\n'


def entries(*each):
    """An access control list as the kernel spells it."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *one) for one in each)


# A folder for a team: what is made in it is open to one more user.
TEAM = entries((USER, 7, ANY), (NAMED, 6, NOBODY), (GROUP, 5, ANY), (MASK, 7, ANY), (OTHER, 0, ANY))
OWN = entries((USER, 6, ANY), (NAMED, 4, 12345), (GROUP, 0, ANY), (MASK, 4, ANY), (OTHER, 0, ANY))


def listed(path, name, value):
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EPERM):
            raise
        pytest.skip("needs a file system with access control lists")


def facts(path):
    found = path.stat()
    names = os.listxattr(path)
    return (
        found.st_uid,
        found.st_gid,
        found.st_mode,
        fix.ACL in names and os.getxattr(path, fix.ACL),
    )


def opened(path):
    try:
        return path.read_text()
    except PermissionError:
        return "refused"


@pytest.fixture
def folder():
    with folder_for_all() as made:
        yield made


@needs("linux")
def test_a_mended_file_keeps_none_of_its_folders_list(folder):
    app = folder / "app.py"
    app.write_bytes(OLD)
    app.chmod(0o640)
    before = facts(app)
    listed(folder, "system.posix_acl_default", TEAM)
    assert fix.put(app, OLD, NEW) == ""
    assert (facts(app), app.read_bytes()) == (before, NEW)


@needs("root")
def test_who_could_not_read_a_file_cannot_read_it_mended(folder):
    app = folder / "app.py"
    app.write_bytes(OLD)
    app.chmod(0o640)
    listed(folder, "system.posix_acl_default", TEAM)
    assert result(as_nobody(opened, app)) == "refused"
    assert fix.put(app, OLD, NEW) == ""
    assert result(as_nobody(opened, app)) == "refused"


@needs("linux")
def test_a_mended_file_keeps_its_own_list(folder):
    app = folder / "app.py"
    app.write_bytes(OLD)
    listed(app, fix.ACL, OWN)
    before = facts(app)
    assert fix.put(app, OLD, NEW) == ""
    assert (facts(app), app.read_bytes()) == (before, NEW)


@needs("root")
def test_another_users_file_is_left_as_it_is(folder):
    folder.chmod(0o777)
    app = folder / "app.py"
    app.write_bytes(OLD)
    app.chmod(0o666)
    before = facts(app)
    assert "another user" in result(as_nobody(fix.put, app, OLD, NEW))
    assert (facts(app), app.read_bytes()) == (before, OLD)
    os.chown(app, NOBODY, 0)  # its own, but of a group that it is no member of
    assert "group" in result(as_nobody(fix.put, app, OLD, NEW))
    os.chown(app, NOBODY, NOBODY)
    assert result(as_nobody(fix.put, app, OLD, NEW)) == ""
    assert [each.name for each in folder.iterdir()] == ["app.py"]


@needs("root")
def test_a_baseline_goes_through_no_link_of_another_user(folder):
    victim, link = folder / "victim", folder / "known.json"
    victim.write_bytes(KNOWN)
    link.symlink_to("victim")
    os.chown(folder, NOBODY, NOBODY)
    assert main(["audit", "--no-cache", "--write-baseline", str(link), str(folder)]) == 2
    assert (victim.read_bytes(), link.is_symlink()) == (KNOWN, True)
    link.unlink()
    assert main(["audit", "--no-cache", "--write-baseline", str(link), str(folder)]) == 0
    assert sorted(each.name for each in folder.iterdir()) == ["known.json", "victim"]


def test_a_baseline_takes_the_place_of_the_old_one_in_one_step(folder):
    known = folder / "known.json"
    known.write_bytes(KNOWN)
    known.chmod(0o640)
    with open(known, "rb") as reader:
        assert main(["audit", "--no-cache", "--write-baseline", str(known), str(folder)]) == 0
        assert reader.read() == KNOWN  # whoever reads it has all of the old one
    assert (known.stat().st_mode & 0o777, known.read_bytes() != KNOWN) == (0o640, True)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")
@pytest.mark.parametrize("option", ["--baseline", "--write-baseline", "--config"])
def test_a_fifo_is_not_waited_for(folder, option, capfd):
    os.mkfifo(folder / "known")
    assert main(["audit", "--no-cache", option, str(folder / "known"), str(folder)]) == 2
    assert "no regular file" in capfd.readouterr().err


def test_a_read_only_file_is_left_as_it_is(folder):
    app = folder / "app.py"
    app.write_bytes(OLD)
    app.chmod(0o444)
    assert fix.put(app, OLD, NEW) == "it is read-only"
    assert [each.name for each in folder.iterdir()] == ["app.py"]
    assert app.read_bytes() == OLD
