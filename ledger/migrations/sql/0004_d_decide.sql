-- How people decide on proposals. Every door answers with a code, never with an exception, so that what it did on the way
-- (an expiry, say) is kept. All of them check the operator's tenants, and record who, when, why, by which channel and login.

-- Whether the login serves this tenant.
CREATE FUNCTION counterfoil.serves(p_tenant text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM counterfoil.principal
                 WHERE role_name = session_user AND tenant_id IN (p_tenant, '*'))
$$;

-- Under what two names are one person's: without case, blanks, control signs, and wide or decorated forms of letters.
CREATE FUNCTION counterfoil.person_key(p_name text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
  SELECT lower(regexp_replace(normalize(p_name, NFKC), '[[:space:][:cntrl:]]', '', 'g'))
$$;

-- Approves or rejects, over the digest that the person was shown (for an approval, at least its first 16 digits). Two
-- decisions at one moment: one stands, the other is told who decided. `answer`: approved, one_more (another person must
-- approve too; `missing`), rejected, decided (see `decided_by`), expired, changed, own (the actor itself), same_person,
-- version_unread, unwinding. With bounds, a later revision of a single call may differ in `p_amount_field` up to the maximum.
CREATE FUNCTION counterfoil.decide(
  p_proposal text, p_verdict text, p_digest text, p_by text, p_channel text, p_reason text DEFAULT NULL,
  p_amount_field text DEFAULT NULL, p_amount_max_minor bigint DEFAULT NULL)
RETURNS TABLE (answer text, decided_by text, decided_at timestamptz, missing integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  p counterfoil.proposal;
  digest_now text;
  approved integer;
BEGIN
  -- The run, its actions, the proposal: the order in which agents lock them, too.
  PERFORM FROM counterfoil.run AS r JOIN counterfoil.proposal AS x ON x.tenant = r.tenant AND x.run = r.run
  WHERE x.proposal_id = p_proposal FOR NO KEY UPDATE OF r;
  PERFORM FROM counterfoil.action AS a WHERE a.proposal_id = p_proposal ORDER BY a.place, a.action_id FOR UPDATE;
  SELECT * INTO p FROM counterfoil.proposal AS x WHERE x.proposal_id = p_proposal FOR UPDATE;
  IF NOT FOUND OR NOT counterfoil.serves(p.tenant) THEN
    RAISE EXCEPTION 'no such proposal' USING ERRCODE = 'CF404';
  END IF;
  IF p_verdict NOT IN ('approved', 'rejected') THEN
    RAISE EXCEPTION 'no such verdict' USING ERRCODE = 'CF403';
  END IF;
  IF p.state = 'open' AND p.expires_at <= counterfoil.now() THEN
    PERFORM counterfoil.expire_proposal(p_proposal, 'clock');
    RETURN QUERY SELECT 'expired', NULL::text, p.expires_at, 0;
    RETURN;
  END IF;
  IF p.state <> 'open' THEN
    RETURN QUERY SELECT CASE p.state WHEN 'expired' THEN 'expired' ELSE 'decided' END, p.decided_by, p.decided_at, 0;
    RETURN;
  END IF;
  digest_now := counterfoil.proposal_digest(p_proposal);
  IF (p_verdict = 'approved' OR p_digest IS NOT NULL)
     AND (coalesce(length(p_digest), 0) < 16 OR left(digest_now, length(p_digest)) <> lower(p_digest)) THEN
    RETURN QUERY SELECT 'changed', NULL::text, NULL::timestamptz, 0;
    RETURN;
  END IF;
  IF p_verdict = 'rejected' THEN
    INSERT INTO counterfoil.decision (subject_id, tenant, verdict, digest, by_person, channel, reason)
    VALUES (p_proposal, p.tenant, p_verdict, digest_now, p_by, p_channel, p_reason);
    UPDATE counterfoil.proposal AS x SET state = 'rejected', decided_by = p_by, decided_at = counterfoil.now()
    WHERE x.proposal_id = p_proposal;
    UPDATE counterfoil.action AS a
    SET state = 'cancelled', last_error_code = 'rejected_by_reviewer', changed_by = p_by,
        change_reason = coalesce(p_reason, 'rejected'), change_evidence = p_channel
    WHERE a.proposal_id = p_proposal AND a.superseded_by IS NULL AND a.state IN ('proposed', 'awaiting_approval');
    RETURN QUERY SELECT 'rejected', p_by, counterfoil.now(), 0;
    RETURN;
  END IF;

  IF counterfoil.person_key(p_by) = counterfoil.person_key(p.actor) THEN
    RETURN QUERY SELECT 'own', NULL::text, NULL::timestamptz, 0;
    RETURN;
  END IF;
  IF EXISTS (SELECT FROM counterfoil.run AS r
             WHERE r.tenant = p.tenant AND r.run = p.run AND r.state NOT IN ('open', 'closed')) THEN
    RETURN QUERY SELECT 'unwinding', NULL::text, NULL::timestamptz, 0;
    RETURN;
  END IF;
  IF NOT EXISTS (SELECT FROM counterfoil.action AS a      -- a plan of nothing would pass the pivot
                 WHERE a.proposal_id = p_proposal AND a.superseded_by IS NULL
                   AND a.state IN ('proposed', 'awaiting_approval')) THEN
    RETURN QUERY SELECT 'changed', NULL::text, NULL::timestamptz, 0;
    RETURN;
  END IF;
  IF EXISTS (SELECT FROM counterfoil.action AS a
             WHERE a.proposal_id = p_proposal AND a.superseded_by IS NULL AND a.reads_version
               AND a.expected_resource_version IS NULL) THEN
    RETURN QUERY SELECT 'version_unread', NULL::text, NULL::timestamptz, 0;
    RETURN;
  END IF;
  IF EXISTS (SELECT FROM counterfoil.decision AS d
             WHERE d.subject_id = p_proposal AND d.verdict = 'approved' AND d.digest = digest_now
               AND (counterfoil.person_key(d.by_person) = counterfoil.person_key(p_by) OR d.db_role = session_user)) THEN
    RETURN QUERY SELECT 'same_person', NULL::text, NULL::timestamptz, 1;
    RETURN;
  END IF;
  INSERT INTO counterfoil.decision (subject_id, tenant, verdict, digest, by_person, channel, reason)
  VALUES (p_proposal, p.tenant, p_verdict, digest_now, p_by, p_channel, p_reason);
  SELECT count(*) INTO approved FROM counterfoil.decision AS d
  WHERE d.subject_id = p_proposal AND d.verdict = 'approved' AND d.digest = digest_now;
  IF approved < p.people THEN
    RETURN QUERY SELECT 'one_more', NULL::text, NULL::timestamptz, p.people - approved;
    RETURN;
  END IF;

  INSERT INTO counterfoil.approval (subject_id, action_id, tenant, digest, people, amount_field, amount_max_minor,
                                    expires_at)
  SELECT p_proposal, a.action_id, a.tenant, counterfoil.intent_digest(a, p.expires_at), approved,
         CASE WHEN NOT p.is_plan AND p.people = 1 THEN p_amount_field END,       -- the first of two saw no bounds
         CASE WHEN NOT p.is_plan AND p.people = 1 THEN p_amount_max_minor END,
         p.expires_at
  FROM counterfoil.action AS a
  WHERE a.proposal_id = p_proposal AND a.superseded_by IS NULL AND a.state IN ('proposed', 'awaiting_approval');
  UPDATE counterfoil.proposal AS x SET state = 'approved', decided_by = p_by, decided_at = counterfoil.now()
  WHERE x.proposal_id = p_proposal;
  IF p.is_plan THEN
    UPDATE counterfoil.run AS r SET pivot = 'passed', pivot_passed_at = counterfoil.now()
    WHERE r.tenant = p.tenant AND r.run = p.run;
  END IF;
  UPDATE counterfoil.action AS a SET approval_id = g.approval_id
  FROM counterfoil.approval AS g
  WHERE a.proposal_id = p_proposal AND a.state = 'proposed' AND g.action_id = a.action_id;
  UPDATE counterfoil.action AS a
  SET state = 'ready', approval_id = g.approval_id, ready_at = greatest(a.ready_at, counterfoil.now()),
      changed_by = p_by, change_reason = coalesce(p_reason, 'approved'), change_evidence = p_channel
  FROM counterfoil.approval AS g
  WHERE a.proposal_id = p_proposal AND a.state = 'awaiting_approval' AND g.action_id = a.action_id;
  RETURN QUERY SELECT 'approved', p_by, counterfoil.now(), 0;
END $$;

-- A person's edit of one step: a new revision in its place, to be decided over the new digest; what was said over the old
-- one counts no more. `answer`: edited, decided, expired, changed, or gone (not a live step of an open proposal).
CREATE FUNCTION counterfoil.edit_step(
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
  INSERT INTO counterfoil.step_ref (tenant, run, ref, action_id)
  SELECT f.tenant, f.run, f.ref, p_new_id FROM counterfoil.step_ref AS f
  WHERE f.tenant = a.tenant AND f.run = a.run AND f.action_id = a.action_id ON CONFLICT DO NOTHING;
  RETURN QUERY SELECT 'edited', p.proposal_id;
END $$;

-- Ends an open proposal whose time is over. What it waited for is stale: it would be seen anew.
CREATE FUNCTION counterfoil.expire_proposal(p_proposal text, p_by text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE counterfoil.proposal AS p SET state = 'expired', decided_by = p_by, decided_at = counterfoil.now()
  WHERE p.proposal_id = p_proposal AND p.state = 'open' AND p.expires_at <= counterfoil.now();
  IF FOUND THEN
    UPDATE counterfoil.action AS a
    SET state = 'stale', last_error_code = 'approval_expired', changed_by = p_by, change_reason = 'approval expired',
        change_evidence = p_proposal
    WHERE a.proposal_id = p_proposal AND a.superseded_by IS NULL AND a.state IN ('proposed', 'awaiting_approval');
  END IF;
END $$;

-- What beat does about time: open proposals that nobody has decided, and approved actions that nobody has claimed, in time.
-- About as many actions of each as the batch, however long the plans are: a tick that took too long would never end.
CREATE FUNCTION counterfoil.expire_proposals(p_by text, p_batch integer) RETURNS TABLE (subject_id text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  due text;
  n integer;
  moved integer := 0;
BEGIN
  FOR due IN
    SELECT p.proposal_id FROM counterfoil.proposal AS p
    WHERE p.state = 'open' AND p.expires_at <= counterfoil.now()
    ORDER BY p.expires_at LIMIT p_batch
  LOOP
    PERFORM FROM counterfoil.action AS a WHERE a.proposal_id = due ORDER BY a.place, a.action_id FOR UPDATE;
    GET DIAGNOSTICS n = ROW_COUNT;
    PERFORM counterfoil.expire_proposal(due, p_by);
    subject_id := due;
    RETURN NEXT;
    moved := moved + n;
    EXIT WHEN moved >= p_batch;
  END LOOP;
  RETURN QUERY
  WITH late AS MATERIALIZED (
    SELECT a.action_id FROM counterfoil.action AS a JOIN counterfoil.approval AS g ON g.approval_id = a.approval_id
    WHERE a.approval_id IS NOT NULL AND a.state IN ('proposed', 'ready') AND a.attempt_count = 0 AND NOT a.in_doubt
      AND g.consumed_at IS NULL AND g.expires_at <= counterfoil.now()
    ORDER BY g.expires_at LIMIT p_batch FOR UPDATE OF a SKIP LOCKED
  )
  UPDATE counterfoil.action AS a
  SET state = 'stale', last_error_code = 'approval_expired', changed_by = p_by, change_reason = 'approval expired',
      change_evidence = NULL
  FROM late WHERE a.action_id = late.action_id
  RETURNING a.action_id;
END $$;
