-- How programs in other languages, and triggers, record an intent: one INSERT in a transaction of their own. The relay
-- takes the row through the tools' own checks, and writes into it which action it became, or why it was refused.

CREATE TABLE counterfoil.intake (
  intake_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant text NOT NULL CHECK (length(tenant) BETWEEN 1 AND 200),
  run text NOT NULL CHECK (length(run) BETWEEN 1 AND 400),
  step text NOT NULL CHECK (length(step) BETWEEN 1 AND 200),
  tool text NOT NULL CHECK (length(tool) BETWEEN 1 AND 64),
  arguments text NOT NULL CHECK (octet_length(arguments) <= 65536),   -- a JSON object, as text
  actor text NOT NULL CHECK (length(actor) BETWEEN 1 AND 200),
  not_before timestamptz,
  created_by text NOT NULL DEFAULT session_user,
  created_at timestamptz NOT NULL DEFAULT counterfoil.now(),

  taken_at timestamptz,                        -- NULL: the relay has still to take it
  action_id text,                              -- what it became, or what already stands in its place
  error_code text,                             -- why it was refused; with an action_id: that action is another intent
  error_path text,                             -- which argument, such as $.order_id

  CONSTRAINT intake_outcome CHECK (
    CASE WHEN taken_at IS NULL THEN action_id IS NULL AND error_code IS NULL
         ELSE action_id IS NOT NULL OR error_code IS NOT NULL END)
);
-- Its size follows what waits. By tenant, so that none can fill the relay's batch.
CREATE INDEX intake_waiting ON counterfoil.intake (tenant, intake_id) WHERE taken_at IS NULL;

-- Records the intent of one intake row and writes its outcome, in one transaction; NULL when the row is not there to be
-- taken (another relay has it). The intent must be the row's own: a relay cannot make one up. The login needs the tenant,
-- like whoever proposes. What the ledger itself refuses (the run takes no action) is the row's outcome, too.
CREATE FUNCTION counterfoil.propose_intake(
  p_intake_id bigint,
  p_action_id text, p_tenant text, p_run text, p_step text, p_seq integer, p_revision integer, p_actor text,
  p_tool text, p_tool_version integer, p_class text, p_effect text, p_target text, p_provider text, p_account text,
  p_queue text, p_arguments text, p_arguments_sha256 text, p_audience text[], p_compensation text,
  p_once_key text DEFAULT NULL, p_repeat_reason text DEFAULT NULL, p_amount_minor bigint DEFAULT NULL,
  p_currency text DEFAULT NULL, p_needs_approval boolean DEFAULT false, p_not_before timestamptz DEFAULT NULL,
  p_supersedes text DEFAULT NULL, p_ref text DEFAULT NULL)
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
                WHEN p.found_by = 'step' AND p.arguments_sha256 <> p_arguments_sha256 THEN 'intent_conflict' END
    INTO found_action, refused
    FROM counterfoil.propose(
      p_action_id, p_tenant, p_run, p_step, p_seq, p_revision, p_actor, p_tool, p_tool_version, p_class, p_effect,
      p_target, p_provider, p_account, p_queue, p_arguments, p_arguments_sha256, p_audience, p_compensation, p_once_key,
      p_repeat_reason, p_amount_minor, p_currency, p_needs_approval, p_not_before, p_supersedes, p_ref) AS p;
  EXCEPTION WHEN SQLSTATE 'CF403' THEN
    refused := 'not_allowed';
  END;
  UPDATE counterfoil.intake AS i SET taken_at = counterfoil.now(), action_id = found_action, error_code = refused
  WHERE i.intake_id = p_intake_id;
  RETURN QUERY SELECT found_action, refused;
END $$;

-- What became of an action, in the words of docs and models; counterfoil/outbox/results.py has the same table, and a test
-- compares the two. `value` keeps the text of the tool's result. No row: the login may not see such an action.
CREATE FUNCTION counterfoil.result(p_action_id text)
RETURNS TABLE (status text, next_step text, value json, code text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT
    CASE
      WHEN a.state IN ('proposed', 'ready', 'executing', 'retryable_failure') THEN 'pending'
      WHEN a.state IN ('uncertain', 'reconciling', 'operator_review') THEN 'uncertain'
      WHEN a.state IN ('succeeded', 'compensated') THEN 'succeeded'
      WHEN a.state IN ('permanent_failure', 'not_executed') THEN 'failed'
      ELSE a.state
    END,
    CASE
      WHEN a.state IN ('proposed', 'ready', 'executing', 'retryable_failure', 'uncertain', 'reconciling') THEN 'wait'
      WHEN a.state = 'operator_review' THEN 'person'
      WHEN a.state IN ('awaiting_approval', 'compensated') THEN 'end_turn'
      WHEN a.state = 'stale' THEN 'new_preview'
      WHEN a.state = 'cancelled' AND a.last_error_code IN ('rejected_by_reviewer', 'edited_by_reviewer')
        THEN a.last_error_code
      ELSE 'none'
    END,
    CASE WHEN a.state IN ('succeeded', 'compensated') THEN a.result::json END,
    CASE
      WHEN a.state = 'compensated' THEN 'compensated'
      WHEN a.state IN ('permanent_failure', 'not_executed', 'cancelled', 'stale') THEN
        CASE WHEN a.last_error_code ~ '^[A-Za-z0-9_.:-]{1,100}$' THEN a.last_error_code
             WHEN a.last_error_code IS NOT NULL THEN 'refused' END
    END
  FROM counterfoil.action AS a WHERE a.action_id = p_action_id
$$;

-- Rights: agents write the columns that ask, the relay those that answer.
GRANT SELECT, INSERT (tenant, run, step, tool, arguments, actor, not_before) ON counterfoil.intake TO counterfoil_agent;
GRANT SELECT, UPDATE (taken_at, action_id, error_code, error_path) ON counterfoil.intake TO counterfoil_worker;
GRANT SELECT ON counterfoil.intake TO counterfoil_operator;
GRANT SELECT (intake_id, tenant, run, step, tool, actor, not_before, created_by, created_at, taken_at, action_id,
  error_code) ON counterfoil.intake TO counterfoil_reader;
GRANT EXECUTE ON FUNCTION counterfoil.propose_intake TO counterfoil_worker;
GRANT EXECUTE ON FUNCTION counterfoil.result TO counterfoil_agent, counterfoil_operator;

ALTER TABLE counterfoil.intake ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_tenants ON counterfoil.intake FOR ALL TO counterfoil_agent, counterfoil_operator, counterfoil_reader
USING (tenant = ANY ((SELECT counterfoil.my_tenants())::text[]) OR '*' = ANY ((SELECT counterfoil.my_tenants())::text[]));
CREATE POLICY all_tenants ON counterfoil.intake FOR ALL TO counterfoil_worker USING (true);
