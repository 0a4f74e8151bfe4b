-- A system that cannot be reached closes its lane, and nothing is written about the transfers that
-- wait there. This says it for all of them: one row per lane and process, written once per probe.
CREATE TABLE lane_troubles (
    lane       text          NOT NULL,
    process    text          NOT NULL,
    since      timestamptz   NOT NULL,
    attempts   integer       NOT NULL CHECK (attempts > 0),
    probed     timestamptz[] NOT NULL, -- When the newest attempts were made.
    reason     text          NOT NULL,
    updated_at timestamptz   NOT NULL,
    PRIMARY KEY (lane, process)
);
GRANT INSERT, UPDATE, DELETE ON lane_troubles TO tidegate_engine;

-- How many of these attempts count for a transfer whose last answer is of this time.
CREATE FUNCTION probes_since(since timestamptz, attempts integer, probed timestamptz[],
                             at timestamptz)
RETURNS integer LANGUAGE sql IMMUTABLE
RETURN CASE WHEN at <= since THEN attempts
            ELSE (SELECT count(*)::integer FROM unnest(probed) AS p (at_) WHERE p.at_ > at) END;

-- The lanes that are unreachable now. Of several processes, the one that has tried most often. A
-- process that has written nothing for two minutes has ended, or its lane is open again.
CREATE VIEW lane_outages AS
SELECT DISTINCT ON (lane) lane, since, attempts, probed, reason
  FROM lane_troubles
 WHERE updated_at BETWEEN now() - interval '2 minutes' AND now() + interval '5 seconds'
 ORDER BY lane, attempts DESC, process;

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
       -- Why it waits now; else the last refusal, or why the open question stays open.
       coalesce((SELECT 'unreachable: ' || o.reason FROM lane_outages AS o WHERE o.lane = t.lane),
                t.error,
                (SELECT n.reason
                   FROM attempts AS n
                  WHERE n.transfer_id = t.id AND t.lane IS NOT NULL
                  ORDER BY n.retry DESC
                  LIMIT 1))                         AS error_message,
       t.retries + coalesce((SELECT probes_since(o.since, o.attempts, o.probed, t.updated_at)
                               FROM lane_outages AS o
                              WHERE o.lane = t.lane), 0) AS retry_count,
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
                  AND d.refobjid = 'every_transfer'::regclass) THEN
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
               coalesce((SELECT 'unreachable: ' || o.reason
                           FROM lane_outages AS o
                          WHERE o.lane = t.lane), t.error) AS error,
               t.retries + coalesce((SELECT probes_since(o.since, o.attempts, o.probed,
                                                         t.updated_at)
                                       FROM lane_outages AS o
                                      WHERE o.lane = t.lane), 0) AS retry_count
          FROM every_transfer AS t
         WHERE t.flow = 'internal_transfer';
    END IF;
END
$$;
