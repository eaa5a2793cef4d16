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

-- name: attempts_at
-- A provider's attempts of the last `seconds`, oldest first. Of more than `scan` at all providers, or `limit` at this one,
-- only the newest: by time, since that is what attempts are partitioned and ordered by. `has_more_to_come`: after this one
-- the row was, or would have been, tried again.
SELECT t.action_id, t.tenant, t.number, t.started_at, t.finished_at, t.outcome, t.has_more_to_come, t.scanned
FROM (
  SELECT x.action_id, x.tenant, x.number, x.started_at, x.finished_at, x.outcome, x.scanned,
         a.state = 'retryable_failure' OR a.last_error_code = 'attempts_exhausted' AS has_more_to_come
  FROM (
    SELECT y.*, count(*) OVER () AS scanned
    FROM (
      SELECT z.action_id, z.tenant, z.number, z.started_at, z.finished_at, z.outcome
      FROM counterfoil.attempt AS z
      WHERE z.started_at > counterfoil.now() - CAST(:seconds AS double precision) * interval '1 second'
      ORDER BY z.started_at DESC LIMIT :scan) AS y) AS x
  JOIN counterfoil.action AS a ON a.action_id = x.action_id
  WHERE a.provider = :provider
  ORDER BY x.started_at DESC LIMIT :limit) AS t
ORDER BY t.started_at;
