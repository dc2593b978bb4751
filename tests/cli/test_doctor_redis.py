"""`lifehold doctor` and `store check` of a Redis: what can lose a lease there is told, untried."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import jsonschema
import pytest

from ground import needs
from lifehold.store.redis import upkeep
from lifehold.store.redis.scripts import scripts
from lifehold.store.redis.upkeep import DONE, examine

pytestmark = needs("redis")
DOCS = Path(__file__).parents[2] / "docs" / "reference"


@pytest.fixture(scope="module")
def server():
    from servers import redis

    with redis.started(aof=True, users=("app on >hush-hush ~lifehold:* &lifehold:* +ping",)) as one:
        yield one


def asked(lifehold, url, code, command=("doctor",)):
    """Its findings: what -> (verdict, why)."""
    done = lifehold(*command, "--json", url)
    assert done.returncode == code, done.stdout + done.stderr
    found = json.loads(done.stdout)
    schema = "answers" if command == ("doctor",) else "store"
    jsonschema.validate(found, json.loads((DOCS / f"{schema}.schema.json").read_text()))
    assert "hush" not in done.stdout + done.stderr
    return {each["what"]: (each["verdict"], each["why"]) for each in found["findings"]}


def test_a_server_that_keeps_each_write_is_safe_and_nothing_is_written_to_it(lifehold, server):
    with server.counting() as calls:
        found = asked(lifehold, server.url, 0)
    assert {verdict for verdict, _ in found.values()} == {"good"}
    assert server.call("DBSIZE") == 0
    reads = {"hello", "auth", "select", "client|setinfo", "ping", "time", "eval", "acl|whoami"}
    assert set(calls) - reads == set()
    assert asked(lifehold, server.unix_url, 0, ("store", "check")).keys() == found.keys()


@pytest.mark.parametrize(
    ("setting", "to", "what", "code", "remedy"),
    [
        (
            "maxmemory-policy",
            "volatile-lru",
            "memory",
            78,
            "CONFIG SET maxmemory-policy noeviction",
        ),
        ("appendfsync", "everysec", "persistence", 3, "CONFIG SET appendfsync always"),
        ("appendonly", "no", "persistence", 3, "CONFIG SET appendonly yes appendfsync always"),
    ],
)
def test_what_can_lose_a_lease_is_told_and_its_remedy_runs(
    lifehold, server, setting, to, what, code, remedy
):
    server.call("CONFIG", "SET", setting, to)
    verdict, why = asked(lifehold, server.url, code)[what]
    assert (verdict, remedy in why) == ("bad" if code == 78 else "unproven", True)
    ready, _ = asked(lifehold, server.url, int(code == 78), ("store", "check"))[what]
    assert ready == ("bad" if code == 78 else "note")
    server.call(*shlex.split(remedy))
    asked(lifehold, server.url, 0)


def test_a_right_that_lacks_is_told_until_the_printed_grants_have_run(lifehold, server):
    url = f"redis://app:hush-hush@127.0.0.1:{server.port}/0"
    for _ in range(5):  # without EVAL nothing more can be asked
        done = lifehold("doctor", "--json", url)
        why = [each["why"] for each in json.loads(done.stdout)["findings"]]
        grants = re.findall(r"ACL SETUSER app .*", "\n".join(why))
        if not grants:
            break
        assert done.returncode == 78
        server.call(*shlex.split(grants[0]))
    found = asked(lifehold, url, 3)  # what INFO would tell stays hidden
    assert found["rights"] == ("good", "the user app has all that is needed")
    assert found["INFO"][0] == "unproven"


@pytest.mark.parametrize(
    ("query", "lacks"),
    [("", "ping"), ("", "hexists"), ("?replicas=1", "wait"), ("?replicas=1", "hexists")],
)
def test_each_right_that_a_url_needs_is_asked_for(server, query, lacks):
    words = ("on", ">hush", "~lifehold:*", "&lifehold:*", "+@all", f"-{lacks}")
    server.call("ACL", "SETUSER", "nearly", *words)
    url = f"redis://nearly:hush@127.0.0.1:{server.port}/0{query}"
    found = {each.what: each for each in examine(url).findings}["rights"]
    assert found.verdict == "bad"
    assert found.why.endswith(f"ACL SETUSER nearly ~lifehold:* &lifehold:* +{lacks}")


def test_a_quorum_needs_info(server):
    server.call("ACL", "SETUSER", "nearly", "on", ">hush", "~*", "&*", "+@all", "-info")
    hosts = f"nearly:hush@127.0.0.1:{server.port},127.0.0.1:1,127.0.0.1:2"
    found = {each.what: each for each in examine(f"redis+quorum://{hosts}/0").findings}
    assert found["rights"].why.endswith("+info")


def test_the_options_of_our_own_url_are_not_redis_pys(server):
    plain = examine(server.url).findings
    for query in ("?replicas=1", "?replicas=1&socket_timeout=5", "?protocol=3&replicas=0"):
        assert len(examine(server.url + query).findings) == len(plain)


def test_every_command_of_the_scripts_is_among_the_rights_that_are_asked_for():
    called = set()
    for each in scripts().values():
        called |= {word.lower() for word in re.findall(r"call\('([A-Z]+)'", each.text)}
    assert called - {line.split()[0] for line in DONE} == {"info"}  # asked where it may be asked


def test_a_server_that_cannot_be_asked_ends_with_69_and_shows_no_password(lifehold, server):
    for port in (server.port, 1):
        asked(lifehold, f"redis://app:hush@127.0.0.1:{port}/0", 69)
        asked(lifehold, f"redis://app:hush@127.0.0.1:{port}/0", 69, ("store", "check"))


def test_a_redis_behind_sentinels_is_unproven_and_its_replica_alone_unsafe(lifehold):
    from servers import redis_groups

    with redis_groups.sentinels(replicas=1) as group:
        found = asked(lifehold, group.url, 3)
        assert found["sentinels"][0] == "good"
        assert f"127.0.0.1:{group.primary.port}" in found["sentinels"][1]
        assert found["replicas"][0] == found["failover"][0] == "unproven"
        assert (
            "a replica that only reads" in asked(lifehold, group.replicas[0].url, 78)["server"][1]
        )
        group.watchers[0].kill()
        assert asked(lifehold, group.url, 3)["sentinels"][0] == "note"


def test_a_cluster_is_unproven_and_unsafe_when_a_slot_is_not_served(lifehold):
    from servers import redis_groups

    with redis_groups.cluster(replicas=False, aof=True) as cluster:
        found = asked(lifehold, cluster.url, 0)
        assert found["cluster"] == ("good", "3 primaries serve 16384 of 16384 slots")
        for each in cluster.nodes:
            each.call("CLUSTER", "DELSLOTS", 7)
        assert asked(lifehold, cluster.url, 78)["cluster"][0] == "bad"


def test_a_store_without_such_settings_is_referred_to_store_check(lifehold):
    done = lifehold("doctor", "sqlite:////tmp/x.db")
    assert done.returncode == 64
    assert "lifehold store check" in done.stderr


def test_rights_that_a_server_before_redis_7_does_not_tell_are_not_called_good(server, monkeypatch):
    monkeypatch.setattr(upkeep, "ASKED", f"local redis = {{}}\n{upkeep.ASKED}")
    found = {each.what: each.verdict for each in examine(server.url).findings}
    assert (found["scripts"], found["rights"]) == ("good", "unproven")
