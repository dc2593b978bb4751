"""A holder in another PID, mount, time or UTS namespace: excluded, named honestly, never reclaimed.

The long form of the first test is `python -m tests.soak.namespaces 1000`.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from crash.scene import free, hold, next_token, until
from ground import needs
from lifehold import Lock, WouldBlock
from lifehold.core.owner import ALIVE, UNKNOWN
from lifehold.testing.crash import Child
from soak.canary import not_growing
from soak.namespaces import NEW_PID_NAMESPACE, Peer, play

pytestmark = needs("root", "linux", "unshare")

OTHER_BOOT = "01234567-89ab-cdef-0123-456789abcdef"
OTHER_HOST = "lighthouse"


def sh(words):
    return ["sh", "-c", f'{words}; exec "$@"', "sh"]


def other_boot(folder):
    """As in a machine of another boot, though the kernel is the same."""
    (folder / "boot_id").write_text(OTHER_BOOT + "\n")
    return sh(f"mount --bind {folder}/boot_id /proc/sys/kernel/random/boot_id")


def judged(folder, under=()):
    with Peer(folder, "judge", under) as judge:
        return json.loads(judge.ready().ask("judge"))


def looked(folder, order="error", under=()):
    with Peer(folder, "observer", under) as observer:
        return json.loads(observer.ready().ask(order))


@pytest.fixture
def holder(tmp_path):
    """Makes a holder under some command; it holds until the test is over."""
    made = []

    def make(under=NEW_PID_NAMESPACE):
        made.append(Peer(tmp_path, f"holder-{len(made)}", under))
        assert made[-1].ready().ask("acquire", "0").startswith("got")
        return made[-1]

    yield make
    for peer in made:
        peer.__exit__()


def test_a_holder_killed_with_its_namespace_hands_over_and_one_that_lives_is_never_reclaimed(
    tmp_path,
):
    account = play(tmp_path, 8)
    assert account.rounds == 8
    assert account.overlaps == 0
    assert account.false_reclaims == 0
    assert account.misnamed == 0
    assert len(account.tokens) == 16
    assert not_growing(account.tokens) == 0
    assert max(account.from_kill + account.from_start) < 1000  # ms; the soak has the real figure


def test_a_false_reclaim_is_noticed_by_the_rounds(tmp_path):
    """The control: a lock that another file carries is granted beside a living holder."""
    with Peer(tmp_path, "holder", ()) as holder, Peer(tmp_path, "thief", ()) as thief:
        assert holder.ready().ask("acquire", "0").startswith("got")
        (tmp_path / "lock").unlink()
        assert thief.ready().ask("acquire", "0").startswith("got")
    assert (tmp_path / "overlaps").read_text() == "holder thief\n"


def test_an_inherited_open_file_in_the_namespace_dies_with_it(tmp_path, holder):
    victim = holder()
    victim.ask("heir")
    victim.kill()
    assert next_token(str(tmp_path / "lock"), 5) > 0


def has_closed_its_files(pid):
    """It is reaped, or a zombie: a process gives up its memory first, and its files after that."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_an_inherited_open_file_outside_any_killed_namespace_keeps_the_lock(tmp_path):
    """Without the namespace the same heir holds on: it is the namespace that ends it above."""
    with Peer(tmp_path, "holder", ()) as victim:
        victim.ready().ask("acquire", "0")
        victim.ask("heir")
        heir = int(Path(f"/proc/{victim.pid}/task/{victim.pid}/children").read_text())
        victim.kill()
        until(lambda: has_closed_its_files(victim.pid))
        try:
            assert not free(tmp_path / "lock")
            found = Lock(tmp_path / "lock").holder()
            assert found.alive == ALIVE
            assert "inherited its open file" in found.evidence
        finally:
            os.kill(heir, signal.SIGKILL)


def test_the_refusal_names_the_holder_by_the_number_of_its_own_namespace(tmp_path, holder):
    pid, host, space = holder().ask("here").split()
    assert pid == "1"
    for under in ((), NEW_PID_NAMESPACE):
        found = looked(tmp_path, "error", under)
        assert (found["pid"], found["pid_ns"], found["host"]) == (1, int(space), host)
        assert found["alive"] == ALIVE
        assert "kernel witness" in found["evidence"]
        assert "label holder-0" in found["text"]


def test_from_outside_the_holder_is_also_found_by_our_own_number_for_it(tmp_path, holder):
    peer = holder()
    with pytest.raises(WouldBlock) as refusal:
        Lock(tmp_path / "lock").acquire(wait=0)
    assert refusal.value.holder.owner.pid == 1
    assert f"process {peer.pid} as seen from here" in refusal.value.holder.evidence


def test_from_a_third_namespace_a_holder_that_nobody_asked_about_is_not_called_dead(
    tmp_path, holder
):
    holder()
    found = looked(tmp_path, "holder", NEW_PID_NAMESPACE)
    assert found["alive"] == UNKNOWN
    assert "another PID namespace" in found["evidence"]


