-- How intents get in: the doors of 0001 and 0002, and what plans, stagings, versions and effect scopes add to them.

-- Takes the effect on this target for whoever is proposing, until the transaction ends, and returns an action of another
-- tool that has it under way; NULL: nobody. Scope `run`, or `tenant`: all of its runs. Lock and read are two statements.
CREATE FUNCTION counterfoil.effect_taken_by(
  p_tenant text, p_run text, p_scope text, p_effect text, p_target text, p_tool text, p_except text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  scope text := CASE p_scope WHEN 'tenant' THEN NULL ELSE p_run END;
BEGIN
  INSERT INTO counterfoil.effect_lock AS l (lock_key, touched_at)
  VALUES (sha256(convert_to(concat_ws(',', counterfoil.netstring(p_tenant), counterfoil.netstring(scope),
                                      counterfoil.netstring(p_effect), counterfoil.netstring(p_target)), 'UTF8')),
          counterfoil.now())
  ON CONFLICT (lock_key) DO UPDATE SET touched_at = EXCLUDED.touched_at;
  RETURN (
    SELECT a.action_id FROM counterfoil.action AS a
    WHERE a.tenant = p_tenant AND a.effect = p_effect AND a.target = p_target AND a.phase = 'do'
      AND a.state IN ('proposed', 'awaiting_approval', 'ready', 'executing', 'retryable_failure', 'uncertain',
                      'reconciling', 'operator_review')
      AND a.tool <> p_tool AND (scope IS NULL OR a.run = scope) AND a.action_id IS DISTINCT FROM p_except
    ORDER BY a.created_at LIMIT 1);
END $$;

-- Locks of effects that nobody has proposed for as long as that.
CREATE FUNCTION counterfoil.prune_effect_locks(p_older_s double precision) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n integer;
BEGIN
  DELETE FROM counterfoil.effect_lock
  WHERE touched_at < counterfoil.now() - greatest(p_older_s, 3600) * interval '1 second';
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n;
END $$;

-- The pivot that is ahead of this run, its own or that of a run above it; a run is younger than its parent.
CREATE FUNCTION counterfoil.pivot_of(p_tenant text, p_run text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  WITH RECURSIVE up AS (
    SELECT r.pivot, r.parent_run FROM counterfoil.run AS r WHERE r.tenant = p_tenant AND r.run = p_run
    UNION ALL
    SELECT p.pivot, p.parent_run FROM up CROSS JOIN LATERAL (   -- by key, level by level, however many runs there are
      SELECT r.pivot, r.parent_run FROM counterfoil.run AS r WHERE r.tenant = p_tenant AND r.run = up.parent_run LIMIT 1
    ) AS p
  )
  SELECT CASE WHEN bool_or(up.pivot = 'ahead') THEN 'ahead' WHEN bool_or(up.pivot = 'passed') THEN 'passed' END FROM up
$$;

-- As in 0002, and: the pivot, and what a step has to do with proposals, plans and stagings.
DROP FUNCTION counterfoil.lock_and_read(text, text, integer);
CREATE FUNCTION counterfoil.lock_and_read(p_tenant text, p_run text, p_epoch integer)
RETURNS TABLE (state text, calls_count integer, deadline_at timestamptz, pivot text, actions jsonb, refs jsonb)
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
    (SELECT coalesce(jsonb_agg(jsonb_build_object('ref', f.ref, 'action_id', f.action_id) ORDER BY f.created_at), '[]')
     FROM counterfoil.step_ref AS f WHERE f.tenant = p_tenant AND f.run = p_run);
END $$;

-- Opens the plan of a run, in the transaction that then records its steps; `answer`: opened, exists (a call that was
-- repeated) or limit_reached. The run's open plan is withdrawn: an agent may replace what nobody has decided yet. What is
-- staged may lapse: the decision, and every step's first attempt, must come before `p_lapses_at`. `p_step` in `p_revision`
-- will be its first step, from which the id follows.
CREATE FUNCTION counterfoil.open_plan(
  p_proposal text, p_tenant text, p_run text, p_actor text, p_note text, p_people integer, p_expiry_s double precision,
  p_lapses_at timestamptz, p_open_max integer, p_step text, p_revision integer DEFAULT 1)
RETURNS TABLE (answer text, expires_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  until timestamptz := counterfoil.now() + least(greatest(p_expiry_s, 1), 2592000) * interval '1 second';
  run_deadline timestamptz;
  run_state text;
BEGIN
  PERFORM counterfoil.check_principal(p_tenant);
  SELECT r.state, r.deadline_at INTO run_state, run_deadline
  FROM counterfoil.run AS r WHERE r.tenant = p_tenant AND r.run = p_run FOR NO KEY UPDATE;
  IF run_state IS DISTINCT FROM 'open' THEN
    RAISE EXCEPTION 'run is %: no new plan', coalesce(run_state, 'unknown') USING ERRCODE = 'CF403';
  END IF;
  -- An id that somebody made up could stand in the way of another tenant's proposal.
  IF p_proposal IS DISTINCT FROM 'P-' || upper(substr(
       counterfoil.action_id_of(p_tenant, p_run, p_step, p_revision, 'do'), 5, 12)) THEN
    RAISE EXCEPTION 'not the id of a plan that begins with this step' USING ERRCODE = 'CF403';
  END IF;
  IF EXISTS (SELECT FROM counterfoil.proposal AS p WHERE p.proposal_id = p_proposal) THEN
    RETURN QUERY SELECT 'exists', p.expires_at FROM counterfoil.proposal AS p WHERE p.proposal_id = p_proposal;
    RETURN;
  END IF;
  UPDATE counterfoil.action AS a
  SET state = 'cancelled', last_error_code = 'superseded', changed_by = p_actor, change_reason = 'another plan',
      change_evidence = p_proposal
  FROM counterfoil.proposal AS p
  WHERE p.tenant = p_tenant AND p.run = p_run AND p.is_plan AND p.state = 'open' AND a.proposal_id = p.proposal_id
    AND a.superseded_by IS NULL AND a.state IN ('proposed', 'awaiting_approval');
  UPDATE counterfoil.proposal AS p SET state = 'withdrawn', decided_at = counterfoil.now(), decided_by = p_actor
  WHERE p.tenant = p_tenant AND p.run = p_run AND p.is_plan AND p.state = 'open';
  IF (SELECT count(*) FROM counterfoil.proposal AS p
      WHERE p.tenant = p_tenant AND p.run = p_run AND p.state = 'open') >= p_open_max THEN
    RETURN QUERY SELECT 'limit_reached', NULL::timestamptz;
    RETURN;
  END IF;
  INSERT INTO counterfoil.proposal (proposal_id, tenant, run, actor, is_plan, note, people, expires_at)
  VALUES (p_proposal, p_tenant, p_run, p_actor, true, p_note, p_people,
          greatest(least(until, run_deadline, p_lapses_at), counterfoil.now()));
  UPDATE counterfoil.run AS r SET pivot = 'ahead' WHERE r.tenant = p_tenant AND r.run = p_run;
  RETURN QUERY SELECT 'opened', p.expires_at FROM counterfoil.proposal AS p WHERE p.proposal_id = p_proposal;
END $$;

-- Records one intent, with its wake-up (by trigger) in the same statement. Never changes a recorded one: when the step, the
-- once-key or (another tool) the effect on the target is taken, that action is returned, `created` false and `found_by`
-- telling which: step, once or effect. `p_supersedes` is put aside only if it did nothing and is a revision of the same
-- step. What needs an approval belongs to a proposal: the plan that is given, or one of its own. SQLSTATE 40001: run the
-- transaction again.
DROP FUNCTION counterfoil.propose_intake;
DROP FUNCTION counterfoil.propose;
CREATE FUNCTION counterfoil.propose(
  p_action_id text, p_tenant text, p_run text, p_step text, p_seq integer, p_revision integer, p_actor text,
  p_tool text, p_tool_version integer, p_class text, p_effect text, p_target text, p_provider text, p_account text,
  p_queue text, p_arguments text, p_arguments_sha256 text, p_audience text[], p_compensation text,
  p_once_key text DEFAULT NULL, p_repeat_reason text DEFAULT NULL, p_amount_minor bigint DEFAULT NULL,
  p_currency text DEFAULT NULL, p_needs_approval boolean DEFAULT false, p_not_before timestamptz DEFAULT NULL,
  p_supersedes text DEFAULT NULL, p_ref text DEFAULT NULL, p_parent text DEFAULT NULL, p_staged boolean DEFAULT false,
  p_correction text DEFAULT NULL, p_effect_scope text DEFAULT 'run', p_reads_version boolean DEFAULT false,
  p_expected_version text DEFAULT NULL, p_bulk_above integer DEFAULT NULL, p_people integer DEFAULT 1,
  p_expiry_s double precision DEFAULT 86400, p_proposal text DEFAULT NULL, p_place integer DEFAULT NULL)
RETURNS TABLE (created boolean, found_by text, action_id text, tool text, arguments_sha256 text, state text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  owner counterfoil.run;
  gated boolean := p_needs_approval;
  proposal text := p_proposal;
  once_taken_by text;
  effect_taken_by text;
  superseded counterfoil.action;
  inserted counterfoil.action;
BEGIN
  PERFORM counterfoil.check_principal(p_tenant);
  -- An id that somebody made up could stand in the way of another tenant's action.
  IF p_action_id IS DISTINCT FROM counterfoil.action_id_of(p_tenant, p_run, p_step, p_revision, 'do') THEN
    RAISE EXCEPTION 'not the id of this run, step and revision' USING ERRCODE = 'CF403';
  END IF;
  -- People have to read it.
  IF NOT coalesce(p_arguments IS JSON OBJECT, false) OR p_compensation IS NOT JSON OBJECT OR p_correction IS NOT JSON OBJECT
     OR array_position(p_audience, NULL) IS NOT NULL THEN
    RAISE EXCEPTION 'that is no call' USING ERRCODE = 'CF403';
  END IF;
  INSERT INTO counterfoil.run (tenant, run, actor) VALUES (p_tenant, p_run, p_actor) ON CONFLICT DO NOTHING;
  -- The lock lasts until the caller commits: until then the run's unwind does not end (see finish_unwind).
  SELECT * INTO owner FROM counterfoil.run AS r WHERE r.tenant = p_tenant AND r.run = p_run FOR KEY SHARE;
  IF NOT FOUND THEN                     -- a REPEATABLE READ caller whose snapshot is older than the run
    RAISE EXCEPTION 'the run was opened after this snapshot' USING ERRCODE = '40001';
  END IF;
  IF owner.state <> 'open' THEN
    RAISE EXCEPTION 'run is %: no new action', owner.state USING ERRCODE = 'CF403';
  END IF;
  PERFORM counterfoil.check_place(p_tenant, p_run, p_class, p_parent, p_staged, p_proposal, p_place);

  once_taken_by := counterfoil.once_taken_by(p_tenant, p_once_key);
  IF once_taken_by IS NOT NULL AND once_taken_by = p_supersedes THEN
    once_taken_by := NULL;
  END IF;
  IF once_taken_by IS NULL AND NOT EXISTS (    -- a step that is recorded already is found below, whoever has its effect
       SELECT FROM counterfoil.action AS l
       WHERE l.tenant = p_tenant AND l.run = p_run AND l.step = p_step AND l.phase = 'do' AND l.superseded_by IS NULL
         AND l.action_id IS DISTINCT FROM p_supersedes) THEN
    effect_taken_by := counterfoil.effect_taken_by(
      p_tenant, p_run, p_effect_scope, p_effect, p_target, p_tool, p_supersedes);
    IF effect_taken_by IS NOT NULL THEN
      RETURN QUERY SELECT false, 'effect', a.action_id, a.tool, a.arguments_sha256, a.state
      FROM counterfoil.action AS a WHERE a.action_id = effect_taken_by;
      RETURN;
    END IF;
  END IF;
  IF p_supersedes IS NOT NULL AND once_taken_by IS NULL THEN
    UPDATE counterfoil.action AS a
    SET superseded_by = p_action_id, changed_by = p_actor, change_reason = 'superseded', change_evidence = NULL,
        state = CASE WHEN a.state IN ('proposed', 'awaiting_approval') THEN 'cancelled' ELSE a.state END,
        last_error_code = CASE WHEN a.state IN ('proposed', 'awaiting_approval') THEN 'superseded'
                               ELSE a.last_error_code END
    WHERE a.action_id = p_supersedes AND a.action_id <> p_action_id AND a.superseded_by IS NULL
      AND a.tenant = p_tenant AND a.run = p_run AND a.step = p_step AND a.phase = 'do'
      AND (a.state IN ('not_executed', 'permanent_failure', 'cancelled', 'stale')
           OR a.state IN ('proposed', 'awaiting_approval') AND a.place IS NULL)  -- a plan is never thinned out
    RETURNING a.* INTO superseded;
    UPDATE counterfoil.proposal AS p SET state = 'withdrawn', decided_at = counterfoil.now(), decided_by = p_actor
    WHERE p.proposal_id = superseded.proposal_id AND NOT p.is_plan AND p.state = 'open';
  END IF;

  -- Beyond a few of one kind in a run, what cannot be taken back is a bulk, and a person's to decide: to several targets, or
  -- seen outside the company.
  gated := gated OR p_proposal IS NOT NULL OR (
    p_class = 'irreversible' AND p_bulk_above IS NOT NULL AND p_bulk_above <= (
      SELECT count(*) FROM counterfoil.action AS a
      WHERE a.tenant = p_tenant AND a.run = p_run AND a.effect = p_effect AND a.class = 'irreversible'
        AND a.phase = 'do' AND a.once_held
        AND (a.target <> p_target OR p_audience && ARRAY['customer', 'public', 'legal'])));
  IF gated AND proposal IS NULL THEN
    proposal := 'P-' || upper(substr(p_action_id, 5, 12));
  END IF;
  INSERT INTO counterfoil.action AS a (
    action_id, tenant, run, step, seq, revision, phase, parent_action_id, actor, tool, tool_version, class, effect,
    effect_scope, target, provider, account, queue, arguments, arguments_sha256, audience, compensation, correction,
    once_key, repeat_reason, amount_minor, currency, needs_approval, proposal_id, place, staged, reads_version,
    expected_resource_version, deadline_at, state, ready_at, next_lookup_at, changed_by, change_reason)
  SELECT p_action_id, p_tenant, p_run, p_step, p_seq, p_revision, 'do', p_parent, p_actor, p_tool, p_tool_version,
    p_class, p_effect, p_effect_scope, p_target, p_provider, p_account, p_queue, p_arguments, p_arguments_sha256,
    p_audience, p_compensation, p_correction, p_once_key, p_repeat_reason, p_amount_minor, p_currency, gated, proposal,
    p_place, p_staged, p_reads_version, p_expected_version, owner.deadline_at,
    CASE WHEN p_place > 1 OR (p_reads_version AND p_expected_version IS NULL) THEN 'proposed'
         WHEN gated THEN 'awaiting_approval' ELSE 'ready' END,
    greatest(counterfoil.now(), least(coalesce(p_not_before, counterfoil.now()), counterfoil.now() + interval '100 years')),
    CASE WHEN p_reads_version AND p_expected_version IS NULL THEN counterfoil.now() END, p_actor, 'proposed'
  WHERE once_taken_by IS NULL
    AND NOT EXISTS (SELECT FROM counterfoil.action AS l       -- a later revision may stand under the step
                    WHERE l.tenant = p_tenant AND l.run = p_run AND l.step = p_step AND l.phase = 'do'
                      AND l.superseded_by IS NULL)
  ON CONFLICT DO NOTHING
  RETURNING a.* INTO inserted;

  IF inserted.action_id IS NOT NULL THEN
    IF p_ref IS NOT NULL THEN
      INSERT INTO counterfoil.step_ref (tenant, run, ref, action_id) VALUES (p_tenant, p_run, p_ref, p_action_id);
    END IF;
    IF gated AND p_proposal IS NULL THEN
      INSERT INTO counterfoil.proposal (proposal_id, tenant, run, actor, is_plan, people, expires_at)
      VALUES (proposal, p_tenant, p_run, p_actor, false, p_people,
              least(counterfoil.now() + least(greatest(p_expiry_s, 1), 2592000) * interval '1 second', owner.deadline_at));
      PERFORM counterfoil.carry_approval(superseded, inserted);
    END IF;
    IF p_staged THEN
      UPDATE counterfoil.run AS r SET pivot = 'ahead'
      WHERE r.tenant = p_tenant AND r.run = p_run AND r.pivot IS DISTINCT FROM 'ahead';
    END IF;
    RETURN QUERY SELECT true, NULL::text, a.action_id, a.tool, a.arguments_sha256, a.state
    FROM counterfoil.action AS a WHERE a.action_id = p_action_id;
    RETURN;
  END IF;
  IF superseded.action_id IS NULL THEN
    RETURN QUERY SELECT false, 'step', a.action_id, a.tool,
      CASE WHEN EXISTS (SELECT FROM counterfoil.action AS e  -- what was asked for, before a reviewer edited it
                        WHERE e.tenant = p_tenant AND e.run = p_run AND e.step = p_step AND e.phase = 'do'
                          AND e.superseded_by IS NOT NULL AND e.last_error_code = 'edited_by_reviewer'
                          AND e.arguments_sha256 = p_arguments_sha256)
           THEN p_arguments_sha256 ELSE a.arguments_sha256 END, a.state
    FROM counterfoil.action AS a
    WHERE a.tenant = p_tenant AND a.run = p_run AND a.step = p_step AND a.phase = 'do' AND a.superseded_by IS NULL
      AND (once_taken_by IS NULL OR a.action_id IS DISTINCT FROM p_supersedes);
    IF FOUND THEN
      RETURN;
    END IF;
    RETURN QUERY SELECT false, 'once', a.action_id, a.tool, a.arguments_sha256, a.state
    FROM counterfoil.action AS a
    WHERE a.action_id = coalesce(once_taken_by, counterfoil.once_taken_by(p_tenant, p_once_key));
    IF FOUND THEN
      RETURN;
    END IF;
  END IF;
  RAISE EXCEPTION 'the step or the once-key was taken, or given free, at this moment' USING ERRCODE = '40001';
END $$;

-- Refuses what the run's plan forbids. Before its pivot a run takes reversible calls only, and the steps of its plan; what
-- is about another action is about one of this run that has succeeded.
CREATE FUNCTION counterfoil.check_place(
  p_tenant text, p_run text, p_class text, p_parent text, p_staged boolean, p_proposal text, p_place integer)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_staged AND p_class <> 'reversible' THEN
    RAISE EXCEPTION 'only a reversible form can be staged' USING ERRCODE = 'CF403';
  END IF;
  PERFORM FROM counterfoil.proposal AS p         -- locked: a decision at this moment would not be about this step
  WHERE p.proposal_id = p_proposal AND p.tenant = p_tenant AND p.run = p_run AND p.is_plan AND p.state = 'open' FOR SHARE;
  IF (p_proposal IS NULL) <> (p_place IS NULL) OR (p_proposal IS NOT NULL AND NOT FOUND) THEN
    RAISE EXCEPTION 'no plan of this run is open under that id' USING ERRCODE = 'CF403';
  END IF;
  IF p_proposal IS NULL AND p_class IN ('compensatable', 'irreversible')
     AND counterfoil.pivot_of(p_tenant, p_run) = 'ahead' THEN
    RAISE EXCEPTION 'the run has staged: until its plan is decided it takes reversible calls only' USING ERRCODE = 'CF403';
  END IF;
  IF p_parent IS NOT NULL AND NOT EXISTS (
       SELECT FROM counterfoil.action AS a
       WHERE a.action_id = p_parent AND a.tenant = p_tenant AND a.run = p_run AND a.phase = 'do'
         AND a.state = 'succeeded') THEN
    RAISE EXCEPTION 'that is about no succeeded action of this run' USING ERRCODE = 'CF403';
  END IF;
END $$;

-- An approval within bounds goes on with the next revision of the step, where the provider refused the one before and the
-- two differ in the amount alone. Whoever gave it said up to which amount; the action is ready then. It does not outlive a
-- cancel, nor a person's word that the action has ended.
CREATE FUNCTION counterfoil.carry_approval(p_old counterfoil.action, p_new counterfoil.action) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  given counterfoil.approval;
  carried text;
BEGIN
  SELECT * INTO given FROM counterfoil.approval AS p WHERE p.approval_id = p_old.approval_id AND p.amount_field IS NOT NULL;
  IF NOT FOUND OR given.expires_at <= counterfoil.now() OR p_new.state <> 'awaiting_approval'
     OR p_old.state <> 'permanent_failure' OR p_old.last_error_code = 'given_up' OR p_old.cancel_requested_at IS NOT NULL
     OR given.people < (SELECT p.people FROM counterfoil.proposal AS p WHERE p.proposal_id = p_new.proposal_id)
     OR ROW(p_new.tool, p_new.tool_version, p_new.class, p_new.effect, p_new.target, p_new.provider, p_new.account,
            p_new.audience, p_new.currency, p_new.actor, p_new.expected_resource_version, p_new.parent_action_id)
        IS DISTINCT FROM
        ROW(p_old.tool, p_old.tool_version, p_old.class, p_old.effect, p_old.target, p_old.provider, p_old.account,
            p_old.audience, p_old.currency, p_old.actor, p_old.expected_resource_version, p_old.parent_action_id)
     OR p_new.arguments::jsonb - given.amount_field <> p_old.arguments::jsonb - given.amount_field
     OR p_new.arguments::jsonb -> given.amount_field IS DISTINCT FROM to_jsonb(p_new.amount_minor)
     OR p_new.amount_minor NOT BETWEEN 0 AND given.amount_max_minor THEN
    RETURN;
  END IF;
  INSERT INTO counterfoil.approval (subject_id, action_id, tenant, digest, people, amount_field, amount_max_minor,
                                    carried_from, expires_at)
  VALUES (p_new.proposal_id, p_new.action_id, p_new.tenant, counterfoil.intent_digest(p_new, given.expires_at),
          given.people, given.amount_field, given.amount_max_minor, given.approval_id, given.expires_at)
  RETURNING approval_id INTO carried;
  UPDATE counterfoil.proposal SET state = 'approved', decided_at = counterfoil.now(), decided_by = given.approval_id
  WHERE proposal_id = p_new.proposal_id;
  UPDATE counterfoil.action
  SET state = 'ready', approval_id = carried, changed_by = p_new.actor, change_reason = 'within approved bounds',
      change_evidence = given.approval_id
  WHERE action_id = p_new.action_id;
END $$;

-- As in 0002. Another tool that has the effect on the target under way refuses the row, too: effect_taken.
CREATE FUNCTION counterfoil.propose_intake(
  p_intake_id bigint,
  p_action_id text, p_tenant text, p_run text, p_step text, p_seq integer, p_revision integer, p_actor text,
  p_tool text, p_tool_version integer, p_class text, p_effect text, p_target text, p_provider text, p_account text,
  p_queue text, p_arguments text, p_arguments_sha256 text, p_audience text[], p_compensation text,
  p_once_key text DEFAULT NULL, p_repeat_reason text DEFAULT NULL, p_amount_minor bigint DEFAULT NULL,
  p_currency text DEFAULT NULL, p_needs_approval boolean DEFAULT false, p_not_before timestamptz DEFAULT NULL,
  p_supersedes text DEFAULT NULL, p_ref text DEFAULT NULL, p_correction text DEFAULT NULL,
  p_effect_scope text DEFAULT 'run', p_reads_version boolean DEFAULT false, p_expected_version text DEFAULT NULL,
  p_bulk_above integer DEFAULT NULL, p_people integer DEFAULT 1, p_expiry_s double precision DEFAULT 86400)
RETURNS TABLE (action_id text, error_code text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  asked counterfoil.intake;
  found_action text;
  refused text;
BEGIN
  PERFORM counterfoil.check_principal(p_tenant);
  SELECT * INTO asked FROM counterfoil.intake AS i
  WHERE i.intake_id = p_intake_id AND i.taken_at IS NULL FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  IF (asked.tenant, asked.run, asked.step, asked.tool, asked.actor) <> (p_tenant, p_run, p_step, p_tool, p_actor)
     OR p_revision <> 1 OR p_supersedes IS NOT NULL OR p_repeat_reason IS NOT NULL THEN
    RAISE EXCEPTION 'this is not what intake row % asks for', p_intake_id USING ERRCODE = 'CF403';
  END IF;
  BEGIN
    SELECT p.action_id,
           CASE WHEN p.found_by = 'step' AND p.tool <> p_tool THEN 'step_conflict'
                WHEN p.found_by = 'step' AND p.arguments_sha256 <> p_arguments_sha256 THEN 'intent_conflict'
                WHEN p.found_by = 'effect' THEN 'effect_taken' END
    INTO found_action, refused
    FROM counterfoil.propose(
      p_action_id, p_tenant, p_run, p_step, p_seq, p_revision, p_actor, p_tool, p_tool_version, p_class, p_effect,
      p_target, p_provider, p_account, p_queue, p_arguments, p_arguments_sha256, p_audience, p_compensation, p_once_key,
      p_repeat_reason, p_amount_minor, p_currency, p_needs_approval, p_not_before, p_supersedes, p_ref,
      p_correction => p_correction, p_effect_scope => p_effect_scope, p_reads_version => p_reads_version,
      p_expected_version => p_expected_version, p_bulk_above => p_bulk_above, p_people => p_people,
      p_expiry_s => p_expiry_s) AS p;
  EXCEPTION WHEN SQLSTATE 'CF403' THEN
    refused := 'not_allowed';
  END;
  UPDATE counterfoil.intake AS i SET taken_at = counterfoil.now(), action_id = found_action, error_code = refused
  WHERE i.intake_id = p_intake_id;
  RETURN QUERY SELECT found_action, refused;
END $$;
