-- What the relay asks of the outbox. It never deletes: the claim does, so a message that was lost is published again.

-- name: due_queues
-- The queues with a wake-up due, the longest waiting first. A loose scan: it steps from queue to queue, not over rows.
WITH RECURSIVE named (queue) AS (
  (SELECT o.queue FROM counterfoil.outbox AS o ORDER BY o.queue LIMIT 1)
  UNION ALL
  SELECT (SELECT o.queue FROM counterfoil.outbox AS o WHERE o.queue > n.queue ORDER BY o.queue LIMIT 1)
  FROM named AS n
  WHERE n.queue IS NOT NULL
)
SELECT n.queue
FROM named AS n
CROSS JOIN LATERAL (
  SELECT o.not_before FROM counterfoil.outbox AS o
  WHERE o.queue = n.queue AND o.not_before <= counterfoil.now()
  ORDER BY o.not_before
  LIMIT 1
) AS first
ORDER BY first.not_before
LIMIT :queues_max;

-- name: lease_due
-- Takes due wake-ups of one queue for publishing. The lease is the lost-message timer: whatever happens next, the row is
-- due again after it. MATERIALIZED, or the planner may lock and update more rows than the limit says.
WITH due AS MATERIALIZED (
  SELECT o.outbox_id
  FROM counterfoil.outbox AS o
  WHERE o.queue = :queue AND o.not_before <= counterfoil.now()
  ORDER BY o.not_before, o.outbox_id
  LIMIT :batch
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
