-- Whose credentials an action goes by. Whoever records it gives the account that the tenant has at the provider by then.

-- What is about another action at the same provider goes by the credentials that this one went by: a hold is captured, and
-- a ticket closed, where it was made, also after the tenant has moved to another account. Named so that it comes before
-- action_guard, which judges the row as it will stand.
CREATE FUNCTION counterfoil.action_account() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  NEW.account := coalesce(
    (SELECT p.account FROM counterfoil.action AS p
     WHERE p.action_id = NEW.parent_action_id AND p.provider = NEW.provider), NEW.account);
  RETURN NEW;
END $$;
CREATE TRIGGER action_account BEFORE INSERT ON counterfoil.action
  FOR EACH ROW WHEN (NEW.parent_action_id IS NOT NULL) EXECUTE FUNCTION counterfoil.action_account();

-- As in 0004; the counter-action may be another provider's than what it takes back.
DROP FUNCTION counterfoil.propose_undo;
CREATE FUNCTION counterfoil.propose_undo(
  p_action_id text, p_parent text, p_by text, p_tool_version integer, p_class text, p_effect text, p_target text,
  p_provider text, p_account text, p_queue text, p_arguments text, p_arguments_sha256 text, p_audience text[],
  p_amount_minor bigint, p_currency text)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  parent counterfoil.action;
  before counterfoil.action;
  revision_now integer;
  n integer;
BEGIN
  SELECT * INTO parent FROM counterfoil.action AS a WHERE a.action_id = p_parent FOR UPDATE;
  IF NOT FOUND OR parent.state <> 'succeeded' OR parent.phase <> 'do' OR parent.compensation IS NULL
     OR NOT EXISTS (SELECT FROM counterfoil.run AS r WHERE r.tenant = parent.tenant AND r.run = parent.run
                      AND r.state IN ('unwinding', 'unwind_blocked'))
     OR EXISTS (SELECT FROM counterfoil.action AS c
                WHERE c.parent_action_id = p_parent AND c.phase = 'do'
                  AND (c.state IN ('proposed', 'awaiting_approval', 'ready', 'executing', 'retryable_failure',
                                   'uncertain', 'reconciling', 'operator_review')
                       OR counterfoil.is_carried_on(parent, c))) THEN
    RETURN false;
  END IF;
  SELECT * INTO before FROM counterfoil.action AS u
  WHERE u.parent_action_id = p_parent AND u.phase = 'undo' AND u.superseded_by IS NULL FOR UPDATE;
  revision_now := parent.revision;
  IF FOUND THEN
    IF before.state <> 'not_executed' OR NOT counterfoil.decided_by_person(before.action_id) THEN
      RETURN false;
    END IF;
    revision_now := before.revision + 1;
  END IF;
  IF p_action_id <> counterfoil.action_id_of(parent.tenant, parent.run, parent.step, revision_now, 'undo') THEN
    RETURN false;
  END IF;
  UPDATE counterfoil.action SET superseded_by = p_action_id, changed_by = p_by, change_reason = 'superseded',
    change_evidence = NULL WHERE action_id = before.action_id;
  INSERT INTO counterfoil.action (
    action_id, tenant, run, step, revision, phase, parent_action_id, actor, tool, tool_version, class, effect, target,
    provider, account, queue, arguments, arguments_sha256, audience, amount_minor, currency, state, ready_at,
    changed_by, change_reason)
  VALUES (p_action_id, parent.tenant, parent.run, parent.step, revision_now, 'undo', parent.action_id, parent.actor,
    parent.compensation::jsonb ->> 'tool', p_tool_version, p_class, p_effect, p_target, p_provider, p_account,
    p_queue, p_arguments, p_arguments_sha256, p_audience, p_amount_minor, p_currency, 'ready', counterfoil.now(),
    p_by, 'unwind')
  ON CONFLICT DO NOTHING;
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n = 1;
END $$;

-- As in 0004; the message goes by the credentials that the tenant has where it is sent.
DROP FUNCTION counterfoil.send_correction;
CREATE FUNCTION counterfoil.send_correction(
  p_correction text, p_digest text, p_by text, p_channel text, p_reason text, p_action_id text, p_tool text,
  p_tool_version integer, p_class text, p_effect text, p_effect_scope text, p_target text, p_provider text, p_account text,
  p_queue text, p_arguments text, p_arguments_sha256 text, p_audience text[], p_amount_minor bigint, p_currency text)
