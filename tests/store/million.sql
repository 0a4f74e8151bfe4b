-- A store after a million transfers: nearly all have ended, a few wait for the ledger.
SET LOCAL synchronous_commit TO off;

INSERT INTO ledger_accounts (owner, book, asset_id, available)
SELECT n, 'FUNDING', 3, 100
  FROM generate_series(1, 100000) AS n;

INSERT INTO transfers (id, owner, flow, state, lane, due_lane, due_at, version, attempts, retries,
                       paged, parties, asset_id, amount, head_hash, created_at, updated_at)
SELECT lpad(to_hex(n), 32, '0')::uuid, n / 10 + 1, 'internal_transfer',
       CASE WHEN n <= 1000000 THEN 'COMMITTED' ELSE 'TARGET_PENDING' END,
       CASE WHEN n <= 1000000 THEN NULL ELSE 'ledger' END,
       CASE WHEN n <= 1000000 THEN NULL ELSE 'ledger' END,
       now(), 2, 0, 0, false,
       '{"source": ["remote", "SPOT", 1], "target": ["ledger", "FUNDING", 1]}',
       3, 10, '\x00', now(), now()
  FROM generate_series(1, 1020000) AS n;

INSERT INTO cids (owner, cid, fingerprint, transfer_id)
SELECT n / 10 + 1, 'cid ' || n, '\x00', lpad(to_hex(n), 32, '0')::uuid
  FROM generate_series(1, 1020000) AS n;

INSERT INTO history (transfer_id, version, flow, from_state, waypoints, to_state, verb, answer,
                     reason, actor, at, hash)
SELECT lpad(to_hex(n), 32, '0')::uuid, 1, 'internal_transfer', 'TARGET_PENDING', '', 'COMMITTED',
       'credit', 'done', '', '', now(), '\x00'
  FROM generate_series(1, 1000000) AS n;

INSERT INTO ledger_operations (transfer_id, version, owner, book, asset_id, verb, amount, result,
                               reason, delta, held_delta, balance_after)
SELECT lpad(to_hex(n), 32, '0')::uuid, 1, n / 10 + 1, 'FUNDING', 3, 'credit', 10, 'done',
       '', 10, 0, 110
  FROM generate_series(1, 1000000) AS n;

INSERT INTO archived_transfers (id, owner, flow, state, due_at, version, attempts, retries, paged,
                                parties, asset_id, amount, head_hash, created_at, updated_at)
SELECT lpad(to_hex(n + 2000000), 32, '0')::uuid, n / 10 + 1, 'internal_transfer', 'COMMITTED',
       now(), 2, 0, 0, false,
       '{"source": ["remote", "SPOT", 1], "target": ["ledger", "FUNDING", 1]}',
       3, 10, '\x00', now(), now()
  FROM generate_series(1, 300000) AS n;

INSERT INTO economy.throttles (guild_id, member_id)
SELECT n / 1000 + 1, n
  FROM generate_series(1, 100000) AS n;
