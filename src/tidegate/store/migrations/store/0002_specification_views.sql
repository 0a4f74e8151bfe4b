-- The same truth under the names, columns and codes that monitoring queries were written for.
-- Amounts are decimals here; 1e-n times an integer is exact, where a division would round.

CREATE VIEW transfers_tb AS
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
  FROM transfers AS t
  JOIN assets AS a ON a.id = t.asset_id
  JOIN flow_states AS s ON s.flow = t.flow AND s.state = t.state
 WHERE t.flow = 'internal_transfer';

CREATE VIEW balances_tb AS
SELECT l.owner                                              AS user_id,
       l.asset_id                                           AS asset_id,
       l.book                                               AS account_type,
       (l.available + l.held) * ('1e-' || a.decimals)::numeric AS amount,
       l.available * ('1e-' || a.decimals)::numeric         AS available,
       l.held * ('1e-' || a.decimals)::numeric              AS frozen,
       l.status                                             AS status
  FROM ledger_accounts AS l
  JOIN assets AS a ON a.id = l.asset_id;

CREATE VIEW transfer_operations AS
SELECT ulid(o.transfer_id)  AS req_id,
       CASE o.verb WHEN 'debit' THEN 'WITHDRAW'
                   WHEN 'credit' THEN 'DEPOSIT'
                   ELSE upper(o.verb)
       END                  AS op_type,
       CASE o.result WHEN 'done' THEN 'SUCCESS' ELSE 'EXPLICIT_FAIL' END AS result,
       o.reason             AS reason,
       o.owner              AS user_id,
       o.asset_id           AS asset_id,
       o.delta * ('1e-' || a.decimals)::numeric         AS delta,
       o.balance_after * ('1e-' || a.decimals)::numeric AS balance_after,
       o.at                 AS created_at
  FROM ledger_operations AS o
  JOIN assets AS a ON a.id = o.asset_id;

-- A view whose schema was printed. The first store of a database has it; a second must not take
-- it over unnoticed.
CREATE SCHEMA IF NOT EXISTS trading;
DO $$
BEGIN
    IF to_regclass('trading.transfers') IS NULL THEN
        CREATE VIEW trading.transfers AS
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
          FROM transfers AS t
         WHERE t.flow = 'internal_transfer';
    END IF;
END
$$;
GRANT USAGE ON SCHEMA trading TO tidegate_engine, tidegate_auditor;
GRANT SELECT ON trading.transfers TO tidegate_engine, tidegate_auditor;
