-- The schema as version 3 made it: a store that has it must work on, and be brought up.

SELECT pg_advisory_xact_lock(7811887393204924516);

CREATE TABLE IF NOT EXISTS lifehold_schema (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL,  -- of the newest functions that are here
    least integer NOT NULL     -- of the oldest ones that are right beside them
);
DO $$ BEGIN
    IF (SELECT version FROM lifehold_schema) > 3 THEN
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
    ADD COLUMN IF NOT EXISTS busy boolean NOT NULL DEFAULT true;
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
INSERT INTO lifehold_schema AS there (version, least) VALUES (3, 1)
    ON CONFLICT (one) DO UPDATE SET version = greatest(there.version, 3);

CREATE OR REPLACE FUNCTION lifehold_now() RETURNS double precision LANGUAGE sql VOLATILE AS $$
    SELECT extract(epoch FROM clock_timestamp())::double precision
$$;

CREATE OR REPLACE FUNCTION lifehold_1_token(last bigint, now double precision)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT least(9223372036854775806, greatest(coalesce(last, 0) + 1, floor(now * 1e6)::bigint))
$$;

CREATE OR REPLACE FUNCTION lifehold_1_seat(h lifehold_holder, now double precision)
RETURNS json LANGUAGE sql IMMUTABLE AS $$
    SELECT json_build_array(h.mark, h.token, h.weight, h.slot, h.ttl, h.ends_at + h.delay - now,
        h.acquired_at, h.renewals, h.owner, h.delay)
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

DROP FUNCTION IF EXISTS lifehold_1_call(text, integer, double precision);

-- Whether it could be told by its listener, and that one is gone.
CREATE OR REPLACE FUNCTION lifehold_3_absent(w lifehold_waiter)
RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT w.word IS NOT NULL AND pg_try_advisory_xact_lock_shared(w.listener)
$$;

