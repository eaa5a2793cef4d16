-- Alarms: what an operator must know, told once. The unique index on open ones decides between two who raise the same.

-- name: raise_alarm
INSERT INTO counterfoil.alarm (kind, subject, tenant, run)
SELECT :kind, :subject, :tenant, :run
WHERE NOT EXISTS (
  SELECT FROM counterfoil.alarm AS o WHERE o.kind = :kind AND o.subject = :subject AND o.ended_at IS NULL)
ON CONFLICT (kind, subject) WHERE ended_at IS NULL DO NOTHING
RETURNING alarm_id;

-- name: end_alarm
UPDATE counterfoil.alarm SET ended_at = counterfoil.now()
WHERE kind = :kind AND subject = :subject AND ended_at IS NULL
RETURNING alarm_id;

-- name: end_other_alarms
-- Of one kind, all but those about these subjects.
UPDATE counterfoil.alarm SET ended_at = counterfoil.now()
WHERE kind = :kind AND ended_at IS NULL AND NOT subject = ANY (CAST(:subjects AS text[]))
RETURNING alarm_id;

-- name: end_settled_unwinds
-- The run is not held up any more: it was taken back otherwise, or a person has closed it.
UPDATE counterfoil.alarm AS o SET ended_at = counterfoil.now()
FROM counterfoil.run AS r
WHERE o.kind = 'unwind_blocked' AND o.ended_at IS NULL AND r.tenant = o.tenant AND r.run = o.run
  AND r.state NOT IN ('unwinding', 'unwind_blocked')
RETURNING o.alarm_id;

-- name: settle_alarm
SELECT counterfoil.settle_alarm(:id, :by, :reason) AS ended;

-- name: list_alarms
-- Open ones first, then those that have ended, the newest first.
SELECT 'A-' || o.alarm_id AS id, o.kind, o.subject, o.tenant, o.run, o.since, o.ended_at, counterfoil.now() AS now
FROM counterfoil.alarm AS o
WHERE (o.ended_at IS NULL OR CAST(:ended AS boolean))
  AND (CAST(:tenant AS text) IS NULL OR o.tenant IN (:tenant, '*'))
ORDER BY o.ended_at IS NOT NULL, coalesce(o.ended_at, o.since) DESC LIMIT :limit;

-- name: read_alarm
SELECT 'A-' || o.alarm_id AS id, o.kind, o.subject, o.tenant, o.run, o.since, o.ended_at, o.ended_by, counterfoil.now() AS now
FROM counterfoil.alarm AS o WHERE 'A-' || o.alarm_id = :id;

-- name: may_read_evidence
SELECT has_column_privilege('counterfoil.alarm', 'evidence', 'SELECT') AS may;

-- name: read_evidence
-- Receipts and codes: for operators, and not for readers.
SELECT o.evidence, o.end_reason FROM counterfoil.alarm AS o WHERE 'A-' || o.alarm_id = :id;
