"""The tables of a store in PostgreSQL, schema version 4, and the small functions on them.

Promise: of a name a row stays, with its token, when its holders go (L4). Tables only grow from
version to version. A function carries in its name the version that first had it, and is made anew
by each later one, so a client of an older version works on the new rows by its old calls (L12).
Version 2 knows by `busy` that nobody has to be looked for. Version 3 knows of who waits all that it
takes to let it in. Version 4 keeps the record of a holder in a row of its own, which is written
only when another holder comes: what each grant writes stays narrow, also while an old snapshot
keeps all that was written. Its functions find their tables in their own schema alone.
"""

from __future__ import annotations

VERSION = 4

# Who may have made what we call: the caller's own role, a superuser, or whom `{owner}` names. What
# anybody else owns, or could put in its place, would be run with the caller's rights (L13).
STRANGERS = """
WITH trusted AS (
    SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolsuper OR r.rolname = current_user
        OR r.rolname = ANY (string_to_array({owner}, ','))
), home AS (
    SELECT n.* FROM pg_catalog.pg_namespace n WHERE n.nspname = {home}
), theirs AS (
    SELECT h.nspowner AS role, 'owns the schema ' || h.nspname AS what FROM home h
    UNION ALL SELECT a.grantee, 'may create in the schema ' || h.nspname FROM home h,
        pg_catalog.aclexplode(coalesce(h.nspacl, pg_catalog.acldefault('n', h.nspowner))) a
        WHERE a.privilege_type = 'CREATE'
    UNION ALL SELECT c.relowner, 'owns the table ' || c.relname
        FROM pg_catalog.pg_class c JOIN home h ON h.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relname ~ '{tables}'
    UNION ALL SELECT p.proowner, 'owns the function ' || p.proname
        FROM pg_catalog.pg_proc p JOIN home h ON h.oid = p.pronamespace
        WHERE p.proname ~ '^lifehold_(now$|[0-9]+_)'
    UNION ALL SELECT p.proowner, 'owns the trigger ' || t.tgname
        FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid
        JOIN home h ON h.oid = c.relnamespace JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
        WHERE NOT t.tgisinternal AND c.relname ~ '{tables}'
), named AS (
    SELECT t.what, CASE WHEN r.rolname = 'pg_database_owner' THEN (SELECT d.datdba
        FROM pg_catalog.pg_database d WHERE d.datname = current_database()) ELSE t.role END AS role
    FROM theirs t LEFT JOIN pg_catalog.pg_roles r ON r.oid = t.role
)
SELECT string_agg(s.told, '; ' ORDER BY s.told) AS told, string_agg(DISTINCT s.who, ',') AS who
    FROM (SELECT coalesce(r.rolname::text, 'everybody') || ' ' || min(n.what)
            || CASE count(*) WHEN 1 THEN '' ELSE ', and ' || count(*) - 1 || ' more' END AS told,
            coalesce(r.rolname::text, '') AS who
        FROM named n LEFT JOIN pg_catalog.pg_roles r ON r.oid = n.role
        WHERE n.role NOT IN (SELECT t.oid FROM trusted t) GROUP BY r.rolname) s
"""
OURS = "^lifehold_(schema|lease|holder|owner|waiter|audit|kept|session)$"


def strangers(home: str, owner: str) -> str:
    """Who else could change what is called, told, and their roles. Both given as SQL."""
    return STRANGERS.format(home=home, owner=owner, tables=OURS)


TRUST = """
DO $$
DECLARE
    found text;
BEGIN
    SELECT s.told INTO found FROM (
        {strangers}
    ) s;
    IF found IS NOT NULL THEN
        RAISE EXCEPTION 'others could change what is run here: %', found
            USING ERRCODE = '42501', HINT = 'lifehold.owner';
    END IF;
END $$;
""".replace(
    "{strangers}",
    strangers("current_schema()", "coalesce(current_setting('lifehold.owner', true), '')"),
)

