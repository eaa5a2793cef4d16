-- Who is told that something waits for a person. A notice is one thing to tell; it is told at least once.

-- name: record_notices
-- What waits now, what is about to expire undecided, and what has expired, or an alarm that has ended, within a day (so that
-- whoever sets a hook up is not told about the past). While the hook fails, new notices wait with those that have failed.
WITH wanted AS (
  SELECT w.id AS subject_id, w.kind, w.since, w.tenant FROM counterfoil.waiting_for_people AS w
  UNION ALL
  SELECT w.id, 'expiring', w.since, w.tenant FROM counterfoil.waiting_for_people AS w
  WHERE w.expires_at IS NOT NULL
    AND counterfoil.now() >= w.since + (w.expires_at - w.since) * CAST(:remind_ratio AS double precision)
  UNION ALL
  SELECT p.proposal_id, 'expired', p.decided_at, p.tenant FROM counterfoil.proposal AS p
  WHERE p.state = 'expired' AND p.decided_at > counterfoil.now() - interval '1 day'
  UNION ALL
  SELECT DISTINCT g.subject_id, 'expired', g.expires_at, g.tenant
  FROM counterfoil.approval AS g
  JOIN counterfoil.action AS a ON a.action_id = g.action_id
  WHERE g.consumed_at IS NULL AND g.subject_id LIKE 'P-%'     -- a correction is open again, which is told
    AND g.expires_at BETWEEN counterfoil.now() - interval '1 day' AND counterfoil.now()
    AND a.state = 'stale' AND a.last_error_code = 'approval_expired'
  UNION ALL
  SELECT 'A-' || l.alarm_id, 'alarm', l.since, l.tenant FROM counterfoil.alarm AS l WHERE l.ended_at IS NULL
  UNION ALL
  SELECT 'A-' || l.alarm_id, 'alarm_ended', l.ended_at, l.tenant FROM counterfoil.alarm AS l
  WHERE l.ended_at > counterfoil.now() - interval '1 day' AND l.kind IN ('outage', 'unreachable', 'queue_unserved', 'no_worker')
)
INSERT INTO counterfoil.notice (subject_id, kind, since, tenant, next_try_at)
SELECT w.subject_id, w.kind, w.since, w.tenant,
  CASE WHEN p.until IS NULL THEN counterfoil.now()
       ELSE greatest(counterfoil.now(), least(p.until, counterfoil.now() + :pause_s * interval '1 second')) END
FROM wanted AS w
CROSS JOIN (
  SELECT min(n.next_try_at) AS until FROM counterfoil.notice AS n WHERE n.told_at IS NULL AND n.tries > 0
    AND n.in_hand_until IS NULL) AS p
WHERE NOT EXISTS (
  SELECT FROM counterfoil.notice AS n
  WHERE n.subject_id = w.subject_id AND n.kind = w.kind AND n.since = w.since)
ORDER BY w.since LIMIT :batch
ON CONFLICT DO NOTHING
RETURNING subject_id;

