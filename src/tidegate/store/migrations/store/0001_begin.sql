-- One store: transfers, what was answered about them, and the ledger. Named without a schema.

CREATE TABLE transfers (
    id          uuid          PRIMARY KEY,
    owner       bigint        NOT NULL CHECK (owner > 0),
    flow        text          NOT NULL,
    state       text          NOT NULL,
    lane        text,
    due_at      timestamptz   NOT NULL,
    version     integer       NOT NULL CHECK (version >= 0),
    attempts    integer       NOT NULL CHECK (attempts >= 0),
    retries     integer       NOT NULL CHECK (retries >= 0),
    paged       boolean       NOT NULL,
    parties     jsonb         NOT NULL,
    asset_id    integer       NOT NULL CHECK (asset_id > 0),
    amount      numeric(39,0) NOT NULL CHECK (amount > 0),
    undoes      integer,
    parent      uuid,
    detail      jsonb,
    cid         text,
    head_hash   bytea         NOT NULL,
    error       text,
    trace       text,
    deadline_at timestamptz,
    created_at  timestamptz   NOT NULL,
    updated_at  timestamptz   NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);

-- Serves every lane of every flow. Ended rows have no lane, and so leave the index.
CREATE INDEX transfers_due ON transfers (lane, due_at) WHERE lane IS NOT NULL;

-- A table of its own, because a caller's key outlives an archived transfer.
CREATE TABLE cids (
    owner       bigint NOT NULL,
    cid         text   NOT NULL,
    fingerprint bytea  NOT NULL,
    transfer_id uuid   NOT NULL,
    PRIMARY KEY (owner, cid)
);

-- One row per answer. Chained: each hash vouches for all rows of its transfer before it.
CREATE TABLE history (
    transfer_id uuid        NOT NULL,
    version     integer     NOT NULL,
    flow        text        NOT NULL,
    from_state  text        NOT NULL,
    waypoints   text        NOT NULL,
    to_state    text        NOT NULL,
    verb        text        NOT NULL,
    answer      text        NOT NULL CHECK (answer IN ('done', 'rejected')),
    reason      text        NOT NULL,
    evidence    jsonb,
    actor       text        NOT NULL,
    at          timestamptz NOT NULL,
    hash        bytea       NOT NULL,
    PRIMARY KEY (transfer_id, version)
);

-- The flow tables whose constraints this store has. A program with another table may not start.
CREATE TABLE flow_tables (
    flow     text PRIMARY KEY,
    checksum text NOT NULL
);

-- Why a question stayed open, the newest few per transfer.
CREATE TABLE attempts (
    transfer_id uuid        NOT NULL,
    slot        smallint    NOT NULL,
    version     integer     NOT NULL,
    retry       integer     NOT NULL,
    reason      text        NOT NULL,
    at          timestamptz NOT NULL,
    PRIMARY KEY (transfer_id, slot)
);

-- The ledger. Only an owner's OUTSIDE book may be negative: it mirrors what came in.
CREATE TABLE ledger_accounts (
    owner     bigint        NOT NULL,
    book      text          NOT NULL,
    asset_id  integer       NOT NULL,
    available numeric(39,0) NOT NULL DEFAULT 0 CHECK (available >= 0 OR book = 'OUTSIDE'),
    held      numeric(39,0) NOT NULL DEFAULT 0 CHECK (held >= 0),
    status    text          NOT NULL DEFAULT 'ACTIVE'
                            CHECK (status IN ('ACTIVE', 'FROZEN', 'DISABLED')),
    version   bigint        NOT NULL DEFAULT 0,
    PRIMARY KEY (owner, book, asset_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

-- Every operation ever answered, refusals and tombstones among them: the answer is sticky.
CREATE TABLE ledger_operations (
    transfer_id   uuid          NOT NULL,
    version       integer       NOT NULL,
    owner         bigint        NOT NULL,
    book          text          NOT NULL,
    asset_id      integer       NOT NULL,
    verb          text          NOT NULL,
    amount        numeric(39,0) NOT NULL,
    undoes        integer,
    result        text          NOT NULL CHECK (result IN ('done', 'rejected')),
    reason        text          NOT NULL,
    delta         numeric(39,0) NOT NULL,
    held_delta    numeric(39,0) NOT NULL,
    balance_after numeric(39,0) NOT NULL,
    at            timestamptz   NOT NULL DEFAULT now(),
    PRIMARY KEY (transfer_id, version),
    CHECK (result = 'done' OR (delta = 0 AND held_delta = 0)),
    CHECK ((result = 'rejected') = (reason <> ''))
);
-- An operation is undone, and a hold closed, at most once.
CREATE UNIQUE INDEX ledger_operations_undone ON ledger_operations (transfer_id, undoes)
    WHERE undoes IS NOT NULL AND (delta <> 0 OR held_delta <> 0);

-- Both sides of every operation that moved money. What leaves an account is with its transfer.
CREATE VIEW ledger_entries AS
SELECT transfer_id, version, owner, book AS account, asset_id, delta + held_delta AS change, at
  FROM ledger_operations
 WHERE delta + held_delta <> 0
UNION ALL
SELECT transfer_id, version, owner, 'IN_FLIGHT', asset_id, -(delta + held_delta), at
  FROM ledger_operations
 WHERE delta + held_delta <> 0;

-- What each of our processes has seen acknowledged by a trading core.
CREATE TABLE core_positions (
    core     text   NOT NULL,
    process  text   NOT NULL,
    uuid     uuid   NOT NULL,
    position bigint NOT NULL,
    crc      bigint NOT NULL,
    epoch    bigint NOT NULL,
    PRIMARY KEY (core, process)
);

CREATE TABLE daily_totals (
    owner    bigint        NOT NULL,
    asset_id integer       NOT NULL,
    utc_day  date          NOT NULL,
    count    integer       NOT NULL,
    amount   numeric(39,0) NOT NULL,
    PRIMARY KEY (owner, asset_id, utc_day)
);

GRANT INSERT, UPDATE ON transfers, attempts, ledger_accounts, core_positions, daily_totals
   TO tidegate_engine;
GRANT DELETE ON core_positions TO tidegate_engine;
-- What was answered and what was done is only ever added to.
GRANT INSERT ON cids, history, ledger_operations TO tidegate_engine;
