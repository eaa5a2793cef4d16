-- What the relay asks of the outbox. It never deletes: the claim does, so a message that was lost is published again.
-- A row that was published for the nth time is due again after min(lost_after_max_s, lost_after_s * 2^min(n - 1, 5)).

-- name: due_queues
-- The queues with a wake-up due, the longest waiting first, each with what is known about it. A loose scan: it steps from
-- queue to queue, not over rows. What was published and is not claimed is bounded by the high-water mark; due rows are
-- counted up to a batch.
WITH RECURSIVE named (queue) AS (
  (SELECT o.queue FROM counterfoil.outbox AS o ORDER BY o.queue LIMIT 1)
  UNION ALL
  SELECT (SELECT o.queue FROM counterfoil.outbox AS o WHERE o.queue > n.queue ORDER BY o.queue LIMIT 1)
  FROM named AS n
  WHERE n.queue IS NOT NULL
), due AS MATERIALIZED (
  SELECT n.queue, (array_agg(d.not_before ORDER BY d.not_before))[1] AS since,
         count(*) FILTER (WHERE NOT d.is_retry) AS firsts, count(*) FILTER (WHERE d.is_retry) AS retries
  FROM named AS n
  CROSS JOIN (VALUES (false), (true)) AS kind (is_retry)
  CROSS JOIN LATERAL (
    SELECT o.not_before, o.is_retry FROM counterfoil.outbox AS o
    WHERE o.queue = n.queue AND o.is_retry = kind.is_retry AND o.not_before <= counterfoil.now()
    ORDER BY o.not_before
    LIMIT :batch + 1
  ) AS d
  GROUP BY n.queue
  ORDER BY since
  LIMIT :queues_max
)
SELECT d.queue, m.mode, d.firsts::integer AS due_firsts, d.retries::integer AS due_retries,
       EXISTS (SELECT FROM counterfoil.worker_heartbeat AS h
               WHERE h.seen_at > counterfoil.now() - :seen_within_s * interval '1 second'
                 AND d.queue = ANY (h.queues)) AS is_served,
       p.in_flight::integer, p.firsts_out::integer, p.retries_out::integer, p.longest_wait_s::double precision
FROM due AS d
LEFT JOIN counterfoil.provider_mode AS m ON 'cf-' || m.provider = d.queue
CROSS JOIN LATERAL (
  SELECT count(*) AS in_flight,
         count(*) FILTER (WHERE o.published_at > w.lost_before AND NOT o.is_retry) AS firsts_out,
         count(*) FILTER (WHERE o.published_at > w.lost_before AND o.is_retry) AS retries_out,
         coalesce(extract(epoch FROM max(counterfoil.now() - o.published_at) FILTER (WHERE o.publish_count = 1)), 0)
           AS longest_wait_s
  FROM (SELECT counterfoil.now() - :lost_after_s * interval '1 second' AS lost_before) AS w
  CROSS JOIN LATERAL (
    SELECT q.publish_count, q.is_retry,
           q.not_before - least(:lost_after_max_s, :lost_after_s * power(2, least(q.publish_count - 1, 5)))
             * interval '1 second' AS published_at
    FROM counterfoil.outbox AS q
    WHERE q.queue = d.queue AND q.publish_count > 0 AND q.not_before > counterfoil.now()
  ) AS o
) AS p
ORDER BY d.since;

-- name: lease_oldest
-- Takes due wake-ups of one kind for publishing, the longest waiting first. The lease is the lost-message timer: whatever
-- happens next, the row is due again after it. MATERIALIZED, or the planner may lock and update more rows than the limit
-- says. `publishes_below`: rows published that often are for the burial.
WITH due AS MATERIALIZED (
  SELECT o.outbox_id
  FROM counterfoil.outbox AS o
  WHERE o.queue = :queue AND o.is_retry = :is_retry AND o.not_before <= counterfoil.now()
    AND o.publish_count < :publishes_below
  ORDER BY o.not_before, o.outbox_id
  LIMIT :rows
  FOR UPDATE SKIP LOCKED
)
UPDATE counterfoil.outbox AS o
SET publish_count = o.publish_count + 1,
    not_before = counterfoil.now()
      + least(:lost_after_max_s, :lost_after_s * power(2, least(o.publish_count, 5))) * interval '1 second'
FROM due AS d
WHERE o.outbox_id = d.outbox_id
RETURNING o.outbox_id, o.action_id, o.generation, o.publish_count;

