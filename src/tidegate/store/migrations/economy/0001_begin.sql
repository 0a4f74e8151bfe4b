-- The guild economy: transfers between members, checked before they are made. The first store of
-- a database has it, and keeps it. The tables here are the pool's own; a transfer's money and its
-- state are the store's, and both are written in the same transaction.

CREATE TABLE home (
    store text PRIMARY KEY
);
INSERT INTO home VALUES ((current_schemas(false))[2]);

CREATE TABLE guild_settings (
    guild_id       bigint  PRIMARY KEY CHECK (guild_id >= 0),
    daily_limit    bigint  NOT NULL DEFAULT 500 CHECK (daily_limit >= 0),
    cooldown_s     integer NOT NULL DEFAULT 300 CHECK (cooldown_s >= 0),
    cooldown_after text    NOT NULL DEFAULT 'daily_limit'
                           CHECK (cooldown_after IN ('daily_limit', 'every_transfer'))
);
-- Guild 0 stands for all that have no row of their own. A daily limit of 0 is none.
INSERT INTO guild_settings (guild_id) VALUES (0);

-- Exempt from cooldown and daily limit, not from having the money.
CREATE TABLE government_accounts (
    guild_id   bigint NOT NULL CHECK (guild_id > 0),
    account_id bigint NOT NULL CHECK (account_id > 0),
    PRIMARY KEY (guild_id, account_id)
);

-- What a member has sent today and when they may go on. Its row is the initiator's lock. The day
-- never goes back: who began before midnight and was let in after it counts for the new day.
CREATE TABLE throttles (
    guild_id        bigint        NOT NULL,
    member_id       bigint        NOT NULL,
    throttled_until timestamptz,
    utc_day         date          NOT NULL DEFAULT '-infinity',
    sent            numeric(39,0) NOT NULL DEFAULT 0 CHECK (sent >= 0),
    PRIMARY KEY (guild_id, member_id)
);

-- An id begins with its time, as the engine's own do.
CREATE FUNCTION _new_id() RETURNS uuid LANGUAGE sql VOLATILE
SET search_path FROM CURRENT AS $$
    SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
            || substr(replace(gen_random_uuid()::text, '-', ''), 13))::uuid
$$;

CREATE TABLE pending_transfers (
    transfer_id  uuid        PRIMARY KEY DEFAULT _new_id(),
    guild_id     bigint      NOT NULL CHECK (guild_id > 0),
    initiator_id bigint      NOT NULL CHECK (initiator_id > 0),
    target_id    bigint      NOT NULL CHECK (target_id > 0),
    amount       bigint      NOT NULL CHECK (amount > 0),
    status       varchar(20) NOT NULL DEFAULT 'pending'
                 CHECK (status IN ('pending', 'checking', 'approved', 'completed', 'rejected')),
    checks       jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(checks) = 'object'),
    retry_count  integer     NOT NULL DEFAULT 0 CHECK (retry_count >= 0),
    expires_at   timestamptz NOT NULL DEFAULT now() + interval '24 hours',
    metadata     jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(metadata) = 'object'),
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now(),
    -- Checks belong to a round; a new round begins without any.
    round        integer     NOT NULL DEFAULT 1 CHECK (round > 0),
    cid          text        CHECK (cid ~ '^[ -~]{1,64}$'),
    CHECK (initiator_id <> target_id)
);
CREATE INDEX pending_transfers_of_guild ON pending_transfers (guild_id, status);
CREATE INDEX pending_transfers_expiring ON pending_transfers (expires_at);
CREATE INDEX pending_transfers_by_status ON pending_transfers (status, updated_at);
-- For members who look at what they have sent, in whatever guild.
CREATE INDEX pending_transfers_of_initiator ON pending_transfers (initiator_id, created_at);

