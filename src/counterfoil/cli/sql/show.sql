-- What the command line shows. All but `said_in_action` and `proved_in_action` keep to the columns that a reader may see.

-- name: show_action
-- With the ledger's time, against which leases and waits are told, and the decision that it waits for, or waited for.
SELECT action_id, tenant, run, step, seq, revision, phase, parent_action_id, actor, tool,
       tool_version, class, effect, target, provider, audience, amount_minor, currency, needs_approval,
       deadline_at, created_at, state, superseded_by, attempt_count, ready_at, lease_until, quiet_from,
       first_sent_at, in_doubt, no_resend, absent_count, uncertain_since, lookup_count, next_lookup_at,
       last_error_code, cancel_requested_at, erased_at, updated_at, watch_at, reads_version, place, proposal_id, decide_by,
       proposal_state, people, counterfoil.now() AS now
FROM counterfoil.action
LEFT JOIN (SELECT proposal_id, expires_at AS decide_by, state AS proposal_state, people
           FROM counterfoil.proposal) AS asked USING (proposal_id)
WHERE action_id = :action_id;

-- name: said_in_action
-- For logins that may read it, and only when it is asked for; the key is what stands at the provider.
SELECT arguments, receipt, result, key FROM counterfoil.action WHERE action_id = :action_id;

-- name: may_read_evidence
SELECT has_column_privilege('counterfoil.history', 'evidence', 'SELECT') AS may;

-- name: may_read_decisions
-- Agents read nothing of what people said, readers no reasons and digests.
SELECT has_any_column_privilege('counterfoil.decision', 'SELECT') AS may,
       has_table_privilege('counterfoil.approval', 'SELECT') AS in_full;

-- name: proved_in_action
-- The history with what each look-up showed: receipts and codes, so for logins that may read those.
SELECT history_id, at, from_state, to_state, attempt_count, changed_by, db_role, reason, evidence
FROM counterfoil.history WHERE action_id = :action_id ORDER BY history_id;

-- name: moves_of
-- For the timeline of a run; by action, since that is what the history is indexed by.
SELECT action_id, at, from_state, to_state, reason
FROM counterfoil.history WHERE action_id = ANY(CAST(:action_ids AS text[])) ORDER BY history_id LIMIT :limit;

-- name: attempts_of
SELECT action_id, number, started_at, finished_at, outcome
FROM counterfoil.attempt WHERE action_id = ANY(CAST(:action_ids AS text[])) ORDER BY started_at LIMIT :limit;

-- name: runs_named
-- Run ids are the application's, one namespace a tenant.
SELECT tenant, run, actor, state, parent_run, calls_count, deadline_at, unwind_reason, unwind_requested_at, created_at, updated_at,
       pivot, pivot_passed_at, counterfoil.irreversible_before_pivot(tenant, run) AS irreversible_before_pivot,
       counterfoil.now() AS now
FROM counterfoil.run
WHERE run = :run AND (CAST(:tenant AS text) IS NULL OR tenant = :tenant)
ORDER BY tenant LIMIT 20;

-- name: open_proposals_of_run
-- What a person has to decide before the run goes on.
SELECT p.proposal_id, p.is_plan, p.people, p.expires_at, p.created_at,
       (SELECT count(*) FROM counterfoil.action AS a
        WHERE a.proposal_id = p.proposal_id AND a.superseded_by IS NULL) AS steps
FROM counterfoil.proposal AS p
WHERE p.tenant = :tenant AND p.run = :run AND p.state = 'open' ORDER BY p.created_at, p.proposal_id;

-- name: staged_of_run
SELECT action_id, step, tool, target, state, created_at
FROM counterfoil.action
WHERE tenant = :tenant AND run = :run AND staged AND superseded_by IS NULL ORDER BY created_at, action_id;

-- name: may_read_results
SELECT has_column_privilege('counterfoil.action', 'result', 'SELECT') AS may;

-- name: results_of_staged
-- Of what still stands: in them is when it lapses by itself.
SELECT action_id, tool, tool_version, result
FROM counterfoil.action
WHERE tenant = :tenant AND run = :run AND staged AND superseded_by IS NULL AND state = 'succeeded' AND result IS NOT NULL;
