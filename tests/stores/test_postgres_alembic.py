"""The tables of a store made and removed by revisions of Alembic, online and as SQL."""

from __future__ import annotations

import io
import subprocess

import pytest

from ground import needs
from lifehold import InvalidArgument, NotAcquired, connect
from lifehold.stores import migrations

ENV = """
from alembic import context
from sqlalchemy import MetaData, create_engine, pool

from lifehold.stores import migrations

url = context.config.get_main_option("sqlalchemy.url")
metadata = MetaData()

if context.is_offline_mode():
    context.configure(url=url, target_metadata=metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()
else:
    with create_engine(url, poolclass=pool.NullPool).connect() as connection:
        context.configure(connection=connection, target_metadata=metadata,
                          include_name=migrations.include_name)
        with context.begin_transaction():
            context.run_migrations()
"""
REVISION = """
from lifehold.stores import migrations

revision, down_revision = "5d1f0c", None


def upgrade():
    migrations.upgrade(grant="migrated")


def downgrade():
    migrations.downgrade()
"""


@pytest.fixture
def alembic(tmp_path, pg_url, pg_server):
    """Run one command of Alembic against a database of the test's own; what it printed."""
    from alembic import command
    from alembic.config import Config

    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text(ENV)
    (tmp_path / "script.py.mako").write_text("")
    (tmp_path / "versions" / "leases.py").write_text(REVISION)
    base = pg_url.rpartition("/")[2]
    pg_server.execute(
        "DO $$ BEGIN CREATE ROLE migrated LOGIN; EXCEPTION WHEN duplicate_object THEN END $$", base
    )

    def run(verb, *words, **options):
        config = Config(output_buffer=io.StringIO(), stdout=io.StringIO())
        config.set_main_option("script_location", str(tmp_path))
        config.set_main_option("sqlalchemy.url", pg_url.replace("://", "+psycopg://"))
        getattr(command, verb)(config, *words, **options)
        return config.output_buffer.getvalue()

    return run


def left_in(pg_server, pg_url):
    base = pg_url.rpartition("/")[2]
    asked = """SELECT c.relname::text FROM pg_class c WHERE c.relname LIKE 'lifehold%'
        UNION ALL SELECT p.proname::text FROM pg_proc p WHERE p.proname LIKE 'lifehold%'"""
    return {name for (name,) in pg_server.execute(asked, base)}


@needs("postgres", "package:alembic", "package:sqlalchemy")
def test_a_revision_makes_the_tables_and_its_way_back_leaves_nothing(alembic, pg_url, pg_server):
    alembic("upgrade", "head")
    store = connect(pg_url.replace("lifehold@", "migrated@"), create=False)
    with store.lock("job", wait=0) as lease:
        with pytest.raises(NotAcquired):
            connect(pg_url).lock("job", wait=0).acquire()
        lease.verify()
    assert set(migrations.OURS) < left_in(pg_server, pg_url)
    alembic("downgrade", "base")
    assert left_in(pg_server, pg_url) == set()
    alembic("upgrade", "head")
    with store.lock("job", wait=0) as again:
        assert again.token > lease.token  # by the clock of the server


@needs("postgres", "package:alembic", "package:sqlalchemy", "command:psql")
def test_what_alembic_prints_offline_runs_as_it_stands(alembic, pg_url, tmp_path):
    file = tmp_path / "offline.sql"
    file.write_text(alembic("upgrade", "head", sql=True))
    psql(pg_url, file)
    with connect(pg_url, create=False).lock("job", wait=0) as lease:
        assert lease.token


@needs("postgres", "package:alembic", "package:sqlalchemy")
def test_autogenerate_leaves_our_tables_alone(alembic, pg_url):
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from sqlalchemy import MetaData, create_engine, pool

    alembic("upgrade", "head")
    engine = create_engine(pg_url.replace("://", "+psycopg://"), poolclass=pool.NullPool)
    with engine.connect() as connection:

        def proposed(**options):
            found = MigrationContext.configure(connection, opts=options)
            return {str(each[1].name) for each in compare_metadata(found, MetaData())
                    if each[0] == "remove_table"}  # fmt: skip

        assert set(migrations.OURS) <= proposed()
        assert proposed(include_name=migrations.include_name) <= {"alembic_version"}


def psql(url, file):
    subprocess.run(
        ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(file), url],
        check=True, capture_output=True, timeout=150,
    )  # fmt: skip


def test_outside_of_a_revision_it_says_what_is_missing(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "alembic", None)
    monkeypatch.setitem(sys.modules, "alembic.op", None)
    with pytest.raises(InvalidArgument, match="Alembic"):
        migrations.upgrade()
