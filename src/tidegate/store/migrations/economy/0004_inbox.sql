-- The pool puts its transfers into the store's inbox: it writes its own record and a request, and
-- the engine does the rest.

DROP TRIGGER begin_checks ON pending_transfers;
DROP FUNCTION _begin_transfer();
DROP FUNCTION _create_pending_transfer(bigint, bigint, bigint, bigint, jsonb, timestamptz, text,
                                       boolean);
DROP FUNCTION _hand_over(uuid, bigint, text, text, text, jsonb, bigint, text, timestamptz);
DROP FUNCTION _known(bigint, text, bytea);

-- Nothing lives for ever, and no date that a client library cannot read.
UPDATE transfers
   SET expires_at = '9999-12-31', deadline_at = least(deadline_at, '9999-12-31')
 WHERE expires_at = 'infinity';
UPDATE pending_transfers SET expires_at = '9999-12-31' WHERE expires_at = 'infinity';
-- Deferred triggers must be done before a table is altered.
SET CONSTRAINTS ALL IMMEDIATE;
ALTER TABLE pending_transfers ADD CHECK (isfinite(expires_at));

-- The terms of a transfer of the pool, as the engine reads them.
CREATE FUNCTION _terms(p pending_transfers) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('initiator', p.initiator_id::text, 'target', p.target_id::text,
                              'metadata', p.metadata::text)
$$;

CREATE FUNCTION _pool_request(p pending_transfers) RETURNS inbox
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    r inbox;
BEGIN
    r.id := p.transfer_id;
    r.owner := p.guild_id;
    r.flow := 'pool_transfer';
    r.asset_id := _point();
    r.amount := p.amount;
    r.terms := _terms(p);
    r.space := 'guild';
    r.cid := _key(p.initiator_id, p.cid);
    r.expires_at := p.expires_at;
    RETURN r;
END
$$;

-- The transfer that a cid stands for already. Keys of older versions are known by their own
-- fingerprints.
CREATE FUNCTION _known_transfer(p pending_transfers) RETURNS uuid
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    r inbox := _pool_request(p);
BEGIN
    RETURN coalesce(
        _known_request(r.owner, key_of(r.space, r.cid),
                       request_fingerprint(r.flow, r.asset_id, r.amount, r.terms)),
        (SELECT c.transfer_id
           FROM cids AS c
          WHERE c.owner = r.owner AND c.cid = r.cid AND c.fingerprint = _fingerprint(p)));
END
$$;

CREATE OR REPLACE FUNCTION _prepare_transfer() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT _is_of_now(NEW.transfer_id)
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

-- In the transaction of the pool's own row: a request in the inbox, and nothing else.
CREATE FUNCTION _request_transfer() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    -- One that the engine created is recorded here by the engine itself.
    IF EXISTS (SELECT FROM transfers WHERE id = NEW.transfer_id) THEN
        RETURN NULL;
    END IF;
    IF _known_transfer(NEW) IS NOT NULL OR _put_request(_pool_request(NEW)) <> NEW.transfer_id THEN
        RAISE EXCEPTION 'this cid is known already' USING ERRCODE = 'unique_violation';
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER request AFTER INSERT ON pending_transfers
    FOR EACH ROW EXECUTE FUNCTION _request_transfer();

-- Looked at when all is written: whoever changes one of the two records alone cannot commit. Until
-- the engine has created the transfer the inbox has it, and the pool shows it as pending.
CREATE OR REPLACE FUNCTION _agree() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    met uuid := coalesce(NEW.transfer_id, OLD.transfer_id);
    p pending_transfers;
    t record;
