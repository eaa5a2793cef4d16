-- The only doors through which an agent writes, and the workers' two. SECURITY DEFINER with a fixed search_path;
-- each checks the caller's principal (session_user) itself. Revoked from PUBLIC in 0001_d.

CREATE FUNCTION counterfoil.my_tenants() RETURNS text[]
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(array_agg(tenant_id), '{}') FROM counterfoil.principal WHERE role_name = session_user
$$;

CREATE FUNCTION counterfoil.check_principal(p_tenant text) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM counterfoil.principal
                 WHERE role_name = session_user AND tenant_id IN (p_tenant, '*')) THEN
    RAISE EXCEPTION 'login % may not act for this tenant', session_user USING ERRCODE = 'CF403';
  END IF;
END $$;

-- Opens or re-opens a run. The new epoch takes the run over from every older handle.
CREATE FUNCTION counterfoil.open_run(p_tenant text, p_run text, p_actor text, p_deadline_s double precision DEFAULT NULL,
                                     p_parent text DEFAULT NULL)
RETURNS TABLE (epoch integer, state text, deadline_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM counterfoil.check_principal(p_tenant);
  RETURN QUERY
  INSERT INTO counterfoil.run AS r (tenant, run, actor, epoch, parent_run, deadline_at)
  VALUES (p_tenant, p_run, p_actor, 1, p_parent, counterfoil.now() + p_deadline_s * interval '1 second')
  ON CONFLICT (tenant, run) DO UPDATE SET epoch = r.epoch + 1, updated_at = counterfoil.now()
  RETURNING r.epoch, r.state, r.deadline_at;
END $$;

-- The first of a call's two round trips: takes the run's lock until the transaction ends, counts the call and reads
-- what the step rules need. Lock and read are two statements: one would read a snapshot from before the lock.
CREATE FUNCTION counterfoil.lock_and_read(p_tenant text, p_run text, p_epoch integer)
RETURNS TABLE (state text, calls_count integer, deadline_at timestamptz, actions jsonb, refs jsonb)
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
    (SELECT coalesce(jsonb_agg(jsonb_build_object(
       'action_id', a.action_id, 'step', a.step, 'seq', a.seq, 'revision', a.revision, 'tool', a.tool,
       'effect', a.effect, 'target', a.target, 'class', a.class, 'state', a.state, 'arguments', a.arguments,
       'arguments_sha256', a.arguments_sha256, 'once_key', a.once_key, 'result', a.result, 'receipt', a.receipt,
       'last_error_code', a.last_error_code, 'last_error_field', a.last_error_field) ORDER BY a.created_at, a.seq), '[]')
     FROM counterfoil.action AS a
     WHERE a.tenant = p_tenant AND a.run = p_run AND a.phase = 'do' AND a.superseded_by IS NULL),
    (SELECT coalesce(jsonb_agg(jsonb_build_object('ref', f.ref, 'action_id', f.action_id) ORDER BY f.created_at), '[]')
     FROM counterfoil.step_ref AS f WHERE f.tenant = p_tenant AND f.run = p_run);
END $$;

-- The id of an intent, as counterfoil/ledger/keys.py computes it: base32 of a SHA-256 over a canonical JSON array. A step of
-- digits only is the ledger's own, a number.
CREATE FUNCTION counterfoil.action_id_of(p_tenant text, p_run text, p_step text, p_revision integer, p_phase text)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
  WITH digest AS (
    SELECT ('x' || left(encode(sha256(convert_to(
      '["cf1",' || to_json(p_tenant) || ',' || to_json(p_run) || ','
      || CASE WHEN p_step ~ '^[0-9]+$' THEN p_step ELSE to_json(p_step)::text END
      || ',' || p_revision || ',' || to_json(p_phase) || ']', 'UTF8')), 'hex'), 34))::bit(136) AS bits)
  SELECT 'act_' || string_agg(
    substr('abcdefghijklmnopqrstuvwxyz234567', substring(bits FROM 5 * i + 1 FOR 5)::integer + 1, 1), '' ORDER BY i)
  FROM digest, generate_series(0, 25) AS i
$$;

-- Records one intent, with its wake-up (by trigger) in the same statement. Never changes a recorded one: when the step
-- or the once-key is taken, that action is returned, `created` false and `found_by` telling which. `p_supersedes` is
-- put aside only if it did nothing and is a revision of the same step. SQLSTATE 40001: run the transaction again.
CREATE FUNCTION counterfoil.propose(
  p_action_id text, p_tenant text, p_run text, p_step text, p_seq integer, p_revision integer, p_actor text,
  p_tool text, p_tool_version integer, p_class text, p_effect text, p_target text, p_provider text, p_account text,
  p_queue text, p_arguments text, p_arguments_sha256 text, p_audience text[], p_compensation text,
  p_once_key text DEFAULT NULL, p_repeat_reason text DEFAULT NULL, p_amount_minor bigint DEFAULT NULL,
  p_currency text DEFAULT NULL, p_needs_approval boolean DEFAULT false, p_not_before timestamptz DEFAULT NULL,
  p_supersedes text DEFAULT NULL, p_ref text DEFAULT NULL)
RETURNS TABLE (created boolean, found_by text, action_id text, tool text, arguments_sha256 text, state text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  run_state text;
  run_deadline timestamptz;
  once_taken_by text;
  superseded text;
  inserted text;
BEGIN
  PERFORM counterfoil.check_principal(p_tenant);
  -- An id that somebody made up could stand in the way of another tenant's action.
  IF p_action_id IS DISTINCT FROM counterfoil.action_id_of(p_tenant, p_run, p_step, p_revision, 'do') THEN
    RAISE EXCEPTION 'not the id of this run, step and revision' USING ERRCODE = 'CF403';
  END IF;
  INSERT INTO counterfoil.run (tenant, run, actor) VALUES (p_tenant, p_run, p_actor) ON CONFLICT DO NOTHING;
  -- The lock lasts until the caller commits: until then the run's unwind does not end (see finish_unwind).
  SELECT r.state, r.deadline_at INTO run_state, run_deadline
  FROM counterfoil.run AS r WHERE r.tenant = p_tenant AND r.run = p_run FOR KEY SHARE;
  IF NOT FOUND THEN                     -- a REPEATABLE READ caller whose snapshot is older than the run
    RAISE EXCEPTION 'the run was opened after this snapshot' USING ERRCODE = '40001';
  END IF;
  IF run_state <> 'open' THEN
    RAISE EXCEPTION 'run is %: no new action', run_state USING ERRCODE = 'CF403';
  END IF;

  once_taken_by := counterfoil.once_taken_by(p_tenant, p_once_key);
  IF once_taken_by IS NOT NULL AND once_taken_by = p_supersedes THEN
    once_taken_by := NULL;
  END IF;
  IF p_supersedes IS NOT NULL AND once_taken_by IS NULL THEN
    UPDATE counterfoil.action AS a
    SET superseded_by = p_action_id, changed_by = p_actor, change_reason = 'superseded', change_evidence = NULL,
        state = CASE WHEN a.state IN ('proposed', 'awaiting_approval') THEN 'cancelled' ELSE a.state END,
        last_error_code = CASE WHEN a.state IN ('proposed', 'awaiting_approval') THEN 'superseded'
                               ELSE a.last_error_code END
    WHERE a.action_id = p_supersedes AND a.action_id <> p_action_id AND a.superseded_by IS NULL
      AND a.tenant = p_tenant AND a.run = p_run AND a.step = p_step AND a.phase = 'do'
      AND a.state IN ('proposed', 'awaiting_approval', 'not_executed', 'permanent_failure', 'cancelled', 'stale')
    RETURNING a.action_id INTO superseded;
  END IF;

  INSERT INTO counterfoil.action AS a (
    action_id, tenant, run, step, seq, revision, phase, actor, tool, tool_version, class, effect, target, provider,
    account, queue, arguments, arguments_sha256, audience, compensation, once_key, repeat_reason, amount_minor,
    currency, needs_approval, deadline_at, state, ready_at, changed_by, change_reason)
  SELECT p_action_id, p_tenant, p_run, p_step, p_seq, p_revision, 'do', p_actor, p_tool, p_tool_version, p_class,
    p_effect, p_target, p_provider, p_account, p_queue, p_arguments, p_arguments_sha256, p_audience, p_compensation,
    p_once_key, p_repeat_reason, p_amount_minor, p_currency, p_needs_approval, run_deadline,
    CASE WHEN p_needs_approval THEN 'awaiting_approval' ELSE 'ready' END,
    CASE WHEN NOT p_needs_approval THEN coalesce(p_not_before, counterfoil.now()) END, p_actor, 'proposed'
  WHERE once_taken_by IS NULL
    AND NOT EXISTS (SELECT FROM counterfoil.action AS l       -- a later revision may stand under the step
                    WHERE l.tenant = p_tenant AND l.run = p_run AND l.step = p_step AND l.phase = 'do'
                      AND l.superseded_by IS NULL)
  ON CONFLICT DO NOTHING
  RETURNING a.action_id INTO inserted;

  IF inserted IS NOT NULL THEN
    IF p_ref IS NOT NULL THEN
      INSERT INTO counterfoil.step_ref (tenant, run, ref, action_id) VALUES (p_tenant, p_run, p_ref, inserted);
    END IF;
    RETURN QUERY SELECT true, NULL::text, a.action_id, a.tool, a.arguments_sha256, a.state
    FROM counterfoil.action AS a WHERE a.action_id = inserted;
    RETURN;
  END IF;
  IF superseded IS NULL THEN
    RETURN QUERY SELECT false, 'step', a.action_id, a.tool, a.arguments_sha256, a.state
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

-- The action that holds a once-key, or that had given it free and was found after all. NULL: nobody.
CREATE FUNCTION counterfoil.once_taken_by(p_tenant text, p_once_key text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_once_key IS NULL THEN
    RETURN NULL;
  END IF;
  RETURN coalesce(
    (SELECT a.action_id FROM counterfoil.action AS a
     WHERE a.tenant = p_tenant AND a.once_key = p_once_key AND a.once_held AND a.superseded_by IS NULL),
    (SELECT a.action_id FROM counterfoil.action AS a
     WHERE a.tenant = p_tenant AND a.once_key = p_once_key AND NOT a.once_held
       AND a.state IN ('operator_review', 'reconciling', 'uncertain', 'succeeded') LIMIT 1));
END $$;

-- Records that a framework's call name stands for a recorded action.
CREATE FUNCTION counterfoil.add_ref(p_tenant text, p_run text, p_ref text, p_action_id text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM counterfoil.check_principal(p_tenant);
  INSERT INTO counterfoil.step_ref (tenant, run, ref, action_id)
  SELECT p_tenant, p_run, p_ref, a.action_id FROM counterfoil.action AS a
  WHERE a.action_id = p_action_id AND a.tenant = p_tenant AND a.run = p_run
  ON CONFLICT DO NOTHING;
END $$;

-- Asks the reconciler to look at an uncertain action now instead of later.
CREATE FUNCTION counterfoil.look_now(p_action_id text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM counterfoil.check_principal(
    (SELECT a.tenant FROM counterfoil.action AS a WHERE a.action_id = p_action_id));
  UPDATE counterfoil.action SET next_lookup_at = counterfoil.now()
  WHERE action_id = p_action_id AND state = 'uncertain' AND next_lookup_at > counterfoil.now();
END $$;

-- Withdraws an action where nothing was sent; where something may have been, forbids a resend and lets evidence decide.
-- Returns the action's state afterwards, NULL when the caller's tenants have no such action.
CREATE FUNCTION counterfoil.request_cancel(p_action_id text, p_by text, p_reason text) RETURNS text
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
      last_error_code = 'cancelled', changed_by = p_by, change_reason = p_reason WHERE action_id = p_action_id;
  ELSIF a.state IN ('ready', 'retryable_failure') THEN
    UPDATE counterfoil.action SET state = 'uncertain', no_resend = true, cancel_requested_at = counterfoil.now(),
      uncertain_since = coalesce(uncertain_since, counterfoil.now()), next_lookup_at = counterfoil.now(),
      changed_by = p_by, change_reason = p_reason WHERE action_id = p_action_id;
  ELSIF a.state IN ('executing', 'uncertain', 'reconciling') THEN
    UPDATE counterfoil.action SET no_resend = true,
      cancel_requested_at = coalesce(cancel_requested_at, counterfoil.now()) WHERE action_id = p_action_id;
  END IF;
  RETURN (SELECT x.state FROM counterfoil.action AS x WHERE x.action_id = p_action_id);
END $$;

-- Asks for the run to be taken back. Durable: the reconciler carries it out. Idempotent; returns the run's state.
CREATE FUNCTION counterfoil.request_unwind(p_tenant text, p_run text, p_reason text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM counterfoil.check_principal(p_tenant);
  UPDATE counterfoil.run SET state = 'unwinding', unwind_reason = p_reason, unwind_requested_at = counterfoil.now(),
    updated_at = counterfoil.now()
  WHERE tenant = p_tenant AND run = p_run AND state IN ('open', 'closed');
  RETURN (SELECT r.state FROM counterfoil.run AS r WHERE r.tenant = p_tenant AND r.run = p_run);
END $$;

-- The run takes no further action; what it recorded goes on.
CREATE FUNCTION counterfoil.close_run(p_tenant text, p_run text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM counterfoil.check_principal(p_tenant);
  UPDATE counterfoil.run SET state = 'closed', updated_at = counterfoil.now()
  WHERE tenant = p_tenant AND run = p_run AND state = 'open';
  RETURN (SELECT r.state FROM counterfoil.run AS r WHERE r.tenant = p_tenant AND r.run = p_run);
END $$;

-- A worker's one way to record an action: the counter-action that the undone action itself wrote down before its call.
-- Refused unless that action has succeeded, its run unwinds, and the tool is the recorded one. Idempotent by id.
CREATE FUNCTION counterfoil.propose_undo(
  p_action_id text, p_parent text, p_by text, p_tool_version integer, p_class text, p_effect text, p_target text,
  p_provider text, p_queue text, p_arguments text, p_arguments_sha256 text, p_audience text[],
  p_amount_minor bigint, p_currency text)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  parent counterfoil.action;
  n integer;
BEGIN
  SELECT * INTO parent FROM counterfoil.action AS a WHERE a.action_id = p_parent FOR UPDATE;
  IF NOT FOUND OR parent.state <> 'succeeded' OR parent.phase <> 'do' OR parent.compensation IS NULL
     OR NOT EXISTS (SELECT FROM counterfoil.run AS r WHERE r.tenant = parent.tenant AND r.run = parent.run
                      AND r.state IN ('unwinding', 'unwind_blocked')) THEN
    RETURN false;
  END IF;
  INSERT INTO counterfoil.action (
    action_id, tenant, run, step, revision, phase, parent_action_id, actor, tool, tool_version, class, effect, target,
    provider, account, queue, arguments, arguments_sha256, audience, amount_minor, currency, state, ready_at,
    changed_by, change_reason)
  VALUES (p_action_id, parent.tenant, parent.run, parent.step, parent.revision, 'undo', parent.action_id, parent.actor,
    parent.compensation::jsonb ->> 'tool', p_tool_version, p_class, p_effect, p_target, p_provider, parent.account,
    p_queue, p_arguments, p_arguments_sha256, p_audience, p_amount_minor, p_currency, 'ready', counterfoil.now(),
    p_by, 'unwind')
  ON CONFLICT DO NOTHING;
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n = 1;
END $$;

-- Unwound, only if by now no row of the run is unsettled or succeeded (a late success re-opens it by trigger), and no
-- transaction is open that has recorded one. Lock and read are two statements, as in lock_and_read.
CREATE FUNCTION counterfoil.finish_unwind(p_tenant text, p_run text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM counterfoil.run AS r
  WHERE r.tenant = p_tenant AND r.run = p_run AND r.state IN ('unwinding', 'unwind_blocked') FOR UPDATE SKIP LOCKED;
  IF NOT FOUND OR EXISTS (
    SELECT FROM counterfoil.action AS a
    WHERE a.tenant = p_tenant AND a.run = p_run
      AND (a.state IN ('proposed', 'awaiting_approval', 'ready', 'executing', 'retryable_failure', 'uncertain',
                       'reconciling', 'operator_review')
           OR (a.state = 'succeeded' AND a.phase = 'do'))) THEN
    RETURN false;
  END IF;
  UPDATE counterfoil.run AS r SET state = 'unwound', updated_at = counterfoil.now()
  WHERE r.tenant = p_tenant AND r.run = p_run;
  RETURN true;
END $$;

-- Makes the partitions of this month and the `p_ahead` next ones. A month whose rows already lie in DEFAULT stays there.
CREATE FUNCTION counterfoil.make_partitions(p_ahead integer DEFAULT 2) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  parent text;
  col text;
  first_day timestamptz;
  name text;
  made text[] := '{}';
  taken boolean;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtext('counterfoil.make_partitions'));
  FOR i IN 0 .. least(p_ahead, 24) LOOP
    first_day := date_trunc('month', counterfoil.now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC';
    first_day := ((first_day AT TIME ZONE 'UTC') + make_interval(months => i)) AT TIME ZONE 'UTC';
    FOREACH parent IN ARRAY ARRAY['attempt', 'history'] LOOP
      col := CASE parent WHEN 'attempt' THEN 'started_at' ELSE 'at' END;
      name := parent || to_char(first_day AT TIME ZONE 'UTC', '_YYYYMM');
      CONTINUE WHEN to_regclass('counterfoil.' || name) IS NOT NULL;
      EXECUTE format('SELECT EXISTS (SELECT FROM counterfoil.%I WHERE %I >= $1 AND %I < $2)',
                     parent || '_default', col, col)
        INTO taken USING first_day, (first_day AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC';
      CONTINUE WHEN taken;
      BEGIN
        EXECUTE format('CREATE TABLE counterfoil.%I PARTITION OF counterfoil.%I FOR VALUES FROM (%L) TO (%L)', name, parent,
                       first_day, (first_day AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC');
      EXCEPTION WHEN check_violation THEN  -- the month's first row came to DEFAULT after the look
        CONTINUE;
      END;
      IF parent = 'history' THEN
        EXECUTE format('CREATE TRIGGER history_no_truncate BEFORE TRUNCATE ON counterfoil.%I FOR EACH STATEMENT '
                       'EXECUTE FUNCTION counterfoil.refuse_change()', name);
      END IF;
      EXECUTE format('ALTER TABLE counterfoil.%I ENABLE ROW LEVEL SECURITY', name);
      made := made || name;
    END LOOP;
  END LOOP;
  RETURN made;
END $$;
