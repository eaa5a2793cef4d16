-- Tables of the ledger. Rules that must hold against raw SQL are constraints here and triggers in 0001_b.

CREATE SCHEMA IF NOT EXISTS counterfoil;

-- The only clock that decides a lease, an expiry or a lag: the time of the statement, the same for all rows of it.
-- STABLE, so that an index can be used with it. Tests replace this function; production never does.
CREATE FUNCTION counterfoil.now() RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE AS $$ SELECT statement_timestamp() $$;

-- Who may act for which tenant: a database login, and a tenant or '*'. Checked against session_user, never a setting.
CREATE TABLE counterfoil.principal (
  role_name text NOT NULL,
  tenant_id text NOT NULL CHECK (length(tenant_id) BETWEEN 1 AND 200),
  created_at timestamptz NOT NULL DEFAULT counterfoil.now(),
  PRIMARY KEY (role_name, tenant_id)
);

-- One agent task. `epoch` counts the handles that opened it: the newest one owns the run.
CREATE TABLE counterfoil.run (
  tenant text NOT NULL CHECK (length(tenant) BETWEEN 1 AND 200),
  run text NOT NULL CHECK (length(run) BETWEEN 1 AND 400),
  actor text NOT NULL CHECK (length(actor) BETWEEN 1 AND 200),
  state text NOT NULL DEFAULT 'open'
    CHECK (state IN ('open', 'closed', 'unwinding', 'unwind_blocked', 'unwound')),
  epoch integer NOT NULL DEFAULT 0,
  calls_count integer NOT NULL DEFAULT 0,
  parent_run text,
  deadline_at timestamptz,
  unwind_reason text,
  unwind_requested_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT counterfoil.now(),
  updated_at timestamptz NOT NULL DEFAULT counterfoil.now(),
  PRIMARY KEY (tenant, run)
);
CREATE INDEX run_to_unwind ON counterfoil.run (updated_at) WHERE state IN ('unwinding', 'unwind_blocked');

