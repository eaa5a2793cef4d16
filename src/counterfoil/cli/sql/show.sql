-- What the command line shows. All but `said_in_action` keep to the columns that a reader may see.

-- name: show_action
-- With the ledger's time, against which leases and waits are told.
SELECT action_id, tenant, run, step, seq, revision, phase, parent_action_id, actor, tool,
       tool_version, class, effect, target, provider, audience, amount_minor, currency, needs_approval,
       deadline_at, created_at, state, superseded_by, attempt_count, ready_at, lease_until, quiet_from,
       first_sent_at, in_doubt, no_resend, absent_count, uncertain_since, lookup_count, next_lookup_at,
       last_error_code, cancel_requested_at, erased_at, updated_at, counterfoil.now() AS now
FROM counterfoil.action
WHERE action_id = :action_id;

-- name: said_in_action
-- For logins that may read it, and only when it is asked for.
SELECT arguments, receipt, result FROM counterfoil.action WHERE action_id = :action_id;

-- name: runs_named
-- Run ids are the application's, one namespace a tenant.
SELECT tenant, run, actor, state, parent_run, calls_count, deadline_at, unwind_reason, created_at, updated_at
FROM counterfoil.run
WHERE run = :run AND (CAST(:tenant AS text) IS NULL OR tenant = :tenant)
ORDER BY tenant LIMIT 20;
