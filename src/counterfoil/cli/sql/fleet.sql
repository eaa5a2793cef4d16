-- What the command line shows of a running fleet. Keeps to the columns that a reader may see.

-- name: work_by_provider
-- What stands at each provider. `begun`: may be on the wire, or is what a draining provider is still sent. A part for each
-- partial index, since settled rows are most of the table.
SELECT w.provider,
       count(*) FILTER (WHERE w.state = 'ready') AS ready,
       count(*) FILTER (WHERE w.state = 'retryable_failure') AS retryable_failure,
       count(*) FILTER (WHERE w.state = 'executing') AS executing,
       count(*) FILTER (WHERE w.state IN ('uncertain', 'reconciling')) AS uncertain,
       count(*) FILTER (WHERE w.state = 'operator_review') AS operator_review,
       count(*) FILTER (WHERE w.begun) AS begun
FROM (
  SELECT a.provider, a.state, a.attempt_count + a.not_sent_count > 0 OR a.in_doubt OR a.phase <> 'do' AS begun
  FROM counterfoil.action AS a WHERE a.state IN ('ready', 'retryable_failure')
  UNION ALL
  SELECT a.provider, a.state, true FROM counterfoil.action AS a WHERE a.state IN ('executing', 'reconciling')
  UNION ALL
  SELECT a.provider, a.state, true FROM counterfoil.action AS a WHERE a.state = 'uncertain'
  UNION ALL
  SELECT a.provider, a.state, false FROM counterfoil.action AS a WHERE a.state = 'operator_review') AS w
WHERE CAST(:provider AS text) IS NULL OR w.provider = :provider
GROUP BY w.provider ORDER BY w.provider;

-- name: serves_everybody
-- Others see neither who has changed what, nor other tenants' rows.
SELECT '*' = ANY (counterfoil.my_tenants()) AS serves, counterfoil.now() AS now;
