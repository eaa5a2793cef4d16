-- What a caller has been told is a set of ends: an action, and how often it has been settled. What a call meant is kept with
-- the model's response (turn) that it stood in, and with what it asked for.

ALTER TABLE counterfoil.action ADD COLUMN ends_count integer NOT NULL DEFAULT 0;   -- the trigger's alone
UPDATE counterfoil.action SET ends_count = 1
WHERE state IN ('succeeded', 'permanent_failure', 'not_executed', 'cancelled', 'stale', 'compensated');
GRANT SELECT (ends_count) ON counterfoil.action TO counterfoil_reader;

-- An end that changes is another end: whoever was told the first is told the second.
CREATE FUNCTION counterfoil.count_end() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  NEW.ends_count := OLD.ends_count + 1;
  RETURN NEW;
END $$;
CREATE TRIGGER action_ends BEFORE UPDATE ON counterfoil.action
FOR EACH ROW WHEN (
  OLD.state IS DISTINCT FROM NEW.state
  AND NEW.state IN ('succeeded', 'permanent_failure', 'not_executed', 'cancelled', 'stale', 'compensated'))
EXECUTE FUNCTION counterfoil.count_end();

ALTER TABLE counterfoil.step_ref
  ADD COLUMN turn text NOT NULL DEFAULT '' CHECK (length(turn) <= 400),   -- '': not told, and such references may repeat
  ADD COLUMN arguments_sha256 text NOT NULL DEFAULT '',   -- of what was asked for, which need not be what is recorded
  DROP CONSTRAINT step_ref_pkey,
  ADD PRIMARY KEY (tenant, run, turn, ref, action_id, arguments_sha256);   -- each wording of a call is remembered