TABLES = """
SELECT pg_advisory_xact_lock(7811887393204924516);

CREATE TABLE IF NOT EXISTS lifehold_schema (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL,  -- of the newest functions that are here
    least integer NOT NULL     -- of the oldest ones that are right beside them
);
DO $$ BEGIN
    IF (SELECT version FROM lifehold_schema) > 4 THEN
        RAISE EXCEPTION 'the tables of lifehold are of version %: bring them up by that version',
            (SELECT version FROM lifehold_schema);
    END IF;
END $$;
CREATE TABLE IF NOT EXISTS lifehold_lease (
    name text COLLATE "C" PRIMARY KEY,
    token bigint,
    capacity integer NOT NULL DEFAULT 1
) WITH (fillfactor = 50);
-- Behind every step that has begun, also one that waits for its row: it goes on by the old rules.
LOCK TABLE lifehold_lease IN EXCLUSIVE MODE;
CREATE TABLE IF NOT EXISTS lifehold_holder (
    name text COLLATE "C" NOT NULL,
    slot integer NOT NULL,
    mark text COLLATE "C",  -- null: nobody sits here; the row of slot 0 is used again and again
    nr bigint NOT NULL,     -- in order of arrival
    token bigint,
    weight integer NOT NULL,
    shared boolean NOT NULL,
    ttl double precision NOT NULL,
    delay double precision NOT NULL,
    ends_at double precision NOT NULL,  -- seconds since 1970 by the server's clock
    acquired_at double precision NOT NULL,
    renewals integer NOT NULL DEFAULT 0,
    owner text NOT NULL,
    PRIMARY KEY (name, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
-- Before the line is locked: that is the order in which each step locks its tables.
ALTER TABLE lifehold_holder  -- of slot 0: others may be in, or in line
    ADD COLUMN IF NOT EXISTS busy boolean NOT NULL DEFAULT true,
    ADD COLUMN IF NOT EXISTS owner_key bigint;  -- of the record in lifehold_owner; then owner is ''
CREATE TABLE IF NOT EXISTS lifehold_owner (
    name text COLLATE "C" NOT NULL,
    slot integer NOT NULL,
    owner text NOT NULL,
    PRIMARY KEY (name, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE TABLE IF NOT EXISTS lifehold_waiter (
    name text COLLATE "C" NOT NULL,
    mark text COLLATE "C" NOT NULL,
    place bigint GENERATED ALWAYS AS IDENTITY,
    weight integer NOT NULL,
    dies_at double precision NOT NULL,
    bell text NOT NULL,
    called_at double precision,
    PRIMARY KEY (name, mark)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE lifehold_waiter
    ADD COLUMN IF NOT EXISTS word text,  -- null: it is called, and asks
    ADD COLUMN IF NOT EXISTS listener bigint,  -- an advisory lock that it has while it listens
    ADD COLUMN IF NOT EXISTS asked_at double precision,
    ADD COLUMN IF NOT EXISTS capacity integer,
    ADD COLUMN IF NOT EXISTS shared boolean,
    ADD COLUMN IF NOT EXISTS ttl double precision,
    ADD COLUMN IF NOT EXISTS delay double precision,
    ADD COLUMN IF NOT EXISTS owner text;
CREATE INDEX IF NOT EXISTS lifehold_waiter_line ON lifehold_waiter (name, place);
CREATE TABLE IF NOT EXISTS lifehold_audit (
    nr bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    verb text NOT NULL,
    name text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    by text NOT NULL,
    token bigint,
    before text NOT NULL
);
CREATE TABLE IF NOT EXISTS lifehold_kept (
    name text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL,  -- of the holder who left it
    text text NOT NULL
);
INSERT INTO lifehold_schema AS there (version, least) VALUES (4, 1)
    ON CONFLICT (one) DO UPDATE SET version = greatest(there.version, 4);
"""

