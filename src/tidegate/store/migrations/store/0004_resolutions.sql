-- What two people said about a question that no system would answer.
CREATE TABLE resolutions (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    transfer_id  uuid        NOT NULL,
    version      integer     NOT NULL,
    kind         text        NOT NULL CHECK (kind IN ('done', 'rejected', 'suspense')),
    reason       text        NOT NULL CHECK (reason <> ''),
    evidence     jsonb       NOT NULL CHECK (evidence <> '{}'),
    proposed_by  text        NOT NULL,
    proposed_at  timestamptz NOT NULL DEFAULT now(),
    confirmed_by text        CHECK (confirmed_by <> proposed_by),
    confirmed_at timestamptz,
    outcome      text
);
GRANT INSERT, UPDATE ON resolutions TO tidegate_engine;
