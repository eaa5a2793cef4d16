-- The cap on what a tenant has waiting, where intents get in.

-- Whether the tenant has this many wake-ups waiting. Reads that many entries of one index at most, and one for each queue: a
-- loose scan over queues, as in the relay's. Dead wake-ups take no place, since they do not wait for their turn.
CREATE FUNCTION counterfoil.has_waiting(p_tenant text, p_wakeups integer) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN (WITH RECURSIVE part (queue, is_retry) AS (
    (SELECT o.queue, o.is_retry FROM counterfoil.outbox AS o ORDER BY o.queue, o.is_retry LIMIT 1)
    UNION ALL
    SELECT n.queue, n.is_retry FROM part AS p CROSS JOIN LATERAL (
      SELECT o.queue, o.is_retry FROM counterfoil.outbox AS o
      WHERE (o.queue, o.is_retry) > (p.queue, p.is_retry)
      ORDER BY o.queue, o.is_retry LIMIT 1
    ) AS n
  )
  SELECT count(*) >= p_wakeups FROM (
    SELECT FROM part AS p CROSS JOIN LATERAL (
      SELECT FROM counterfoil.outbox AS o
      WHERE o.queue = p.queue AND o.is_retry = p.is_retry AND o.tenant = p_tenant
      LIMIT p_wakeups
    ) AS w
    LIMIT p_wakeups
  ) AS waiting);
END $$;

-- As in 0004, and: with `p_waiting_max`, nothing new is recorded while the tenant has that many wake-ups waiting (`found_by`
-- is waiting then); what is recorded already is found as ever. Callers pass it now and then: counting has its price.
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
  p_expiry_s double precision DEFAULT 86400, p_proposal text DEFAULT NULL, p_place integer DEFAULT NULL,
  p_waiting_max integer DEFAULT NULL)
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
  IF p_waiting_max IS NOT NULL AND counterfoil.has_waiting(p_tenant, p_waiting_max)
     AND counterfoil.once_taken_by(p_tenant, p_once_key) IS NULL
     AND NOT EXISTS (SELECT FROM counterfoil.action AS l
                     WHERE l.tenant = p_tenant AND l.run = p_run AND l.step = p_step AND l.phase = 'do'
                       AND l.superseded_by IS NULL AND l.action_id IS DISTINCT FROM p_supersedes) THEN
    RETURN QUERY SELECT false, 'waiting', NULL::text, NULL::text, NULL::text, NULL::text;
    RETURN;
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

-- As in 0004, and: while the tenant has `p_waiting_max` wake-ups waiting, the row waits, too, and `error_code` is
-- limit_reached. Nothing is written then.
CREATE FUNCTION counterfoil.propose_intake(
  p_intake_id bigint,
  p_action_id text, p_tenant text, p_run text, p_step text, p_seq integer, p_revision integer, p_actor text,
  p_tool text, p_tool_version integer, p_class text, p_effect text, p_target text, p_provider text, p_account text,
  p_queue text, p_arguments text, p_arguments_sha256 text, p_audience text[], p_compensation text,
  p_once_key text DEFAULT NULL, p_repeat_reason text DEFAULT NULL, p_amount_minor bigint DEFAULT NULL,
  p_currency text DEFAULT NULL, p_needs_approval boolean DEFAULT false, p_not_before timestamptz DEFAULT NULL,
  p_supersedes text DEFAULT NULL, p_ref text DEFAULT NULL, p_correction text DEFAULT NULL,
  p_effect_scope text DEFAULT 'run', p_reads_version boolean DEFAULT false, p_expected_version text DEFAULT NULL,
  p_bulk_above integer DEFAULT NULL, p_people integer DEFAULT 1, p_expiry_s double precision DEFAULT 86400,
  p_waiting_max integer DEFAULT NULL)
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
                WHEN p.found_by = 'effect' THEN 'effect_taken'
                WHEN p.found_by = 'waiting' THEN 'limit_reached' END
    INTO found_action, refused
    FROM counterfoil.propose(
      p_action_id, p_tenant, p_run, p_step, p_seq, p_revision, p_actor, p_tool, p_tool_version, p_class, p_effect,
      p_target, p_provider, p_account, p_queue, p_arguments, p_arguments_sha256, p_audience, p_compensation, p_once_key,
      p_repeat_reason, p_amount_minor, p_currency, p_needs_approval, p_not_before, p_supersedes, p_ref,
      p_correction => p_correction, p_effect_scope => p_effect_scope, p_reads_version => p_reads_version,
      p_expected_version => p_expected_version, p_bulk_above => p_bulk_above, p_people => p_people,
      p_expiry_s => p_expiry_s, p_waiting_max => p_waiting_max) AS p;
  EXCEPTION WHEN SQLSTATE 'CF403' THEN
    refused := 'not_allowed';
  END;
  IF refused = 'limit_reached' THEN
    RETURN QUERY SELECT NULL::text, refused;
    RETURN;
  END IF;
  UPDATE counterfoil.intake AS i SET taken_at = counterfoil.now(), action_id = found_action, error_code = refused
  WHERE i.intake_id = p_intake_id;
  RETURN QUERY SELECT found_action, refused;
END $$;

REVOKE ALL ON FUNCTION counterfoil.has_waiting, counterfoil.propose, counterfoil.propose_intake FROM PUBLIC;
GRANT EXECUTE ON FUNCTION counterfoil.propose TO counterfoil_agent;
GRANT EXECUTE ON FUNCTION counterfoil.propose_intake TO counterfoil_worker;