-- The names of a member's account and of the currency in the ledger.
CREATE FUNCTION _book(member_id bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT 'member:' || member_id
$$;
CREATE FUNCTION _point() RETURNS integer LANGUAGE sql IMMUTABLE AS $$ SELECT 6 $$;

-- What the outside is told of an engine's state: between approval and end there is nothing to see.
CREATE FUNCTION _status(state text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN state IN ('DEBITING', 'CREDITING', 'RETURNING') THEN 'approved'
                ELSE lower(state) END
$$;

-- What is known of a member who wants to pay: the same for every check, and read under the lock.
CREATE TYPE standing AS (
    available       numeric,
    account_status  text,
    throttled_until timestamptz,
    sent            numeric,
    daily_limit     bigint,
    cooldown_s      integer,
    every_transfer  boolean,
    exempt          boolean
);
CREATE FUNCTION _standing(p_guild_id bigint, p_member_id bigint) RETURNS standing
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT a.available, a.status,
           CASE WHEN t.throttled_until > now() THEN t.throttled_until END,
           CASE WHEN t.utc_day >= (now() AT TIME ZONE 'UTC')::date THEN t.sent ELSE 0 END,
           s.daily_limit, s.cooldown_s, s.cooldown_after = 'every_transfer',
           EXISTS (SELECT FROM government_accounts AS g
                    WHERE g.guild_id = p_guild_id AND g.account_id = p_member_id)
      FROM (SELECT *
              FROM guild_settings
             WHERE guild_id IN (0, p_guild_id)
             ORDER BY guild_id DESC
             LIMIT 1) AS s
      LEFT JOIN throttles AS t ON t.guild_id = p_guild_id AND t.member_id = p_member_id
      LEFT JOIN ledger_accounts AS a
        ON a.owner = p_guild_id AND a.book = _book(p_member_id) AND a.asset_id = _point()
$$;

CREATE FUNCTION _throttle(p_guild_id bigint, p_member_id bigint, p_seconds integer) RETURNS void
LANGUAGE sql SET search_path FROM CURRENT AS $$
    INSERT INTO throttles AS t (guild_id, member_id, throttled_until)
    VALUES (p_guild_id, p_member_id, now() + p_seconds * interval '1 second')
    ON CONFLICT (guild_id, member_id) DO UPDATE
       SET throttled_until = greatest(t.throttled_until, excluded.throttled_until)
$$;

-- The checks, and what is told of each.
CREATE FUNCTION _results(p pending_transfers, s standing)
RETURNS TABLE (check_type text, result integer, facts jsonb)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    VALUES ('balance',
            (coalesce(s.account_status, '') = 'ACTIVE' AND s.available >= p.amount)::integer,
            jsonb_build_object('balance', coalesce(s.available, 0), 'required', p.amount)),
           ('cooldown',
            (s.exempt OR s.throttled_until IS NULL)::integer,
            jsonb_build_object('throttled_until',
                               CASE WHEN NOT s.exempt THEN s.throttled_until END)),
           ('daily_limit',
            (s.exempt OR s.daily_limit = 0 OR s.sent + p.amount <= s.daily_limit)::integer,
            jsonb_build_object('total_today', s.sent, 'attempted_amount', p.amount,
                               'limit', s.daily_limit))
$$;

-- Some checks: their results stand in the row of the round they belong to, and each is told. Rows
-- are met by their id alone, here and below: by status there may be few today, many tomorrow.
CREATE FUNCTION _check(p_transfer pending_transfers, s standing, p_checks text[]) RETURNS jsonb
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    p pending_transfers;
    found jsonb;
BEGIN
    SELECT jsonb_object_agg(r.check_type, r.result) INTO found
      FROM _results(p_transfer, s) AS r
     WHERE r.check_type = ANY (p_checks);
    IF found -> 'daily_limit' = '0' AND NOT s.every_transfer AND p_transfer.status = 'checking' THEN
        -- Whoever is refused for the day's limit has to cool down, although nothing came of it.
        PERFORM _throttle(p_transfer.guild_id, p_transfer.initiator_id, s.cooldown_s);
    END IF;
    SELECT * INTO p
      FROM pending_transfers
     WHERE transfer_id = p_transfer.transfer_id
       FOR NO KEY UPDATE;
    IF p.status = 'checking' AND p.round = p_transfer.round THEN
        UPDATE pending_transfers
           SET checks = checks || found,
               updated_at = now()
         WHERE transfer_id = p.transfer_id;
        PERFORM pg_notify('economy_events', (jsonb_build_object(
                    'event_type', 'transfer_check_result',
                    'transfer_id', p.transfer_id,
                    'check_type', r.check_type,
                    'result', r.result,
                    'guild_id', p.guild_id,
                    'initiator_id', p.initiator_id,
                    'round', p.round) || r.facts)::text)
           FROM _results(p, s) AS r
          WHERE r.check_type = ANY (p_checks);
    END IF;
    RETURN found;
END
$$;

CREATE FUNCTION _check_one(p_transfer_id uuid, p_check text) RETURNS integer
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    p pending_transfers;
BEGIN
    SELECT * INTO STRICT p FROM pending_transfers WHERE transfer_id = p_transfer_id;
    RETURN _check(p, _standing(p.guild_id, p.initiator_id), ARRAY[p_check]) -> p_check;
END
$$;

CREATE FUNCTION fn_check_transfer_balance(p_transfer_id uuid) RETURNS integer
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT _check_one(p_transfer_id, 'balance')
$$;
CREATE FUNCTION fn_check_transfer_cooldown(p_transfer_id uuid) RETURNS integer
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT _check_one(p_transfer_id, 'cooldown')
$$;
CREATE FUNCTION fn_check_transfer_daily_limit(p_transfer_id uuid) RETURNS integer
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT _check_one(p_transfer_id, 'daily_limit')
$$;

-- All checks of one round, as those three make them, and what follows from them: a wait that is
-- known has its seconds, and one for money has none.
CREATE FUNCTION _check_transfer(p_transfer_id uuid,
                                OUT verdict text, OUT reason text, OUT retry_s float8)
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    p pending_transfers;
    s standing;
    found jsonb;
    failed text[];
    until timestamptz;
BEGIN
    SELECT * INTO p FROM pending_transfers WHERE transfer_id = p_transfer_id;
    IF p.status IS DISTINCT FROM 'checking' THEN
        verdict := 'unfounded';
        reason := coalesce('the pool has it as ' || p.status, 'the pool does not have it');
        RETURN;
    END IF;
    IF p.expires_at <= now() THEN
        -- Whoever asks will see that it is late, and say so.
        verdict := 'unknown';
        reason := 'expired';
        retry_s := 1;
        RETURN;
    END IF;
    s := _standing(p.guild_id, p.initiator_id);
    found := _check(p, s, ARRAY['balance', 'cooldown', 'daily_limit']);
    failed := ARRAY(SELECT key FROM jsonb_each(found) WHERE value = '0' ORDER BY key);
    IF s.account_status IS NULL OR s.account_status = 'DISABLED' THEN
        verdict := 'rejected';
        reason := CASE WHEN s.account_status IS NULL THEN 'SOURCE_ACCOUNT_NOT_FOUND'
                       ELSE 'ACCOUNT_DISABLED' END;
    ELSIF failed = '{}' THEN
        verdict := 'done';
        reason := '';
    ELSE
        verdict := 'unknown';
        reason := array_to_string(failed, ' ');
        IF 'daily_limit' = ANY (failed) THEN
            until := (date_trunc('day', now() AT TIME ZONE 'UTC') + interval '1 day')
                     AT TIME ZONE 'UTC';
            s := _standing(p.guild_id, p.initiator_id);  -- Which has to cool down by now.
        END IF;
        IF failed && ARRAY['cooldown', 'daily_limit'] THEN
            retry_s := extract(epoch FROM greatest(until, s.throttled_until) - now());
        END IF;
    END IF;
END
$$;

CREATE FUNCTION _check_transfers(p_ids uuid[])
RETURNS TABLE (verdict text, reason text, retry_s float8)
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT c.verdict, c.reason, c.retry_s
      FROM unnest(p_ids) WITH ORDINALITY AS k (id, place)
     CROSS JOIN LATERAL _check_transfer(k.id) AS c
     ORDER BY k.place
$$;

CREATE FUNCTION _approve(p pending_transfers) RETURNS void
LANGUAGE sql SET search_path FROM CURRENT AS $$
    UPDATE pending_transfers
       SET status = 'approved',
           updated_at = now()
     WHERE transfer_id = p.transfer_id;
    SELECT pg_notify('economy_events', json_build_object(
        'event_type', 'transfer_check_approved',
        'transfer_id', p.transfer_id,
        'guild_id', p.guild_id,
        'initiator_id', p.initiator_id,
        'target_id', p.target_id,
        'amount', p.amount,
        'round', p.round)::text);
$$;

-- Approves by the checks of the round that is under way, and says whether it did. Only the engine
-- may: what it approves without having recorded so does not commit.
CREATE FUNCTION _check_and_approve_transfer(p_transfer_id uuid) RETURNS boolean
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    p pending_transfers;
BEGIN
    SELECT * INTO p FROM pending_transfers WHERE transfer_id = p_transfer_id FOR NO KEY UPDATE;
    IF p.status = 'checking' AND p.checks @> '{"balance": 1, "cooldown": 1, "daily_limit": 1}' THEN
        PERFORM _approve(p);
        RETURN true;
    END IF;
    RETURN false;
END
$$;

CREATE FUNCTION _deny(p pending_transfers, p_reason text) RETURNS void
LANGUAGE sql SET search_path FROM CURRENT AS $$
    UPDATE pending_transfers
       SET status = 'rejected',
           updated_at = now()
     WHERE transfer_id = p.transfer_id;
    SELECT pg_notify('economy_events', json_build_object(
        'event_type', 'transaction_denied',
        'reason', CASE p_reason WHEN 'EXPIRED' THEN 'transfer_checks_expired'
                                ELSE 'transfer_checks_failed' END,
        'transfer_id', p.transfer_id,
        'guild_id', p.guild_id,
        'initiator_id', p.initiator_id,
        'target_id', p.target_id,
        'amount', p.amount)::text);
$$;

-- What the engine has just recorded of a transfer, in the pool's own words. `p_rounds` are the
-- rounds that began: their checks begin empty, in the update that says so.
CREATE FUNCTION _record_transfer(p_id uuid, p_state text, p_retries integer, p_rounds integer,
                                 p_reason text) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    p pending_transfers;
    told text := _status(p_state);
BEGIN
    SELECT * INTO STRICT p FROM pending_transfers WHERE transfer_id = p_id FOR NO KEY UPDATE;
    IF told = 'approved' AND p.status = 'checking' THEN
        -- By its checks, or else by people who have answered in their place.
        IF NOT _check_and_approve_transfer(p_id) THEN
            PERFORM _approve(p);
        END IF;
    ELSIF told = 'rejected' AND p.status <> 'rejected' THEN
        PERFORM _deny(p, p_reason);
    ELSIF told <> p.status OR p_rounds > 0 THEN
        UPDATE pending_transfers
           SET status = told,
               round = round + p_rounds,
               checks = CASE WHEN p_rounds > 0 THEN '{}' ELSE checks END,
               updated_at = now()
         WHERE transfer_id = p_id;
    END IF;
    UPDATE pending_transfers
       SET retry_count = p_retries,
           updated_at = now()
     WHERE transfer_id = p_id
       AND retry_count <> p_retries;
END
$$;

CREATE FUNCTION _record_transfers(p_ids uuid[], p_states text[], p_retries integer[],
                                  p_rounds integer[], p_reasons text[]) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT count(*)
      FROM (SELECT _record_transfer(m.id, m.state, m.retries, m.rounds, m.reason)
              FROM (SELECT *
                      FROM unnest(p_ids, p_states, p_retries, p_rounds, p_reasons)
                        AS u (id, state, retries, rounds, reason)
                     ORDER BY id) AS m
            OFFSET 0) AS recorded
$$;

-- A payment was made: it counts for the day, and is told with both balances.
CREATE FUNCTION _pay(p_id uuid, p_guild_id bigint, p_initiator_id bigint, p_target_id bigint,
                     p_amount numeric) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    s record;
    today date := (now() AT TIME ZONE 'UTC')::date;
BEGIN
    SELECT * INTO s FROM _standing(p_guild_id, p_initiator_id);
    INSERT INTO throttles AS t (guild_id, member_id, utc_day, sent)
    VALUES (p_guild_id, p_initiator_id, today, p_amount)
    ON CONFLICT (guild_id, member_id) DO UPDATE
       SET utc_day = greatest(t.utc_day, today),
           sent = CASE WHEN t.utc_day >= today THEN t.sent ELSE 0 END + p_amount;
    IF s.every_transfer THEN
        PERFORM _throttle(p_guild_id, p_initiator_id, s.cooldown_s);
    END IF;
    PERFORM pg_notify('economy_events', json_build_object(
        'event_type', 'transaction_success',
        'transfer_id', p_id,
        'guild_id', p_guild_id,
        'initiator_id', p_initiator_id,
        'target_id', p_target_id,
        'amount', p_amount,
        'initiator_balance', (SELECT o.balance_after
                                FROM ledger_operations AS o
                               WHERE o.transfer_id = p_id AND o.verb = 'debit'
                                 AND o.result = 'done'
                               ORDER BY o.version DESC LIMIT 1),
        'target_balance', (SELECT o.balance_after
                             FROM ledger_operations AS o
                            WHERE o.transfer_id = p_id AND o.verb = 'credit'
                              AND o.result = 'done'))::text);
END
$$;
