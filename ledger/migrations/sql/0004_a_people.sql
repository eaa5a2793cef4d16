-- What people decide: proposals, the decisions on them and the approvals that follow; answers to what is in review;
-- corrections. And what must be on record for that: a plan's steps, a pivot, versions of resources, effect scopes.

ALTER TABLE counterfoil.run
  ADD COLUMN pivot text CHECK (pivot IN ('ahead', 'passed')),   -- NULL: the run has staged nothing
  ADD COLUMN pivot_passed_at timestamptz;

ALTER TABLE counterfoil.action
  ADD COLUMN proposal_id text,                 -- the decision that it waits for, or waited for
  ADD COLUMN place integer CHECK (place BETWEEN 1 AND 100), -- among the commit steps of a plan, which run in this order
  ADD COLUMN staged boolean NOT NULL DEFAULT false,
  ADD COLUMN correction text,                  -- canonical JSON {"arguments": …, "tool": …}: what could be said afterwards
  ADD COLUMN effect_scope text NOT NULL DEFAULT 'run' CHECK (effect_scope IN ('run', 'tenant')),
  ADD COLUMN reads_version boolean NOT NULL DEFAULT false,  -- a worker reads the resource's version while it is proposed
  DROP CONSTRAINT action_undo,
  ADD CONSTRAINT action_parent CHECK (phase = 'do' OR parent_action_id IS NOT NULL);
CREATE INDEX action_proposal ON counterfoil.action (proposal_id, place) WHERE proposal_id IS NOT NULL;
CREATE UNIQUE INDEX action_place ON counterfoil.action (proposal_id, place)
  WHERE place IS NOT NULL AND superseded_by IS NULL;
CREATE INDEX action_effect_open ON counterfoil.action (tenant, effect, target)
  WHERE phase = 'do'
    AND state IN ('proposed', 'awaiting_approval', 'ready', 'executing', 'retryable_failure', 'uncertain',
                  'reconciling', 'operator_review');
CREATE INDEX action_effect_day ON counterfoil.action (tenant, effect, coalesce(first_sent_at, created_at))
  WHERE phase = 'do';
CREATE INDEX action_version_due ON counterfoil.action (next_lookup_at)
  WHERE state = 'proposed' AND reads_version AND expected_resource_version IS NULL;

-- What one decision is about: a single gated call, or the plan of a run that has staged.
CREATE TABLE counterfoil.proposal (
  proposal_id text PRIMARY KEY CHECK (proposal_id ~ '^P-[A-Z2-7]{12}$'),
  tenant text NOT NULL,
  run text NOT NULL,
  actor text NOT NULL,
  is_plan boolean NOT NULL,
  note text NOT NULL DEFAULT '' CHECK (length(note) <= 2000),
  people integer NOT NULL DEFAULT 1 CHECK (people IN (1, 2)),   -- how many must approve
  expires_at timestamptz NOT NULL,
  state text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'approved', 'rejected', 'expired', 'withdrawn')),
  decided_by text,
  decided_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT counterfoil.now(),
  FOREIGN KEY (tenant, run) REFERENCES counterfoil.run (tenant, run),
  CONSTRAINT proposal_decided CHECK ((state = 'open') = (decided_at IS NULL))
);
CREATE INDEX proposal_open ON counterfoil.proposal (expires_at) WHERE state = 'open';
CREATE INDEX proposal_run ON counterfoil.proposal (tenant, run, created_at);

-- Calls that waited before there were proposals can be decided, too.
INSERT INTO counterfoil.proposal (proposal_id, tenant, run, actor, is_plan, expires_at)
SELECT 'P-' || upper(substr(a.action_id, 5, 12)), a.tenant, a.run, a.actor, false, counterfoil.now() + interval '1 day'
FROM counterfoil.action AS a WHERE a.state = 'awaiting_approval';
UPDATE counterfoil.action AS a SET proposal_id = 'P-' || upper(substr(a.action_id, 5, 12))
WHERE a.state = 'awaiting_approval';

-- What a person said about a proposal or a correction, over which digest. Append-only.
CREATE TABLE counterfoil.decision (
  decision_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  subject_id text NOT NULL,                    -- a proposal or a correction
  tenant text NOT NULL,
  verdict text NOT NULL CHECK (verdict IN ('approved', 'rejected', 'edited', 'sent', 'dismissed')),
  digest text,
  by_person text NOT NULL CHECK (length(by_person) BETWEEN 1 AND 200),
  db_role text NOT NULL DEFAULT session_user,
  channel text NOT NULL CHECK (length(channel) BETWEEN 1 AND 40),
  reason text CHECK (length(reason) <= 500),
  at timestamptz NOT NULL DEFAULT counterfoil.now()
);
CREATE INDEX decision_subject ON counterfoil.decision (subject_id, decision_id);

