-- Where transfers go that ended long ago, with their histories. Nothing here is ever due, so that
-- there is no index of the due; and nothing is ever changed, so that no page leaves room for it.
CREATE TABLE archived_transfers (
    LIKE transfers,
    -- When its caller's key was forgotten. Until then the key still leads to it.
    cid_forgotten_at timestamptz,
    PRIMARY KEY (id),
    CHECK (lane IS NULL)
);
COMMENT ON TABLE archived_transfers IS
    'Ended transfers, moved here by `tidegate archive`; every_transfer shows them with the others.';

CREATE TABLE archived_history (
    LIKE history,
    PRIMARY KEY (transfer_id, version)
);
COMMENT ON TABLE archived_history IS
    'The answers of archived transfers; every_history shows them with the others.';

CREATE INDEX archived_of_owner ON archived_transfers (owner, created_at);
-- Whose keys are still known, oldest first: what was forgotten is not read again.
CREATE INDEX archived_keyed ON archived_transfers (id) WHERE cid_forgotten_at IS NULL;

CREATE VIEW every_transfer AS
SELECT id, owner, flow, state, lane, due_at, version, attempts, retries, paged, parties, asset_id,
       amount, undoes, parent, detail, cid, head_hash, error, trace, deadline_at, created_at,
       updated_at, NULL::timestamptz AS cid_forgotten_at
  FROM transfers
 UNION ALL
SELECT id, owner, flow, state, lane, due_at, version, attempts, retries, paged, parties, asset_id,
       amount, undoes, parent, detail, cid, head_hash, error, trace, deadline_at, created_at,
       updated_at, cid_forgotten_at
  FROM archived_transfers;

CREATE VIEW every_history AS
SELECT transfer_id, version, flow, from_state, waypoints, to_state, verb, answer, reason, evidence,
       actor, at, hash
  FROM history
 UNION ALL
SELECT transfer_id, version, flow, from_state, waypoints, to_state, verb, answer, reason, evidence,
       actor, at, hash
  FROM archived_history;

-- The specifications' names stand for all transfers, wherever they are kept.
CREATE OR REPLACE VIEW transfers_tb AS
SELECT ulid(t.id)                                   AS transfer_id,
       ulid(t.id)                                   AS req_id,
       t.cid                                        AS cid,
       t.owner                                      AS user_id,
       t.asset_id                                   AS asset_id,
       t.amount * ('1e-' || a.decimals)::numeric    AS amount,
       (CASE t.parties -> 'source' ->> 1 WHEN 'FUNDING' THEN 1 ELSE 2 END)::smallint
                                                    AS transfer_type,
       (CASE t.parties -> 'source' ->> 1 WHEN 'FUNDING' THEN 1 ELSE 2 END)::smallint
                                                    AS source_type,
       s.code                                       AS state,
       -- The last refusal, or why the question that is open stays open.
       coalesce(t.error, (SELECT n.reason
                            FROM attempts AS n
                           WHERE n.transfer_id = t.id AND t.lane IS NOT NULL
                           ORDER BY n.retry DESC
                           LIMIT 1))                AS error_message,
       t.retries                                    AS retry_count,
       t.created_at                                 AS created_at,
       t.updated_at                                 AS updated_at
  FROM every_transfer AS t
  JOIN assets AS a ON a.id = t.asset_id
  JOIN flow_states AS s ON s.flow = t.flow AND s.state = t.state
 WHERE t.flow = 'internal_transfer';

-- Only by the store whose view it is: the one whose transfers it reads.
DO $$
BEGIN
    IF EXISTS (SELECT
                 FROM pg_rewrite AS r
                 JOIN pg_depend AS d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
                WHERE r.ev_class = to_regclass('trading.transfers')
                  AND d.refobjid = 'transfers'::regclass) THEN
        CREATE OR REPLACE VIEW trading.transfers AS
        SELECT t.id                                      AS req_id,
               CASE t.parties -> 'source' ->> 1 WHEN 'FUNDING' THEN 'funding' ELSE 'trading' END
                                                         AS source,
               CASE t.parties -> 'target' ->> 1 WHEN 'FUNDING' THEN 'funding' ELSE 'trading' END
                                                         AS target,
               t.owner                                   AS user_id,
               t.asset_id                                AS asset_id,
               t.amount                                  AS amount,
               lower(t.state)                            AS state,
               (extract(epoch FROM t.created_at) * 1000)::bigint AS created_at,
               (extract(epoch FROM t.updated_at) * 1000)::bigint AS updated_at,
               t.error                                   AS error,
               t.retries                                 AS retry_count
          FROM every_transfer AS t
         WHERE t.flow = 'internal_transfer';
    END IF;
END
$$;
