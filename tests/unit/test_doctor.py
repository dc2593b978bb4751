"""`doctor` calls a folder safe only where it was seen to be, and says what to use."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ground import needs
from lifehold.core.errors import InvalidArgument
from lifehold.local import ground_probe
from lifehold.local.ground import MountInfo
from lifehold.local.ground_probe import PROVEN, REFUTED, UNPROVEN
from lifehold.ops import doctor
from lifehold.ops import doctor as ops
from lifehold.ops.who import FolderMissing

pytestmark = needs("linux", "proc")


def verdicts(report):
    return {each.what: each.verdict for each in report.findings}


def test_a_local_disk_is_safe_for_each_kind_and_nothing_is_left_there(tmp_path):
    report = ops.examine(str(tmp_path))
    assert (report.verdict, report.kind) == (ops.SAFE, "kernel")
    assert {each.verdict for each in report.kinds} == {ops.SAFE}
    tried = ("flock", "fcntl", "OFD", "mkdir", "link", "rename", "exclusive create", "inotify")
    assert {verdicts(report)[what] for what in tried} == {PROVEN}
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_all_may_write_is_unsafe_without_the_sticky_bit(tmp_path):
    tmp_path.chmod(0o777)
    report = ops.examine(str(tmp_path))
    assert report.verdict == ops.UNSAFE
    assert "chmod +t" in report.advice
    tmp_path.chmod(0o777 | stat.S_ISVTX)
    assert ops.examine(str(tmp_path)).verdict == ops.SAFE


def rights_of(folder):
    (found,) = (each for each in doctor.looked_at(str(folder), "rw") if each.what == "rights")
    return found.verdict, found.why


@needs("root")
def test_the_owner_of_a_folder_can_remove_the_lock_files_in_it(tmp_path):
    assert rights_of(tmp_path)[0] == "good"
    os.chown(tmp_path, 65534, 65534)
    tmp_path.chmod(0o755)
    verdict, why = rights_of(tmp_path)
    assert (verdict, "its owner, user nobody, can remove your lock files" in why) == (
        "warning",
        True,
    )
    tmp_path.chmod(0o1777)
    verdict, why = rights_of(tmp_path)
    assert (verdict, "its owner, user nobody, can remove your files" in why) == ("warning", True)


def test_who_may_write_above_a_folder_can_put_another_one_in_its_place(tmp_path):
    inner = tmp_path / "a folder" / "of locks"
    inner.mkdir(parents=True)
    assert rights_of(inner)[0] == "good"
    tmp_path.chmod(0o1777)
    assert rights_of(inner)[0] == "good", "a sticky folder keeps our own one in its place"
    tmp_path.chmod(0o777)
    assert rights_of(inner)[0] == REFUTED
    report = ops.examine(str(inner))
    assert report.verdict == ops.UNSAFE
    assert f"chmod +t {tmp_path}" in report.advice


@needs("root")
def test_the_owner_of_a_folder_above_can_put_another_one_in_its_place(tmp_path):
    inner = tmp_path / "locks"
    inner.mkdir()
    os.chown(tmp_path, 65534, 65534)
    verdict, why = rights_of(inner)
    assert (verdict, "user nobody can put another folder in its place" in why) == ("warning", True)


def test_a_shared_file_system_is_unproven_from_one_host(tmp_path, monkeypatch):
    place = MountInfo("nfs4", "0:99")
    monkeypatch.setattr(ops, "mount_of", lambda folder: (place, "rw,vers=4.2"))
    monkeypatch.setattr("lifehold.local.ground_probe.ground_of", lambda folder: place)
    report = ops.examine(str(tmp_path))
    assert report.verdict == ops.UNSURE
    assert "--peer ssh:HOST" in report.advice


def test_locks_that_stay_on_one_host_are_named(tmp_path):
    for options in ("rw,nolock", "rw,local_lock=all", "ro,relatime"):
        found = doctor.looked_at(str(tmp_path), options)[-1]
        assert (found.what, found.verdict) == ("mount", REFUTED)
    assert doctor.looked_at(str(tmp_path), "rw,local_lock=none")[-1].verdict == "good"


def test_a_lock_that_two_processes_get_makes_the_folder_unsafe(tmp_path, monkeypatch):
    monkeypatch.setattr(ground_probe, "_other_gets", lambda kind, path: True)
    report = ops.examine(str(tmp_path))
    kinds = {each.name: each for each in report.kinds}
    assert kinds["kernel"].verdict == ops.UNSAFE
    assert "two processes had it at once" in kinds["kernel"].why
    assert report.kind == "directory"  # the one that stands on nothing which failed


@needs("root")
def test_a_folder_where_nothing_can_be_made_is_unsafe(monkeypatch):
    report = ops.examine("/proc")
    assert (report.verdict, report.kind) == (ops.UNSAFE, "")
    assert verdicts(report)["writing"] == REFUTED


@needs("root", "tmpfs")
def test_a_full_disk_that_makes_files_and_takes_no_byte_is_unsafe(tmp_path):
    """On tmpfs a name takes no room, and each kind refuses a new lock all the same."""
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)]
    subprocess.run(command, check=True)
    try:
        tmp_path.chmod(0o755)
        with (tmp_path / "fill").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass
        report = ops.examine(str(tmp_path))
        assert os.listdir(tmp_path) == ["fill"]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert (report.verdict, report.kind) == (ops.UNSAFE, "")
    assert {each.verdict for each in report.kinds} == {ops.UNSAFE}
    (why,) = (each.why for each in report.findings if each.what == "writing")
    assert why == "nothing can be made here: No space left on device"


def test_what_is_no_folder_is_refused(tmp_path):
    with pytest.raises(FolderMissing):
        ops.examine(str(tmp_path / "none"))


@pytest.mark.parametrize("peer", ["web-2", "ssh:", "ssh:-oProxyCommand=x", "http://x"])
def test_a_peer_is_a_host_of_ssh_and_never_an_option(peer):
    with pytest.raises(InvalidArgument, match="ssh:HOST"):
        ops.refuse_peer(peer)
    ops.refuse_peer("ssh:ana@web-2")


@pytest.fixture
def ssh(tmp_path_factory, monkeypatch):
    """An ssh that runs its command here; `world` is a program that it runs before."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "ssh").write_text(
        '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift 2\n'
        f'PATH={os.path.dirname(sys.executable)}:$PATH; eval "$1"\n'
    )
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return folder / "ssh"