-- The right to execute one action, once: bound to the digest of exactly that intent. The first claim consumes it; later
-- attempts of the same action need no other.
CREATE TABLE counterfoil.approval (
  approval_id text PRIMARY KEY DEFAULT 'apr_' || replace(gen_random_uuid()::text, '-', ''),
  subject_id text NOT NULL,
  action_id text NOT NULL UNIQUE,
  tenant text NOT NULL,
  digest text NOT NULL,
  people integer NOT NULL,                     -- how many persons have approved this digest
  amount_field text,                           -- approved within bounds: a later revision may differ in this argument,
  amount_max_minor bigint,                     -- up to this amount
  carried_from text,                           -- the bounded approval that this one continues
  expires_at timestamptz NOT NULL,
  created_at timestamptz NOT NULL DEFAULT counterfoil.now(),
  consumed_at timestamptz,
  CONSTRAINT approval_bounds CHECK ((amount_field IS NULL) = (amount_max_minor IS NULL))
);
CREATE INDEX action_approved_waiting ON counterfoil.action (approval_id)
  WHERE approval_id IS NOT NULL AND state IN ('proposed', 'ready') AND attempt_count = 0;

-- What a person asked for about an action in review, and what came of it.
CREATE TABLE counterfoil.review (
  review_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  action_id text NOT NULL,
  tenant text NOT NULL,
  verb text NOT NULL CHECK (verb IN ('happened', 'not_happened', 'ask_again', 'give_up')),
  receipt text CHECK (length(receipt) BETWEEN 1 AND 255),
  by_person text NOT NULL CHECK (length(by_person) BETWEEN 1 AND 200),
  db_role text NOT NULL DEFAULT session_user,
  channel text NOT NULL CHECK (length(channel) BETWEEN 1 AND 40),
  reason text CHECK (length(reason) <= 500),
  asked_at timestamptz NOT NULL DEFAULT counterfoil.now(),
  answered_at timestamptz,
  answer text,                                 -- a code: the state that it led to, or why the row is in review again
  evidence text,
  CONSTRAINT review_receipt CHECK (verb <> 'happened' OR receipt IS NOT NULL)
);
CREATE UNIQUE INDEX review_open ON counterfoil.review (action_id) WHERE answered_at IS NULL;
CREATE INDEX review_action ON counterfoil.review (action_id, review_id);

-- What people might have to be told because something that they saw cannot be taken back, or was taken back.
CREATE TABLE counterfoil.correction (
  correction_id text PRIMARY KEY CHECK (correction_id ~ '^C-[A-Z2-7]{12}$'),
  action_id text NOT NULL UNIQUE,              -- the effect that they saw
  tenant text NOT NULL,
  run text NOT NULL,
  audience text[] NOT NULL,
  rank integer NOT NULL,                       -- blast radius: 0 inside, 1 customer, 2 public, 3 legal
  call text,                                   -- canonical JSON {"arguments": …, "tool": …}; NULL: to be written
  state text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'sent', 'dismissed')),
  sent_as text,                                -- the action that carries it out
  decided_by text,
  decided_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT counterfoil.now(),
  CONSTRAINT correction_sent CHECK (state <> 'sent' OR sent_as IS NOT NULL)
);
CREATE INDEX correction_open ON counterfoil.correction (rank, created_at) WHERE state = 'open';
CREATE INDEX correction_run ON counterfoil.correction (tenant, run);

-- Who was told that something waits for a person, is about to expire, or has expired undecided.
CREATE TABLE counterfoil.notice (
  subject_id text NOT NULL,                    -- a proposal, an action in review, a correction
  kind text NOT NULL CHECK (kind IN ('proposal', 'review', 'correction', 'expiring', 'expired')),
  since timestamptz NOT NULL,                  -- waiting since; the same subject may wait again
  tenant text NOT NULL,
  tries integer NOT NULL DEFAULT 0,
  next_try_at timestamptz NOT NULL DEFAULT counterfoil.now(),
  in_hand_until timestamptz,                   -- somebody is telling it, or has died with it; meanwhile nobody tells any
  told_at timestamptz,
  PRIMARY KEY (subject_id, kind, since)
);
CREATE INDEX notice_due ON counterfoil.notice (tries, next_try_at, since) WHERE told_at IS NULL;
CREATE INDEX notice_in_hand ON counterfoil.notice (in_hand_until) WHERE told_at IS NULL AND in_hand_until IS NOT NULL;

-- One row for each (scope, effect, target) that is being proposed: whoever proposes locks it first. By hash, since an
-- index row holds 2704 bytes.
CREATE TABLE counterfoil.effect_lock (
  lock_key bytea PRIMARY KEY,
  touched_at timestamptz NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX effect_lock_age ON counterfoil.effect_lock (touched_at);

CREATE TRIGGER decision_append_only BEFORE UPDATE OR DELETE ON counterfoil.decision
FOR EACH ROW EXECUTE FUNCTION counterfoil.refuse_change();
CREATE TRIGGER decision_no_truncate BEFORE TRUNCATE ON counterfoil.decision
FOR EACH STATEMENT EXECUTE FUNCTION counterfoil.refuse_change();
CREATE TRIGGER approval_no_delete BEFORE DELETE ON counterfoil.approval
FOR EACH ROW EXECUTE FUNCTION counterfoil.refuse_change();
CREATE TRIGGER approval_no_truncate BEFORE TRUNCATE ON counterfoil.approval
FOR EACH STATEMENT EXECUTE FUNCTION counterfoil.refuse_change();
