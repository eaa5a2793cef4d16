-- What a test's world reads, and the one thing that only a test does: replace the ledger's clock.

-- name: due
SELECT action_id, generation FROM counterfoil.outbox
WHERE not_before <= counterfoil.now() ORDER BY not_before, outbox_id LIMIT :batch;

-- name: states
SELECT tool, step, phase, state FROM counterfoil.action ORDER BY created_at, action_id;

-- name: fingerprint
-- Changes with every move of an action or run.
SELECT concat_ws(':', (SELECT count(*) FROM counterfoil.history), (SELECT max(history_id) FROM counterfoil.history),
                 (SELECT string_agg(run || state, ',' ORDER BY tenant, run) FROM counterfoil.run)) AS fingerprint;

-- name: next_due
-- Seconds until the next thing that moves by itself; NULL when nothing will.
SELECT extract(epoch FROM min(t) - counterfoil.now())::double precision AS wait_s
FROM (
  SELECT min(not_before) AS t FROM counterfoil.outbox
  UNION ALL
  SELECT min(CASE WHEN lookup_count > 0 THEN next_lookup_at
                  ELSE greatest(next_lookup_at, uncertain_since + :uncertain_after_s * interval '1 second') END)
  FROM counterfoil.action WHERE state = 'uncertain'
  UNION ALL
  SELECT min(next_lookup_at) FROM counterfoil.action
  WHERE state = 'proposed' AND reads_version AND expected_resource_version IS NULL
  UNION ALL
  SELECT min(lease_until) FROM counterfoil.action WHERE state IN ('executing', 'reconciling')
) AS waits;

-- name: advance
DO $do$ BEGIN
  EXECUTE format('CREATE OR REPLACE FUNCTION counterfoil.now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE '
                 'AS $$ SELECT statement_timestamp() + interval %L $$',
                 counterfoil.now() - statement_timestamp() + :seconds * interval '1 second');
END $do$;
