"""L13  Whose tables and functions are called: one's own, a superuser's, those of a named role."""

from __future__ import annotations

import itertools

import pytest

from ground import needs
from lifehold import UnsafeGround, connect
from lifehold.ops import stored
from lifehold.store.postgres.sql import SCHEMA
from lifehold.store.postgres.upkeep import migrate

pytestmark = needs("postgres")
_numbers = itertools.count()
PLANTED = """
CREATE TABLE lifehold_schema (one boolean, version integer, least integer);
INSERT INTO lifehold_schema VALUES (true, 4, 1);
CREATE FUNCTION lifehold_1_acquire(
    text, text, float8, float8, text, int, int, bool, bool, bool, float8, text, text,
    OUT given boolean, OUT token bigint, OUT slot integer, OUT acquired_at float8,
    OUT now float8, OUT over json, OUT seats json, OUT ahead bigint,
    OUT look_in float8, OUT capacity integer
) LANGUAGE plpgsql AS $$ BEGIN
    ALTER ROLE {role} SUPERUSER;
    given := true; token := 1; slot := 0; acquired_at := 1; now := 1;
END $$;
CREATE FUNCTION lifehold_1_release(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
"""


@pytest.fixture
def mallory(pg_server, pg_url):
    """A role that may create in `public`, as everybody before PostgreSQL 15; its URL."""
    role, base = f"mallory{next(_numbers)}", pg_url.rpartition("/")[2]
    pg_server.execute(f"CREATE ROLE {role} LOGIN", base)
    yield role, pg_url.replace("lifehold@", f"{role}@"), base
    pg_server.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}", base)


def superuser(pg_server, role):
    return pg_server.execute(f"SELECT rolsuper FROM pg_roles WHERE rolname = '{role}'") == [(True,)]


def test_functions_that_another_role_has_planted_are_never_called(pg_server, pg_url, mallory):
    import psycopg

    role, theirs, base = mallory
    pg_server.execute(f"GRANT CREATE ON SCHEMA public TO {role}", base)
    with psycopg.connect(theirs, autocommit=True) as connection:
        connection.execute(PLANTED.replace("{role}", role))
    for create in (None, False, True):
        with pytest.raises(UnsafeGround, match=f"{role} may create in the schema public"):
            connect(pg_url, create=create).lock("x", wait=0).acquire()
    with pytest.raises(UnsafeGround, match=role):
        connect(pg_url).lock("x", kind="session", wait=0).acquire()
    with pytest.raises(UnsafeGround, match=role):
        migrate(pg_url)
    with pytest.raises(psycopg.Error, match="others could change"):
        pg_server.execute(SCHEMA, base)
    found = stored.check(pg_url)
    assert not found.ready
    assert found.findings[-1].what == "owners"
    assert not superuser(pg_server, role)


def test_who_may_only_create_there_is_kept_out_too(pg_server, pg_url, mallory):
    role, _, base = mallory
    connect(pg_url, create=True).list()
    pg_server.execute("GRANT CREATE ON SCHEMA public TO PUBLIC", base)
    with pytest.raises(UnsafeGround, match="REVOKE CREATE ON SCHEMA public FROM PUBLIC"):
        connect(pg_url, timeout=9).list()
    pg_server.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC", base)
    assert connect(pg_url, timeout=8).list() == []
    assert not superuser(pg_server, role)


def test_a_trigger_of_another_role_is_seen(pg_server, pg_url, mallory):
    import psycopg

    role, theirs, base = mallory
    connect(pg_url, create=True).list()
    pg_server.execute(f"CREATE SCHEMA own AUTHORIZATION {role}", base)
    pg_server.execute(f"GRANT TRIGGER ON lifehold_lease TO {role}", base)
    with psycopg.connect(theirs, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION own.f() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RETURN NEW; END $$"
        )
        connection.execute(
            "CREATE TRIGGER t BEFORE INSERT ON lifehold_lease FOR EACH ROW EXECUTE FUNCTION own.f()"
        )
    with pytest.raises(UnsafeGround, match=f"{role} owns the trigger t"):
        connect(pg_url, timeout=9).list()


def test_an_owner_who_is_named_is_trusted(pg_server, pg_url, mallory):
    role, theirs, base = mallory
    pg_server.execute(f"CREATE SCHEMA own AUTHORIZATION {role}", base)
    path = "options=-csearch_path%3Down"
    migrate(f"{theirs}?{path}")
    with pytest.raises(UnsafeGround, match=f"owner='{role}'"):
        connect(f"{pg_url}?{path}").list()
    with connect(f"{pg_url}?{path}&owner={role}").lock("x", wait=0) as lease:
        lease.verify()
    store = connect(f"{pg_url}?{path}", owner=role)
    assert store.list() == ["x"]
    assert f"owner={role}" in store.url  # so that what is printed leads there too
    assert connect(f"{theirs}?{path}").list() == ["x"]


def test_what_the_session_finds_first_is_not_what_a_function_uses(pg_server, pg_url, mallory):
    """An operator that fits better than the server's own, in a schema on the caller's path."""
    role, _, base = mallory
    connect(pg_url, create=True).list()
    for text in (
        "CREATE SCHEMA trap",
        (
            "CREATE FUNCTION trap.f(float8, numeric) RETURNS float8 LANGUAGE plpgsql AS"
            f" $$ BEGIN ALTER ROLE {role} SUPERUSER; RETURN 1; END $$"
        ),
        "CREATE OPERATOR trap.* (LEFTARG = float8, RIGHTARG = numeric, FUNCTION = trap.f)",
    ):
        pg_server.execute(text, base)
    with connect(f"{pg_url}?options=-csearch_path%3Dpublic%2Ctrap").lock("x", wait=0) as lease:
        assert lease.token > 1
    assert not superuser(pg_server, role)
