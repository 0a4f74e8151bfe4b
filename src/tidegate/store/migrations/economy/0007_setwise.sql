-- The same results with less work: the pool's functions handle a batch in a few statements, where
-- they called other functions for each of its transfers.

-- What is known of each of these members, in the order given. A guild without settings, and a
-- database without row 0, have the defaults of the table.
CREATE FUNCTION _standings(p_guild_ids bigint[], p_member_ids bigint[]) RETURNS SETOF standing
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT a.available, a.status,
           CASE WHEN t.throttled_until > now() THEN t.throttled_until END,
           CASE WHEN t.utc_day >= (now() AT TIME ZONE 'UTC')::date THEN t.sent ELSE 0 END,
           coalesce(own.daily_limit, common.daily_limit, 500),
           coalesce(own.cooldown_s, common.cooldown_s, 300),
           coalesce(own.cooldown_after, common.cooldown_after, 'daily_limit') = 'every_transfer',
           EXISTS (SELECT FROM government_accounts AS g
                    WHERE g.guild_id = k.guild_id AND g.account_id = k.member_id)
      FROM unnest(p_guild_ids, p_member_ids) WITH ORDINALITY AS k (guild_id, member_id, place)
      LEFT JOIN guild_settings AS own ON own.guild_id = k.guild_id
      LEFT JOIN guild_settings AS common ON common.guild_id = 0
      -- OFFSET 0: by their keys even while a table is small; the plan is kept when it has grown.
      LEFT JOIN LATERAL (SELECT *
                           FROM throttles AS h
                          WHERE h.guild_id = k.guild_id AND h.member_id = k.member_id
                         OFFSET 0) AS t ON true
      LEFT JOIN LATERAL (SELECT *
                           FROM ledger_accounts AS l
                          WHERE l.owner = k.guild_id
                            AND l.book = _book(k.member_id)
                            AND l.asset_id = _point()
                         OFFSET 0) AS a ON true
     ORDER BY k.place;
END
$$;

CREATE OR REPLACE FUNCTION _standing(p_guild_id bigint, p_member_id bigint) RETURNS standing
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    s standing;
BEGIN
    SELECT * INTO s FROM _standings(ARRAY[p_guild_id], ARRAY[p_member_id]);
    RETURN s;
END
$$;

-- What is told of a transfer that was approved, and of one that was denied.
CREATE FUNCTION _approval(p pending_transfers) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
        'event_type', 'transfer_check_approved',
        'transfer_id', p.transfer_id,
        'guild_id', p.guild_id,
        'initiator_id', p.initiator_id,
        'target_id', p.target_id,
        'amount', p.amount,
        'round', p.round)::text
$$;
CREATE FUNCTION _denial(p pending_transfers, p_reason text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
        'event_type', 'transaction_denied',
        'reason', CASE p_reason WHEN 'EXPIRED' THEN 'transfer_checks_expired'
                                ELSE 'transfer_checks_failed' END,
        'transfer_id', p.transfer_id,
        'guild_id', p.guild_id,
        'initiator_id', p.initiator_id,
        'target_id', p.target_id,
        'amount', p.amount)::text
$$;

-- Approves by the checks of the round that is under way, and says whether it did. Only the engine
-- may: what it approves without having recorded so does not commit.
CREATE OR REPLACE FUNCTION _check_and_approve_transfer(p_transfer_id uuid) RETURNS boolean
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    p pending_transfers;
BEGIN
    SELECT * INTO p FROM pending_transfers WHERE transfer_id = p_transfer_id FOR NO KEY UPDATE;
    IF p.status = 'checking' AND p.checks @> '{"balance": 1, "cooldown": 1, "daily_limit": 1}' THEN
        UPDATE pending_transfers
           SET status = 'approved',
               updated_at = now()
         WHERE transfer_id = p_transfer_id;
        PERFORM pg_notify('economy_events', _approval(p));
        RETURN true;
    END IF;
    RETURN false;
END
$$;