def test_the_last_holder_of_another_namespace_is_not_called_alive(tmp_path, holder):
    holder().kill()
    next_token(str(tmp_path / "lock"), 5)
    assert Lock(tmp_path / "lock").holder() is None
    found = looked(tmp_path, "holder", NEW_PID_NAMESPACE)
    assert found is None or found["alive"] == UNKNOWN


@pytest.mark.parametrize("observer", [(), NEW_PID_NAMESPACE], ids=["first", "third"])
def test_a_living_holder_of_another_namespace_is_judged_unknown_by_its_number(
    tmp_path, holder, observer
):
    holder()
    found = judged(tmp_path, observer)
    assert found["local"] == found["shared"] == found["no pidfd"] == UNKNOWN
    assert found["held"] == ALIVE
    assert "another PID namespace" in found["evidence"]


def test_a_living_holder_of_the_first_namespace_is_judged_unknown_from_another(tmp_path):
    with Child(hold, str(tmp_path / "lock")) as child:
        child.at("held")
        found = judged(tmp_path, NEW_PID_NAMESPACE)
        assert found["local"] == UNKNOWN  # though no process there has that number
        assert looked(tmp_path, "error", NEW_PID_NAMESPACE)["pid"] == child.pid


def test_a_boot_id_that_something_is_mounted_over_proves_no_death(tmp_path, holder):
    holder(["unshare", "-m", *other_boot(tmp_path)])  # as systemd-nspawn does
    found = judged(tmp_path)
    assert found["local"] == UNKNOWN
    assert found["shared"] == UNKNOWN
    assert found["held"] == ALIVE  # the kernel's lock outweighs every id


@pytest.mark.parametrize("observer", [(), NEW_PID_NAMESPACE], ids=["first", "third"])
def test_a_living_holder_with_another_boot_id_is_refused_to_all_and_named(
    tmp_path, holder, observer
):
    peer = holder(["unshare", "-m", *other_boot(tmp_path)])
    for order in ("error", "holder"):
        found = looked(tmp_path, order, observer)
        assert found is not None, f"{order}: a held lock was called free"
        # Another PID namespace sees no process, and then knows no more than the record.
        assert found["alive"] == ALIVE or (observer and order == "holder")
        assert (found["pid"], found["boot_id"]) == (peer.pid, None)  # it is not the kernel's


def test_a_holder_of_another_boot_that_has_gone_is_not_named_as_holding(tmp_path, holder):
    holder(["unshare", "-m", *other_boot(tmp_path)]).kill()
    until(lambda: free(tmp_path / "lock"))
    assert looked(tmp_path, "holder") is None
    found = looked(tmp_path, "holder", NEW_PID_NAMESPACE)
    assert found is None or found["alive"] == UNKNOWN


@pytest.mark.parametrize(
    "under", [("-T", "--boottime", "864000"), ("-T", "--monotonic", "864000")], ids=lambda u: u[1]
)
@needs("timens")
def test_a_holder_of_another_time_namespace_is_alive_or_unknown_never_dead(tmp_path, holder, under):
    peer = holder(["unshare", *under, "--fork", "--kill-child"])
    found = judged(tmp_path)
    assert found["local"] in (ALIVE, UNKNOWN)  # by its pidfd's inode, where the kernel has that
    assert found["no pidfd"] == UNKNOWN  # its start ticks are shifted
    assert looked(tmp_path)["alive"] == ALIVE
    assert looked(tmp_path)["pid"] == peer.pid
    peer.kill()
    assert next_token(str(tmp_path / "lock"), 5) > 0


@needs("timens")
def test_tokens_grow_across_time_namespaces(tmp_path, holder):
    def token(under):
        with Peer(tmp_path, "-".join(under) or "here", under) as peer:
            found = int(peer.ready().ask("acquire", "5").split()[1])
            peer.ask("leave")
        return found

    early = ["unshare", "-T", "--boottime", "864000", "--fork", "--kill-child"]
    tokens = [token(under) for under in ((), early, (), early, NEW_PID_NAMESPACE)]
    assert not_growing(tokens) == 0


def test_a_holder_of_another_uts_namespace_is_named_by_its_own_host_name(tmp_path, holder):
    named = sh(f"echo {OTHER_HOST} >/proc/sys/kernel/hostname")
    peer = holder(["unshare", "--uts", *named])
    found = looked(tmp_path)
    assert (found["host"], found["pid"], found["alive"]) == (OTHER_HOST, peer.pid, ALIVE)
    assert f"host {OTHER_HOST}" in found["text"]
    assert judged(tmp_path)["local"] == ALIVE  # a host name decides nothing
    assert os.uname().nodename != OTHER_HOST
