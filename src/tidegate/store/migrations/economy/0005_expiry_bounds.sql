-- No date that a client library cannot read: one such row would break the lists that contain it.

UPDATE transfers
   SET expires_at = '9999-12-31 00:00+00', deadline_at = least(deadline_at, '9999-12-31 00:00+00')
 WHERE flow = 'pool_transfer'
   AND expires_at > '9999-12-31 00:00+00';
UPDATE transfers
   SET expires_at = '2000-01-01 00:00+00'
 WHERE flow = 'pool_transfer'
   AND expires_at < '2000-01-01 00:00+00';
UPDATE pending_transfers
   SET expires_at = least(greatest(expires_at, '2000-01-01 00:00+00'), '9999-12-31 00:00+00')
 WHERE expires_at NOT BETWEEN '2000-01-01 00:00+00' AND '9999-12-31 00:00+00';
-- Deferred triggers must be done before a table is altered.
SET CONSTRAINTS ALL IMMEDIATE;
ALTER TABLE pending_transfers ADD CONSTRAINT pending_transfers_expires_at_bounds
    CHECK (expires_at BETWEEN '2000-01-01 00:00+00' AND '9999-12-31 00:00+00');