-- What the engine has just recorded of its transfers, in the pool's own words. `p_rounds` are the
-- rounds that began: their checks begin empty, in the update that says so. A transfer is approved
-- by its checks, or else by people who have answered in their place.
CREATE OR REPLACE FUNCTION _record_transfers(p_ids uuid[], p_states text[], p_retries integer[],
                                             p_rounds integer[], p_reasons text[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    locked bigint;
BEGIN
    -- In one order, and before they are read: what is read after it, nobody else changes.
    PERFORM FROM pending_transfers
      WHERE transfer_id = ANY (p_ids)
      ORDER BY transfer_id
        FOR NO KEY UPDATE;
    GET DIAGNOSTICS locked = ROW_COUNT;
    IF locked <> cardinality(p_ids) THEN
        RAISE EXCEPTION 'the pool has % of these % transfers', locked, cardinality(p_ids)
            USING ERRCODE = 'no_data_found';
    END IF;
    WITH met AS (
        SELECT u.id, u.status, u.retries, u.reason,
               u.status = 'approved' AND p.status = 'checking' AS approved,
               u.status = 'rejected' AND p.status <> 'rejected' AS denied,
               CASE WHEN (u.status = 'approved' AND p.status = 'checking')
                      OR (u.status = 'rejected' AND p.status <> 'rejected') THEN 0
                    ELSE u.rounds END AS rounds
          FROM (SELECT id, _status(state) AS status, retries, rounds, reason
                  FROM unnest(p_ids, p_states, p_retries, p_rounds, p_reasons)
                    AS m (id, state, retries, rounds, reason)) AS u
         CROSS JOIN LATERAL (SELECT t.status
                               FROM pending_transfers AS t
                              WHERE t.transfer_id = u.id
                             OFFSET 0) AS p
    ),
    written AS (
        UPDATE pending_transfers AS p
           SET status = m.status,
               round = p.round + m.rounds,
               checks = CASE WHEN m.rounds > 0 THEN '{}' ELSE p.checks END,
               retry_count = m.retries,
               updated_at = now()
          FROM met AS m
         WHERE p.transfer_id = m.id
           AND p.transfer_id = ANY (p_ids)
           AND (p.status <> m.status OR m.rounds > 0 OR p.retry_count <> m.retries)
        RETURNING p.transfer_id,
                  CASE WHEN m.approved THEN _approval(p)
                       WHEN m.denied THEN _denial(p, m.reason) END AS event
    )
    SELECT count(pg_notify('economy_events', w.event)) INTO locked
      FROM (SELECT event FROM written WHERE event IS NOT NULL ORDER BY transfer_id) AS w;
    RETURN cardinality(p_ids);
END
$$;

-- Requests of the pool were refused before they became transfers.
CREATE OR REPLACE FUNCTION _refuse_transfers(p_ids uuid[], p_reasons text[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    refused bigint;
BEGIN
    PERFORM FROM pending_transfers
      WHERE transfer_id = ANY (p_ids)
      ORDER BY transfer_id
        FOR NO KEY UPDATE;
    WITH written AS (
        UPDATE pending_transfers AS p
           SET status = 'rejected',
               updated_at = now()
          FROM unnest(p_ids, p_reasons) AS u (id, reason)
         WHERE p.transfer_id = u.id
           AND p.transfer_id = ANY (p_ids)
        RETURNING p.transfer_id, _denial(p, u.reason) AS event
    )
    SELECT count(pg_notify('economy_events', w.event)) INTO refused
      FROM (SELECT event FROM written ORDER BY transfer_id) AS w;
    RETURN refused;
END
$$;

DROP FUNCTION _record_transfer(uuid, text, integer, integer, text);
DROP FUNCTION _approve(pending_transfers);
DROP FUNCTION _deny(pending_transfers, text);

-- Payments were made: they count for the day, and are told with both balances.
CREATE FUNCTION _record_payments(p_ids uuid[], p_guild_ids bigint[], p_initiator_ids bigint[],
                                 p_target_ids bigint[], p_amounts numeric[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO throttles AS t (guild_id, member_id, throttled_until, utc_day, sent)
    SELECT k.guild_id, k.member_id,
           CASE WHEN coalesce(own.cooldown_after, common.cooldown_after) = 'every_transfer'
                THEN now() + coalesce(own.cooldown_s, common.cooldown_s) * interval '1 second' END,
           (now() AT TIME ZONE 'UTC')::date, k.amount
      FROM (SELECT u.guild_id, u.member_id, sum(u.amount) AS amount
              FROM unnest(p_guild_ids, p_initiator_ids, p_amounts)
                AS u (guild_id, member_id, amount)
             GROUP BY u.guild_id, u.member_id) AS k
      LEFT JOIN guild_settings AS own ON own.guild_id = k.guild_id
      LEFT JOIN guild_settings AS common ON common.guild_id = 0
     ORDER BY k.guild_id, k.member_id
    ON CONFLICT (guild_id, member_id) DO UPDATE
       SET throttled_until = greatest(t.throttled_until, excluded.throttled_until),
           utc_day = greatest(t.utc_day, excluded.utc_day),
           sent = CASE WHEN t.utc_day >= excluded.utc_day THEN t.sent ELSE 0 END + excluded.sent;
    PERFORM pg_notify('economy_events', json_build_object(
                'event_type', 'transaction_success',
                'transfer_id', u.id,
                'guild_id', u.guild_id,
                'initiator_id', u.initiator_id,
                'target_id', u.target_id,
                'amount', u.amount,
                'initiator_balance', (SELECT o.balance_after
                                        FROM ledger_operations AS o
                                       WHERE o.transfer_id = u.id AND o.verb = 'debit'
                                         AND o.result = 'done'
                                       ORDER BY o.version DESC LIMIT 1),
                'target_balance', (SELECT o.balance_after
                                     FROM ledger_operations AS o
                                    WHERE o.transfer_id = u.id AND o.verb = 'credit'
                                      AND o.result = 'done'))::text)
       FROM unnest(p_ids, p_guild_ids, p_initiator_ids, p_target_ids, p_amounts)
         AS u (id, guild_id, initiator_id, target_id, amount);
END
$$;

-- As a process of the version before calls it, while both run side by side.
CREATE OR REPLACE FUNCTION _pay(p_id uuid, p_guild_id bigint, p_initiator_id bigint,
                                p_target_id bigint, p_amount numeric) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM _record_payments(ARRAY[p_id], ARRAY[p_guild_id], ARRAY[p_initiator_id],
                             ARRAY[p_target_id], ARRAY[p_amount]);
END
$$;

-- Whether an amount is within the day's limit.
CREATE FUNCTION _fits(p_amount bigint, s standing) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT s.exempt OR s.daily_limit = 0 OR s.sent + p_amount <= s.daily_limit
$$;

-- The checks, and what is told of each. Without settings of its own, so that it is inlined.
DROP FUNCTION _results(pending_transfers, standing);
CREATE FUNCTION _results(p pending_transfers, s standing)
RETURNS TABLE (check_type text, result integer, facts jsonb) LANGUAGE sql STABLE AS $$
    VALUES ('balance',
            (coalesce(s.account_status, '') = 'ACTIVE' AND s.available >= p.amount)::integer,
            jsonb_build_object('balance', coalesce(s.available, 0), 'required', p.amount)),
           ('cooldown',
            (s.exempt OR s.throttled_until IS NULL)::integer,
            jsonb_build_object('throttled_until',
                               CASE WHEN NOT s.exempt THEN s.throttled_until END)),
           ('daily_limit',
            _fits(p.amount, s)::integer,
            jsonb_build_object('total_today', s.sent, 'attempted_amount', p.amount,
                               'limit', s.daily_limit))
$$;

-- A round of checks for each transfer, in order. Members are locked by whoever calls it. Somebody's
-- own checks are called one by one, ours are made for all at once: of what they write, a later one
-- reads only the cooldown that begins when its initiator is refused for the day's limit.
CREATE OR REPLACE FUNCTION _check_transfers(p_ids uuid[])
RETURNS TABLE (verdict text, reason text, retry_s float8)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    midnight timestamptz := (date_trunc('day', now() AT TIME ZONE 'UTC') + interval '1 day')
                            AT TIME ZONE 'UTC';
    verdicts text[];
    reasons text[];
    retries float8[];
    events text[];
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
    WITH asked AS MATERIALIZED (
        SELECT k.place, p.transfer
          FROM unnest(p_ids) WITH ORDINALITY AS k (id, place)
          LEFT JOIN LATERAL (SELECT t AS transfer
                               FROM pending_transfers AS t
                              WHERE t.transfer_id = k.id
                             OFFSET 0) AS p ON true
    ),
    known AS MATERIALIZED (
        SELECT a.place, a.transfer, s.available, s.account_status, s.throttled_until, s.sent,
               s.daily_limit, s.cooldown_s, s.every_transfer, s.exempt,
               -- Whoever is refused for the limit has to cool down, although nothing came of it.
               CASE WHEN NOT s.every_transfer
                     AND NOT _fits((a.transfer).amount, ROW(
                             s.available, s.account_status, s.throttled_until, s.sent,
                             s.daily_limit, s.cooldown_s, s.every_transfer, s.exempt)::standing)
                    THEN now() + s.cooldown_s * interval '1 second' END AS cools_until
          FROM asked AS a
          JOIN _standings(ARRAY(SELECT (b.transfer).guild_id FROM asked AS b ORDER BY b.place),
                          ARRAY(SELECT (b.transfer).initiator_id FROM asked AS b ORDER BY b.place))
               WITH ORDINALITY
            AS s (available, account_status, throttled_until, sent, daily_limit, cooldown_s,
                  every_transfer, exempt, place)
            ON s.place = a.place
         WHERE (a.transfer).status = 'checking'
           AND (a.transfer).expires_at > now()
    ),
    seen AS MATERIALIZED (
        SELECT k.place, k.transfer, k.cools_until,
               ROW(k.available, k.account_status,
                   -- With what the transfers before it in this batch have brought about.
                   greatest(k.throttled_until, nullif(max(k.cools_until) OVER earlier, now())),
                   k.sent, k.daily_limit, k.cooldown_s, k.every_transfer, k.exempt)::standing
               AS standing
          FROM known AS k
        WINDOW earlier AS (PARTITION BY (k.transfer).guild_id, (k.transfer).initiator_id
                               ORDER BY k.place
                                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    ),
    checked AS MATERIALIZED (
        SELECT n.place, n.transfer, n.standing, n.cools_until, c.results, c.failed, c.events
          FROM seen AS n
         CROSS JOIN LATERAL (
             SELECT jsonb_object_agg(r.check_type, r.result) AS results,
                    coalesce(array_agg(r.check_type) FILTER (WHERE r.result = 0), '{}') AS failed,
                    array_agg((jsonb_build_object(
                        'event_type', 'transfer_check_result',
                        'transfer_id', (n.transfer).transfer_id,
                        'check_type', r.check_type,
                        'result', r.result,
                        'guild_id', (n.transfer).guild_id,
                        'initiator_id', (n.transfer).initiator_id,
                        'round', (n.transfer).round) || r.facts)::text) AS events
               FROM _results(n.transfer, n.standing) AS r) AS c
    ),
    throttled AS (
        INSERT INTO throttles AS t (guild_id, member_id, throttled_until)
        SELECT (k.transfer).guild_id, (k.transfer).initiator_id, max(k.cools_until)
          FROM known AS k
         WHERE k.cools_until IS NOT NULL
         GROUP BY 1, 2
         ORDER BY 1, 2
        ON CONFLICT (guild_id, member_id) DO UPDATE
           SET throttled_until = greatest(t.throttled_until, excluded.throttled_until)
    ),
    written AS (
        UPDATE pending_transfers AS p
           SET checks = p.checks || c.results,
               updated_at = now()
          FROM checked AS c
         WHERE p.transfer_id = (c.transfer).transfer_id
           AND p.transfer_id = ANY (p_ids)
    ),
    answered AS (
        SELECT a.place, c.events,
               CASE WHEN (a.transfer).status IS DISTINCT FROM 'checking' THEN 'unfounded'
                    WHEN c.place IS NULL THEN 'unknown'
                    WHEN coalesce((c.standing).account_status, 'DISABLED') = 'DISABLED'
                    THEN 'rejected'
                    WHEN c.failed = '{}' THEN 'done'
                    ELSE 'unknown' END AS verdict,
               CASE WHEN (a.transfer).status IS DISTINCT FROM 'checking'
                    THEN coalesce('the pool has it as ' || (a.transfer).status,
                                  'the pool does not have it')
                    -- Whoever asks will see that it is late.
                    WHEN c.place IS NULL THEN 'expired'
                    WHEN (c.standing).account_status IS NULL THEN 'SOURCE_ACCOUNT_NOT_FOUND'
                    WHEN (c.standing).account_status = 'DISABLED' THEN 'ACCOUNT_DISABLED'
                    ELSE array_to_string(c.failed, ' ') END AS reason,
               CASE WHEN (a.transfer).status IS DISTINCT FROM 'checking' THEN NULL
                    WHEN c.place IS NULL THEN 1
                    WHEN coalesce((c.standing).account_status, 'DISABLED') = 'DISABLED' THEN NULL
                    WHEN c.failed && ARRAY['cooldown', 'daily_limit']
                    THEN extract(epoch FROM greatest(
                             CASE WHEN 'daily_limit' = ANY (c.failed) THEN midnight END,
                             (c.standing).throttled_until, c.cools_until) - now()) END AS retry_s
          FROM asked AS a
          LEFT JOIN checked AS c ON c.place = a.place
    )
    SELECT array_agg(w.verdict ORDER BY w.place), array_agg(w.reason ORDER BY w.place),
           array_agg(w.retry_s ORDER BY w.place),
           array_agg(w.events ORDER BY w.place) FILTER (WHERE w.events IS NOT NULL)
      INTO verdicts, reasons, retries, events
      FROM answered AS w;
    PERFORM pg_notify('economy_events', e.event)
       FROM unnest(events) WITH ORDINALITY AS e (event, place)
      ORDER BY e.place;
    RETURN QUERY
    SELECT u.verdict, u.reason, u.retry_s FROM unnest(verdicts, reasons, retries)
        AS u (verdict, reason, retry_s);
END
$$;

-- Looked at when all is written: whoever changes one of the two records alone cannot commit. Until
-- the engine has created the transfer the inbox has it, and the pool shows it as pending.
CREATE OR REPLACE FUNCTION _agree() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    met uuid := coalesce(NEW.transfer_id, OLD.transfer_id);
BEGIN
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

CREATE OR REPLACE FUNCTION fn_create_pending_transfer(
    p_guild_id bigint, p_initiator_id bigint, p_target_id bigint, p_amount bigint,
    p_metadata jsonb DEFAULT '{}', p_expires_at timestamptz DEFAULT NULL, p_cid text DEFAULT NULL)
RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    p pending_transfers;
BEGIN
    p.guild_id := p_guild_id;
    p.initiator_id := p_initiator_id;
    p.target_id := p_target_id;
    p.amount := p_amount;
    p.metadata := p_metadata;
    p.expires_at := p_expires_at;
    p.cid := p_cid;
    RETURN (SELECT c.transfer_id FROM _create_pending_transfer(p, true) AS c);
END
$$;

-- As in the sessions of the engine: plans are kept, and a plan made on an empty table must still be
-- right for a million rows. Without it most of the statements are planned in every call.
ALTER FUNCTION _create_pending_transfer(pending_transfers, boolean)
    SET plan_cache_mode TO force_generic_plan;
ALTER FUNCTION _create_pending_transfer(pending_transfers, boolean) SET enable_seqscan TO off;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA economy FROM PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA economy TO tidegate_engine;
