-- How far the full audit has come that runs in slices. Kept here, so that it goes on where it was
-- when the process that audits is replaced.
CREATE TABLE audit_sweep (
    single         boolean     PRIMARY KEY DEFAULT true CHECK (single), -- One row.
    begun_at       timestamptz NOT NULL DEFAULT now(),
    after_id       uuid        NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    after_owner    bigint      NOT NULL DEFAULT -9223372036854775808,
    transfers_read bigint      NOT NULL DEFAULT 0,
    owners_read    bigint      NOT NULL DEFAULT 0,
    -- When the last sweep that found nothing wrong was begun: all that was there then is verified.
    verified_at    timestamptz
);
INSERT INTO audit_sweep DEFAULT VALUES;
GRANT UPDATE ON audit_sweep TO tidegate_engine;