-- name: lease_fairly
-- The same, a few of each tenant, walking on from the tenant `after`, at most `tenants_max` tenants far: a step costs as much
-- for a tenant whose rows are all of next week. `next_after` is where the next walk goes on; '' = from the beginning.
-- Pairs are compared, and not the tenant, so that only outbox_fair gives the order: where most rows are one tenant's, the
-- planner would go by outbox_due instead, and read all of those for each other tenant.
WITH RECURSIVE walk (tenant, place) AS (
  (SELECT o.tenant, 1 FROM counterfoil.outbox AS o
   WHERE o.queue = :queue AND o.is_retry = :is_retry AND o.tenant > :after
   ORDER BY o.tenant LIMIT 1)
  UNION ALL
  SELECT (SELECT o.tenant FROM counterfoil.outbox AS o
          WHERE o.queue = :queue AND o.is_retry = :is_retry AND o.tenant > w.tenant
          ORDER BY o.tenant LIMIT 1), w.place + 1
  FROM walk AS w
  WHERE w.tenant IS NOT NULL AND w.place < :tenants_max
), due AS MATERIALIZED (
  SELECT r.outbox_id, w.tenant, w.place
  FROM walk AS w
  CROSS JOIN LATERAL (
    SELECT o.outbox_id FROM counterfoil.outbox AS o
    WHERE o.queue = :queue AND o.is_retry = :is_retry
      AND (o.tenant, o.not_before) >= (w.tenant, '-infinity'::timestamptz)
      AND (o.tenant, o.not_before) <= (w.tenant, counterfoil.now())
      AND o.publish_count < :publishes_below
    ORDER BY o.tenant, o.not_before, o.outbox_id
    LIMIT :per_tenant
    FOR UPDATE SKIP LOCKED
  ) AS r
  WHERE w.tenant IS NOT NULL
  LIMIT :rows
), leased AS (
  UPDATE counterfoil.outbox AS o
  SET publish_count = o.publish_count + 1,
      not_before = counterfoil.now()
        + least(:lost_after_max_s, :lost_after_s * power(2, least(o.publish_count, 5))) * interval '1 second'
  FROM due AS d
  WHERE o.outbox_id = d.outbox_id
  RETURNING o.outbox_id, o.action_id, o.generation, o.publish_count, o.tenant
)
SELECT l.outbox_id, l.action_id, l.generation, l.publish_count, l.tenant, ended.next_after
FROM (SELECT CASE
        WHEN (SELECT count(*) FROM due) >= :rows THEN (SELECT d.tenant FROM due AS d ORDER BY d.place DESC LIMIT 1)
        WHEN EXISTS (SELECT FROM walk AS w WHERE w.tenant IS NULL) THEN ''
        ELSE coalesce((SELECT w.tenant FROM walk AS w ORDER BY w.place DESC LIMIT 1), '')
      END AS next_after) AS ended
LEFT JOIN leased AS l ON true;

-- name: lease_taking_back
-- The same for first attempts that take back or correct something, all that goes first while a provider is draining.
WITH due AS MATERIALIZED (
  SELECT o.outbox_id
  FROM counterfoil.outbox AS o
  WHERE o.queue = :queue AND o.takes_back AND NOT o.is_retry AND o.not_before <= counterfoil.now()
    AND o.publish_count < :publishes_below
  ORDER BY o.not_before, o.outbox_id
  LIMIT :rows
  FOR UPDATE SKIP LOCKED
)
UPDATE counterfoil.outbox AS o
SET publish_count = o.publish_count + 1,
    not_before = counterfoil.now()
      + least(:lost_after_max_s, :lost_after_s * power(2, least(o.publish_count, 5))) * interval '1 second'
FROM due AS d
WHERE o.outbox_id = d.outbox_id
RETURNING o.outbox_id, o.action_id, o.generation, o.publish_count;

-- name: give_back
-- Publishing failed: due again at once, and not counted, since an outage says nothing about the action. Rows that a
-- worker has claimed or another relay has taken meanwhile are not touched.
UPDATE counterfoil.outbox AS o
SET publish_count = o.publish_count - 1,
    not_before = least(o.not_before, counterfoil.now())
FROM unnest(CAST(:outbox_ids AS bigint[]), CAST(:generations AS integer[]), CAST(:publish_counts AS integer[]))
  AS l (outbox_id, generation, publish_count)
WHERE o.outbox_id = l.outbox_id AND o.generation = l.generation AND o.publish_count = l.publish_count
RETURNING o.outbox_id;
