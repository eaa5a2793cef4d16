-- What agents and people read and ask; writes go through the definer functions of the migration.

-- name: open_run
SELECT epoch, state, deadline_at FROM counterfoil.open_run(
  :tenant, :run, :actor, :deadline_s, :parent, :parent_epoch);

-- name: lock_and_read
SELECT state, calls_count, deadline_at, pivot, actions, refs FROM counterfoil.lock_and_read(:tenant, :run, :epoch);

-- name: propose
SELECT created, found_by, action_id, tool, arguments_sha256, state
FROM counterfoil.propose(
  :action_id, :tenant, :run, :step, :seq, :revision, :actor, :tool, :tool_version, :class, :effect, :target, :provider,
  :account, :queue, :arguments, :arguments_sha256, CAST(:audience AS text[]), :compensation, :once_key, :repeat_reason,
  CAST(:amount_minor AS bigint), :currency, :needs_approval, CAST(:not_before AS timestamptz), :supersedes, :ref,
  :parent, :staged, :correction, :effect_scope, :reads_version, :expected_version, :bulk_above, :people, :expiry_s,
  :proposal, CAST(:place AS integer));

-- name: add_ref
SELECT counterfoil.add_ref(:tenant, :run, :ref, :action_id);

-- name: look_now
SELECT counterfoil.look_now(:action_id);

-- name: request_cancel
SELECT counterfoil.request_cancel(:action_id, :by, :reason) AS state;

-- name: request_unwind
SELECT counterfoil.request_unwind(:tenant, :run, :reason) AS state;

-- name: close_run
SELECT counterfoil.close_run(:tenant, :run) AS state;

-- name: read_action
-- Everything that a result is made of.
SELECT action_id, tenant, run, step, seq, revision, phase, tool, class, target, state, in_doubt, arguments, result,
       receipt, last_error_code, last_error_field, no_resend, cancel_requested_at, attempt_count, superseded_by,
       created_at, updated_at, ready_at, next_lookup_at, lookup_count, once_key
FROM counterfoil.action WHERE action_id = :action_id;

-- name: read_run
SELECT tenant, run, actor, state, epoch, calls_count, deadline_at, unwind_reason, created_at, updated_at
FROM counterfoil.run WHERE tenant = :tenant AND run = :run;

-- name: list_actions
SELECT action_id, tenant, run, step, phase, tool, target, state, attempt_count, last_error_code, created_at, updated_at
FROM counterfoil.actions
WHERE (CAST(:tenant AS text) IS NULL OR tenant = :tenant)
  AND (CAST(:run AS text) IS NULL OR run = :run)
  AND (CAST(:state AS text) IS NULL OR state = :state)
ORDER BY created_at DESC, action_id LIMIT :limit;

-- name: list_runs
SELECT tenant, run, actor, state, epoch, calls_count, created_at, updated_at
FROM counterfoil.run
WHERE (CAST(:tenant AS text) IS NULL OR tenant = :tenant) AND (CAST(:state AS text) IS NULL OR state = :state)
ORDER BY updated_at DESC, run LIMIT :limit;

-- name: read_history
SELECT history_id, at, from_state, to_state, attempt_count, changed_by, db_role, reason
FROM counterfoil.history WHERE action_id = :action_id ORDER BY history_id;

-- name: read_attempts
SELECT number, worker, started_at, finished_at, outcome, code
FROM counterfoil.attempt WHERE action_id = :action_id ORDER BY started_at;

-- name: actions_of_run
SELECT action_id, step, seq, revision, phase, tool, target, state, attempt_count, last_error_code, created_at, updated_at
FROM counterfoil.actions WHERE tenant = :tenant AND run = :run ORDER BY created_at, action_id;

-- name: results_of_run
-- What results are made of, in the order of recording: the newest revision of each step.
SELECT action_id, tenant, run, step, seq, revision, tool, state, arguments, result, last_error_code, last_error_field
FROM counterfoil.action
WHERE tenant = :tenant AND run = :run AND phase = 'do' AND superseded_by IS NULL
ORDER BY created_at, seq LIMIT :limit;
