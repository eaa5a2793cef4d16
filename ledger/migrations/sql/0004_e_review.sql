-- How people decide about actions in review. There is no plain retry: a person's word moves a row on only where evidence
-- agrees, or where nobody could give any. The operator's login holds no provider's secret, so a verb that must ask the
-- provider is a request: the row goes back to the reconciler, whose verdict answers it. Doors answer with a code and record
-- who, when, why, by which channel and login; for an action that the login's tenants do not have they answer with no row.
-- What a person gives as the reason stands in the review and in the history's evidence, which readers do not see.

-- What was sent, as far as the attempts tell: 'nothing', 'refused' (every request got a definite refusal, or never left),
-- 'happened' (some attempt was answered with a receipt), else 'unknown'.
CREATE FUNCTION counterfoil.sent_of(a counterfoil.action) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE
    WHEN coalesce(bool_or(t.outcome = 'succeeded'), false) THEN 'happened'
    WHEN coalesce(bool_or(t.outcome IS NULL OR t.outcome = 'uncertain'), false)
      OR count(*) FILTER (WHERE t.outcome = 'rejected') < a.attempt_count THEN 'unknown'
    WHEN count(*) FILTER (WHERE t.outcome = 'rejected') > 0 THEN 'refused'
    ELSE 'nothing' END
  FROM counterfoil.attempt AS t WHERE t.action_id = a.action_id
$$;

-- Asks the provider again, with or without a person's word about the answer. `answer`: asked (the reconciler answers the
-- review), not_executed (nothing was ever sent, so there is nobody to ask), nothing_sent (so it has not happened),
-- not_in_review (`state` says where it is). A person's word never leads to a second send; asking again alone forbids none.
CREATE FUNCTION counterfoil.ask_provider(
  p_action_id text, p_verb text, p_receipt text, p_by text, p_channel text, p_reason text)
