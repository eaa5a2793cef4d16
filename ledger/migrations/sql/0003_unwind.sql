-- Cancels and unwinds, complete: what was asked for shows in the history; child runs are taken back with their parent; a
-- compensation that ended without an effect waits for a person, and the unwind goes on from what that person decided.

CREATE INDEX run_children ON counterfoil.run (tenant, parent_run) WHERE parent_run IS NOT NULL;

-- Withdraws an action where nothing was sent; where something may have been, forbids a resend and lets evidence decide.
-- Also of one in review: a person who has the provider asked again does not get it sent again. A cancel that changes no
-- state is written into the history, once. Returns the action's state afterwards, NULL when the caller's tenants have
-- no such action.
CREATE OR REPLACE FUNCTION counterfoil.request_cancel(p_action_id text, p_by text, p_reason text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  a counterfoil.action;
BEGIN
  SELECT * INTO a FROM counterfoil.action AS x
  WHERE x.action_id = p_action_id
    AND (x.tenant = ANY (counterfoil.my_tenants()) OR '*' = ANY (counterfoil.my_tenants())
         OR pg_has_role(session_user, 'counterfoil_worker', 'MEMBER'))  -- carries out what others have asked for
  FOR UPDATE;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  IF a.state IN ('proposed', 'awaiting_approval')
     OR (a.state IN ('ready', 'retryable_failure') AND NOT a.in_doubt) THEN
    UPDATE counterfoil.action SET state = 'cancelled', cancel_requested_at = counterfoil.now(),
      last_error_code = 'cancelled', changed_by = p_by, change_reason = p_reason, change_evidence = NULL
    WHERE action_id = p_action_id;
  ELSIF a.state IN ('ready', 'retryable_failure') THEN
    UPDATE counterfoil.action SET state = 'uncertain', no_resend = true, cancel_requested_at = counterfoil.now(),
      uncertain_since = coalesce(uncertain_since, counterfoil.now()), next_lookup_at = counterfoil.now(),
      changed_by = p_by, change_reason = p_reason, change_evidence = NULL WHERE action_id = p_action_id;
  ELSIF a.state IN ('executing', 'uncertain', 'reconciling', 'operator_review') AND a.cancel_requested_at IS NULL THEN
    UPDATE counterfoil.action SET no_resend = true, cancel_requested_at = counterfoil.now()
    WHERE action_id = p_action_id;
    INSERT INTO counterfoil.history (action_id, tenant, run, at, from_state, to_state, generation, attempt_count,
                                     changed_by, db_role, reason, approval_id)
    VALUES (a.action_id, a.tenant, a.run, counterfoil.now(), a.state, a.state, a.generation, a.attempt_count,
            p_by, session_user, 'cancel requested: ' || p_reason, a.approval_id);
  END IF;
  RETURN (SELECT x.state FROM counterfoil.action AS x WHERE x.action_id = p_action_id);
END $$;

-- Asks for the run and its child runs to be taken back. Durable: the reconciler carries it out. Idempotent; returns the
-- run's state. Level by level, each in a statement of its own: a child that was opened meanwhile is seen, since its
-- opening holds the parent's row (see open_run). Ends, because every round marks runs that no other has marked.
CREATE OR REPLACE FUNCTION counterfoil.request_unwind(p_tenant text, p_run text, p_reason text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  level text[] := ARRAY[p_run];
BEGIN
  PERFORM counterfoil.check_principal(p_tenant);
  UPDATE counterfoil.run SET state = 'unwinding', unwind_reason = p_reason, unwind_requested_at = counterfoil.now(),
    updated_at = counterfoil.now()
  WHERE tenant = p_tenant AND run = p_run AND state IN ('open', 'closed');
  WHILE level IS NOT NULL LOOP
    WITH marked AS (
      UPDATE counterfoil.run AS c
      SET state = 'unwinding', unwind_reason = p_reason, unwind_requested_at = counterfoil.now(),
          updated_at = counterfoil.now()
      WHERE c.tenant = p_tenant AND c.parent_run = ANY (level) AND c.state IN ('open', 'closed')
      RETURNING c.run
    )
    SELECT array_agg(m.run) INTO level FROM marked AS m;
  END LOOP;
  RETURN (SELECT r.state FROM counterfoil.run AS r WHERE r.tenant = p_tenant AND r.run = p_run);
END $$;

-- A run that was unwound and is visited again takes its parent along: a parent is unwound only while its children are.
-- The CASE is read after the row's lock was waited for, so an unwind that ends at this moment does not slip by.
CREATE FUNCTION counterfoil.run_reopened() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE counterfoil.run AS r
  SET state = CASE r.state WHEN 'unwound' THEN 'unwinding' ELSE r.state END, updated_at = counterfoil.now()
  WHERE r.tenant = NEW.tenant AND r.run = NEW.parent_run AND r.state IN ('unwinding', 'unwind_blocked', 'unwound');
  RETURN NULL;
END $$;

CREATE TRIGGER run_reopened AFTER UPDATE OF state ON counterfoil.run
FOR EACH ROW WHEN (OLD.state = 'unwound' AND NEW.state = 'unwinding' AND NEW.parent_run IS NOT NULL)
EXECUTE FUNCTION counterfoil.run_reopened();

-- An action of an unwound run that comes up for a person (a late success, a second effect) opens its unwind again, as a
-- late success that is certain does: what is in review is not taken back.
CREATE FUNCTION counterfoil.action_in_review() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE counterfoil.run AS r
  SET state = CASE r.state WHEN 'unwound' THEN 'unwinding' ELSE r.state END, updated_at = counterfoil.now()
  WHERE r.tenant = NEW.tenant AND r.run = NEW.run AND r.state IN ('unwinding', 'unwind_blocked', 'unwound');
  RETURN NULL;
END $$;

CREATE TRIGGER action_in_review AFTER UPDATE ON counterfoil.action
FOR EACH ROW WHEN (NEW.state = 'operator_review' AND OLD.state IS DISTINCT FROM NEW.state)
EXECUTE FUNCTION counterfoil.action_in_review();

-- Whether the action stands where a person has put it: its newest move came out of operator_review.
CREATE FUNCTION counterfoil.decided_by_person(p_action_id text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce((SELECT h.from_state = 'operator_review' AND h.to_state <> 'operator_review'
                   FROM counterfoil.history AS h WHERE h.action_id = p_action_id
                   ORDER BY h.history_id DESC LIMIT 1), false)
$$;

-- The tool that takes the action back, for logins that may not read the compensation's arguments. NULL: none was written
-- down, or nothing that can be read.
CREATE FUNCTION counterfoil.undo_tool_of(p_action_id text) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE WHEN a.compensation IS JSON OBJECT THEN a.compensation::json ->> 'tool' END
  FROM counterfoil.action AS a
  WHERE a.action_id = p_action_id
    AND (a.tenant = ANY (counterfoil.my_tenants()) OR '*' = ANY (counterfoil.my_tenants())
         OR pg_has_role(session_user, 'counterfoil_worker', 'MEMBER'))
$$;

-- A worker's one way to record an action: the counter-action that the undone action itself wrote down before its call.
-- Refused unless that action has succeeded, its run unwinds, and the tool is the recorded one. Idempotent by id. Where a
-- person has said of the counter-action that it did not happen, its next revision, under a new key, takes its place.
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
                      AND r.state IN ('unwinding', 'unwind_blocked')) THEN
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

-- Unwound, only if by now no row of the run is unsettled, none has succeeded but those that a person leaves as they are
-- (gave up their counter-action), every child run is unwound, and no transaction is open that has recorded an action.
-- A late success re-opens it by trigger. Lock and read are two statements, as in lock_and_read.
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
              OR (a.state = 'succeeded' AND a.phase = 'do'
                  AND NOT EXISTS (SELECT FROM counterfoil.action AS u
                                  WHERE u.parent_action_id = a.action_id AND u.phase = 'undo'
                                    AND u.superseded_by IS NULL AND u.state = 'permanent_failure'
                                    AND counterfoil.decided_by_person(u.action_id))))) THEN
    RETURN false;
  END IF;
  UPDATE counterfoil.run AS r SET state = 'unwound', updated_at = counterfoil.now()
  WHERE r.tenant = p_tenant AND r.run = p_run;
  RETURN true;
END $$;

REVOKE ALL ON FUNCTION counterfoil.run_reopened, counterfoil.action_in_review,
  counterfoil.decided_by_person, counterfoil.undo_tool_of FROM PUBLIC;
GRANT EXECUTE ON FUNCTION counterfoil.decided_by_person, counterfoil.undo_tool_of
  TO counterfoil_agent, counterfoil_worker, counterfoil_operator, counterfoil_reader;
