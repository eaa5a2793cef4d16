-- What no role and no raw SQL gets around: digests, the gate in front of a claim, the order of a plan.

-- A text with its length in bytes before it, so that a list of them reads in one way only; "-" for none.
CREATE FUNCTION counterfoil.netstring(p_text text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(octet_length(convert_to(p_text, 'UTF8')) || ':' || p_text, '-')
$$;

-- What an approval binds: everything that decides what is done, to what, for whom, and until when it may begin.
-- counterfoil/ledger/digests.py computes the same; a test compares the two.
CREATE FUNCTION counterfoil.intent_digest(a counterfoil.action, p_expires_at timestamptz) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
  SELECT encode(sha256(convert_to(string_agg(counterfoil.netstring(f), ',' ORDER BY n), 'UTF8')), 'hex')
  FROM unnest(ARRAY[
    'cf1-intent', a.tool, a.tool_version::text, a.class, a.effect, a.target, a.provider, a.account, a.arguments_sha256,
    (SELECT string_agg(counterfoil.netstring(u), ',' ORDER BY o) FROM unnest(a.audience) WITH ORDINALITY AS w (u, o)),
    a.amount_minor::text, a.currency, a.compensation, a.correction, a.expected_resource_version, a.actor, a.tenant, a.run,
    a.step, a.action_id, a.revision::text, a.phase, a.parent_action_id,
    floor(extract(epoch FROM p_expires_at) * 1000000)::bigint::text]) WITH ORDINALITY AS fields (f, n)
$$;

-- What a decision is about: the intents to be committed, in their order, and what stands staged for them.
CREATE FUNCTION counterfoil.proposal_digest(p_proposal text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT encode(sha256(convert_to(string_agg(counterfoil.netstring(f), ',' ORDER BY n, m), 'UTF8')), 'hex')
  FROM (
    SELECT 0 AS n, m, f FROM counterfoil.proposal AS p
    CROSS JOIN unnest(ARRAY['cf1-proposal', p.proposal_id, p.tenant, p.run, p.actor, p.note, p.people::text])
      WITH ORDINALITY AS head (f, m)
    WHERE p.proposal_id = p_proposal
    UNION ALL
    SELECT 1, coalesce(a.place, 1), counterfoil.intent_digest(a, p.expires_at)
    FROM counterfoil.proposal AS p JOIN counterfoil.action AS a ON a.proposal_id = p.proposal_id
    WHERE p.proposal_id = p_proposal AND a.superseded_by IS NULL
    UNION ALL
    SELECT 2, row_number() OVER (ORDER BY s.seq, s.action_id),
           counterfoil.netstring(s.action_id) || ',' || counterfoil.netstring(s.receipt)
    FROM counterfoil.proposal AS p
    JOIN counterfoil.action AS s ON s.tenant = p.tenant AND s.run = p.run
    WHERE p.proposal_id = p_proposal AND p.is_plan AND s.staged AND s.state = 'succeeded' AND s.superseded_by IS NULL
  ) AS parts
$$;

-- Guards one action, as before, and: an approval is given once; a version is read once, while the action is proposed; a
-- plan's next step is moved by whoever has moved the one before. SQLSTATEs: see 0001_b.
CREATE OR REPLACE FUNCTION counterfoil.action_guard() RETURNS trigger LANGUAGE plpgsql
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
    IF NEW.needs_approval AND (NEW.state = 'ready' OR NEW.approval_id IS NOT NULL) THEN
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
         NEW.once_key, NEW.repeat_reason, NEW.amount_minor, NEW.currency, NEW.needs_approval, NEW.deadline_at,
         NEW.created_at, NEW.proposal_id, NEW.place, NEW.staged, NEW.effect_scope, NEW.reads_version)
     IS DISTINCT FROM
     ROW(OLD.action_id, OLD.tenant, OLD.run, OLD.step, OLD.seq, OLD.revision, OLD.phase, OLD.parent_action_id,
         OLD.edited_from, OLD.actor, OLD.tool, OLD.tool_version, OLD.class, OLD.effect, OLD.target, OLD.provider,
         OLD.account, OLD.queue, OLD.arguments_sha256, OLD.arguments_codec, OLD.audience,
         OLD.once_key, OLD.repeat_reason, OLD.amount_minor, OLD.currency, OLD.needs_approval, OLD.deadline_at,
         OLD.created_at, OLD.proposal_id, OLD.place, OLD.staged, OLD.effect_scope, OLD.reads_version)
     OR (NEW.arguments <> OLD.arguments AND NOT (erasing AND NEW.arguments = '{}'))
     OR (NEW.compensation IS DISTINCT FROM OLD.compensation AND NOT (erasing AND NEW.compensation IS NULL))
     OR (NEW.correction IS DISTINCT FROM OLD.correction AND NOT (erasing AND NEW.correction IS NULL))
     OR (NEW.expected_resource_version IS DISTINCT FROM OLD.expected_resource_version
         AND NOT (OLD.expected_resource_version IS NULL AND OLD.reads_version AND OLD.state = 'proposed'
                  AND OLD.approval_id IS NULL)) THEN
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
  IF OLD.approval_id IS NOT NULL AND NEW.approval_id IS DISTINCT FROM OLD.approval_id THEN
    RAISE EXCEPTION 'the approval of % is given once', OLD.action_id USING ERRCODE = 'CF451';
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

  -- Decisions are a person's; everything else but a withdrawal is a worker's. One login may be both, on purpose. An approval
  -- within bounds goes on in the agent's own transaction (see counterfoil.propose); an approved plan's next step moves with
  -- the step before it, whoever has moved that; and whoever comes too late to decide finds that it has expired.
  decision := OLD.state = 'operator_review' OR (OLD.state = 'awaiting_approval' AND NEW.state = 'ready');
  IF decision AND NOT pg_has_role(session_user, 'counterfoil_operator', 'MEMBER')
     AND NOT (OLD.state = 'awaiting_approval' AND counterfoil.is_carried(NEW.approval_id, NEW.action_id)) THEN
    RAISE EXCEPTION 'only an operator decides on % (%)', OLD.state, OLD.action_id USING ERRCODE = 'CF403';
  END IF;
  IF NOT decision AND NEW.state NOT IN ('cancelled', 'uncertain')
     AND NOT pg_has_role(session_user, 'counterfoil_worker', 'MEMBER')
     AND NOT (pg_has_role(session_user, 'counterfoil_operator', 'MEMBER')
              AND (NEW.state = 'stale' AND OLD.state IN ('proposed', 'awaiting_approval')
                   OR OLD.state = 'proposed' AND NEW.state = 'ready' AND NEW.approval_id IS NOT NULL)) THEN
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

-- Whether the approval continues a bounded one, and is this action's. SECURITY DEFINER: the guard runs as anybody.
CREATE FUNCTION counterfoil.is_carried(p_approval text, p_action text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM counterfoil.approval AS p
                 WHERE p.approval_id = p_approval AND p.action_id = p_action AND p.carried_from IS NOT NULL)
$$;

-- The gate: a gated action becomes claimable, and is claimed, only under the approval of exactly this intent. The first
-- claim consumes it, before its expiry by the database's clock. CF403: the approval is not this intent's.
CREATE FUNCTION counterfoil.approval_gate() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  given counterfoil.approval;
BEGIN
  SELECT * INTO given FROM counterfoil.approval AS p WHERE p.approval_id = NEW.approval_id FOR UPDATE;
  IF NOT FOUND OR given.action_id <> NEW.action_id OR given.tenant <> NEW.tenant
     OR given.digest <> counterfoil.intent_digest(NEW, given.expires_at) THEN
    RAISE EXCEPTION 'the approval is not of this intent (%)', NEW.action_id USING ERRCODE = 'CF403';
  END IF;
  IF given.consumed_at IS NULL AND given.expires_at <= counterfoil.now() THEN
    RAISE EXCEPTION 'the approval of % has expired', NEW.action_id USING ERRCODE = 'CF403';
  END IF;
  IF NEW.state = 'executing' AND given.consumed_at IS NULL THEN
    UPDATE counterfoil.approval SET consumed_at = counterfoil.now() WHERE approval_id = given.approval_id;
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER approval_gate BEFORE UPDATE ON counterfoil.action FOR EACH ROW
WHEN (NEW.needs_approval AND NEW.state IN ('ready', 'executing') AND OLD.state IS DISTINCT FROM NEW.state)
EXECUTE FUNCTION counterfoil.approval_gate();

-- A plan goes on with its next step when one has succeeded, and stops where one has ended without its effect. An open
-- proposal of which nothing is left to decide was withdrawn, or its time was over, whoever has noticed that first.
CREATE FUNCTION counterfoil.plan_follow() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NEW.state = 'succeeded' AND NEW.place IS NOT NULL THEN
    UPDATE counterfoil.action AS a
    SET state = 'ready', ready_at = greatest(a.ready_at, counterfoil.now()), changed_by = 'plan',
        change_reason = 'its turn in the plan', change_evidence = NEW.action_id
    WHERE a.state = 'proposed' AND a.approval_id IS NOT NULL
      AND a.action_id = (
        SELECT n.action_id FROM counterfoil.action AS n
        WHERE n.proposal_id = NEW.proposal_id AND n.superseded_by IS NULL AND n.place > NEW.place
        ORDER BY n.place LIMIT 1)
      AND EXISTS (SELECT FROM counterfoil.run AS r
                  WHERE r.tenant = NEW.tenant AND r.run = NEW.run AND r.state IN ('open', 'closed'))
      -- Expired meanwhile, or not of this intent: a success is written all the same, and expire_proposals ends the rest.
      AND EXISTS (SELECT FROM counterfoil.approval AS p
                  WHERE p.approval_id = a.approval_id AND p.action_id = a.action_id AND p.expires_at > counterfoil.now()
                    AND p.digest = counterfoil.intent_digest(a, p.expires_at));
  ELSIF NEW.superseded_by IS NULL
        AND NEW.state IN ('permanent_failure', 'not_executed', 'cancelled', 'stale') THEN
    UPDATE counterfoil.action AS a
    SET state = 'cancelled', last_error_code = 'plan_stopped', changed_by = 'plan', change_reason = 'plan stopped',
        change_evidence = NEW.action_id
    WHERE a.proposal_id = NEW.proposal_id AND a.superseded_by IS NULL AND a.state IN ('proposed', 'awaiting_approval');
    UPDATE counterfoil.proposal AS p
    SET state = CASE WHEN NEW.state = 'stale' AND p.expires_at <= counterfoil.now() THEN 'expired' ELSE 'withdrawn' END,
        decided_at = counterfoil.now(), decided_by = NEW.changed_by
    WHERE p.proposal_id = NEW.proposal_id AND p.state = 'open';
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER plan_follow AFTER UPDATE ON counterfoil.action FOR EACH ROW
WHEN (NEW.proposal_id IS NOT NULL AND OLD.state IS DISTINCT FROM NEW.state AND NEW.phase = 'do')
EXECUTE FUNCTION counterfoil.plan_follow();