def test_a_second_host_that_excludes_both_ways_is_proof(tmp_path, ssh):
    found = {each.what: each for each in doctor.ask(str(tmp_path), "ssh:other")}
    assert {each.verdict for each in found.values()} == {PROVEN}
    assert "this host and other, both ways" in found["flock"].why
    assert list(tmp_path.iterdir()) == []


def test_a_second_host_that_gets_what_is_held_here_refutes(tmp_path, ssh):
    ssh.write_text("#!/bin/sh\necho ready; while read line; do echo got; done\n")
    found = doctor.ask(str(tmp_path), "ssh:other")
    assert {each.verdict for each in found} == {REFUTED}
    assert found[0].why == "other got it while it was held here"


def test_a_second_host_that_gets_nothing_proves_nothing(tmp_path, ssh):
    ssh.write_text(
        "#!/bin/sh\necho ready; read line; echo got; while read line; do echo refused; done\n"
    )
    assert {each.verdict for each in doctor.ask(str(tmp_path), "ssh:other")} == {UNPROVEN}


def test_a_host_that_cannot_be_reached_is_an_error_and_leaves_nothing(tmp_path, ssh):
    ssh.write_text("#!/bin/sh\nexit 255\n")
    with pytest.raises(Exception, match="cannot be asked by ssh"):
        ops.examine(str(tmp_path), peer="ssh:other")
    assert list(Path(tmp_path).iterdir()) == []


@pytest.fixture
def on_nfs(monkeypatch):
    place = MountInfo("nfs4", "0:99")
    monkeypatch.setattr(ops, "mount_of", lambda folder: (place, "rw,vers=4.2"))
    for where in ("ground_probe.ground_of", "ground._known"):
        monkeypatch.setattr(f"lifehold.local.{where}", lambda folder: place)
    ground_probe._surveys.clear()


def test_kernel_locks_on_a_file_server_are_never_called_safe(tmp_path, on_nfs, ssh):
    """L1  The server drops those of a machine that is cut off, however well two hosts exclude."""
    report = ops.examine(str(tmp_path), peer="ssh:other")
    kinds = {each.name: each for each in report.kinds}
    assert kinds["kernel"].verdict == kinds["soft"].verdict == ops.UNSURE
    assert "lease of the file server of nfs4" in kinds["kernel"].why
    assert report.kind == "generation"
    assert kinds["generation"].verdict == report.verdict == ops.SAFE
    assert "use kind='generation', which is what kind='auto' does" in report.advice
    assert "--peer" not in report.advice


def test_what_is_said_of_auto_is_what_auto_does(tmp_path, on_nfs, monkeypatch):
    assert "kind='generation', which is what kind='auto' does" in ops.examine(str(tmp_path)).advice
    monkeypatch.undo()
    assert "kind='kernel', which is what kind='auto' does" in ops.examine(str(tmp_path)).advice


def test_a_second_host_with_another_folder_there_is_said_to_have_another(tmp_path, on_nfs, ssh):
    ssh.write_text("#!/bin/sh\necho ready; while read line; do echo refused; done\n")
    report = ops.examine(str(tmp_path), peer="ssh:other")
    assert report.verdict == ops.UNSURE
    assert "other does not see what is made in" in report.advice
    assert "--peer" not in report.advice
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("mask", "verdict", "words"),
    [
        (0o022, "good", "other users can lock the files that you make"),
        (0o027, "warning", "can neither lock the files that you make nor read them"),
        (0o077, "warning", "can neither lock the files that you make nor read them"),
        (0o002, "warning", "others may write"),
        (0o000, "warning", "others may write"),
    ],
)
def test_what_the_umask_means_for_the_locks_of_others_is_true(mask, verdict, words):
    before = os.umask(mask)
    try:
        (found,) = (each for each in doctor.looked_at("/", "rw") if each.what == "umask")
    finally:
        os.umask(before)
    assert found.verdict == verdict
    assert words in found.why
