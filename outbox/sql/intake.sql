-- What the relay asks of the intake: what other languages have written down, to be proposed through the registry.

-- name: waiting_intake
-- A few rows of each tenant that this login serves, so that a tenant with many holds up no other. A loose scan over
-- tenants, as over queues in relay.sql.
WITH RECURSIVE named (tenant) AS (
  (SELECT i.tenant FROM counterfoil.intake AS i WHERE i.taken_at IS NULL ORDER BY i.tenant LIMIT 1)
  UNION ALL
  SELECT (SELECT i.tenant FROM counterfoil.intake AS i
          WHERE i.taken_at IS NULL AND i.tenant > n.tenant ORDER BY i.tenant LIMIT 1)
  FROM named AS n
  WHERE n.tenant IS NOT NULL
)
SELECT i.intake_id, i.tenant, i.run, i.step, i.tool, i.arguments, i.actor, i.not_before
FROM named AS n
CROSS JOIN LATERAL (
  SELECT w.* FROM counterfoil.intake AS w
  WHERE w.taken_at IS NULL AND w.tenant = n.tenant
  ORDER BY w.intake_id
  LIMIT :per_tenant
) AS i
WHERE (n.tenant = ANY (counterfoil.my_tenants()) OR '*' = ANY (counterfoil.my_tenants()))
  AND n.tenant <> ALL (CAST(:full AS text[]))       -- they have enough waiting, and are not in the others' way
ORDER BY i.intake_id
LIMIT :batch;

-- name: propose_intake
-- Recorded and written down in one transaction: a relay that dies has done both or nothing.
SELECT action_id, error_code
FROM counterfoil.propose_intake(
  :intake_id, :action_id, :tenant, :run, :step, :seq, :revision, :actor, :tool, :tool_version, :class, :effect, :target,
  :provider, :account, :queue, :arguments, :arguments_sha256, CAST(:audience AS text[]), :compensation, :once_key,
  :repeat_reason, CAST(:amount_minor AS bigint), :currency, :needs_approval, CAST(:not_before AS timestamptz),
  :supersedes, :ref, :correction, :effect_scope, :reads_version, :expected_version, :bulk_above, :people, :expiry_s,
  CAST(:waiting_max AS integer));

-- name: refuse_intake
-- What no check lets through is told in the row, and is in nobody's way any more.
UPDATE counterfoil.intake AS i
SET taken_at = counterfoil.now(), error_code = :code, error_path = :path
WHERE i.intake_id = :intake_id AND i.taken_at IS NULL
RETURNING i.intake_id;