BEGIN
    SELECT * INTO p FROM pending_transfers WHERE transfer_id = met;
    SELECT i.flow, i.owner, i.asset_id, i.amount,
           CASE i.outcome WHEN 'refused' THEN 'rejected' ELSE 'pending' END AS status,
           0 AS retries, i.expires_at, i.terms ->> 'initiator' AS initiator,
           i.terms ->> 'target' AS target
      INTO t
      FROM inbox AS i
     WHERE i.id = met AND i.outcome IS DISTINCT FROM 'created';
    IF NOT FOUND THEN
        SELECT e.flow, e.owner, e.asset_id, e.amount, _status(e.state) AS status, e.retries,
               e.expires_at, split_part(e.parties -> 'source' ->> 1, ':', 2) AS initiator,
               split_part(e.parties -> 'target' ->> 1, ':', 2) AS target
          INTO t
          FROM transfers AS e
         WHERE e.id = met;
    END IF;
    IF (t.flow, t.owner, t.asset_id, t.amount, t.status, t.retries, t.expires_at, t.initiator,
        t.target)
       IS DISTINCT FROM
       ('pool_transfer', p.guild_id, _point(), p.amount, p.status::text, p.retry_count,
        p.expires_at, p.initiator_id::text, p.target_id::text)
    THEN
        RAISE EXCEPTION 'transfer % would differ from the engine''s record of it', met
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;
END
$$;

