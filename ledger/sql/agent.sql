-- What agents and people read and ask; writes go through the definer functions of the migration.

-- name: open_run
SELECT epoch, state, deadline_at FROM counterfoil.open_run(
  :tenant, :run, :actor, :deadline_s, :parent, :parent_epoch);

-- name: lock_and_read
SELECT state, calls_count, deadline_at, pivot, actions, refs, past FROM counterfoil.lock_and_read(:tenant, :run, :epoch);

-- name: propose
SELECT created, found_by, action_id, tool, arguments_sha256, state
FROM counterfoil.propose(
  :action_id, :tenant, :run, :step, :seq, :revision, :actor, :tool, :tool_version, :class, :effect, :target, :provider,
  :account, :queue, :arguments, :arguments_sha256, CAST(:audience AS text[]), :compensation, :once_key, :repeat_reason,
  CAST(:amount_minor AS bigint), :currency, :needs_approval, CAST(:not_before AS timestamptz), :supersedes, :ref,
  :parent, :staged, :correction, :effect_scope, :reads_version, :expected_version, :bulk_above, :people, :expiry_s,
  :proposal, CAST(:place AS integer), CAST(:waiting_max AS integer));

-- name: add_ref
SELECT counterfoil.add_ref(:tenant, :run, :turn, :ref, :action_id, :arguments_sha256);

-- name: note_proposal
SELECT counterfoil.note_proposal(:action_id, :note);

-- name: report_lost_time
SELECT counterfoil.report_lost_time(:tenant, :run);

-- name: look_now
SELECT counterfoil.look_now(:action_id);

-- name: request_cancel
-- Of the revision that stands for the action, if a reviewer has edited it.
SELECT counterfoil.request_cancel(coalesce(counterfoil.as_edited(:action_id), :action_id), :by, :reason) AS state;

-- name: request_unwind
SELECT counterfoil.request_unwind(:tenant, :run, :reason) AS state;

-- name: hold_run
SELECT counterfoil.hold_run(:tenant, :run, :actor, :holder, :hold_s) AS held;

-- name: release_run
SELECT counterfoil.release_run(:tenant, :run, :holder);

-- name: close_run
SELECT counterfoil.close_run(:tenant, :run) AS state;

-- name: read_action
-- Everything that a result is made of.
SELECT action_id, tenant, run, step, seq, revision, phase, tool, class, target, state, in_doubt, arguments, result,
       receipt, last_error_code, last_error_field, no_resend, cancel_requested_at, attempt_count, superseded_by,
       created_at, updated_at, ready_at, next_lookup_at, lookup_count, once_key
FROM counterfoil.action WHERE action_id = :action_id;

-- name: read_result
-- What a result is made of; where a reviewer has put another revision in its place, of that one.
SELECT action_id, tenant, run, step, seq, revision, phase, tool, state, ends_count, arguments, result, last_error_code,
       last_error_field, superseded_by, proposal_id, edited_from,
       CASE WHEN last_error_code = 'rejected_by_reviewer' THEN change_reason END AS change_reason
FROM counterfoil.action WHERE action_id = counterfoil.as_edited(:action_id);

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
SELECT tenant, run, actor, state, epoch, calls_count, created_at, updated_at, pivot,
       CASE WHEN pivot IS NULL THEN 0
            ELSE counterfoil.irreversible_before_pivot(tenant, run) END AS irreversible_before_pivot
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
SELECT action_id, tenant, run, step, seq, revision, tool, state, ends_count, arguments, result, last_error_code,
       last_error_field, superseded_by, proposal_id, edited_from,
       CASE WHEN last_error_code = 'rejected_by_reviewer' THEN change_reason END AS change_reason
FROM counterfoil.action
WHERE tenant = :tenant AND run = :run AND phase = 'do' AND superseded_by IS NULL
ORDER BY created_at, seq LIMIT :limit;

-- name: succeeded_of_run
-- What a plan's steps are about.
SELECT action_id, arguments FROM counterfoil.action
WHERE action_id = ANY (CAST(:ids AS text[])) AND tenant = :tenant AND run = :run AND phase = 'do' AND state = 'succeeded'
  AND erased_at IS NULL;

-- name: plans_of_run
-- The plans that are waiting or decided, the newest first, with their steps as they were proposed: whoever begins again is
-- told what became of theirs. One that was replaced (withdrawn) is nobody's any more.
SELECT p.proposal_id, CASE WHEN p.state = 'open' AND p.expires_at <= counterfoil.now() THEN 'expired' ELSE p.state END AS decision,
       a.tool, a.arguments_sha256, a.parent_action_id
FROM counterfoil.proposal AS p JOIN counterfoil.action AS a ON a.proposal_id = p.proposal_id
WHERE p.tenant = :tenant AND p.run = :run AND p.is_plan AND a.edited_from IS NULL
  AND p.state <> 'withdrawn'
ORDER BY p.created_at DESC, p.proposal_id, a.place;

-- name: open_plan
SELECT answer, expires_at FROM counterfoil.open_plan(
  :proposal, :tenant, :run, :actor, :note, :people, :expiry_s, CAST(:lapses_at AS timestamptz), :open_max,
  :step, :revision);

-- name: ledger_now
SELECT counterfoil.now() AS now;

-- name: proposal_digest
SELECT counterfoil.proposal_digest(:proposal) AS digest;

-- name: read_plan
-- The steps as they stand, with the decision on them: one statement, so that the two are of one moment.
SELECT DISTINCT ON (a.place) p.proposal_id, p.state AS decision, a.place, a.action_id, a.tenant, a.run, a.step, a.seq,
       a.revision, a.tool, a.state, a.ends_count, a.arguments, a.result, a.last_error_code, a.last_error_field, a.superseded_by,
       a.edited_from, CASE WHEN a.last_error_code = 'rejected_by_reviewer' THEN a.change_reason END AS change_reason
FROM counterfoil.proposal AS p JOIN counterfoil.action AS a ON a.proposal_id = p.proposal_id
WHERE p.proposal_id = :proposal
ORDER BY a.place, a.revision DESC;
