-- open: a row per owner, asset and day; the row of asset 0 counts transfers of every asset.
INSERT INTO daily_totals (owner, asset_id, utc_day, count, amount)
SELECT k.owner, k.asset_id, (now() AT TIME ZONE 'UTC')::date, 0, 0
  FROM unnest(%(owners)s::bigint[], %(assets)s::integer[]) AS k (owner, asset_id)
 ORDER BY k.owner, k.asset_id
ON CONFLICT DO NOTHING;

-- lock: a separate statement that locks in sorted order, so that batches cannot deadlock. It
-- returns the values as they are after the lock was granted.
SELECT d.owner, d.asset_id, d.count, d.amount
  FROM daily_totals AS d
  JOIN unnest(%(owners)s::bigint[], %(assets)s::integer[]) AS k (owner, asset_id)
    ON d.owner = k.owner AND d.asset_id = k.asset_id
 WHERE d.utc_day = (now() AT TIME ZONE 'UTC')::date
 ORDER BY d.owner, d.asset_id
   FOR NO KEY UPDATE OF d;

-- add: store the new totals. Every admitted transfer counts, however it ends.
UPDATE daily_totals AS d
   SET count = k.count,
       amount = k.amount
  FROM unnest(%(owners)s::bigint[], %(assets)s::integer[], %(counts)s::integer[],
              %(amounts)s::numeric[]) AS k (owner, asset_id, count, amount)
 WHERE d.owner = k.owner
   AND d.asset_id = k.asset_id
   AND d.utc_day = (now() AT TIME ZONE 'UTC')::date;