SMALL = """
CREATE OR REPLACE FUNCTION lifehold_now() RETURNS double precision LANGUAGE sql VOLATILE AS $$
    SELECT extract(epoch FROM pg_catalog.clock_timestamp())::double precision
$$;

CREATE OR REPLACE FUNCTION lifehold_1_token(last bigint, now double precision)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT least(9223372036854775806, greatest(coalesce(last, 0) + 1, floor(now * 1e6)::bigint))
$$;

CREATE OR REPLACE FUNCTION lifehold_1_seat(h lifehold_holder, now double precision)
RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_array(h.mark, h.token, h.weight, h.slot, h.ttl, h.ends_at + h.delay - now,
        h.acquired_at, h.renewals, CASE WHEN h.owner <> '' THEN h.owner ELSE (SELECT o.owner
            FROM lifehold_owner o WHERE o.name = h.name AND o.slot = h.slot) END, h.delay)
$$;

CREATE OR REPLACE FUNCTION lifehold_1_state(l lifehold_lease, now double precision)
RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_array(l.name, l.token, l.capacity,
        (SELECT json_agg(lifehold_1_seat(h, now) ORDER BY h.nr) FROM lifehold_holder h
            WHERE h.name = l.name AND h.mark IS NOT NULL AND h.ends_at + h.delay > now),
        (SELECT json_agg(w.mark ORDER BY w.place) FROM lifehold_waiter w
            WHERE w.name = l.name AND w.dies_at > now
            AND (w.called_at IS NULL OR w.called_at + 1.0 > now)))
$$;

-- The same of the next names, without a call for each of them.
CREATE OR REPLACE FUNCTION lifehold_4_page(p_prefix text, p_after text, p_most integer)
RETURNS SETOF json LANGUAGE sql VOLATILE AS $$
    WITH t AS MATERIALIZED (SELECT lifehold_now() AS now), n AS MATERIALIZED (
        SELECT l.* FROM lifehold_lease l WHERE l.name > p_after AND l.name >= p_prefix
            AND l.name < p_prefix || chr(1114111) ORDER BY l.name LIMIT p_most)
    SELECT json_build_array(n.name, n.token, n.capacity,
        (SELECT json_agg(json_build_array(h.mark, h.token, h.weight, h.slot, h.ttl,
                h.ends_at + h.delay - t.now, h.acquired_at, h.renewals,
                CASE WHEN h.owner <> '' THEN h.owner ELSE (SELECT o.owner FROM lifehold_owner o
                    WHERE o.name = h.name AND o.slot = h.slot) END, h.delay) ORDER BY h.nr)
            FROM lifehold_holder h
            WHERE h.name = n.name AND h.mark IS NOT NULL AND h.ends_at + h.delay > t.now),
        (SELECT json_agg(w.mark ORDER BY w.place) FROM lifehold_waiter w
            WHERE w.name = n.name AND w.dies_at > t.now
            AND (w.called_at IS NULL OR w.called_at + 1.0 > t.now)))
        FROM n, t ORDER BY n.name
$$;
"""

# At the end of a migration: each function finds what it names in its own schema, whoever calls it.
PINNED = """
DO $$
DECLARE
    each regprocedure;
BEGIN
    FOR each IN SELECT p.oid::regprocedure FROM pg_catalog.pg_proc p
        JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = current_schema() AND p.proname ~ '^lifehold_[124]_'
        AND p.proname NOT IN ('lifehold_1_token', 'lifehold_1_seat')  -- called by the others alone
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', each, current_schema());
    END LOOP;
END $$;

-- Who may call what was here before may call these too, and use the table that came with them.
DO $$
DECLARE
    g record;
BEGIN
    FOR g IN SELECT a.grantee::regrole AS who FROM pg_proc p, aclexplode(p.proacl) a
        WHERE p.oid = to_regprocedure('lifehold_1_release(text, text)')
        AND a.grantee <> 0 AND a.grantee <> p.proowner
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION lifehold_4_write(text, integer, text), '
            'lifehold_4_prune(text, double precision, integer), '
            'lifehold_4_page(text, text, integer) TO %s', g.who);
    END LOOP;
    FOR g IN SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
            AS who FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = to_regclass('lifehold_holder') AND a.grantee <> c.relowner
        AND a.privilege_type = 'UPDATE'
    LOOP
        EXECUTE format('GRANT SELECT, INSERT, UPDATE ON lifehold_owner TO %s', g.who);
    END LOOP;
END $$;
"""
