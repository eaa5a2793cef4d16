-- What no role and no raw SQL may do to an action, and what follows from every move.

-- The moves that exist. The same table stands in counterfoil/ledger/states.py; a test compares the two.
CREATE FUNCTION counterfoil.arrows() RETURNS TABLE (from_state text, to_state text, refused_in_doubt boolean)
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  VALUES
    ('proposed', 'awaiting_approval', false), ('proposed', 'ready', false),
    ('proposed', 'cancelled', false), ('proposed', 'stale', false),
    ('awaiting_approval', 'ready', false), ('awaiting_approval', 'cancelled', false),
    ('awaiting_approval', 'stale', false),
    ('ready', 'executing', false), ('ready', 'awaiting_approval', true), ('ready', 'cancelled', true),
    ('ready', 'stale', true), ('ready', 'uncertain', false), ('ready', 'operator_review', false),
    ('executing', 'succeeded', false), ('executing', 'retryable_failure', true),
    ('executing', 'permanent_failure', true), ('executing', 'uncertain', false), ('executing', 'stale', true),
    ('executing', 'ready', false), ('executing', 'operator_review', true),
    ('retryable_failure', 'executing', false), ('retryable_failure', 'awaiting_approval', true),
    ('retryable_failure', 'permanent_failure', true), ('retryable_failure', 'cancelled', true),
    ('retryable_failure', 'stale', true), ('retryable_failure', 'uncertain', false),
    ('retryable_failure', 'operator_review', false),
    ('uncertain', 'reconciling', false), ('uncertain', 'succeeded', false), ('uncertain', 'operator_review', false),
    ('reconciling', 'succeeded', false), ('reconciling', 'permanent_failure', false), ('reconciling', 'ready', false),
    ('reconciling', 'not_executed', false), ('reconciling', 'uncertain', false),
    ('reconciling', 'operator_review', false),
    ('operator_review', 'reconciling', false), ('operator_review', 'succeeded', false),
    ('operator_review', 'permanent_failure', false), ('operator_review', 'not_executed', false),
    ('succeeded', 'compensated', false),
    ('not_executed', 'operator_review', false), ('permanent_failure', 'operator_review', false),
    ('cancelled', 'operator_review', false), ('stale', 'operator_review', false),
    ('compensated', 'operator_review', false)
$$;

