-- Corrections, and what an unwind makes of stagings and plans. What was staged and then committed by a later action of the
-- run (a hold that was captured, a ticket that was opened, a draft that was sent) is carried on by that one: the unwind
-- takes the later action back and leaves the staged one alone.

ALTER TABLE counterfoil.correction
  ADD COLUMN open_since timestamptz NOT NULL DEFAULT counterfoil.now();   -- again, where a message had no effect

-- How far out the audience is, as RANKS in counterfoil/ledger/unwind_steps.py says it; a test compares the two.
CREATE FUNCTION counterfoil.rank_of(p_audience text[]) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE WHEN 'legal' = ANY (p_audience) THEN 3 WHEN 'public' = ANY (p_audience) THEN 2
              WHEN 'customer' = ANY (p_audience) THEN 1 ELSE 0 END
$$;

-- Whether the later action carries the earlier one on, and so is the one to take back: it commits what was reversible.
CREATE FUNCTION counterfoil.is_carried_on(p_parent counterfoil.action, p_child counterfoil.action) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT p_child.phase = 'do' AND p_child.parent_action_id = p_parent.action_id AND p_parent.class = 'reversible'
     AND p_child.class <> 'reversible' AND p_child.state IN ('succeeded', 'compensated')
$$;

-- Whether a succeeded action stays done by itself: a person has given up its counter-action, a person has decided on its
-- correction, or nothing takes it back and nobody has seen it.
CREATE FUNCTION counterfoil.is_kept(a counterfoil.action) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM counterfoil.action AS u
                 WHERE u.parent_action_id = a.action_id AND u.phase = 'undo' AND u.superseded_by IS NULL
                   AND u.state = 'permanent_failure' AND counterfoil.decided_by_person(u.action_id))
      OR EXISTS (SELECT FROM counterfoil.correction AS c
                 WHERE c.action_id = a.action_id AND c.state IN ('sent', 'dismissed'))
      OR (counterfoil.undo_tool_of(a.action_id) IS NULL AND a.superseded_by IS NULL AND a.audience <@ ARRAY['agent'])
$$;