RETURNS TABLE (answer text, decided_by text, sent_as text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  c counterfoil.correction := counterfoil.my_correction(p_correction);
  about counterfoil.action;
  before counterfoil.action;
  message counterfoil.action;
  digest_now text;
  until timestamptz := counterfoil.now() + interval '1 day';
  given text;
BEGIN
  IF c.state = 'open' THEN              -- of one that was sent, a worker may hold the message and want the correction
    SELECT * INTO about FROM counterfoil.action AS a WHERE a.action_id = c.action_id FOR UPDATE;
    SELECT * INTO before FROM counterfoil.action AS a
    WHERE a.tenant = about.tenant AND a.run = about.run AND a.step = about.step AND a.phase = 'correct'
      AND a.superseded_by IS NULL FOR UPDATE;
    SELECT * INTO c FROM counterfoil.correction AS x WHERE x.correction_id = p_correction FOR UPDATE;
  END IF;
  IF c.state <> 'open' THEN
    RETURN QUERY SELECT 'decided', c.decided_by, c.sent_as;
    RETURN;
  END IF;
  IF c.call IS NULL THEN
    RETURN QUERY SELECT 'unwritten', NULL::text, NULL::text;
    RETURN;
  END IF;
  digest_now := encode(sha256(convert_to(c.call, 'UTF8')), 'hex');
  IF coalesce(length(p_digest), 0) < 16 OR left(digest_now, length(p_digest)) <> lower(p_digest)
     OR c.call IS DISTINCT FROM '{"arguments":' || p_arguments || ',"tool":"' || p_tool || '"}' THEN
    RETURN QUERY SELECT 'changed', NULL::text, NULL::text;
    RETURN;
  END IF;
  IF counterfoil.person_key(p_by) = counterfoil.person_key(about.actor) THEN
    RETURN QUERY SELECT 'own', NULL::text, NULL::text;
    RETURN;
  END IF;
  IF before.action_id IS NOT NULL
     AND before.state NOT IN ('permanent_failure', 'not_executed', 'cancelled', 'stale') THEN
    RETURN QUERY SELECT 'taken', before.changed_by, before.action_id;
    RETURN;
  END IF;
  IF p_action_id IS DISTINCT FROM counterfoil.action_id_of(
       about.tenant, about.run, about.step, coalesce(before.revision + 1, about.revision), 'correct') THEN
    RETURN QUERY SELECT 'changed', NULL::text, NULL::text;    -- a message came between the page and the click
    RETURN;
  END IF;
  INSERT INTO counterfoil.decision (subject_id, tenant, verdict, digest, by_person, channel, reason)
  VALUES (p_correction, c.tenant, 'sent', digest_now, p_by, p_channel, p_reason);
  UPDATE counterfoil.action AS a
  SET superseded_by = p_action_id, changed_by = p_by, change_reason = 'superseded', change_evidence = p_correction
  WHERE a.action_id = before.action_id;
  INSERT INTO counterfoil.action AS a (
    action_id, tenant, run, step, revision, phase, parent_action_id, actor, tool, tool_version, class, effect,
    effect_scope, target, provider, account, queue, arguments, arguments_sha256, audience, amount_minor, currency, needs_approval,
    state, ready_at, changed_by, change_reason, change_evidence)
  VALUES (p_action_id, about.tenant, about.run, about.step, coalesce(before.revision + 1, about.revision), 'correct',
    about.action_id, about.actor, p_tool, p_tool_version, p_class, p_effect, p_effect_scope, p_target, p_provider, p_account,
    p_queue, p_arguments, p_arguments_sha256, p_audience, p_amount_minor, p_currency, true, 'awaiting_approval',
    counterfoil.now(), p_by, 'correction', p_correction)
  RETURNING a.* INTO message;
  INSERT INTO counterfoil.approval (subject_id, action_id, tenant, digest, people, expires_at)
  VALUES (p_correction, message.action_id, message.tenant, counterfoil.intent_digest(message, until), 1, until)
  RETURNING approval_id INTO given;
  UPDATE counterfoil.action AS a
  SET state = 'ready', approval_id = given, changed_by = p_by, change_reason = coalesce(p_reason, 'sent'),
      change_evidence = p_channel
  WHERE a.action_id = message.action_id;
  UPDATE counterfoil.correction AS x
  SET state = 'sent', sent_as = message.action_id, decided_by = p_by, decided_at = counterfoil.now()
  WHERE x.correction_id = p_correction;
  RETURN QUERY SELECT 'sent', p_by, message.action_id;
END $$;

REVOKE ALL ON FUNCTION counterfoil.action_account, counterfoil.propose_undo, counterfoil.send_correction FROM PUBLIC;
GRANT EXECUTE ON FUNCTION counterfoil.propose_undo TO counterfoil_worker;
GRANT EXECUTE ON FUNCTION counterfoil.send_correction TO counterfoil_operator;