-- Guards one action. Errors carry SQLSTATEs of our own: CF409 no such move, CF423 refused while in doubt,
-- CF403 not this role's to decide, CF451 an intent's column (or a settled row's receipt) was changed.
CREATE FUNCTION counterfoil.action_guard() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ended constant text[] := ARRAY['permanent_failure', 'not_executed', 'cancelled', 'stale', 'compensated'];
  refused boolean;
  decision boolean;
  erasing boolean;
BEGIN
  NEW.updated_at := counterfoil.now();
  IF TG_OP = 'INSERT' THEN
    IF NEW.state NOT IN ('proposed', 'awaiting_approval', 'ready') THEN
      RAISE EXCEPTION 'an action cannot begin as %', NEW.state USING ERRCODE = 'CF409';
    END IF;
    IF NEW.needs_approval AND NEW.state = 'ready' THEN
      RAISE EXCEPTION 'this action needs an approval first' USING ERRCODE = 'CF403';
    END IF;
    NEW.generation := CASE WHEN NEW.state = 'ready' THEN 1 ELSE 0 END;
    NEW.attempt_count := 0;
    NEW.in_doubt := false;
    NEW.once_held := true;
    NEW.erased_at := NULL;
    RETURN NEW;
  END IF;

  -- What was said may be erased once, from a settled row; the erased text is {}, its hash stays.
  erasing := OLD.erased_at IS NULL AND NEW.erased_at IS NOT NULL AND NEW.state = OLD.state
    AND (OLD.state = 'succeeded' OR OLD.state = ANY (ended));
  IF NEW.erased_at IS DISTINCT FROM OLD.erased_at AND NOT erasing THEN
    RAISE EXCEPTION '% is %: only what is settled can be erased, once', OLD.action_id, OLD.state USING ERRCODE = 'CF451';
  END IF;

  IF ROW(NEW.action_id, NEW.tenant, NEW.run, NEW.step, NEW.seq, NEW.revision, NEW.phase, NEW.parent_action_id,
         NEW.edited_from, NEW.actor, NEW.tool, NEW.tool_version, NEW.class, NEW.effect, NEW.target, NEW.provider,
         NEW.account, NEW.queue, NEW.arguments_sha256, NEW.arguments_codec, NEW.audience,
         NEW.once_key, NEW.repeat_reason, NEW.amount_minor, NEW.currency, NEW.needs_approval,
         NEW.expected_resource_version, NEW.deadline_at, NEW.created_at)
     IS DISTINCT FROM
     ROW(OLD.action_id, OLD.tenant, OLD.run, OLD.step, OLD.seq, OLD.revision, OLD.phase, OLD.parent_action_id,
         OLD.edited_from, OLD.actor, OLD.tool, OLD.tool_version, OLD.class, OLD.effect, OLD.target, OLD.provider,
         OLD.account, OLD.queue, OLD.arguments_sha256, OLD.arguments_codec, OLD.audience,
         OLD.once_key, OLD.repeat_reason, OLD.amount_minor, OLD.currency, OLD.needs_approval,
         OLD.expected_resource_version, OLD.deadline_at, OLD.created_at)
     OR (NEW.arguments <> OLD.arguments AND NOT (erasing AND NEW.arguments = '{}'))
     OR (NEW.compensation IS DISTINCT FROM OLD.compensation AND NOT (erasing AND NEW.compensation IS NULL)) THEN
    RAISE EXCEPTION 'the intent of % never changes', OLD.action_id USING ERRCODE = 'CF451';
  END IF;
  IF OLD.state IN ('succeeded', 'compensated') AND NEW.state IN ('succeeded', 'compensated')
     AND (NEW.receipt IS DISTINCT FROM OLD.receipt AND NOT (erasing AND NEW.receipt IS NULL)
          OR NEW.result IS DISTINCT FROM OLD.result AND NOT (erasing AND NEW.result IS NULL)) THEN
    RAISE EXCEPTION 'the receipt of % is settled', OLD.action_id USING ERRCODE = 'CF451';
  END IF;
  IF OLD.key IS NOT NULL AND (NEW.key IS DISTINCT FROM OLD.key OR NEW.key_version IS DISTINCT FROM OLD.key_version) THEN
    RAISE EXCEPTION 'the key of % is written once', OLD.action_id USING ERRCODE = 'CF451';
  END IF;
  IF NEW.superseded_by IS DISTINCT FROM OLD.superseded_by
     AND (OLD.superseded_by IS NOT NULL OR OLD.state NOT IN
          ('proposed', 'awaiting_approval', 'not_executed', 'permanent_failure', 'cancelled', 'stale')) THEN
    RAISE EXCEPTION '% is %: only an intent that did nothing can be superseded', OLD.action_id, OLD.state
      USING ERRCODE = 'CF409';
  END IF;

  -- What has ended, or was superseded, gives its once-key free; so it is never sent again, even when it is found after all.
  NEW.once_held := OLD.once_held AND NEW.superseded_by IS NULL AND NEW.state <> ALL (ended);
  IF NEW.state = 'operator_review' AND NOT NEW.once_held THEN
    NEW.no_resend := true;
  END IF;
  -- Doubt begins with uncertainty and ends with evidence only: a success, or the verdict of a look-up or a person.
  IF NEW.state IN ('uncertain', 'reconciling') THEN
    NEW.in_doubt := true;
  ELSIF NEW.state = 'succeeded'
     OR (OLD.state IN ('reconciling', 'operator_review') AND NEW.state IN ('permanent_failure', 'not_executed')) THEN
    NEW.in_doubt := false;
  ELSIF OLD.in_doubt AND NOT NEW.in_doubt AND NOT (OLD.state = 'reconciling' AND NEW.state = 'ready') THEN
    RAISE EXCEPTION '% is in doubt: only a finding ends that', OLD.action_id USING ERRCODE = 'CF423';
  END IF;

  NEW.generation := OLD.generation;
  IF NEW.state = OLD.state THEN
    RETURN NEW;
  END IF;

  SELECT a.refused_in_doubt INTO refused
  FROM counterfoil.arrows() AS a WHERE a.from_state = OLD.state AND a.to_state = NEW.state;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'no move from % to % (%)', OLD.state, NEW.state, OLD.action_id USING ERRCODE = 'CF409';
  END IF;
  IF refused AND OLD.in_doubt THEN
    RAISE EXCEPTION '% is in doubt: it may not go from % to %', OLD.action_id, OLD.state, NEW.state
      USING ERRCODE = 'CF423';
  END IF;

  -- Decisions are a person's; everything else but a withdrawal is a worker's. One login may be both, on purpose.
  decision := OLD.state = 'operator_review' OR (OLD.state = 'awaiting_approval' AND NEW.state = 'ready');
  IF decision AND NOT pg_has_role(session_user, 'counterfoil_operator', 'MEMBER') THEN
    RAISE EXCEPTION 'only an operator decides on % (%)', OLD.state, OLD.action_id USING ERRCODE = 'CF403';
  END IF;
  IF NOT decision AND NEW.state NOT IN ('cancelled', 'uncertain')
     AND NOT pg_has_role(session_user, 'counterfoil_worker', 'MEMBER') THEN
    RAISE EXCEPTION 'only a worker moves % to %', OLD.state, NEW.state USING ERRCODE = 'CF403';
  END IF;
  IF NEW.state IN ('ready', 'executing') AND NEW.needs_approval AND NEW.approval_id IS NULL THEN
    RAISE EXCEPTION '% has no approval', OLD.action_id USING ERRCODE = 'CF403';
  END IF;
  IF NEW.state IN ('awaiting_approval', 'ready', 'executing') AND NOT NEW.once_held THEN
    RAISE EXCEPTION '% has ended: it is never sent again', OLD.action_id USING ERRCODE = 'CF409';
  END IF;

  IF NEW.state IN ('ready', 'retryable_failure') THEN
    NEW.generation := OLD.generation + 1;
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER action_guard BEFORE INSERT OR UPDATE ON counterfoil.action
FOR EACH ROW EXECUTE FUNCTION counterfoil.action_guard();

-- Writes what follows from a move, in the same statement: history, the wake-up, and a second visit of an unwound run.
-- SECURITY DEFINER: nobody who moves a row needs (or has) the right to write history.
CREATE FUNCTION counterfoil.action_follow() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  was text := CASE WHEN TG_OP = 'UPDATE' THEN OLD.state END;
BEGIN
  INSERT INTO counterfoil.history (action_id, tenant, run, at, from_state, to_state, generation, attempt_count,
                                   changed_by, db_role, reason, evidence, approval_id)
  VALUES (NEW.action_id, NEW.tenant, NEW.run, NEW.updated_at, was, NEW.state, NEW.generation, NEW.attempt_count,
          NEW.changed_by, session_user, NEW.change_reason, NEW.change_evidence, NEW.approval_id);

  IF NEW.state IN ('ready', 'retryable_failure') THEN
    INSERT INTO counterfoil.outbox AS o (action_id, generation, tenant, queue, not_before)
    VALUES (NEW.action_id, NEW.generation, NEW.tenant, NEW.queue, NEW.ready_at)
    ON CONFLICT (action_id) DO UPDATE
    SET generation = EXCLUDED.generation, not_before = EXCLUDED.not_before, publish_count = 0;
  ELSIF was IN ('ready', 'retryable_failure') THEN
    DELETE FROM counterfoil.outbox WHERE action_id = NEW.action_id;
  END IF;

  IF NEW.state = 'succeeded' AND NEW.phase = 'do' THEN
    UPDATE counterfoil.run SET state = 'unwinding', updated_at = counterfoil.now()
    WHERE tenant = NEW.tenant AND run = NEW.run AND state = 'unwound';
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER action_follow_insert AFTER INSERT ON counterfoil.action
FOR EACH ROW EXECUTE FUNCTION counterfoil.action_follow();
CREATE TRIGGER action_follow_move AFTER UPDATE ON counterfoil.action
FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION counterfoil.action_follow();

CREATE FUNCTION counterfoil.refuse_change() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION '% on %: this table is append-only', TG_OP, TG_TABLE_NAME USING ERRCODE = 'CF403';
END $$;

CREATE TRIGGER history_append_only BEFORE UPDATE OR DELETE ON counterfoil.history
FOR EACH ROW EXECUTE FUNCTION counterfoil.refuse_change();
CREATE TRIGGER history_no_truncate BEFORE TRUNCATE ON counterfoil.history
FOR EACH STATEMENT EXECUTE FUNCTION counterfoil.refuse_change();
CREATE TRIGGER history_default_no_truncate BEFORE TRUNCATE ON counterfoil.history_default
FOR EACH STATEMENT EXECUTE FUNCTION counterfoil.refuse_change();
CREATE TRIGGER action_no_delete BEFORE DELETE ON counterfoil.action
FOR EACH ROW EXECUTE FUNCTION counterfoil.refuse_change();
CREATE TRIGGER action_no_truncate BEFORE TRUNCATE ON counterfoil.action
FOR EACH STATEMENT EXECUTE FUNCTION counterfoil.refuse_change();
