-- Batches all the way: transfers are created many at a time, and what passes its checks is approved
-- in the same update. What is still done for each row calls as few functions as it can.

-- Within a minute of the time for new ids. Without settings of its own, so that it is inlined.
CREATE FUNCTION _is_near(id uuid, p_floor_ms bigint) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT abs(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint
               - greatest((extract(epoch FROM clock_timestamp()) * 1000)::bigint, p_floor_ms + 1))
           < 60000
$$;

CREATE OR REPLACE FUNCTION _prepare_transfer() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT _is_near(NEW.transfer_id, (SELECT floor_ms FROM id_floor WHERE one))
       AND NOT EXISTS (SELECT FROM transfers WHERE id = NEW.transfer_id)
    THEN
        RAISE EXCEPTION 'an id begins with its time: leave it to the database'
            USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.status <> 'pending' OR NEW.checks <> '{}' OR NEW.retry_count <> 0 OR NEW.round <> 1 THEN
        RAISE EXCEPTION 'a transfer begins as pending, unchecked' USING ERRCODE = 'check_violation';
    END IF;
    NEW.created_at := now();
    NEW.updated_at := now();
    RETURN NEW;
END
$$;
DROP FUNCTION _is_of_now(uuid);

-- As before. A concatenation of a number and a text is not immutable to PostgreSQL, and what is not
-- what it says is not inlined.
CREATE OR REPLACE FUNCTION _book(member_id bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT 'member:' || member_id::text
$$;
CREATE OR REPLACE FUNCTION _key(p_initiator_id bigint, p_cid text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT p_initiator_id::text || ':' || p_cid
$$;

-- As `request_fingerprint` computes it of the terms of the pool, which are always these three.
CREATE FUNCTION _request_print(p_initiator_id bigint, p_target_id bigint, p_amount bigint,
                               p_metadata jsonb) RETURNS bytea LANGUAGE sql STABLE AS $$
    SELECT substr(sha256(convert_to(
               '13:pool_transfer' || length(_point()::text) || ':' || _point()
               || length(p_amount::text) || ':' || p_amount
               || '9:initiator' || length(p_initiator_id::text) || ':' || p_initiator_id
               || '8:metadata' || length(p_metadata::text) || ':' || p_metadata::text
               || '6:target' || length(p_target_id::text) || ':' || p_target_id,
               'UTF8')), 1, 16)
$$;

-- Raises what stands against a transfer whose key may be known already, if anything does.
CREATE FUNCTION _refuse_known(p pending_transfers) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan TO off AS $$
DECLARE
    r inbox := _pool_request(p);
    key text := coalesce(key_of(r.space, r.cid), r.id::text);
    older uuid;
BEGIN
    IF _known_before(p) IS NOT NULL THEN
        RAISE EXCEPTION 'this cid is known already' USING ERRCODE = 'unique_violation';
    END IF;
    IF (SELECT c.transfer_id FROM cids AS c WHERE c.owner = r.owner AND c.cid = key)
       IS DISTINCT FROM r.id
    THEN
        IF _known_request(r.owner, key,
                          request_fingerprint(r.flow, r.asset_id, r.amount, r.terms)) IS NULL THEN
            RAISE EXCEPTION 'another session has just asked under this cid: try again'
                USING ERRCODE = 'serialization_failure';
        END IF;
        RAISE EXCEPTION 'this cid is known already' USING ERRCODE = 'unique_violation';
    END IF;
    -- As in `_put_request`: an error is safe where SQL cannot compare the two.
    SELECT t.id INTO older
      FROM cids AS c
      JOIN every_transfer AS t ON t.id = c.transfer_id AND t.flow = r.flow AND t.cid = r.cid
     WHERE c.owner = r.owner AND c.cid = r.cid;
    IF FOUND THEN
        RAISE EXCEPTION 'IDEMPOTENCY_MISMATCH: this cid stands for transfer % of an older '
                        'version, which may be the same request', older
            USING ERRCODE = 'TG422',
                  HINT = 'Compare the two. If they differ, use another cid.';
    END IF;
END
$$;

-- In the transaction of the pool's own row: a request in the inbox, and nothing else, as
-- `_put_request` puts it. One that the engine created is recorded here by the engine itself.
CREATE OR REPLACE FUNCTION _request_transfer() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET plan_cache_mode TO force_generic_plan SET enable_seqscan TO off AS $$
DECLARE
    p_cid text := _key(NEW.initiator_id, NEW.cid);
BEGIN
    IF EXISTS (SELECT FROM transfers WHERE id = NEW.transfer_id) THEN
        RETURN NULL;
    END IF;
    INSERT INTO cids (owner, cid, fingerprint, transfer_id)
    VALUES (NEW.guild_id, coalesce(key_of('guild', p_cid), NEW.transfer_id::text),
            _request_print(NEW.initiator_id, NEW.target_id, NEW.amount, NEW.metadata),
            NEW.transfer_id)
    ON CONFLICT DO NOTHING;
    -- After the key was reserved: a process of an older version may have written one meanwhile.
    IF NOT FOUND
       OR p_cid IS NOT NULL AND EXISTS (SELECT
                                          FROM cids AS c
                                         WHERE c.owner = NEW.guild_id AND c.cid = p_cid)
    THEN
        PERFORM _refuse_known(NEW);
    END IF;
    INSERT INTO inbox (id, owner, flow, asset_id, amount, terms, space, cid, expires_at)
    VALUES (NEW.transfer_id, NEW.guild_id, 'pool_transfer', _point(), NEW.amount,
            jsonb_build_object('initiator', NEW.initiator_id::text,
                               'target', NEW.target_id::text, 'metadata', NEW.metadata::text),
            'guild', p_cid, NEW.expires_at);
    PERFORM pg_notify('tidegate_due', 'inbox');
    RETURN NULL;
END
$$;

-- Many at once: the id of each, in order. It is NULL for one whose cid is known, or comes twice
-- here: nothing was created for it, and `fn_create_pending_transfer` says what became of it. Keys
-- are reserved in one order, so that two batches with some in common do not wait in a circle. A key
-- that somebody holds must not hold up the others for long: the wait for it ends in an error.
CREATE FUNCTION fn_create_pending_transfers(
    p_guild_ids bigint[], p_initiator_ids bigint[], p_target_ids bigint[], p_amounts bigint[],
    p_metadata jsonb[], p_expires_at timestamptz[], p_cids text[]) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET plan_cache_mode TO force_generic_plan SET enable_seqscan TO off
SET lock_timeout TO '100ms' AS $$
DECLARE
    first text := left(new_id()::text, 13);  -- Of ids that begin with the same time.
BEGIN
    RETURN QUERY
    WITH asked AS MATERIALIZED (
        SELECT k.*, (first || substr(gen_random_uuid()::text, 14))::uuid AS transfer_id,
               row_number() OVER (PARTITION BY k.guild_id, k.initiator_id, k.cid
                                      ORDER BY k.place) AS turn
          FROM unnest(p_guild_ids, p_initiator_ids, p_target_ids, p_amounts, p_metadata,
                      p_expires_at, p_cids)
               WITH ORDINALITY
            AS k (guild_id, initiator_id, target_id, amount, metadata, expires_at, cid, place)
    ),
    made AS (
        INSERT INTO pending_transfers AS p (transfer_id, guild_id, initiator_id, target_id, amount,
                                            metadata, expires_at, cid)
        SELECT a.transfer_id, a.guild_id, a.initiator_id, a.target_id, a.amount,
               coalesce(a.metadata, '{}'), coalesce(a.expires_at, now() + interval '24 hours'),
               a.cid
          FROM asked AS a
         WHERE a.cid IS NULL
            OR (a.turn = 1
                AND (SELECT c.transfer_id
                       FROM cids AS c
                      WHERE c.owner = a.guild_id
                        AND c.cid = key_of('guild', _key(a.initiator_id, a.cid))) IS NULL
                AND (SELECT c.transfer_id
                       FROM cids AS c
                      WHERE c.owner = a.guild_id
                        AND c.cid = _key(a.initiator_id, a.cid)) IS NULL)
         ORDER BY a.guild_id, _key(a.initiator_id, a.cid)
        RETURNING p.transfer_id
    )
    SELECT m.transfer_id
      FROM asked AS a
      LEFT JOIN made AS m ON m.transfer_id = a.transfer_id
     ORDER BY a.place;
END
$$;

-- What is known of a member who wants to pay. Without settings of its own, so that it is inlined. A
-- guild without settings, and a database without row 0, have the defaults of the table.
CREATE FUNCTION _standing_of(p_guild_id bigint, p_member_id bigint) RETURNS SETOF standing
LANGUAGE sql STABLE AS $$
    SELECT a.available, a.status,
           CASE WHEN t.throttled_until > now() THEN t.throttled_until END,
           CASE WHEN t.utc_day >= (now() AT TIME ZONE 'UTC')::date THEN t.sent ELSE 0 END,
           coalesce(own.daily_limit, common.daily_limit, 500),
           coalesce(own.cooldown_s, common.cooldown_s, 300),
           coalesce(own.cooldown_after, common.cooldown_after, 'daily_limit') = 'every_transfer',
           (SELECT g.account_id
              FROM government_accounts AS g
             WHERE g.guild_id = p_guild_id AND g.account_id = p_member_id) IS NOT NULL
      FROM (SELECT) AS once
      LEFT JOIN guild_settings AS own ON own.guild_id = p_guild_id
      LEFT JOIN guild_settings AS common ON common.guild_id = 0
      -- OFFSET 0: by their keys even while a table is small; the plan is kept when it has grown.
      LEFT JOIN LATERAL (SELECT *
                           FROM throttles AS h
                          WHERE h.guild_id = p_guild_id AND h.member_id = p_member_id
                         OFFSET 0) AS t ON true
      LEFT JOIN LATERAL (SELECT *
                           FROM ledger_accounts AS l
                          WHERE l.owner = p_guild_id
                            AND l.book = _book(p_member_id)
                            AND l.asset_id = _point()
                         OFFSET 0) AS a ON true
$$;

CREATE OR REPLACE FUNCTION _standings(p_guild_ids bigint[], p_member_ids bigint[])
RETURNS SETOF standing
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT s.*
      FROM unnest(p_guild_ids, p_member_ids) WITH ORDINALITY AS k (guild_id, member_id, place)
     CROSS JOIN LATERAL _standing_of(k.guild_id, k.member_id) AS s
     ORDER BY k.place;
END
$$;

-- The three checks, as scalars. Without settings of their own, so that they are inlined.
CREATE FUNCTION _has(p_amount bigint, s_available numeric, s_status text) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$
    SELECT (coalesce(s_status, '') = 'ACTIVE' AND s_available >= p_amount)::integer
$$;
CREATE FUNCTION _is_free(s_exempt boolean, s_throttled_until timestamptz) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$
    SELECT (s_exempt OR s_throttled_until IS NULL)::integer
$$;
CREATE FUNCTION _fits(p_amount bigint, s_exempt boolean, s_daily_limit bigint, s_sent numeric)
RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT (s_exempt OR s_daily_limit = 0 OR s_sent + p_amount <= s_daily_limit)::integer
$$;
CREATE OR REPLACE FUNCTION _results(p pending_transfers, s standing)
RETURNS TABLE (check_type text, result integer, facts jsonb) LANGUAGE sql STABLE AS $$
    VALUES ('balance',
            _has(p.amount, s.available, s.account_status),
            jsonb_build_object('balance', coalesce(s.available, 0), 'required', p.amount)),
           ('cooldown',
            _is_free(s.exempt, s.throttled_until),
            jsonb_build_object('throttled_until',
                               CASE WHEN NOT s.exempt THEN s.throttled_until END)),
           ('daily_limit',
            _fits(p.amount, s.exempt, s.daily_limit, s.sent),
            jsonb_build_object('total_today', s.sent, 'attempted_amount', p.amount,
                               'limit', s.daily_limit))
$$;
DROP FUNCTION _fits(bigint, standing);

-- A round of checks for each transfer, in order, and the approval of those that pass, if it is
-- asked for. Members are locked by whoever calls it. Somebody's own checks are called one by one,
-- ours are made in one statement: of what they write, a later one reads only the cooldown that
-- begins when its initiator is refused for the day's limit. Events are told as if they were made
-- one by one, and approvals after all of them.
CREATE FUNCTION _check_batch(p_ids uuid[], p_approves boolean)
RETURNS TABLE (verdict text, reason text, retry_s float8)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    midnight timestamptz := (date_trunc('day', now() AT TIME ZONE 'UTC') + interval '1 day')
                            AT TIME ZONE 'UTC';
BEGIN
    IF NOT _checks_are_ours() THEN
        RETURN QUERY
        SELECT c.verdict, c.reason, c.retry_s
          FROM unnest(p_ids) WITH ORDINALITY AS k (id, place)
         CROSS JOIN LATERAL _check_transfer(k.id) AS c
         ORDER BY k.place;
        RETURN;
    END IF;
    -- In one order, and before they are read: what is read after it, nobody else changes.
    PERFORM FROM pending_transfers
      WHERE transfer_id = ANY (p_ids)
      ORDER BY transfer_id
        FOR NO KEY UPDATE;
    RETURN QUERY
    WITH known AS MATERIALIZED (
        SELECT k.place, k.id, p.status, p.guild_id, p.initiator_id, p.amount, p.round,
               p.status = 'checking' AND p.expires_at > now() AS is_due,
               s.available, s.account_status, s.throttled_until, s.sent, s.daily_limit, s.exempt,
               _fits(p.amount, s.exempt, s.daily_limit, s.sent) AS daily_limit_ok,
               -- Whoever is refused for the limit has to cool down, although nothing came of it.
               CASE WHEN p.status = 'checking' AND p.expires_at > now() AND NOT s.every_transfer
                     AND _fits(p.amount, s.exempt, s.daily_limit, s.sent) = 0
                    THEN now() + s.cooldown_s * interval '1 second' END AS cools_until
          FROM unnest(p_ids) WITH ORDINALITY AS k (id, place)
          LEFT JOIN LATERAL (SELECT *
                               FROM pending_transfers AS t
                              WHERE t.transfer_id = k.id
                             OFFSET 0) AS p ON true
          LEFT JOIN LATERAL _standing_of(p.guild_id, p.initiator_id) AS s ON true
    ),
    seen AS MATERIALIZED (
        SELECT k.*,
               -- With what the transfers before it in this batch have brought about.
               greatest(k.throttled_until, nullif(max(k.cools_until) OVER earlier, now()))
               AS free_at
          FROM known AS k
        WINDOW earlier AS (PARTITION BY k.guild_id, k.initiator_id
                               ORDER BY k.place
                                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    ),
    checked AS MATERIALIZED (
        SELECT n.*,
               _has(n.amount, n.available, n.account_status) AS balance_ok,
               _is_free(n.exempt, n.free_at) AS cooldown_ok
          FROM seen AS n
    ),
    answered AS MATERIALIZED (
        SELECT c.*,
               CASE WHEN c.status IS DISTINCT FROM 'checking' THEN 'unfounded'
                    WHEN NOT c.is_due THEN 'unknown'
                    WHEN coalesce(c.account_status, 'DISABLED') = 'DISABLED' THEN 'rejected'
                    WHEN c.balance_ok + c.cooldown_ok + c.daily_limit_ok = 3 THEN 'done'
                    ELSE 'unknown' END AS verdict
          FROM checked AS c
    ),
    throttled AS (
        INSERT INTO throttles AS t (guild_id, member_id, throttled_until)
        SELECT k.guild_id, k.initiator_id, max(k.cools_until)
          FROM known AS k
         WHERE k.cools_until IS NOT NULL
         GROUP BY 1, 2
         ORDER BY 1, 2
        ON CONFLICT (guild_id, member_id) DO UPDATE
           SET throttled_until = greatest(t.throttled_until, excluded.throttled_until)
    ),
    written AS (
        UPDATE pending_transfers AS p
           SET checks = p.checks || jsonb_build_object('balance', a.balance_ok,
                                                       'cooldown', a.cooldown_ok,
                                                       'daily_limit', a.daily_limit_ok),
               status = CASE WHEN p_approves AND a.verdict = 'done' THEN 'approved'
                             ELSE p.status END,
               updated_at = now()
          FROM answered AS a
         WHERE p.transfer_id = a.id
           AND p.transfer_id = ANY (p_ids)
           AND a.is_due
        RETURNING p.transfer_id, CASE p.status WHEN 'approved' THEN _approval(p) END AS event
    ),
    told AS MATERIALIZED (
        SELECT count(pg_notify('economy_events', e.event)) AS events
          FROM (SELECT a.place, u.turn, NULL::uuid AS id, u.event::text
                  FROM answered AS a
                 CROSS JOIN LATERAL (
                     VALUES (1, jsonb_build_object(
                                'event_type', 'transfer_check_result', 'transfer_id', a.id,
                                'check_type', 'balance', 'result', a.balance_ok,
                                'guild_id', a.guild_id, 'initiator_id', a.initiator_id,
                                'round', a.round,
                                'balance', coalesce(a.available, 0), 'required', a.amount)),
                            (2, jsonb_build_object(
                                'event_type', 'transfer_check_result', 'transfer_id', a.id,
                                'check_type', 'cooldown', 'result', a.cooldown_ok,
                                'guild_id', a.guild_id, 'initiator_id', a.initiator_id,
                                'round', a.round,
                                'throttled_until', CASE WHEN NOT a.exempt THEN a.free_at END)),
                            (3, jsonb_build_object(
                                'event_type', 'transfer_check_result', 'transfer_id', a.id,
                                'check_type', 'daily_limit', 'result', a.daily_limit_ok,
                                'guild_id', a.guild_id, 'initiator_id', a.initiator_id,
                                'round', a.round,
                                'total_today', a.sent, 'attempted_amount', a.amount,
                                'limit', a.daily_limit))) AS u (turn, event)
                 WHERE a.is_due
                 UNION ALL
                SELECT NULL, NULL, w.transfer_id, w.event
                  FROM written AS w
                 WHERE w.event IS NOT NULL
                 ORDER BY 1, 2, 3) AS e
    )
    SELECT a.verdict,
           CASE WHEN a.status IS DISTINCT FROM 'checking'
                THEN coalesce('the pool has it as ' || a.status, 'the pool does not have it')
                -- Whoever asks will see that it is late.
                WHEN NOT a.is_due THEN 'expired'
                WHEN a.account_status IS NULL THEN 'SOURCE_ACCOUNT_NOT_FOUND'
                WHEN a.account_status = 'DISABLED' THEN 'ACCOUNT_DISABLED'
                ELSE concat_ws(' ', CASE a.balance_ok WHEN 0 THEN 'balance' END,
                                    CASE a.cooldown_ok WHEN 0 THEN 'cooldown' END,
                                    CASE a.daily_limit_ok WHEN 0 THEN 'daily_limit' END) END,
           CASE WHEN a.verdict <> 'unknown' THEN NULL
                WHEN NOT a.is_due THEN 1
                WHEN a.cooldown_ok = 0 OR a.daily_limit_ok = 0
                THEN extract(epoch FROM greatest(CASE a.daily_limit_ok WHEN 0 THEN midnight END,
                                                 a.free_at, a.cools_until) - now())
           END::float8
      FROM answered AS a
     CROSS JOIN told
     ORDER BY a.place;
END
$$;

-- As a process of the version before calls it: what passes is approved when it is recorded.
CREATE OR REPLACE FUNCTION _check_transfers(p_ids uuid[])
RETURNS TABLE (verdict text, reason text, retry_s float8)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY SELECT * FROM _check_batch(p_ids, false);
END
$$;

-- Looked at when all is written: whoever changes one of the two records alone cannot commit. Until
-- the engine has created the transfer the inbox has it, and the pool shows it as pending. What a
-- change has made of a row is compared at once, with one look; only if it differs, because it was
-- changed once more or by the wrong hands, both records are read as they are now. OFFSET 0: by the
-- key even while a table is small; the plan is kept when it has grown.
CREATE OR REPLACE FUNCTION _agree() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    met uuid := coalesce(NEW.transfer_id, OLD.transfer_id);
BEGIN
    IF TG_OP = 'UPDATE' THEN
        PERFORM FROM (SELECT * FROM transfers WHERE id = NEW.transfer_id OFFSET 0) AS e
          WHERE e.flow = 'pool_transfer'
            AND e.owner = NEW.guild_id
            AND e.asset_id = _point()
            AND e.amount = NEW.amount
            AND _status(e.state) = NEW.status
            AND e.retries = NEW.retry_count
            AND e.expires_at = NEW.expires_at
            AND e.parties -> 'source' ->> 1 = _book(NEW.initiator_id)
            AND e.parties -> 'target' ->> 1 = _book(NEW.target_id);
        IF FOUND THEN
            RETURN NULL;
        END IF;
    ELSIF TG_OP = 'INSERT' AND NEW.status = 'pending' AND NEW.retry_count = 0 THEN
        PERFORM FROM (SELECT * FROM inbox WHERE id = NEW.transfer_id OFFSET 0) AS i
          WHERE i.outcome IS NULL
            AND i.flow = 'pool_transfer'
            AND i.owner = NEW.guild_id
            AND i.asset_id = _point()
            AND i.amount = NEW.amount
            AND i.expires_at = NEW.expires_at
            AND i.terms ->> 'initiator' = NEW.initiator_id::text
            AND i.terms ->> 'target' = NEW.target_id::text;
        IF FOUND THEN
            RETURN NULL;
        END IF;
    END IF;
    IF (SELECT CASE WHEN i.id IS NOT NULL
                    THEN (i.flow, i.owner, i.asset_id, i.amount,
                          CASE i.outcome WHEN 'refused' THEN 'rejected' ELSE 'pending' END, 0,
                          i.expires_at, i.terms ->> 'initiator', i.terms ->> 'target')
                         IS DISTINCT FROM
                         ('pool_transfer', p.guild_id, _point(), p.amount, p.status::text,
                          p.retry_count, p.expires_at, p.initiator_id::text, p.target_id::text)
                    ELSE (e.flow, e.owner, e.asset_id, e.amount, _status(e.state), e.retries,
                          e.expires_at, split_part(e.parties -> 'source' ->> 1, ':', 2),
                          split_part(e.parties -> 'target' ->> 1, ':', 2))
                         IS DISTINCT FROM
                         ('pool_transfer', p.guild_id, _point(), p.amount, p.status::text,
                          p.retry_count, p.expires_at, p.initiator_id::text, p.target_id::text)
               END
          FROM (SELECT) AS once
          LEFT JOIN pending_transfers AS p ON p.transfer_id = met
          LEFT JOIN inbox AS i ON i.id = met AND i.outcome IS DISTINCT FROM 'created'
          LEFT JOIN transfers AS e ON e.id = met AND i.id IS NULL)
    THEN
        RAISE EXCEPTION 'transfer % would differ from the engine''s record of it', met
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;
END
$$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA economy FROM PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA economy TO tidegate_engine;
GRANT EXECUTE ON FUNCTION
    fn_create_pending_transfers(bigint[], bigint[], bigint[], bigint[], jsonb[], timestamptz[],
                                text[])
TO tidegate_economy;