-- As in 0003. A succeeded step may also stay because the later action that carries it on stays.
CREATE OR REPLACE FUNCTION counterfoil.finish_unwind(p_tenant text, p_run text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM counterfoil.run AS r
  WHERE r.tenant = p_tenant AND r.run = p_run AND r.state IN ('unwinding', 'unwind_blocked') FOR UPDATE SKIP LOCKED;
  IF NOT FOUND
     OR EXISTS (SELECT FROM counterfoil.run AS c
                WHERE c.tenant = p_tenant AND c.parent_run = p_run AND c.state <> 'unwound')
     OR EXISTS (
       SELECT FROM counterfoil.action AS a
       WHERE a.tenant = p_tenant AND a.run = p_run
         AND (a.state IN ('proposed', 'awaiting_approval', 'ready', 'executing', 'retryable_failure', 'uncertain',
                          'reconciling', 'operator_review')
              OR (a.state = 'succeeded' AND a.phase = 'do' AND NOT counterfoil.is_kept(a)
                  AND NOT EXISTS (SELECT FROM counterfoil.action AS n
                                  WHERE n.parent_action_id = a.action_id AND n.state = 'succeeded'
                                    AND counterfoil.is_carried_on(a, n) AND counterfoil.is_kept(n))))) THEN
    RETURN false;
  END IF;
  UPDATE counterfoil.run AS r SET state = 'unwound', updated_at = counterfoil.now()
  WHERE r.tenant = p_tenant AND r.run = p_run;
  RETURN true;
END $$;

-- As in 0003, and refused while a later action about this one is unsettled, or once one carries it on: a hold that was
-- captured is never released.
CREATE OR REPLACE FUNCTION counterfoil.propose_undo(
  p_action_id text, p_parent text, p_by text, p_tool_version integer, p_class text, p_effect text, p_target text,
  p_provider text, p_queue text, p_arguments text, p_arguments_sha256 text, p_audience text[],
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
    parent.compensation::jsonb ->> 'tool', p_tool_version, p_class, p_effect, p_target, p_provider, parent.account,
    p_queue, p_arguments, p_arguments_sha256, p_audience, p_amount_minor, p_currency, 'ready', counterfoil.now(),
    p_by, 'unwind')
  ON CONFLICT DO NOTHING;
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n = 1;
END $$;

-- Writes down, once, that a person has to decide what those are told who saw the action; gives the correction's id, NULL
-- where there is nothing to tell. There is: of what has succeeded in a run that is taken back, if nothing takes it back and
-- somebody saw it; and of what was taken back, if it was seen outside the company and its tool declares a correction
-- (`p_declared`, or the one written down at its proposal). What was written down is what would be said; NULL: a person
-- writes it.
CREATE FUNCTION counterfoil.queue_correction(p_action_id text, p_by text, p_declared boolean) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  a counterfoil.action;
BEGIN
  SELECT * INTO a FROM counterfoil.action AS x WHERE x.action_id = p_action_id AND x.phase = 'do' FOR UPDATE;
  IF NOT FOUND
     OR NOT (
       a.state = 'succeeded'
         AND (a.superseded_by IS NOT NULL
              OR counterfoil.undo_tool_of(a.action_id) IS NULL AND NOT a.audience <@ ARRAY['agent'])
         AND EXISTS (SELECT FROM counterfoil.run AS r
                     WHERE r.tenant = a.tenant AND r.run = a.run AND r.state IN ('unwinding', 'unwind_blocked'))
       OR a.state = 'compensated' AND counterfoil.rank_of(a.audience) > 0
         AND (p_declared OR a.correction IS NOT NULL)) THEN
    RETURN NULL;
  END IF;
  INSERT INTO counterfoil.correction (correction_id, action_id, tenant, run, audience, rank, call)
  VALUES ('C-' || upper(substr(a.action_id, 5, 12)), a.action_id, a.tenant, a.run, a.audience,
          counterfoil.rank_of(a.audience), a.correction)
  ON CONFLICT (action_id) DO NOTHING;
  RETURN (SELECT c.correction_id FROM counterfoil.correction AS c WHERE c.action_id = p_action_id);
END $$;

-- A message that ended without an effect leaves its correction open again; one of which that is no longer sure does not,
-- so that nobody sends a second one meanwhile.
CREATE FUNCTION counterfoil.correction_follow() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ended constant text[] := ARRAY['permanent_failure', 'not_executed', 'cancelled', 'stale'];
BEGIN
  IF NEW.state = ANY (ended) THEN
    UPDATE counterfoil.correction AS c
    SET state = 'open', decided_by = NULL, decided_at = NULL, open_since = counterfoil.now()
    WHERE c.sent_as = NEW.action_id AND c.state = 'sent';
  ELSIF OLD.state = ANY (ended) THEN
    UPDATE counterfoil.correction AS c
    SET state = 'sent', decided_by = NEW.changed_by, decided_at = counterfoil.now()
    WHERE c.sent_as = NEW.action_id AND c.state = 'open';
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER correction_follow AFTER UPDATE ON counterfoil.action FOR EACH ROW
WHEN (NEW.phase = 'correct' AND OLD.state IS DISTINCT FROM NEW.state)
EXECUTE FUNCTION counterfoil.correction_follow();

-- What a person may read of the correction, whose tenant the login serves. CF404: there is none.
CREATE FUNCTION counterfoil.my_correction(p_correction text) RETURNS counterfoil.correction
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  c counterfoil.correction;
BEGIN
  SELECT * INTO c FROM counterfoil.correction AS x WHERE x.correction_id = p_correction;
  IF NOT FOUND OR NOT counterfoil.serves(c.tenant) THEN
    RAISE EXCEPTION 'no such correction' USING ERRCODE = 'CF404';
  END IF;
  RETURN c;
END $$;

-- A person writes what would be said. `answer`: edited, or decided. Who sends it repeats the digest of the new text.
CREATE FUNCTION counterfoil.edit_correction(p_correction text, p_call text, p_by text, p_channel text, p_reason text)
RETURNS TABLE (answer text, decided_by text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  c counterfoil.correction := counterfoil.my_correction(p_correction);
BEGIN
  IF NOT (coalesce(p_call IS JSON OBJECT, false) AND octet_length(p_call) <= 66000) THEN
    RAISE EXCEPTION 'that is no call' USING ERRCODE = 'CF403';
  END IF;
  SELECT * INTO c FROM counterfoil.correction AS x WHERE x.correction_id = p_correction FOR UPDATE;
  IF c.state <> 'open' THEN
    RETURN QUERY SELECT 'decided', c.decided_by;
    RETURN;
  END IF;
  INSERT INTO counterfoil.decision (subject_id, tenant, verdict, digest, by_person, channel, reason)
  VALUES (p_correction, c.tenant, 'edited', encode(sha256(convert_to(p_call, 'UTF8')), 'hex'), p_by, p_channel, p_reason);
  UPDATE counterfoil.correction AS x SET call = p_call WHERE x.correction_id = p_correction;
  RETURN QUERY SELECT 'edited', NULL::text;
END $$;

-- A person leaves it unsaid. `answer`: dismissed, or decided.
CREATE FUNCTION counterfoil.dismiss_correction(p_correction text, p_by text, p_channel text, p_reason text)
RETURNS TABLE (answer text, decided_by text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  c counterfoil.correction := counterfoil.my_correction(p_correction);
BEGIN
  SELECT * INTO c FROM counterfoil.correction AS x WHERE x.correction_id = p_correction FOR UPDATE;
  IF c.state <> 'open' THEN
    RETURN QUERY SELECT 'decided', c.decided_by;
    RETURN;
  END IF;
  INSERT INTO counterfoil.decision (subject_id, tenant, verdict, digest, by_person, channel, reason)
  VALUES (p_correction, c.tenant, 'dismissed', encode(sha256(convert_to(c.call, 'UTF8')), 'hex'), p_by, p_channel,
          p_reason);
  UPDATE counterfoil.correction AS x SET state = 'dismissed', decided_by = p_by, decided_at = counterfoil.now()
  WHERE x.correction_id = p_correction;
  RETURN QUERY SELECT 'dismissed', p_by;
END $$;

-- A person sends it, over the digest of what they were shown (at least its first 16 digits): one message, an action of its
-- own under its own key, approved by the same decision. Everything else about it is what the sender's tools derive from
-- that text. `answer`: sent, decided, unwritten (nobody has written it), changed, own (the run's actor), taken (another
-- message about this step stands). Locks in the order in which a message that ends does: actions, then the correction.
CREATE FUNCTION counterfoil.send_correction(
  p_correction text, p_digest text, p_by text, p_channel text, p_reason text, p_action_id text, p_tool text,
  p_tool_version integer, p_class text, p_effect text, p_effect_scope text, p_target text, p_provider text, p_queue text,
  p_arguments text, p_arguments_sha256 text, p_audience text[], p_amount_minor bigint, p_currency text)
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
    effect_scope, target, provider, queue, arguments, arguments_sha256, audience, amount_minor, currency, needs_approval,
    state, ready_at, changed_by, change_reason, change_evidence)
  VALUES (p_action_id, about.tenant, about.run, about.step, coalesce(before.revision + 1, about.revision), 'correct',
    about.action_id, about.actor, p_tool, p_tool_version, p_class, p_effect, p_effect_scope, p_target, p_provider, p_queue,
    p_arguments, p_arguments_sha256, p_audience, p_amount_minor, p_currency, true, 'awaiting_approval',
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

REVOKE ALL ON FUNCTION counterfoil.rank_of, counterfoil.is_carried_on, counterfoil.is_kept,
  counterfoil.queue_correction, counterfoil.correction_follow, counterfoil.my_correction, counterfoil.edit_correction,
  counterfoil.dismiss_correction, counterfoil.send_correction FROM PUBLIC;
GRANT EXECUTE ON FUNCTION counterfoil.is_carried_on, counterfoil.is_kept, counterfoil.queue_correction
  TO counterfoil_worker;
GRANT EXECUTE ON FUNCTION counterfoil.edit_correction, counterfoil.dismiss_correction, counterfoil.send_correction
  TO counterfoil_operator;
-- An agent is told that its unwind waits for a person, never what that person may say.
GRANT SELECT (correction_id, action_id, tenant, run, state, sent_as) ON counterfoil.correction TO counterfoil_agent;
GRANT SELECT (open_since) ON counterfoil.correction TO counterfoil_reader;
