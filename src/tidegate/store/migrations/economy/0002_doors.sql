-- The ways in: a plain INSERT is enough to have a transfer checked and made. The triggers stand on
-- the pool's own table; the engine's tables have none.

-- Ids are in the order of births, by which the audit reads on: with a stranger's idea of an id it
-- would pass over what is born later.
CREATE FUNCTION _is_of_now(id uuid) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT abs(('x' || substr(replace(id::text, '-', ''), 1, 12))::bit(48)::bigint
               - extract(epoch FROM clock_timestamp()) * 1000) < 60000
$$;

CREATE FUNCTION _prepare_transfer() RETURNS trigger
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
    NEW.status := 'checking';
    NEW.created_at := now();
    NEW.updated_at := now();
    RETURN NEW;
END
$$;
CREATE TRIGGER prepare BEFORE INSERT ON pending_transfers
    FOR EACH ROW EXECUTE FUNCTION _prepare_transfer();

-- What must be equal for the same cid to mean the same wish.
CREATE FUNCTION _fingerprint(p pending_transfers) RETURNS bytea
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT substr(sha256(convert_to(jsonb_build_array(
               p.guild_id, p.initiator_id, p.target_id, p.amount, p.metadata)::text,
               'UTF8')), 1, 16)
$$;

-- A cid is its initiator's, and the guild's other members cannot meet it.
CREATE FUNCTION _key(p_initiator_id bigint, p_cid text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT p_initiator_id || ':' || p_cid
$$;

-- A row for the engine, due now.
CREATE FUNCTION _hand_over(p_id uuid, p_guild_id bigint, p_flow text, p_state text, p_lane text,
                           p_parties jsonb, p_amount bigint, p_key text, p_expires_at timestamptz)
RETURNS void
LANGUAGE sql SET search_path FROM CURRENT AS $$
    INSERT INTO transfers (id, owner, flow, state, lane, due_at, version, attempts, retries, paged,
                           parties, asset_id, amount, cid, head_hash, deadline_at, expires_at,
                           created_at, updated_at)
    VALUES (p_id, p_guild_id, p_flow, p_state, p_lane, now(), 0, 0, 0, false,
            p_parties, _point(), p_amount, p_key, decode(repeat('00', 32), 'hex'),
            p_expires_at, p_expires_at, now(), now());
    SELECT pg_notify('tidegate_due', p_lane);
$$;

-- In the transaction of the pool's own row: from here on the engine has it.
CREATE FUNCTION _begin_transfer() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    payer text := _book(NEW.initiator_id);
BEGIN
    IF EXISTS (SELECT FROM transfers WHERE id = NEW.transfer_id) THEN
        RETURN NULL;  -- Born by the engine, whose record this is: at the end both must agree.
    END IF;
    INSERT INTO cids (owner, cid, fingerprint, transfer_id)
    VALUES (NEW.guild_id,
            coalesce(_key(NEW.initiator_id, NEW.cid), NEW.transfer_id::text),
            _fingerprint(NEW), NEW.transfer_id);
    PERFORM _hand_over(
        NEW.transfer_id, NEW.guild_id, 'pool_transfer', 'CHECKING', 'checks',
        jsonb_build_object(
            'checks', jsonb_build_array('checks', payer, NEW.guild_id),
            'allowance', jsonb_build_array('allowance', payer, NEW.guild_id),
            'source', jsonb_build_array('ledger', payer, NEW.guild_id),
            'target', jsonb_build_array('ledger', _book(NEW.target_id), NEW.guild_id)),
        NEW.amount, _key(NEW.initiator_id, NEW.cid), NEW.expires_at);
    RETURN NULL;
END
$$;
CREATE TRIGGER begin_checks AFTER INSERT ON pending_transfers
    FOR EACH ROW EXECUTE FUNCTION _begin_transfer();

-- Looked at when all is written: whoever changes one of the two records alone cannot commit.
CREATE FUNCTION _agree() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    met uuid := coalesce(NEW.transfer_id, OLD.transfer_id);
    p pending_transfers;
    t transfers;
BEGIN
    SELECT * INTO p FROM pending_transfers WHERE transfer_id = met;
    SELECT * INTO t FROM transfers WHERE id = met;
    IF (t.flow, t.owner, t.asset_id, t.amount, _status(t.state), t.retries, t.expires_at,
        t.parties -> 'source', t.parties -> 'target')
       IS DISTINCT FROM
       ('pool_transfer', p.guild_id, _point(), p.amount, p.status::text, p.retry_count,
        p.expires_at,
        jsonb_build_array('ledger', _book(p.initiator_id), p.guild_id),
        jsonb_build_array('ledger', _book(p.target_id), p.guild_id))
    THEN
        RAISE EXCEPTION 'transfer % would differ from the engine''s record of it', met
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER agree
    AFTER INSERT OR DELETE OR UPDATE OF transfer_id, guild_id, initiator_id, target_id, amount,
          status, retry_count, expires_at
    ON pending_transfers DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION _agree();

-- The transfer that a key stands for, if it is known. Another wish under the same key is refused.
CREATE FUNCTION _known(p_guild_id bigint, p_key text, p_fingerprint bytea) RETURNS uuid
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    known cids;
BEGIN
    SELECT * INTO known FROM cids WHERE owner = p_guild_id AND cid = p_key;
    IF known.fingerprint <> p_fingerprint THEN
        RAISE EXCEPTION 'IDEMPOTENCY_MISMATCH: this cid stands for another transfer'
            USING ERRCODE = 'TG422';
    END IF;
    RETURN known.transfer_id;
END
$$;

-- Once per cid: the same wish again gets the transfer that it became. Who is not admitted gets
-- nothing new, but still what there is.
CREATE FUNCTION _create_pending_transfer(
    p_guild_id bigint, p_initiator_id bigint, p_target_id bigint, p_amount bigint,
    p_metadata jsonb, p_expires_at timestamptz, p_cid text, p_admitted boolean,
    OUT transfer_id uuid, OUT duplicate boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    p pending_transfers;
BEGIN
    p.guild_id := p_guild_id;
    p.initiator_id := p_initiator_id;
    p.target_id := p_target_id;
    p.amount := p_amount;
    p.metadata := coalesce(p_metadata, '{}');
    FOR look IN 1 .. 3 LOOP
        transfer_id := _known(p_guild_id, _key(p_initiator_id, p_cid), _fingerprint(p));
        duplicate := transfer_id IS NOT NULL;
        IF duplicate OR NOT p_admitted THEN
            RETURN;
        END IF;
        BEGIN
            INSERT INTO pending_transfers AS made (guild_id, initiator_id, target_id, amount,
                                                   metadata, expires_at, cid)
            VALUES (p.guild_id, p.initiator_id, p.target_id, p.amount, p.metadata,
                    coalesce(p_expires_at, now() + interval '24 hours'), p_cid)
            RETURNING made.transfer_id INTO transfer_id;
            RETURN;
        EXCEPTION WHEN unique_violation THEN
            -- Another session was first with this cid: it is found now, unless our snapshot is old.
            IF p_cid IS NULL OR look = 3 THEN
                RAISE;
            END IF;
        END;
    END LOOP;
END
$$;

CREATE FUNCTION fn_create_pending_transfer(
    p_guild_id bigint, p_initiator_id bigint, p_target_id bigint, p_amount bigint,
    p_metadata jsonb DEFAULT '{}', p_expires_at timestamptz DEFAULT NULL, p_cid text DEFAULT NULL)
RETURNS uuid
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT transfer_id
      FROM _create_pending_transfer(p_guild_id, p_initiator_id, p_target_id, p_amount, p_metadata,
                                    p_expires_at, p_cid, true)
$$;

-- Points come into being, once per cid: a deposit out of the guild's OUTSIDE book, so that the
-- guild's books still sum to nothing. The engine makes it.
CREATE FUNCTION fn_issue_currency(p_guild_id bigint, p_member_id bigint, p_amount bigint,
                                  p_cid text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    made uuid := _new_id();
    key text := 'issue:' || p_cid;
    print bytea := substr(sha256(convert_to(jsonb_build_array(
                       'issue', p_guild_id, p_member_id, p_amount)::text, 'UTF8')), 1, 16);
BEGIN
    IF (p_guild_id > 0 AND p_member_id > 0 AND p_amount > 0) IS NOT TRUE
       OR p_cid !~ '^[ -~]{1,64}$'
    THEN
        RAISE EXCEPTION 'nothing that could be issued' USING ERRCODE = 'check_violation';
    END IF;
    INSERT INTO cids (owner, cid, fingerprint, transfer_id)
    VALUES (p_guild_id, coalesce(key, made::text), print, made)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN _known(p_guild_id, key, print);
    END IF;
    PERFORM _hand_over(
        made, p_guild_id, 'deposit', 'ENTERING', 'ledger',
        jsonb_build_object(
            'source', jsonb_build_array('ledger', 'OUTSIDE', p_guild_id),
            'target', jsonb_build_array('ledger', _book(p_member_id), p_guild_id),
            'suspense', jsonb_build_array('ledger', 'SUSPENSE', p_guild_id)),
        p_amount, key, NULL);
    RETURN made;
END
$$;

CREATE FUNCTION fn_get_pending_transfer(p_transfer_id uuid) RETURNS SETOF pending_transfers
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT * FROM pending_transfers WHERE transfer_id = p_transfer_id
$$;

CREATE FUNCTION fn_list_pending_transfers(
    p_guild_id bigint, p_status text DEFAULT NULL, p_limit integer DEFAULT 100,
    p_offset integer DEFAULT 0)
RETURNS SETOF pending_transfers
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT *
      FROM pending_transfers
     WHERE guild_id = p_guild_id
       AND (p_status IS NULL OR status = p_status)
     ORDER BY created_at DESC, transfer_id DESC
     LIMIT least(greatest(p_limit, 0), 1000)
    OFFSET greatest(p_offset, 0)
$$;

-- What a user may change: words about a transfer. Its state is the engine's to say.
CREATE FUNCTION fn_update_pending_transfer(p_transfer_id uuid, p_metadata jsonb) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE pending_transfers
       SET metadata = metadata || p_metadata,
           updated_at = now()
     WHERE transfer_id = p_transfer_id;
    RETURN FOUND;
END
$$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA economy FROM PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA economy TO tidegate_engine;
GRANT INSERT, UPDATE ON throttles TO tidegate_engine;
GRANT INSERT ON pending_transfers TO tidegate_engine;

-- Not to issue points: who may do that is for the database's owner to say.
GRANT USAGE ON SCHEMA economy TO tidegate_economy;
GRANT SELECT, INSERT ON pending_transfers TO tidegate_economy;
GRANT SELECT ON throttles TO tidegate_economy;
GRANT SELECT, INSERT, UPDATE, DELETE ON guild_settings, government_accounts TO tidegate_economy;
GRANT EXECUTE ON FUNCTION
    _new_id(),
    fn_check_transfer_balance(uuid),
    fn_check_transfer_cooldown(uuid),
    fn_check_transfer_daily_limit(uuid),
    fn_create_pending_transfer(bigint, bigint, bigint, bigint, jsonb, timestamptz, text),
    fn_get_pending_transfer(uuid),
    fn_list_pending_transfers(bigint, text, integer, integer),
    fn_update_pending_transfer(uuid, jsonb)
TO tidegate_economy;
