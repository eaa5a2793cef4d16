-- Wake-ups that nobody takes: because no worker takes their queue, or because each worker that has one fails before the claim.

-- name: tell_unserved
-- Published again and again, and nobody who takes the queue was seen for a while: not the rows' fault, so none of them dies.
WITH unserved AS MATERIALIZED (
  SELECT DISTINCT o.queue
  FROM counterfoil.outbox AS o
  WHERE o.publish_count > 0 AND o.publish_count >= :publishes
    AND NOT EXISTS (SELECT FROM counterfoil.provider_mode AS m WHERE m.mode = 'paused' AND 'cf-' || m.provider = o.queue)
    AND NOT EXISTS (
      SELECT FROM counterfoil.worker_heartbeat AS h
      WHERE h.seen_at > counterfoil.now() - :seen_within_s * interval '1 second' AND o.queue = ANY (h.queues))
)
INSERT INTO counterfoil.alarm (kind, subject, tenant)
SELECT 'queue_unserved', u.queue, '*' FROM unserved AS u
ON CONFLICT (kind, subject) WHERE ended_at IS NULL DO NOTHING
RETURNING subject AS queue;

-- name: is_taken
-- Whether anybody who takes this queue was seen lately.
SELECT EXISTS (
  SELECT FROM counterfoil.worker_heartbeat AS h
  WHERE h.seen_at > counterfoil.now() - :seen_within_s * interval '1 second' AND :queue = ANY (h.queues)) AS taken;

-- name: end_unserved
-- Somebody takes the queue again. What was published to nobody does not count: it is as if it were published now, once.
WITH served AS (
  UPDATE counterfoil.alarm AS a
  SET ended_at = counterfoil.now()
  WHERE a.kind = 'queue_unserved' AND a.ended_at IS NULL
    AND (EXISTS (SELECT FROM counterfoil.worker_heartbeat AS h
                 WHERE h.seen_at > counterfoil.now() - :seen_within_s * interval '1 second'
                   AND a.subject = ANY (h.queues))
         OR (SELECT o.queue FROM counterfoil.outbox AS o WHERE o.queue = a.subject
             ORDER BY o.is_retry, o.not_before LIMIT 1) IS NULL)
  RETURNING a.subject AS queue
), counted_anew AS (
  UPDATE counterfoil.outbox AS o
  SET publish_count = 1, not_before = least(o.not_before, counterfoil.now() + :lost_after_s * interval '1 second')
  FROM served AS s
  WHERE o.queue = s.queue AND o.publish_count > 1
)
SELECT s.queue FROM served AS s;

-- name: bury
-- Published `publishes_max` times and never claimed, although a worker that takes the queue is up: another time would change
-- nothing. In one statement, so that a wake-up is in one of the two places at any moment; the action stays as it is.
WITH poison AS MATERIALIZED (
  SELECT o.outbox_id
  FROM counterfoil.outbox AS o
  WHERE o.publish_count > 0 AND o.publish_count >= :publishes_max AND o.not_before <= counterfoil.now()
    AND EXISTS (
      SELECT FROM counterfoil.worker_heartbeat AS h
      WHERE h.seen_at > counterfoil.now() - :seen_within_s * interval '1 second' AND o.queue = ANY (h.queues))
    AND NOT EXISTS (SELECT FROM counterfoil.provider_mode AS m WHERE m.mode = 'paused' AND 'cf-' || m.provider = o.queue)
    AND NOT EXISTS (SELECT FROM counterfoil.alarm AS a
                    WHERE a.kind = 'queue_unserved' AND a.subject = o.queue AND a.ended_at IS NULL)
  LIMIT :batch
  FOR UPDATE OF o SKIP LOCKED
), taken AS (
  DELETE FROM counterfoil.outbox AS o
  USING poison AS p
  WHERE o.outbox_id = p.outbox_id
  RETURNING o.action_id, o.generation, o.tenant, o.queue, o.publish_count, o.created_at
), dead AS (
  INSERT INTO counterfoil.outbox_dead (action_id, generation, tenant, queue, publish_count, waited_since)
  SELECT t.action_id, t.generation, t.tenant, t.queue, t.publish_count, t.created_at FROM taken AS t
  ON CONFLICT (action_id) DO NOTHING
  RETURNING action_id, tenant, queue
), told AS (
  INSERT INTO counterfoil.alarm (kind, subject, tenant)
  SELECT DISTINCT 'outbox_dead', d.queue, '*' FROM dead AS d
  ON CONFLICT (kind, subject) WHERE ended_at IS NULL DO NOTHING
)
SELECT d.action_id, d.tenant, d.queue FROM dead AS d;

-- name: end_dead
-- All of the queue's dead are revived, or have moved on otherwise.
UPDATE counterfoil.alarm AS a
SET ended_at = counterfoil.now()
WHERE a.kind = 'outbox_dead' AND a.ended_at IS NULL
  AND NOT EXISTS (SELECT FROM counterfoil.outbox_dead AS d WHERE d.queue = a.subject)
RETURNING a.subject AS queue;

-- name: list_queues
-- For people: each queue with what waits, and what was published and is not claimed.
SELECT q.queue, m.mode, m.since AS mode_since,
       count(*) FILTER (WHERE o.not_before <= counterfoil.now())::integer AS due,
       count(*) FILTER (WHERE o.not_before <= counterfoil.now() AND o.is_retry)::integer AS due_retries,
       count(*) FILTER (WHERE o.not_before > counterfoil.now() AND o.publish_count = 0)::integer AS later,
       count(*) FILTER (WHERE o.not_before > counterfoil.now() AND o.publish_count > 0)::integer AS published,
       min(o.not_before) FILTER (WHERE o.not_before <= counterfoil.now()) AS due_since,
       (SELECT count(*) FROM counterfoil.outbox_dead AS d
        WHERE d.queue = q.queue AND (:tenant IS NULL OR d.tenant = :tenant))::integer AS dead,
       EXISTS (SELECT FROM counterfoil.worker_heartbeat AS h
               WHERE h.seen_at > counterfoil.now() - :seen_within_s * interval '1 second'
                 AND q.queue = ANY (h.queues)) AS is_served,
       counterfoil.now() AS now
FROM (SELECT o.queue FROM counterfoil.outbox AS o UNION SELECT d.queue FROM counterfoil.outbox_dead AS d) AS q
LEFT JOIN counterfoil.outbox AS o ON o.queue = q.queue AND (CAST(:tenant AS text) IS NULL OR o.tenant = :tenant)
LEFT JOIN counterfoil.provider_mode AS m ON 'cf-' || m.provider = q.queue
GROUP BY q.queue, m.mode, m.since
ORDER BY due_since NULLS LAST, q.queue;

-- name: list_dead
-- For people, the longest dead first.
SELECT d.action_id, d.tenant, a.run, a.tool, d.queue, d.publish_count, d.waited_since, d.died_at, a.state,
       counterfoil.now() AS now
FROM counterfoil.outbox_dead AS d
JOIN counterfoil.action AS a ON a.action_id = d.action_id
WHERE (CAST(:tenant AS text) IS NULL OR d.tenant = :tenant) AND (CAST(:queue AS text) IS NULL OR d.queue = :queue)
  AND (CAST(:action_ids AS text[]) IS NULL OR d.action_id = ANY (:action_ids))
ORDER BY d.died_at, d.action_id
LIMIT :limit;

-- name: revive
SELECT counterfoil.revive(:action_id) AS revived;