-- A framework's name for a call now stands for this action, too.
DROP FUNCTION counterfoil.add_ref(text, text, text, text);
CREATE FUNCTION counterfoil.add_ref(
  p_tenant text, p_run text, p_turn text, p_ref text, p_action_id text, p_arguments_sha256 text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM counterfoil.check_principal(p_tenant);
  INSERT INTO counterfoil.step_ref (tenant, run, turn, ref, action_id, arguments_sha256)
  SELECT p_tenant, p_run, p_turn, p_ref, a.action_id, p_arguments_sha256 FROM counterfoil.action AS a
  WHERE a.action_id = p_action_id AND a.tenant = p_tenant AND a.run = p_run
  ON CONFLICT DO NOTHING;
END $$;

-- As in 0004, and: how often each action has been settled, also of revisions that others have replaced (`past`); a
-- reference's turn and words.
DROP FUNCTION counterfoil.lock_and_read(text, text, integer);
CREATE FUNCTION counterfoil.lock_and_read(p_tenant text, p_run text, p_epoch integer)
RETURNS TABLE (state text, calls_count integer, deadline_at timestamptz, pivot text, actions jsonb, refs jsonb, past jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  r counterfoil.run;
BEGIN
  PERFORM counterfoil.check_principal(p_tenant);
  UPDATE counterfoil.run AS u SET calls_count = u.calls_count + 1, updated_at = counterfoil.now()
  WHERE u.tenant = p_tenant AND u.run = p_run RETURNING u.* INTO r;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'no such run' USING ERRCODE = 'CF404';
  END IF;
  IF r.epoch <> p_epoch THEN
    RAISE EXCEPTION 'another handle has opened this run' USING ERRCODE = 'CF410';
  END IF;
  RETURN QUERY
  SELECT r.state, r.calls_count, r.deadline_at,
    CASE WHEN r.parent_run IS NULL THEN r.pivot ELSE counterfoil.pivot_of(p_tenant, p_run) END,
    (SELECT coalesce(jsonb_agg(jsonb_build_object(
       'action_id', a.action_id, 'step', a.step, 'seq', a.seq, 'revision', a.revision, 'tool', a.tool,
       'effect', a.effect, 'target', a.target, 'class', a.class, 'state', a.state, 'arguments', a.arguments,
       'arguments_sha256', a.arguments_sha256, 'once_key', a.once_key, 'result', a.result, 'receipt', a.receipt,
       'ends_count', a.ends_count,
       'last_error_code', a.last_error_code, 'last_error_field', a.last_error_field, 'amount_minor', a.amount_minor,
       'proposal_id', a.proposal_id, 'place', a.place, 'staged', a.staged, 'parent_action_id', a.parent_action_id,
       'edited_from', a.edited_from,
       'change_reason', CASE WHEN a.last_error_code = 'rejected_by_reviewer' THEN a.change_reason END,
       'edited_before', CASE WHEN a.edited_from IS NOT NULL THEN (
          SELECT jsonb_agg(jsonb_build_array(e.target, e.arguments_sha256)) FROM counterfoil.action AS e
          WHERE e.tenant = p_tenant AND e.run = p_run AND e.step = a.step AND e.phase = 'do'
            AND e.superseded_by IS NOT NULL AND e.last_error_code = 'edited_by_reviewer') END,
       'rejected_before', CASE WHEN a.revision > 1 THEN (
          SELECT jsonb_agg(e.arguments_sha256) FROM counterfoil.action AS e
          WHERE e.tenant = p_tenant AND e.run = p_run AND e.step = a.step AND e.phase = 'do'
            AND e.superseded_by IS NOT NULL AND e.state = 'cancelled'
            AND e.last_error_code = 'rejected_by_reviewer') END) ORDER BY a.created_at, a.seq), '[]')
     FROM counterfoil.action AS a
     WHERE a.tenant = p_tenant AND a.run = p_run AND a.phase = 'do' AND a.superseded_by IS NULL),
    (SELECT coalesce(jsonb_agg(jsonb_build_object(
       'ref', f.ref, 'turn', f.turn, 'action_id', f.action_id, 'arguments_sha256', f.arguments_sha256)
       ORDER BY f.created_at, f.turn, f.ref), '[]')
     FROM counterfoil.step_ref AS f WHERE f.tenant = p_tenant AND f.run = p_run),
    (SELECT coalesce(jsonb_agg(jsonb_build_object('action_id', a.action_id, 'ends_count', a.ends_count)), '[]')
     FROM counterfoil.action AS a
     WHERE a.tenant = p_tenant AND a.run = p_run AND a.phase = 'do' AND a.superseded_by IS NOT NULL
       AND a.ends_count > 0);
END $$;

-- As in 0004, with a reference's turn and words. A person's edit of one step: a new revision in its place, to be decided
-- over the new digest; what was said over the old one counts no more. `answer`: edited, decided, expired, changed, or gone
-- (not a live step of an open proposal).
CREATE OR REPLACE FUNCTION counterfoil.edit_step(
  p_action_id text, p_new_id text, p_digest text, p_by text, p_channel text, p_reason text, p_target text,
  p_arguments text, p_arguments_sha256 text, p_audience text[], p_compensation text, p_correction text,
  p_once_key text, p_amount_minor bigint, p_currency text)
RETURNS TABLE (answer text, proposal_id text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  a counterfoil.action;
  p counterfoil.proposal;
BEGIN
  SELECT * INTO a FROM counterfoil.action AS x WHERE x.action_id = p_action_id;
  IF NOT FOUND OR NOT counterfoil.serves(a.tenant) THEN
    RAISE EXCEPTION 'no such action' USING ERRCODE = 'CF404';
  END IF;
  PERFORM FROM counterfoil.run AS r WHERE r.tenant = a.tenant AND r.run = a.run FOR NO KEY UPDATE;  -- the next seq
  PERFORM FROM counterfoil.action AS x WHERE x.proposal_id = a.proposal_id ORDER BY x.place, x.action_id FOR UPDATE;
  SELECT * INTO p FROM counterfoil.proposal AS x WHERE x.proposal_id = a.proposal_id FOR UPDATE;
  SELECT * INTO a FROM counterfoil.action AS x WHERE x.action_id = p_action_id;
  IF p.state = 'open' AND p.expires_at <= counterfoil.now() THEN
    PERFORM counterfoil.expire_proposal(p.proposal_id, 'clock');
    RETURN QUERY SELECT 'expired', p.proposal_id;
    RETURN;
  END IF;
  IF p.state IS DISTINCT FROM 'open' OR a.superseded_by IS NOT NULL OR a.state NOT IN ('proposed', 'awaiting_approval') THEN
    RETURN QUERY SELECT CASE WHEN p.state IN ('approved', 'rejected') THEN 'decided' ELSE 'gone' END, p.proposal_id;
    RETURN;
  END IF;
  IF coalesce(length(p_digest), 0) < 16
     OR left(counterfoil.proposal_digest(p.proposal_id), length(p_digest)) <> lower(p_digest) THEN
    RETURN QUERY SELECT 'changed', p.proposal_id;
    RETURN;
  END IF;
  IF p_new_id IS DISTINCT FROM counterfoil.action_id_of(a.tenant, a.run, a.step, a.revision + 1, 'do') THEN
    RAISE EXCEPTION 'not the id of the next revision' USING ERRCODE = 'CF403';
  END IF;
  IF counterfoil.effect_taken_by(a.tenant, a.run, a.effect_scope, a.effect, p_target, a.tool, a.action_id) IS NOT NULL
  THEN
    RETURN QUERY SELECT 'effect_taken', p.proposal_id;
    RETURN;
  END IF;
  INSERT INTO counterfoil.decision (subject_id, tenant, verdict, digest, by_person, channel, reason)
  VALUES (p.proposal_id, p.tenant, 'edited', counterfoil.proposal_digest(p.proposal_id), p_by, p_channel, p_reason);
  UPDATE counterfoil.action AS x
  SET superseded_by = p_new_id, state = 'cancelled', last_error_code = 'edited_by_reviewer', changed_by = p_by,
      change_reason = coalesce(p_reason, 'edited'), change_evidence = p_channel
  WHERE x.action_id = p_action_id;
  INSERT INTO counterfoil.action (
    action_id, tenant, run, step, seq, revision, phase, parent_action_id, edited_from, actor, tool, tool_version, class,
    effect, effect_scope, target, provider, account, queue, arguments, arguments_sha256, audience, compensation,
    correction, once_key, repeat_reason, amount_minor, currency, needs_approval, proposal_id, place, staged,
    reads_version, expected_resource_version, deadline_at, state, ready_at, next_lookup_at, changed_by, change_reason)
  VALUES (p_new_id, a.tenant, a.run, a.step,
    CASE WHEN a.seq IS NOT NULL THEN (SELECT max(x.seq) + 1 FROM counterfoil.action AS x
                                      WHERE x.tenant = a.tenant AND x.run = a.run) END,
    a.revision + 1, 'do', a.parent_action_id, a.action_id, a.actor, a.tool, a.tool_version, a.class, a.effect,
    a.effect_scope, p_target, a.provider, a.account, a.queue, p_arguments, p_arguments_sha256, p_audience,
    p_compensation, p_correction, p_once_key, a.repeat_reason, p_amount_minor, p_currency, true, a.proposal_id, a.place,
    a.staged, a.reads_version, CASE WHEN NOT a.reads_version THEN a.expected_resource_version END, a.deadline_at,
    CASE WHEN a.reads_version THEN 'proposed' ELSE a.state END, a.ready_at,
    CASE WHEN a.reads_version THEN counterfoil.now() END, p_by, 'edited');
  INSERT INTO counterfoil.step_ref (tenant, run, turn, ref, action_id, arguments_sha256)
  SELECT f.tenant, f.run, f.turn, f.ref, p_new_id, f.arguments_sha256 FROM counterfoil.step_ref AS f
  WHERE f.tenant = a.tenant AND f.run = a.run AND f.action_id = a.action_id ON CONFLICT DO NOTHING;
  RETURN QUERY SELECT 'edited', p.proposal_id;
END $$;

-- Several processes may serve one conversation: one of them at a time has its run, for as long as it says at most.
ALTER TABLE counterfoil.run
  ADD COLUMN held_by text CHECK (length(held_by) <= 64),
  ADD COLUMN held_until timestamptz;

-- True: the run is `p_holder`'s until then; false: it is another's. Safety is the epoch's, not this lease's.
CREATE FUNCTION counterfoil.hold_run(
  p_tenant text, p_run text, p_actor text, p_holder text, p_hold_s double precision) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM counterfoil.check_principal(p_tenant);
  INSERT INTO counterfoil.run (tenant, run, actor) VALUES (p_tenant, p_run, p_actor) ON CONFLICT DO NOTHING;
  UPDATE counterfoil.run AS r
  SET held_by = p_holder, held_until = counterfoil.now() + least(greatest(p_hold_s, 1), 3600) * interval '1 second'
  WHERE r.tenant = p_tenant AND r.run = p_run
    AND (r.held_until IS NULL OR r.held_until <= counterfoil.now() OR r.held_by = p_holder);
  RETURN FOUND;
END $$;

CREATE FUNCTION counterfoil.release_run(p_tenant text, p_run text, p_holder text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM counterfoil.check_principal(p_tenant);
  UPDATE counterfoil.run AS r SET held_by = NULL, held_until = NULL
  WHERE r.tenant = p_tenant AND r.run = p_run AND r.held_by = p_holder;
END $$;

-- Why the caller asks for it, for the person who decides: only in the transaction that has opened the proposal, since a
-- digest over it may have been shown to somebody after that.
CREATE FUNCTION counterfoil.note_proposal(p_action_id text, p_note text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM counterfoil.check_principal(
    (SELECT a.tenant FROM counterfoil.action AS a WHERE a.action_id = p_action_id));
  UPDATE counterfoil.proposal AS p SET note = p_note
  FROM counterfoil.action AS a
  WHERE a.action_id = p_action_id AND p.proposal_id = a.proposal_id AND NOT p.is_plan AND p.state = 'open'
    AND p.xmin = pg_current_xact_id()::xid;
END $$;

-- A caller was told ends that are not on record: the ledger was restored to an earlier time, or somebody made them up. One
-- open alarm for a tenant, however many of its runs find out.
CREATE FUNCTION counterfoil.report_lost_time(p_tenant text, p_run text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM counterfoil.check_principal(p_tenant);
  INSERT INTO counterfoil.alarm (kind, subject, tenant, run) VALUES ('ledger_lost_time', p_tenant, p_tenant, p_run)
  ON CONFLICT (kind, subject) WHERE ended_at IS NULL DO NOTHING;
END $$;

-- As in 0006, and an alarm about lost time does not end by itself either.
CREATE OR REPLACE FUNCTION counterfoil.settle_alarm(p_alarm text, p_by text, p_reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE counterfoil.alarm AS x
  SET ended_at = counterfoil.now(), ended_by = p_by, end_reason = p_reason
  WHERE 'A-' || x.alarm_id = p_alarm AND x.kind IN ('duplicate', 'ledger_lost_time') AND x.ended_at IS NULL
    AND counterfoil.serves(x.tenant);
  RETURN FOUND;
END $$;

REVOKE ALL ON FUNCTION counterfoil.count_end, counterfoil.add_ref, counterfoil.lock_and_read, counterfoil.note_proposal,
  counterfoil.report_lost_time, counterfoil.hold_run, counterfoil.release_run FROM PUBLIC;
GRANT EXECUTE ON FUNCTION counterfoil.add_ref, counterfoil.lock_and_read, counterfoil.note_proposal,
  counterfoil.report_lost_time, counterfoil.hold_run, counterfoil.release_run TO counterfoil_agent;
