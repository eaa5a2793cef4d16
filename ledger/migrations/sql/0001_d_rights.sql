-- Who may do what. Groups are made by `counterfoil db roles`; logins are added to them by `counterfoil db grant`.

REVOKE ALL ON ALL TABLES IN SCHEMA counterfoil FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA counterfoil FROM PUBLIC;
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;  -- of later migrations, which run as the owner too
GRANT USAGE ON SCHEMA counterfoil TO counterfoil_agent, counterfoil_worker, counterfoil_operator, counterfoil_reader;
GRANT EXECUTE ON FUNCTION counterfoil.now(), counterfoil.my_tenants()
  TO counterfoil_agent, counterfoil_worker, counterfoil_operator, counterfoil_reader;
GRANT EXECUTE ON FUNCTION counterfoil.arrows() TO counterfoil_agent, counterfoil_worker, counterfoil_operator;

-- Agents write through these functions only.
GRANT EXECUTE ON FUNCTION
  counterfoil.open_run, counterfoil.lock_and_read, counterfoil.propose, counterfoil.add_ref, counterfoil.look_now,
  counterfoil.close_run, counterfoil.request_cancel, counterfoil.request_unwind TO counterfoil_agent;
GRANT SELECT ON counterfoil.run, counterfoil.action, counterfoil.attempt, counterfoil.history, counterfoil.step_ref
  TO counterfoil_agent;

-- Workers, the relay and beat: every tenant (they hold the providers' secrets anyway), state columns only.
GRANT SELECT ON counterfoil.run, counterfoil.action, counterfoil.attempt, counterfoil.history, counterfoil.outbox,
  counterfoil.worker_heartbeat TO counterfoil_worker;
GRANT UPDATE (state, fence, ready_at, lease_until, quiet_from, first_sent_at, last_sent_at, attempt_count,
  not_sent_count, in_doubt, no_resend, absent_count, last_absent_at, uncertain_since, lookup_count, next_lookup_at, key,
  key_version, receipt, result, last_error_code, last_error_field, changed_by, change_reason, change_evidence)
  ON counterfoil.action TO counterfoil_worker;
GRANT UPDATE (state, updated_at) ON counterfoil.run TO counterfoil_worker;
GRANT INSERT, UPDATE (finished_at, outcome, code, evidence, receipt, result) ON counterfoil.attempt TO counterfoil_worker;
GRANT INSERT, UPDATE (not_before, publish_count) ON counterfoil.outbox TO counterfoil_worker;
GRANT INSERT, UPDATE, DELETE ON counterfoil.worker_heartbeat TO counterfoil_worker;
GRANT EXECUTE ON FUNCTION counterfoil.propose_undo, counterfoil.finish_unwind, counterfoil.make_partitions,
  counterfoil.request_cancel TO counterfoil_worker;

-- Operators decide; the trigger keeps them from claiming.
GRANT SELECT ON counterfoil.run, counterfoil.action, counterfoil.attempt, counterfoil.history, counterfoil.outbox,
  counterfoil.worker_heartbeat TO counterfoil_operator;
GRANT UPDATE (state, approval_id, ready_at, lease_until, fence, no_resend, in_doubt, receipt, last_error_code,
  uncertain_since, next_lookup_at, changed_by, change_reason, change_evidence) ON counterfoil.action TO counterfoil_operator;
GRANT EXECUTE ON FUNCTION counterfoil.request_cancel, counterfoil.request_unwind, counterfoil.look_now,
  counterfoil.close_run TO counterfoil_operator;

-- Readers see what happened, never what was said: no arguments, compensations, receipts or results.
GRANT SELECT (action_id, tenant, run, step, seq, revision, phase, parent_action_id, actor, tool, tool_version, class,
  effect, target, provider, account, queue, audience, amount_minor, currency, needs_approval, deadline_at, created_at,
  state, superseded_by, attempt_count, not_sent_count, generation, ready_at, lease_until, quiet_from, first_sent_at,
  last_sent_at, in_doubt, no_resend, absent_count, uncertain_since, lookup_count, next_lookup_at, last_error_code,
  cancel_requested_at, erased_at, updated_at) ON counterfoil.action TO counterfoil_reader;
GRANT SELECT (attempt_id, action_id, tenant, number, worker, started_at, finished_at, outcome, code)
  ON counterfoil.attempt TO counterfoil_reader;
GRANT SELECT (history_id, action_id, tenant, run, at, from_state, to_state, generation, attempt_count, changed_by,
  db_role, reason) ON counterfoil.history TO counterfoil_reader;
GRANT SELECT ON counterfoil.run, counterfoil.worker_heartbeat, counterfoil.outbox TO counterfoil_reader;
GRANT SELECT ON counterfoil.actions, counterfoil.open_work, counterfoil.schema_version
  TO counterfoil_agent, counterfoil_worker, counterfoil_operator, counterfoil_reader;

-- Row-level security: a login sees its tenants' rows. Not forced on the owner, whose functions check the principal
-- themselves. The two sub-selects run once a query, not once a row.
ALTER TABLE counterfoil.principal ENABLE ROW LEVEL SECURITY;
ALTER TABLE counterfoil.run ENABLE ROW LEVEL SECURITY;
ALTER TABLE counterfoil.action ENABLE ROW LEVEL SECURITY;
ALTER TABLE counterfoil.attempt ENABLE ROW LEVEL SECURITY;
ALTER TABLE counterfoil.attempt_default ENABLE ROW LEVEL SECURITY;
ALTER TABLE counterfoil.history ENABLE ROW LEVEL SECURITY;
ALTER TABLE counterfoil.history_default ENABLE ROW LEVEL SECURITY;
ALTER TABLE counterfoil.step_ref ENABLE ROW LEVEL SECURITY;
ALTER TABLE counterfoil.outbox ENABLE ROW LEVEL SECURITY;

DO $$
DECLARE
  t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['run', 'action', 'attempt', 'history', 'step_ref', 'outbox'] LOOP
    EXECUTE format(
      'CREATE POLICY own_tenants ON counterfoil.%I FOR ALL TO counterfoil_agent, counterfoil_operator, counterfoil_reader '
      'USING (tenant = ANY ((SELECT counterfoil.my_tenants())::text[]) '
      '       OR ''*'' = ANY ((SELECT counterfoil.my_tenants())::text[]))', t);
    EXECUTE format('CREATE POLICY all_tenants ON counterfoil.%I FOR ALL TO counterfoil_worker USING (true)', t);
  END LOOP;
END $$;