-- Once per cid: the same request again gets the transfer that it became. Who is not admitted gets
-- nothing new, but still what there is. A caller that may have to try again names the id itself.
CREATE FUNCTION _create_pending_transfer(p pending_transfers, p_admitted boolean,
                                         OUT transfer_id uuid, OUT duplicate boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    p.transfer_id := coalesce(p.transfer_id, new_id());
    p.metadata := coalesce(p.metadata, '{}');
    FOR look IN 1 .. 3 LOOP
        transfer_id := coalesce(
            _known_transfer(p),
            (SELECT c.transfer_id FROM cids AS c
              WHERE c.owner = p.guild_id AND c.cid = p.transfer_id::text));
        duplicate := transfer_id IS NOT NULL;
        IF duplicate OR NOT p_admitted THEN
            RETURN;
        END IF;
        BEGIN
            INSERT INTO pending_transfers AS made (transfer_id, guild_id, initiator_id, target_id,
                                                   amount, metadata, expires_at, cid)
            VALUES (p.transfer_id, p.guild_id, p.initiator_id, p.target_id, p.amount, p.metadata,
                    coalesce(p.expires_at, now() + interval '24 hours'), p.cid)
            RETURNING made.transfer_id INTO transfer_id;
            RETURN;
        EXCEPTION WHEN unique_violation THEN
            -- Another session was first with this cid: it is found now, unless our snapshot is old.
            IF look = 3 THEN
                RAISE;
            END IF;
        END;
    END LOOP;
END
$$;

CREATE FUNCTION _pending_transfer(
    p_transfer_id uuid, p_guild_id bigint, p_initiator_id bigint, p_target_id bigint,
    p_amount bigint, p_metadata jsonb, p_expires_at timestamptz, p_cid text)
RETURNS pending_transfers LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    p pending_transfers;
BEGIN
    p.transfer_id := p_transfer_id;
    p.guild_id := p_guild_id;
    p.initiator_id := p_initiator_id;
    p.target_id := p_target_id;
    p.amount := p_amount;
    p.metadata := p_metadata;
    p.expires_at := p_expires_at;
    p.cid := p_cid;
    RETURN p;
END
$$;

-- As a process of the version before calls it, while both run side by side.
CREATE FUNCTION _create_pending_transfer(
    p_guild_id bigint, p_initiator_id bigint, p_target_id bigint, p_amount bigint,
    p_metadata jsonb, p_expires_at timestamptz, p_cid text, p_admitted boolean,
    OUT transfer_id uuid, OUT duplicate boolean)
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT c.transfer_id, c.duplicate
      FROM _create_pending_transfer(
               _pending_transfer(NULL, p_guild_id, p_initiator_id, p_target_id, p_amount,
                                 p_metadata, p_expires_at, p_cid), p_admitted) AS c
$$;

CREATE OR REPLACE FUNCTION fn_create_pending_transfer(
    p_guild_id bigint, p_initiator_id bigint, p_target_id bigint, p_amount bigint,
    p_metadata jsonb DEFAULT '{}', p_expires_at timestamptz DEFAULT NULL, p_cid text DEFAULT NULL)
RETURNS uuid
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT c.transfer_id
      FROM _create_pending_transfer(
               _pending_transfer(NULL, p_guild_id, p_initiator_id, p_target_id, p_amount,
                                 p_metadata, p_expires_at, p_cid), true) AS c
$$;

CREATE OR REPLACE FUNCTION fn_issue_currency(p_guild_id bigint, p_member_id bigint, p_amount bigint,
                                             p_cid text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    r inbox;
    older uuid;
BEGIN
    IF (p_guild_id > 0 AND p_member_id > 0 AND p_amount > 0) IS NOT TRUE
       OR p_cid !~ '^[ -~]{1,64}$'
    THEN
        RAISE EXCEPTION 'nothing that could be issued' USING ERRCODE = 'check_violation';
    END IF;
    -- A key of an older version, with the fingerprint that it computed.
    SELECT c.transfer_id INTO older
      FROM cids AS c
     WHERE c.owner = p_guild_id
       AND c.cid = 'issue:' || p_cid
       AND c.fingerprint = substr(sha256(convert_to(jsonb_build_array(
               'issue', p_guild_id, p_member_id, p_amount)::text, 'UTF8')), 1, 16);
    IF FOUND THEN
        RETURN older;
    END IF;
    r.id := new_id();
    r.owner := p_guild_id;
    r.flow := 'deposit';
    r.asset_id := _point();
    r.amount := p_amount;
    r.terms := jsonb_build_object('member', p_member_id::text);
    r.space := 'guild';
    r.cid := 'issue:' || p_cid;
    RETURN _put_request(r);
END
$$;

-- A request of the pool was refused before it became a transfer.
CREATE FUNCTION _refuse_transfers(p_ids uuid[], p_reasons text[]) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT count(*)
      FROM (SELECT _deny(p, u.reason)
              FROM unnest(p_ids, p_reasons) AS u (id, reason)
              JOIN pending_transfers AS p ON p.transfer_id = u.id
            OFFSET 0) AS denied
$$;

-- A guild without settings, and a database without row 0, have the defaults of the table.
CREATE OR REPLACE FUNCTION _standing(p_guild_id bigint, p_member_id bigint) RETURNS standing
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT a.available, a.status,
           CASE WHEN t.throttled_until > now() THEN t.throttled_until END,
           CASE WHEN t.utc_day >= (now() AT TIME ZONE 'UTC')::date THEN t.sent ELSE 0 END,
           coalesce(s.daily_limit, 500), coalesce(s.cooldown_s, 300),
           coalesce(s.cooldown_after = 'every_transfer', false),
           EXISTS (SELECT FROM government_accounts AS g
                    WHERE g.guild_id = p_guild_id AND g.account_id = p_member_id)
      FROM (SELECT) AS once
      LEFT JOIN (SELECT *
                   FROM guild_settings
                  WHERE guild_id IN (0, p_guild_id)
                  ORDER BY guild_id DESC
                  LIMIT 1) AS s ON true
      LEFT JOIN throttles AS t ON t.guild_id = p_guild_id AND t.member_id = p_member_id
      LEFT JOIN ledger_accounts AS a
        ON a.owner = p_guild_id AND a.book = _book(p_member_id) AND a.asset_id = _point()
$$;

-- All checks of one round, by the three public functions, so that one that was replaced is used.
CREATE FUNCTION _round(p_transfer_id uuid) RETURNS jsonb
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    balance integer := fn_check_transfer_balance(p_transfer_id);
    cooldown integer := fn_check_transfer_cooldown(p_transfer_id);
    daily_limit integer := fn_check_transfer_daily_limit(p_transfer_id);
BEGIN
    -- A function that was replaced may not have written its result.
    UPDATE pending_transfers
       SET checks = checks || jsonb_build_object('balance', balance, 'cooldown', cooldown,
                                                 'daily_limit', daily_limit)
     WHERE transfer_id = p_transfer_id;
    RETURN jsonb_build_object('balance', balance, 'cooldown', cooldown,
                              'daily_limit', daily_limit);
END
$$;

CREATE OR REPLACE FUNCTION _check_transfer(p_transfer_id uuid,
                                           OUT verdict text, OUT reason text, OUT retry_s float8)
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    p pending_transfers;
    s standing;
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
        -- Whoever asks will see that it is late.
        verdict := 'unknown';
        reason := 'expired';
        retry_s := 1;
        RETURN;
    END IF;
    s := _standing(p.guild_id, p.initiator_id);
    failed := ARRAY(SELECT key FROM jsonb_each(_round(p_transfer_id)) WHERE value <> '1'
                     ORDER BY key);
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

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA economy FROM PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA economy TO tidegate_engine;