-- One intent and what became of it. The intent's columns (first block) never change; see the trigger.
CREATE TABLE counterfoil.action (
  action_id text PRIMARY KEY CHECK (action_id ~ '^act_[a-z2-7]{26}$'),
  tenant text NOT NULL,
  run text NOT NULL,
  step text NOT NULL CHECK (length(step) BETWEEN 1 AND 200),
  seq integer,                                 -- order of results within the run; NULL for enqueued steps and undos
  revision integer NOT NULL CHECK (revision >= 1),
  phase text NOT NULL CHECK (phase IN ('do', 'undo', 'correct')),
  parent_action_id text,                       -- the action that an undo or a correction is about
  edited_from text,
  actor text NOT NULL CHECK (length(actor) BETWEEN 1 AND 200),
  tool text NOT NULL CHECK (tool ~ '^[a-z][a-z0-9_]{0,63}$'),
  tool_version integer NOT NULL,
  class text NOT NULL CHECK (class IN ('reversible', 'compensatable', 'irreversible')),
  effect text NOT NULL,
  target text NOT NULL,
  provider text NOT NULL,
  account text NOT NULL DEFAULT 'default',     -- which credentials, by name
  queue text NOT NULL,
  arguments text NOT NULL,                     -- canonical JSON as text: jsonb would change 1e20 and -0.0
  arguments_sha256 text NOT NULL,
  arguments_codec text NOT NULL DEFAULT 'rfc8785',
  audience text[] NOT NULL DEFAULT '{}',
  compensation text,                           -- canonical JSON {"arguments": …, "tool": …}, written before the call
  once_key text,
  repeat_reason text,
  amount_minor bigint CHECK (amount_minor BETWEEN -9007199254740991 AND 9007199254740991),
  currency text CHECK (length(currency) BETWEEN 1 AND 16),
  needs_approval boolean NOT NULL DEFAULT false,
  expected_resource_version text,
  deadline_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT counterfoil.now(),

  state text NOT NULL CHECK (state IN (
    'proposed', 'awaiting_approval', 'ready', 'executing', 'retryable_failure', 'uncertain', 'reconciling',
    'operator_review', 'succeeded', 'permanent_failure', 'not_executed', 'cancelled', 'stale', 'compensated')),
  superseded_by text,
  approval_id text,
  once_held boolean NOT NULL DEFAULT true,     -- false once the action has ended without an effect or was superseded;
                                               -- never true again, and such an action is never sent again
  key text,                                    -- ours, sent to the provider; written by the first claim, then for ever
  key_version integer,
  fence uuid,                                  -- the token of whoever claimed the row last
  generation integer NOT NULL DEFAULT 0,       -- counts the moves into ready and retryable_failure
  attempt_count integer NOT NULL DEFAULT 0 CHECK (attempt_count >= 0),
  not_sent_count integer NOT NULL DEFAULT 0,
  ready_at timestamptz,
  lease_until timestamptz,
  quiet_from timestamptz,                      -- from here on no connection of an attempt can still be open
  first_sent_at timestamptz,
  last_sent_at timestamptz,
  in_doubt boolean NOT NULL DEFAULT false,
  no_resend boolean NOT NULL DEFAULT false,
  absent_count integer NOT NULL DEFAULT 0,
  last_absent_at timestamptz,
  uncertain_since timestamptz,
  lookup_count integer NOT NULL DEFAULT 0,
  next_lookup_at timestamptz,
  receipt text CHECK (length(receipt) <= 255),
  result text,                                 -- canonical JSON of the tool's declared result fields
  last_error_code text,
  last_error_field text,
  cancel_requested_at timestamptz,
  changed_by text,
  change_reason text,
  change_evidence text,
  erased_at timestamptz,
  updated_at timestamptz NOT NULL DEFAULT counterfoil.now(),

  FOREIGN KEY (tenant, run) REFERENCES counterfoil.run (tenant, run),
  CONSTRAINT action_arguments_size CHECK (octet_length(arguments) <= 65536),
  CONSTRAINT action_arguments_hash CHECK (
    erased_at IS NOT NULL OR arguments_sha256 = encode(sha256(convert_to(arguments, 'UTF8')), 'hex')),
  CONSTRAINT action_receipt CHECK (
    state NOT IN ('succeeded', 'compensated') OR receipt IS NOT NULL OR erased_at IS NOT NULL),
  CONSTRAINT action_lease CHECK ((state IN ('executing', 'reconciling')) = (lease_until IS NOT NULL)),
  CONSTRAINT action_fence CHECK (state NOT IN ('executing', 'reconciling') OR fence IS NOT NULL),
  CONSTRAINT action_ready CHECK (state NOT IN ('ready', 'retryable_failure') OR ready_at IS NOT NULL),
  CONSTRAINT action_uncertain CHECK (
    state <> 'uncertain' OR (in_doubt AND uncertain_since IS NOT NULL AND next_lookup_at IS NOT NULL)),
  CONSTRAINT action_undo CHECK ((phase = 'do') = (parent_action_id IS NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

-- At most one revision of a step is live; an intent is never replaced in place.
CREATE UNIQUE INDEX action_live_revision ON counterfoil.action (tenant, run, step, phase) WHERE superseded_by IS NULL;
CREATE UNIQUE INDEX action_seq ON counterfoil.action (tenant, run, seq) WHERE seq IS NOT NULL;
CREATE UNIQUE INDEX action_key ON counterfoil.action (key) WHERE key IS NOT NULL;
CREATE UNIQUE INDEX action_once ON counterfoil.action (tenant, once_key)
  WHERE once_key IS NOT NULL AND once_held AND superseded_by IS NULL;
-- Ended, its once-key free, and then found after all: it has the effect although another may hold the key.
CREATE INDEX action_once_found ON counterfoil.action (tenant, once_key)
  WHERE once_key IS NOT NULL AND NOT once_held
    AND state IN ('operator_review', 'reconciling', 'uncertain', 'succeeded');
CREATE INDEX action_run ON counterfoil.action (tenant, run, created_at);
CREATE INDEX action_parent ON counterfoil.action (parent_action_id) WHERE parent_action_id IS NOT NULL;
-- Each sweep reads one of these: their size follows the open work, not the settled rows.
CREATE INDEX action_lookup_due ON counterfoil.action (next_lookup_at) WHERE state = 'uncertain';
CREATE INDEX action_lease_end ON counterfoil.action (lease_until) WHERE state IN ('executing', 'reconciling');
CREATE INDEX action_claimable ON counterfoil.action (ready_at) WHERE state IN ('ready', 'retryable_failure');
CREATE INDEX action_deadline ON counterfoil.action (deadline_at)
  WHERE deadline_at IS NOT NULL
    AND state IN ('proposed', 'awaiting_approval', 'ready', 'retryable_failure');
CREATE INDEX action_cancelling ON counterfoil.action (cancel_requested_at)
  WHERE cancel_requested_at IS NOT NULL AND state IN ('ready', 'retryable_failure');

-- A framework's name for a call; an alias of a step, never its identity.
CREATE TABLE counterfoil.step_ref (
  tenant text NOT NULL,
  run text NOT NULL,
  ref text NOT NULL CHECK (length(ref) BETWEEN 1 AND 400),
  action_id text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT counterfoil.now(),
  PRIMARY KEY (tenant, run, ref, action_id)
);

-- One call. Written by the claim before the request, completed by the settle even when the row was lost meanwhile.
CREATE TABLE counterfoil.attempt (
  attempt_id uuid NOT NULL,                    -- the claim's token
  action_id text NOT NULL,
  tenant text NOT NULL,
  number integer NOT NULL,
  worker text NOT NULL,
  started_at timestamptz NOT NULL DEFAULT counterfoil.now(),
  finished_at timestamptz,
  outcome text CHECK (outcome IN ('succeeded', 'rejected', 'not_sent', 'uncertain', 'let_go')),
  code text,
  evidence text,
  receipt text,
  result text,
  PRIMARY KEY (started_at, attempt_id)
) PARTITION BY RANGE (started_at);
CREATE INDEX attempt_action ON counterfoil.attempt (action_id);

-- Every move of every action, written by a trigger, append-only for everybody.
CREATE TABLE counterfoil.history (
  history_id bigint GENERATED ALWAYS AS IDENTITY,
  action_id text NOT NULL,
  tenant text NOT NULL,
  run text NOT NULL,
  at timestamptz NOT NULL,
  from_state text,
  to_state text NOT NULL,
  generation integer NOT NULL,
  attempt_count integer NOT NULL,
  changed_by text,
  db_role text NOT NULL,
  reason text,
  evidence text,
  approval_id text,
  PRIMARY KEY (at, history_id)
) PARTITION BY RANGE (at);
CREATE INDEX history_action ON counterfoil.history (action_id, history_id);

-- A DEFAULT partition, so that nothing fails when a month was not made in time.
CREATE TABLE counterfoil.attempt_default PARTITION OF counterfoil.attempt DEFAULT;
CREATE TABLE counterfoil.history_default PARTITION OF counterfoil.history DEFAULT;

-- Wake-ups. A row stays until the claim deletes it; `not_before` is delay, backoff, relay lease and lost-message timer.
CREATE TABLE counterfoil.outbox (
  outbox_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  action_id text NOT NULL UNIQUE,
  generation integer NOT NULL,
  tenant text NOT NULL,
  queue text NOT NULL,
  not_before timestamptz NOT NULL,
  publish_count integer NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL DEFAULT counterfoil.now()
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 5000);
CREATE INDEX outbox_due ON counterfoil.outbox (queue, not_before, outbox_id);

-- A worker that is up but claims nothing while rows are due has stalled; this row shows it.
CREATE TABLE counterfoil.worker_heartbeat (
  worker text PRIMARY KEY,
  queues text[] NOT NULL,
  started_at timestamptz NOT NULL DEFAULT counterfoil.now(),
  seen_at timestamptz NOT NULL DEFAULT counterfoil.now(),
  last_claim_at timestamptz
);

-- For people and scalers; both respect the reader's rights (security_invoker).
CREATE VIEW counterfoil.actions WITH (security_invoker = true) AS
SELECT action_id, tenant, run, step, seq, revision, phase, parent_action_id, actor, tool, tool_version, class, effect,
       target, provider, audience, amount_minor, currency, state, attempt_count, in_doubt, no_resend, ready_at,
       lease_until, uncertain_since, next_lookup_at, last_error_code, deadline_at, created_at, updated_at
FROM counterfoil.action;

CREATE VIEW counterfoil.open_work WITH (security_invoker = true) AS
SELECT queue, state, count(*) AS actions, min(ready_at) AS oldest_ready_at
FROM counterfoil.action
WHERE state IN ('ready', 'retryable_failure', 'executing', 'uncertain', 'reconciling')
GROUP BY queue, state;