CREATE OR REPLACE FUNCTION lifehold_3_sit(
    p_name text, p_mark text, p_last bigint, p_capacity integer, p_weight integer,
    p_shared boolean, p_ttl double precision, p_delay double precision, p_owner text,
    p_held bigint, p_nr bigint, p_busy boolean, p_now double precision,
    OUT token bigint, OUT slot integer, OUT acquired_at double precision
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    slot := 0;
    IF p_held > 0 THEN
        SELECT min(s.nr) INTO slot FROM generate_series(0, p_held) s (nr)
            WHERE s.nr NOT IN (SELECT h.slot FROM lifehold_holder h
                WHERE h.name = p_name AND h.mark IS NOT NULL);
    END IF;
    acquired_at := floor(p_now * 1e6) / 1e6;
    UPDATE lifehold_lease l
        SET token = CASE WHEN p_shared THEN l.token ELSE lifehold_1_token(l.token, p_now) END,
            capacity = p_capacity
        WHERE l.name = p_name AND NOT (p_shared AND l.capacity = p_capacity)
        RETURNING l.token INTO token;
    IF NOT FOUND THEN
        token := p_last;
    END IF;
    UPDATE lifehold_holder h SET mark = p_mark, nr = p_nr,
            token = lifehold_3_sit.token, weight = p_weight, shared = p_shared,
            ttl = p_ttl, delay = p_delay, ends_at = p_now + p_ttl,
            acquired_at = lifehold_3_sit.acquired_at, renewals = 0, owner = p_owner, busy = p_busy
        WHERE h.name = p_name AND h.slot = lifehold_3_sit.slot;
    IF NOT FOUND THEN
        INSERT INTO lifehold_holder (name, mark, nr, token, weight, slot, shared, ttl, delay,
                ends_at, acquired_at, owner, busy)
            VALUES (p_name, p_mark, p_nr, token, p_weight, slot, p_shared, p_ttl,
                p_delay, p_now + p_ttl, acquired_at, p_owner, p_busy);
    END IF;
END $$;

-- Let in or wake the first that lives, if there is room for it. Whether anybody was let in.
CREATE OR REPLACE FUNCTION lifehold_3_call(
    p_name text, p_capacity integer, p_last bigint, p_now double precision
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    w lifehold_waiter;
    g record;
    held bigint;
    used bigint;
    top bigint;
    handed boolean := false;
BEGIN
    FOR w IN SELECT o.* FROM lifehold_waiter o
        WHERE o.name = p_name AND o.dies_at > p_now
        AND (o.called_at IS NULL OR o.called_at + 1.0 > p_now) ORDER BY o.place
    LOOP
        CONTINUE WHEN lifehold_3_absent(w);
        EXIT WHEN w.called_at IS NOT NULL;
        SELECT count(*), coalesce(sum(h.weight), 0), coalesce(max(h.nr), 0) INTO held, used, top
            FROM lifehold_holder h WHERE h.name = p_name AND h.mark IS NOT NULL;
        EXIT WHEN held > 0 AND w.weight > p_capacity - used;
        IF handed OR w.word IS NULL OR (held > 0 AND w.capacity <> p_capacity)
            OR p_now - w.asked_at > least(6.0, w.ttl / 4)
        THEN
            UPDATE lifehold_waiter o SET called_at = p_now
                WHERE o.name = p_name AND o.mark = w.mark;
            IF w.bell <> '' THEN
                PERFORM pg_notify(w.bell, w.mark);
            END IF;
            EXIT;
        END IF;
        DELETE FROM lifehold_waiter o WHERE o.name = p_name AND o.mark = w.mark;
        SELECT * INTO g FROM lifehold_3_sit(p_name, w.mark, p_last, w.capacity, w.weight, w.shared,
            w.ttl, w.delay, w.owner, held, top + 1, true, p_now);
        PERFORM pg_notify(w.bell, concat_ws(' ', w.mark, w.word, coalesce(g.token::text, '-'),
            g.slot, g.acquired_at, p_now));
        handed := true;
        p_capacity := w.capacity;
        EXIT WHEN used + w.weight >= p_capacity;
    END LOOP;
    RETURN handed;
END $$;

-- Who may call what calls these may call these, also where nobody has given it a right to them.
DO $$
DECLARE
    g record;
BEGIN
    FOR g IN SELECT a.grantee::regrole AS who FROM pg_proc p, aclexplode(p.proacl) a
        WHERE p.oid = to_regprocedure('lifehold_1_release(text, text)')
        AND a.grantee <> 0 AND a.grantee <> p.proowner
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION lifehold_3_absent(lifehold_waiter), '
            'lifehold_3_sit(text, text, bigint, integer, integer, boolean, double precision, '
            'double precision, text, bigint, bigint, boolean, double precision), '
            'lifehold_3_call(text, integer, bigint, double precision) TO %s', g.who);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION lifehold_1_acquire(
    p_name text, p_mark text, p_ttl double precision, p_delay double precision, p_owner text,
    p_capacity integer, p_weight integer, p_shared boolean, p_wait boolean, p_fair boolean,
    p_patience double precision, p_bell text, p_gone text,
    OUT given boolean, OUT token bigint, OUT slot integer, OUT acquired_at double precision,
    OUT now double precision, OUT over json, OUT seats json, OUT ahead bigint,
    OUT look_in double precision, OUT capacity integer
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    lease lifehold_lease;
    before bigint;
    held bigint;
    used bigint;
    arrived bigint;
    some_over boolean;
    mine boolean;
    line boolean;
    spot bigint;
    way text[];
    handed boolean := false;
BEGIN
    given := true;
    slot := 0;
    now := lifehold_now();
    UPDATE lifehold_lease l
        SET token = CASE WHEN p_shared THEN l.token ELSE lifehold_1_token(l.token, now) END
        FROM lifehold_holder h WHERE l.name = p_name AND h.name = p_name AND h.slot = 0
            AND h.mark IS NULL AND NOT h.busy AND h.token IS NOT DISTINCT FROM l.token
            AND l.capacity = p_capacity RETURNING l.token, h.token INTO token, before;
    IF FOUND THEN
        UPDATE lifehold_holder h SET mark = p_mark, nr = 1, token = lifehold_1_acquire.token,
                weight = p_weight, shared = p_shared, ttl = p_ttl, delay = p_delay,
                ends_at = now + p_ttl, acquired_at = floor(now * 1e6) / 1e6, renewals = 0,
                owner = p_owner
            WHERE h.name = p_name AND h.slot = 0 AND h.mark IS NULL AND NOT h.busy
            RETURNING h.acquired_at INTO acquired_at;
        IF FOUND THEN
            RETURN;
        END IF;
        UPDATE lifehold_lease l SET token = before WHERE l.name = p_name;  -- nothing was granted
        token := NULL;
    END IF;
    SELECT l.* INTO lease FROM lifehold_lease l WHERE l.name = p_name FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        INSERT INTO lifehold_lease (name) VALUES (p_name) ON CONFLICT DO NOTHING;
        SELECT l.* INTO lease FROM lifehold_lease l WHERE l.name = p_name FOR NO KEY UPDATE;
    END IF;
    UPDATE lifehold_holder h SET busy = true WHERE h.name = p_name AND h.slot = 0 AND NOT h.busy;
    now := lifehold_now();
    FOR looks IN 1..2 LOOP
        SELECT count(*), coalesce(sum(h.weight), 0), coalesce(max(h.nr), 0),
            coalesce(bool_or(h.mark = p_mark), false),
            coalesce(bool_or(h.mark <> p_mark AND (h.ends_at + h.delay <= now
                OR h.mark || ':' || h.renewals = p_gone)), false),
            EXISTS (SELECT 1 FROM lifehold_waiter w WHERE w.name = p_name)
            INTO held, used, arrived, mine, some_over, line
            FROM lifehold_holder h WHERE h.name = p_name AND h.mark IS NOT NULL;
        EXIT WHEN NOT some_over OR looks = 2;
        WITH ended AS (
            DELETE FROM lifehold_holder h WHERE h.name = p_name AND h.mark <> p_mark
                AND (h.ends_at + h.delay <= now OR h.mark || ':' || h.renewals = p_gone)
                RETURNING h.*
        ) SELECT lifehold_1_seat(e, now) INTO over FROM ended e ORDER BY e.nr DESC LIMIT 1;
    END LOOP;
    IF line THEN
        -- The dead behind us are left to those behind us, so a long line costs the first nothing.
        SELECT w.place INTO spot FROM lifehold_waiter w WHERE w.name = p_name AND w.mark = p_mark;
        spot := coalesce(spot, 9223372036854775807);
        DELETE FROM lifehold_waiter w WHERE w.name = p_name AND w.place < spot
            AND (w.dies_at <= now OR w.called_at + 1.0 <= now);
    END IF;
    IF mine THEN  -- L6  an answer was lost: the same grant, from now on
        UPDATE lifehold_holder h SET ends_at = now + h.ttl, renewals = h.renewals + 1
            WHERE h.name = p_name AND h.mark = p_mark
            RETURNING h.token, h.slot, h.acquired_at INTO token, slot, acquired_at;
        over := NULL;
        RETURN;
    END IF;
    ahead := 0;
    IF held > 0 AND lease.capacity <> p_capacity THEN
        given := false;
        capacity := lease.capacity;
    ELSE
        IF line THEN
            SELECT count(*) INTO ahead FROM lifehold_waiter w
                WHERE w.name = p_name AND w.place < spot;
        END IF;
        given := p_weight <= p_capacity - used;
        IF given AND p_fair AND ahead > 0 THEN
            given := NOT EXISTS (SELECT 1 FROM lifehold_waiter w WHERE w.name = p_name
                AND w.place < spot AND NOT lifehold_3_absent(w));
        END IF;
    END IF;
    IF given THEN
        SELECT s.* INTO token, slot, acquired_at FROM lifehold_3_sit(p_name, p_mark, lease.token,
            p_capacity, p_weight, p_shared, p_ttl, p_delay, p_owner, held, arrived + 1,
            held > 0 OR line, now) s;
        IF line THEN
            DELETE FROM lifehold_waiter w WHERE w.name = p_name AND w.mark = p_mark;
            PERFORM lifehold_3_call(p_name, p_capacity, token, now);
        END IF;
        RETURN;
    END IF;
    IF held = 0 AND lease.capacity <> p_capacity THEN
        UPDATE lifehold_lease l SET capacity = p_capacity WHERE l.name = p_name;
    END IF;
    IF ahead > 0 AND p_weight <= p_capacity - used THEN
        -- There is room: who is first comes now, or is dead and is passed.
        handed := lifehold_3_call(p_name, p_capacity, lease.token, now);
    END IF;
    IF NOT handed THEN  -- It may be lost in a crash: whoever waits asks again.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    IF p_wait AND capacity IS NULL THEN
        way := string_to_array(p_bell, ' ');
        INSERT INTO lifehold_waiter AS w (name, mark, weight, dies_at, bell, word, listener,
                asked_at, capacity, shared, ttl, delay, owner)
            VALUES (p_name, p_mark, p_weight, now + p_patience, coalesce(way[1], ''),
                CASE WHEN p_fair THEN way[3] END, way[2]::bigint, now, p_capacity, p_shared, p_ttl,
                p_delay, p_owner)
            ON CONFLICT (name, mark) DO UPDATE SET dies_at = excluded.dies_at,
                bell = excluded.bell, called_at = NULL, listener = excluded.listener,
                word = CASE WHEN w.weight = excluded.weight THEN excluded.word END,
                asked_at = excluded.asked_at, capacity = excluded.capacity,
                shared = excluded.shared, ttl = excluded.ttl, delay = excluded.delay,
                owner = excluded.owner;
    END IF;
    SELECT json_agg(lifehold_1_seat(h, now)) INTO seats FROM (
        SELECT h.* FROM lifehold_holder h WHERE h.name = p_name AND h.mark IS NOT NULL
        ORDER BY h.nr LIMIT 8) h;
    IF ahead = 0 THEN
        SELECT min(h.ends_at + h.delay - now) INTO look_in FROM lifehold_holder h
            WHERE h.name = p_name AND h.mark IS NOT NULL;
    ELSIF ahead = 1 THEN  -- when the first, being called, has not come
        SELECT w.called_at + 1.0 - now INTO look_in FROM lifehold_waiter w
            WHERE w.name = p_name AND w.place < spot AND w.mark <> p_mark;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION lifehold_1_release(p_name text, p_mark text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    size integer;
    last bigint;
    was_in boolean;
BEGIN
    -- Who is being changed is not waited for here: rows are locked in one order, the name's first.
    UPDATE lifehold_holder h SET mark = NULL WHERE (h.name, h.slot) = (
        SELECT o.name, o.slot FROM lifehold_holder o WHERE o.name = p_name AND o.slot = 0
            AND o.mark = p_mark AND NOT o.busy FOR NO KEY UPDATE SKIP LOCKED);  -- L5
    IF FOUND THEN
        -- It may be lost in a crash of the server: then the lease runs out by itself.
        PERFORM set_config('synchronous_commit', 'off', true);
        RETURN true;
    END IF;
    SELECT l.capacity, l.token INTO size, last FROM lifehold_lease l WHERE l.name = p_name
        FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE lifehold_holder h SET mark = NULL
        WHERE h.name = p_name AND h.slot = 0 AND h.mark = p_mark;
    was_in := FOUND;
    IF NOT was_in THEN
        DELETE FROM lifehold_holder h WHERE h.name = p_name AND h.mark = p_mark;
        was_in := FOUND;
    END IF;
    IF NOT was_in THEN
        DELETE FROM lifehold_waiter w WHERE w.name = p_name AND w.mark = p_mark;
    END IF;
    IF lifehold_3_call(p_name, size, last, lifehold_now()) THEN
        RETURN was_in;  -- on the disk, before anybody is told
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE lifehold_holder h SET busy = false WHERE h.name = p_name AND h.slot = 0
        AND h.mark IS NULL AND NOT EXISTS (SELECT 1 FROM lifehold_waiter w WHERE w.name = p_name)
        AND NOT EXISTS (SELECT 1 FROM lifehold_holder o
            WHERE o.name = p_name AND o.mark IS NOT NULL);
    RETURN was_in;
END $$;

CREATE OR REPLACE FUNCTION lifehold_1_renew(
    p_names text[], p_marks text[], p_ttls double precision[],
    OUT now double precision, OUT kept boolean[]
) LANGUAGE plpgsql AS $$
BEGIN
    now := lifehold_now();
    WITH asked AS (
        SELECT * FROM unnest(p_names, p_marks, p_ttls) WITH ORDINALITY a (name, mark, ttl, nr)
    ), done AS (
        UPDATE lifehold_holder h
            SET ttl = a.ttl, ends_at = lifehold_1_renew.now + a.ttl, renewals = h.renewals + 1
            FROM asked a WHERE h.name = a.name COLLATE "C" AND h.mark = a.mark COLLATE "C"
            AND h.ends_at > lifehold_1_renew.now RETURNING a.nr
    ) SELECT array_agg(d.nr IS NOT NULL ORDER BY a.nr) INTO kept
        FROM asked a LEFT JOIN done d ON d.nr = a.nr;
END $$;

-- A renewal that makes its holder lighter, so that others may come in.
CREATE OR REPLACE FUNCTION lifehold_1_lighten(
    p_name text, p_mark text, p_ttl double precision, p_weight integer,
    OUT now double precision, OUT kept boolean[]
) LANGUAGE plpgsql AS $$
DECLARE
    size integer;
    last bigint;
    old integer;
BEGIN
    SELECT l.capacity, l.token INTO size, last FROM lifehold_lease l WHERE l.name = p_name
        FOR NO KEY UPDATE;
    now := lifehold_now();
    SELECT h.weight INTO old FROM lifehold_holder h
        WHERE h.name = p_name AND h.mark = p_mark AND h.ends_at > now FOR NO KEY UPDATE;
    kept := ARRAY[old IS NOT NULL];
    UPDATE lifehold_holder h SET ttl = p_ttl, ends_at = now + p_ttl, renewals = h.renewals + 1,
            weight = least(old, p_weight), shared = h.shared OR p_weight < old
        WHERE h.name = p_name AND h.mark = p_mark AND old IS NOT NULL;
    IF p_weight < old THEN
        PERFORM lifehold_3_call(p_name, size, last, now);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION lifehold_1_order(
    p_verb text, p_name text, p_reason text, p_by text, p_least bigint, p_text text
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    lease lifehold_lease;
    known boolean;
    at double precision;
    before json;
    raised bigint;
BEGIN
    SELECT l.* INTO lease FROM lifehold_lease l WHERE l.name = p_name FOR NO KEY UPDATE;
    known := FOUND;
    IF NOT known THEN
        INSERT INTO lifehold_lease (name) VALUES (p_name) ON CONFLICT DO NOTHING;
        SELECT l.* INTO lease FROM lifehold_lease l WHERE l.name = p_name FOR NO KEY UPDATE;
    END IF;
    at := lifehold_now();
    before := lifehold_1_state(lease, at);
    IF p_verb = 'keep' THEN  -- by who holds the name now, alone
        INSERT INTO lifehold_kept AS k (name, token, text)
            SELECT p_name, p_least, p_text FROM lifehold_holder h WHERE h.name = p_name
                AND h.mark IS NOT NULL AND h.token = p_least
                AND h.ends_at + h.delay > at LIMIT 1
            ON CONFLICT (name) DO UPDATE SET token = excluded.token, text = excluded.text;
        RETURN CASE WHEN known THEN before END;
    END IF;
    IF p_verb = 'forget' THEN
        WITH gone AS (DELETE FROM lifehold_kept k WHERE k.name = p_name RETURNING k.*)
            SELECT (before::jsonb || jsonb_build_array(jsonb_build_array(g.token, g.text)))::json
            INTO before FROM lifehold_lease l LEFT JOIN gone g ON true WHERE l.name = p_name;
        RETURN CASE WHEN known THEN before END;
    END IF;
    IF p_verb = 'break' THEN
        DELETE FROM lifehold_holder h WHERE h.name = p_name;
    END IF;
    raised := greatest(lifehold_1_token(lease.token, at), p_least);
    UPDATE lifehold_lease l SET token = raised WHERE l.name = p_name;
    INSERT INTO lifehold_audit (verb, name, reason, by, token, before)
        VALUES (p_verb, p_name, p_reason, p_by, raised, before::text);
    PERFORM lifehold_3_call(p_name, lease.capacity, raised, at);
    RETURN CASE WHEN known THEN before END;
END $$;

SELECT pg_advisory_xact_lock(7811887393204924516);

CREATE TABLE IF NOT EXISTS lifehold_session (
    key text COLLATE "C" PRIMARY KEY,  -- of the advisory lock: key:4711 or key:1,2
    name text COLLATE "C" NOT NULL,
    token bigint NOT NULL,
    mark text COLLATE "C" NOT NULL,
    pid integer NOT NULL,              -- of the server's process that holds the lock
    began timestamptz NOT NULL,        -- when that process began
    acquired_us bigint NOT NULL,       -- microseconds since 1970 by the server's clock
    owner text NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX IF NOT EXISTS lifehold_session_name ON lifehold_session (name);

CREATE OR REPLACE FUNCTION lifehold_2_session(
    p_key text, p_first bigint, p_second integer, p_name text, p_mark text, p_owner text,
    p_wait boolean, OUT given boolean, OUT token bigint, OUT acquired_us bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    last bigint;
    now_us bigint;
BEGIN
    given := true;
    IF p_wait AND p_second IS NULL THEN
        PERFORM pg_advisory_lock(p_first);
    ELSIF p_wait THEN
        PERFORM pg_advisory_lock(p_first::integer, p_second);
    ELSIF p_second IS NULL THEN
        given := pg_try_advisory_lock(p_first);
    ELSE
        given := pg_try_advisory_lock(p_first::integer, p_second);
    END IF;
    IF NOT given THEN
        RETURN;
    END IF;
    now_us := floor(extract(epoch FROM clock_timestamp()) * 1000000);
    IF to_regclass('lifehold_lease') IS NOT NULL THEN
        SELECT l.token INTO last FROM lifehold_lease l WHERE l.name = p_name;
    END IF;
    acquired_us := now_us;
    INSERT INTO lifehold_session AS s (key, name, token, mark, pid, began, acquired_us, owner)
        SELECT p_key, p_name, least(9223372036854775806, greatest(coalesce(last, 0) + 1, now_us)),
            p_mark, a.pid, a.backend_start, now_us, p_owner
        FROM pg_stat_get_activity(pg_backend_pid()) a
        ON CONFLICT (key) DO UPDATE SET name = excluded.name,
            token = least(9223372036854775806, greatest(s.token + 1, excluded.token)),
            mark = excluded.mark, pid = excluded.pid, began = excluded.began,
            acquired_us = excluded.acquired_us, owner = excluded.owner
        RETURNING s.token INTO token;
END $$;