-- name: claim_notice
-- Compare-and-set: of two reconcilers one gets it. While one is in hand nobody gets another: a hook that is slow keeps one
-- process busy, not one for each tick. What has never failed comes first, or one that a receiver never takes would be
-- tried before the others each time. Whoever dies with it in hand gives it back after `hold_s`.
WITH due AS MATERIALIZED (
  SELECT n.subject_id, n.kind, n.since FROM counterfoil.notice AS n
  WHERE n.told_at IS NULL AND n.next_try_at <= counterfoil.now()
    AND NOT EXISTS (SELECT FROM counterfoil.notice AS h
                    WHERE h.told_at IS NULL AND h.in_hand_until > counterfoil.now())
  ORDER BY n.tries, n.next_try_at, n.since LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE counterfoil.notice AS n
SET tries = n.tries + 1, next_try_at = counterfoil.now() + :hold_s * interval '1 second',
    in_hand_until = counterfoil.now() + :hold_s * interval '1 second'
FROM due WHERE n.subject_id = due.subject_id AND n.kind = due.kind AND n.since = due.since
RETURNING n.subject_id, n.kind, n.since, n.tenant, n.tries;

-- name: read_notice
-- What there is to tell, without what was said; no row when it does not wait any more. Of a plan the tools are not named,
-- only how many steps it has.
WITH about AS (
  SELECT 'A-' || l.alarm_id AS id, l.kind AS why, l.run, CAST(NULL AS timestamptz) AS expires_at, l.subject
  FROM counterfoil.alarm AS l
  WHERE CAST(:kind AS text) IN ('alarm', 'alarm_ended') AND 'A-' || l.alarm_id = CAST(:subject_id AS text)
    AND (l.ended_at IS NULL) = (CAST(:kind AS text) = 'alarm')
  UNION ALL
  SELECT w.id, w.why, w.run, w.expires_at, NULL FROM counterfoil.waiting_for_people AS w
  WHERE w.kind = CAST(:kind AS text) AND w.id = CAST(:subject_id AS text) AND w.since = CAST(:since AS timestamptz)
  UNION ALL
  SELECT w.id, 'expiring', w.run, w.expires_at, NULL FROM counterfoil.waiting_for_people AS w
  WHERE CAST(:kind AS text) = 'expiring' AND w.id = :subject_id AND w.since = :since
  UNION ALL
  SELECT p.proposal_id, CASE p.state WHEN 'expired' THEN 'undecided' ELSE 'unclaimed' END, p.run, p.expires_at, NULL
  FROM counterfoil.proposal AS p
  WHERE CAST(:kind AS text) = 'expired' AND p.proposal_id = :subject_id
    AND p.expires_at > counterfoil.now() - interval '7 days'
), steps AS (
  SELECT a.tool, a.effect, a.amount_minor, a.currency, a.audience
  FROM counterfoil.action AS a WHERE a.proposal_id = :subject_id AND a.superseded_by IS NULL
  UNION ALL
  SELECT a.tool, a.effect, a.amount_minor, a.currency, a.audience
  FROM counterfoil.action AS a WHERE a.action_id = :subject_id
  UNION ALL
  SELECT a.tool, a.effect, a.amount_minor, a.currency, c.audience
  FROM counterfoil.correction AS c JOIN counterfoil.action AS a ON a.action_id = c.action_id
  WHERE c.correction_id = :subject_id
), summed AS (
  SELECT count(*)::integer AS steps, min(s.tool) AS tool, min(s.effect) AS effect,
         sum(s.amount_minor)::bigint AS amount_minor, min(s.currency) AS currency,
         count(DISTINCT s.currency) AS currencies
  FROM steps AS s
)
SELECT b.id, b.why, b.run, b.expires_at, b.subject, m.steps,
       CASE WHEN m.steps = 1 THEN m.tool END AS tool, CASE WHEN m.steps = 1 THEN m.effect END AS effect,
       CASE WHEN m.currencies <= 1 THEN m.amount_minor END AS amount_minor,
       CASE WHEN m.currencies <= 1 THEN m.currency END AS currency,
       (SELECT coalesce(array_agg(DISTINCT u.name ORDER BY u.name), '{}')
        FROM steps AS s CROSS JOIN unnest(s.audience) AS u (name)) AS audience
FROM about AS b CROSS JOIN summed AS m;

-- name: mark_told
-- Or there is nothing to tell any more.
UPDATE counterfoil.notice SET told_at = counterfoil.now()
WHERE subject_id = :subject_id AND kind = :kind AND since = CAST(:since AS timestamptz) AND told_at IS NULL
RETURNING subject_id;

-- name: try_later
-- If it is still this try's: whoever has claimed it meanwhile decides.
UPDATE counterfoil.notice
SET next_try_at = counterfoil.now() + :delay_s * interval '1 second', in_hand_until = NULL
WHERE subject_id = :subject_id AND kind = :kind AND since = CAST(:since AS timestamptz)
  AND told_at IS NULL AND tries = :tries
RETURNING subject_id;

-- name: pause_notices
-- A hook that fails for one fails for all: the others wait, too, so that a hook that hangs is not tried by every tick.
UPDATE counterfoil.notice SET next_try_at = counterfoil.now() + :pause_s * interval '1 second'
WHERE told_at IS NULL AND next_try_at < counterfoil.now() + :pause_s * interval '1 second'
RETURNING subject_id;

-- name: prune_notices
SELECT counterfoil.prune_notices(:older_s) AS pruned;