RETURNS TABLE (answer text, state text, review_id bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  a counterfoil.action;
  id bigint;
BEGIN
  SELECT * INTO a FROM counterfoil.action AS x WHERE x.action_id = p_action_id FOR UPDATE;
  IF NOT FOUND OR NOT counterfoil.serves(a.tenant) THEN
    RETURN;
  END IF;
  IF p_verb NOT IN ('happened', 'not_happened', 'ask_again') THEN
    RAISE EXCEPTION 'no such verb' USING ERRCODE = 'CF403';
  END IF;
  IF a.state <> 'operator_review' THEN
    RETURN QUERY SELECT 'not_in_review', a.state, NULL::bigint;
    RETURN;
  END IF;
  IF counterfoil.sent_of(a) = 'nothing' AND NOT a.in_doubt THEN
    IF p_verb <> 'not_happened' THEN
      RETURN QUERY SELECT 'nothing_sent', a.state, NULL::bigint;
      RETURN;
    END IF;
    INSERT INTO counterfoil.review (action_id, tenant, verb, by_person, channel, reason, answered_at, answer, evidence)
    VALUES (a.action_id, a.tenant, p_verb, p_by, p_channel, p_reason, counterfoil.now(), 'not_executed',
            'nothing was ever sent')
    RETURNING review.review_id INTO id;
    UPDATE counterfoil.action AS x
    SET state = 'not_executed', no_resend = true, changed_by = p_by, change_reason = 'not happened',
        change_evidence = concat_ws('; ', 'nothing was ever sent', 'by ' || p_channel, p_reason)
    WHERE x.action_id = a.action_id;
    RETURN QUERY SELECT 'not_executed', 'not_executed', id;
    RETURN;
  END IF;
  INSERT INTO counterfoil.review (action_id, tenant, verb, receipt, by_person, channel, reason)
  VALUES (a.action_id, a.tenant, p_verb, CASE WHEN p_verb = 'happened' THEN p_receipt END, p_by, p_channel, p_reason)
  RETURNING review.review_id INTO id;
  -- By way of a look-up whose lease has ended: the sweep of leases makes it due, and the next sweep takes it.
  UPDATE counterfoil.action AS x
  SET state = 'reconciling', fence = gen_random_uuid(), lease_until = counterfoil.now(),
      no_resend = x.no_resend OR p_verb <> 'ask_again'
                  OR x.last_error_code IS NOT DISTINCT FROM 'idempotency_mismatch',  -- a later code would hide that
      uncertain_since = counterfoil.now(), lookup_count = 0,
      changed_by = p_by, change_reason = replace(p_verb, '_', ' '),
      change_evidence = concat_ws('; ', 'review ' || id, 'by ' || p_channel, p_reason)
  WHERE x.action_id = a.action_id;
  RETURN QUERY SELECT 'asked', 'reconciling', id;
END $$;

-- Ends an action that nobody can find out more about. `answer`: permanent_failure, where by evidence nothing can have
-- happened: every request was refused or never left, or absence was earned ('absent' is written by that verdict alone).
-- Else unverified_only; with `p_as_happened` it becomes succeeded, unverified, in the person's name. not_in_review as above.
CREATE FUNCTION counterfoil.give_up(
  p_action_id text, p_by text, p_channel text, p_reason text, p_as_happened boolean)
RETURNS TABLE (answer text, state text, review_id bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  a counterfoil.action;
  t counterfoil.attempt;
  sent text;
  id bigint;
BEGIN
  SELECT * INTO a FROM counterfoil.action AS x WHERE x.action_id = p_action_id FOR UPDATE;
  IF NOT FOUND OR NOT counterfoil.serves(a.tenant) THEN
    RETURN;
  END IF;
  IF a.state <> 'operator_review' THEN
    RETURN QUERY SELECT 'not_in_review', a.state, NULL::bigint;
    RETURN;
  END IF;
  sent := counterfoil.sent_of(a);
  IF NOT p_as_happened AND counterfoil.may_give_up(a) THEN
    INSERT INTO counterfoil.review (action_id, tenant, verb, by_person, channel, reason, answered_at, answer, evidence)
    VALUES (a.action_id, a.tenant, 'give_up', p_by, p_channel, p_reason, counterfoil.now(), 'permanent_failure',
            CASE WHEN a.last_error_code = 'absent' THEN 'absence was earned' ELSE 'sent: ' || sent END)
    RETURNING review.review_id INTO id;
    UPDATE counterfoil.action AS x
    SET state = 'permanent_failure', in_doubt = false, no_resend = true, last_error_code = 'given_up',
        changed_by = p_by, change_reason = 'given up', change_evidence = concat_ws('; ', 'by ' || p_channel, p_reason)
    WHERE x.action_id = a.action_id;
    RETURN QUERY SELECT 'permanent_failure', 'permanent_failure', id;
    RETURN;
  END IF;
  IF sent = 'nothing' AND NOT a.in_doubt THEN
    RETURN QUERY SELECT 'nothing_sent', a.state, NULL::bigint;
    RETURN;
  END IF;
  IF NOT p_as_happened THEN
    RETURN QUERY SELECT 'unverified_only', a.state, NULL::bigint;
    RETURN;
  END IF;
  SELECT * INTO t FROM counterfoil.attempt AS x
  WHERE x.action_id = a.action_id AND x.outcome = 'succeeded' ORDER BY x.started_at LIMIT 1;
  INSERT INTO counterfoil.review (action_id, tenant, verb, receipt, by_person, channel, reason, answered_at, answer,
                                  evidence)
  VALUES (a.action_id, a.tenant, 'give_up', coalesce(t.receipt, a.receipt, 'unverified'), p_by, p_channel, p_reason,
          counterfoil.now(), 'succeeded', CASE WHEN sent = 'happened' THEN 'an attempt was answered with this receipt'
                                               ELSE 'unverified: ' || p_by || ' says that it happened' END)
  RETURNING review.review_id INTO id;
  UPDATE counterfoil.action AS x
  SET state = 'succeeded', no_resend = true, receipt = coalesce(t.receipt, a.receipt, 'unverified'),
      result = coalesce(t.result, a.result, '{}'), last_error_code = NULL, last_error_field = NULL, changed_by = p_by,
      change_reason = CASE WHEN sent = 'happened' THEN '' ELSE 'unverified: ' END || p_by || ' says that it happened',
      change_evidence = concat_ws('; ', 'by ' || p_channel, p_reason)
  WHERE x.action_id = a.action_id;
  RETURN QUERY SELECT 'succeeded', 'succeeded', id;
END $$;

-- Whether by evidence the action had no effect. What the provider holds under its key contradicts that, whatever the
-- attempts say.
CREATE FUNCTION counterfoil.may_give_up(a counterfoil.action) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE counterfoil.sent_of(a)
    WHEN 'happened' THEN false
    WHEN 'unknown' THEN a.last_error_code IS NOT DISTINCT FROM 'absent'
    ELSE coalesce(a.last_error_code, '') NOT IN ('mismatch', 'many_found', 'found_unsettled', 'late_success',
                                                      'idempotency_mismatch')
  END
$$;

-- Answers a request in the same statement as whatever ends its look-ups: a verdict, a late receipt, or the row's way back
-- to a person. So there is no request that nobody answers, and none that is answered without its effect on the row.
CREATE FUNCTION counterfoil.review_follow() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE counterfoil.review AS r
  SET answered_at = NEW.updated_at,
      answer = CASE
        WHEN NEW.state = 'operator_review' THEN replace(coalesce(NEW.change_reason, NEW.state), ' ', '_')
        WHEN NEW.state = 'succeeded' AND r.verb = 'not_happened' THEN 'found'
        ELSE NEW.state END,
      evidence = NEW.change_evidence
  WHERE r.action_id = NEW.action_id AND r.answered_at IS NULL;
  RETURN NULL;
END $$;

CREATE TRIGGER review_follow AFTER UPDATE ON counterfoil.action FOR EACH ROW
WHEN (OLD.state IN ('uncertain', 'reconciling') AND NEW.state NOT IN ('uncertain', 'reconciling'))
EXECUTE FUNCTION counterfoil.review_follow();

-- Whether the action stands where a person has put it: its newest move came out of operator_review, or was the verdict on
-- what that person said. SECURITY DEFINER: agents, who see their runs being taken back, do not read reviews.
CREATE OR REPLACE FUNCTION counterfoil.decided_by_person(p_action_id text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce((
    SELECT h.from_state = 'operator_review' AND h.to_state NOT IN ('operator_review', 'reconciling')
        OR h.to_state = 'not_executed' AND EXISTS (
             SELECT FROM counterfoil.review AS r
             WHERE r.action_id = h.action_id AND r.verb = 'not_happened' AND r.answer = 'not_executed'
               AND r.answered_at = h.at)
    FROM counterfoil.history AS h
    WHERE h.action_id = p_action_id
      AND (h.tenant = ANY (counterfoil.my_tenants()) OR '*' = ANY (counterfoil.my_tenants())
           OR pg_has_role(session_user, 'counterfoil_worker', 'MEMBER'))
    ORDER BY h.history_id DESC LIMIT 1), false)
$$;

REVOKE ALL ON FUNCTION counterfoil.sent_of, counterfoil.may_give_up, counterfoil.ask_provider, counterfoil.give_up,
  counterfoil.review_follow FROM PUBLIC;
GRANT EXECUTE ON FUNCTION counterfoil.ask_provider, counterfoil.give_up TO counterfoil_operator;
GRANT EXECUTE ON FUNCTION counterfoil.sent_of, counterfoil.may_give_up TO counterfoil_operator;
