-- What the command line shows. All but `said_in_action` keep to the columns that a reader may see.

-- name: show_action
-- With the ledger's time, against which leases and waits are told, and the wake-up where there is one.
SELECT a.action_id, a.tenant, a.run, a.step, a.seq, a.revision, a.phase, a.parent_action_id, a.actor, a.tool,
       a.tool_version, a.class, a.effect, a.target, a.provider, a.audience, a.amount_minor, a.currency, a.needs_approval,
       a.deadline_at, a.created_at, a.state, a.superseded_by, a.attempt_count, a.ready_at, a.lease_until, a.quiet_from,
       a.first_sent_at, a.in_doubt, a.no_resend, a.absent_count, a.uncertain_since, a.lookup_count, a.next_lookup_at,
       a.last_error_code, a.cancel_requested_at, a.erased_at, a.updated_at, o.publish_count, counterfoil.now() AS now
FROM counterfoil.action AS a
LEFT JOIN counterfoil.outbox AS o ON o.action_id = a.action_id
WHERE a.action_id = :action_id;

-- name: said_in_action
-- For logins that may read it, and only when it is asked for.
SELECT arguments, receipt, result FROM counterfoil.action WHERE action_id = :action_id;

-- name: runs_named
-- Run ids are the application's, one namespace a tenant.
SELECT tenant, run, actor, state, parent_run, calls_count, deadline_at, unwind_reason, created_at, updated_at
FROM counterfoil.run
WHERE run = :run AND (CAST(:tenant AS text) IS NULL OR tenant = :tenant)
ORDER BY tenant LIMIT 20;
