-- Whether providers answer, the alarms about it, and rows that go to a person for their age. Any number of reconcilers at once.

-- name: note_answered
-- Reads only, as long as nothing changes. Whoever could ask has the configuration for it. After an outage the clock of those
-- who wait begins anew, and also while its alarm is open, with each answer that follows a failure.
WITH reached AS (
  UPDATE counterfoil.provider_health AS c
  SET failing_since = NULL, failed_count = 0, answered_at = counterfoil.now(), answering_since = counterfoil.now()
  WHERE c.provider = :provider AND c.account = :account AND c.way = 'configuration' AND c.failing_since IS NOT NULL
)
INSERT INTO counterfoil.provider_health AS h (provider, account, way, answered_at, answering_since)
SELECT :provider, :account, :way, counterfoil.now(), counterfoil.now()
WHERE NOT EXISTS (
  SELECT FROM counterfoil.provider_health AS k
  WHERE k.provider = :provider AND k.account = :account AND k.way = :way AND k.failing_since IS NULL
    AND k.answering_since IS NOT NULL AND k.answered_at > counterfoil.now() - :every_s * interval '1 second')
ON CONFLICT (provider, account, way) DO UPDATE
SET answered_at = counterfoil.now(), failing_since = NULL, failed_count = 0, last_code = NULL,
    answering_since = CASE
      WHEN h.answering_since IS NULL THEN counterfoil.now()
      WHEN h.failing_since IS NOT NULL AND EXISTS (
        SELECT FROM counterfoil.alarm AS o
        WHERE o.kind = 'outage' AND o.subject = h.provider || '/' || h.account AND o.ended_at IS NULL)
      THEN counterfoil.now()
      ELSE h.answering_since END;

-- name: note_failed
-- A failure long after the one before it begins a new row of failures: nobody has asked meanwhile. One that is tried at the
-- provider has its configuration, unless that is what is missing.
WITH reached AS (
  UPDATE counterfoil.provider_health AS c
  SET failing_since = NULL, failed_count = 0, answered_at = counterfoil.now(), answering_since = counterfoil.now()
  WHERE c.provider = :provider AND c.account = :account AND c.way = 'configuration' AND c.failing_since IS NOT NULL
    AND CAST(:way AS text) <> 'configuration'
)
INSERT INTO counterfoil.provider_health AS h (provider, account, way, failing_since, failed_at, failed_count, last_code)
SELECT :provider, :account, :way, counterfoil.now(), counterfoil.now(), 1, :code
WHERE NOT EXISTS (
  SELECT FROM counterfoil.provider_health AS k
  WHERE k.provider = :provider AND k.account = :account AND k.way = :way AND k.answering_since IS NULL
    AND k.failed_count >= :batches AND k.failed_at > counterfoil.now() - :every_s * interval '1 second')
ON CONFLICT (provider, account, way) DO UPDATE
SET failing_since = CASE
      WHEN h.failing_since IS NULL OR h.failed_at < counterfoil.now() - :fresh_s * interval '1 second'
      THEN counterfoil.now() ELSE h.failing_since END,
    failed_count = CASE
      WHEN h.failing_since IS NULL OR h.failed_at < counterfoil.now() - :fresh_s * interval '1 second'
      THEN 1 ELSE h.failed_count + 1 END,
    answering_since = CASE
      WHEN h.failing_since <= counterfoil.now() - :outage_s * interval '1 second'
        AND h.failed_at >= counterfoil.now() - :fresh_s * interval '1 second'
      THEN NULL ELSE h.answering_since END,
    failed_at = counterfoil.now(), last_code = EXCLUDED.last_code;

-- name: answered_for
-- Whether the provider has answered for this long, and does, also counted from `since`.
SELECT EXISTS (
  SELECT FROM counterfoil.provider_health AS h
  WHERE h.provider = :provider AND h.account = :account AND h.way = :way
    AND h.answered_at > counterfoil.now() - :fresh_s * interval '1 second'
    AND greatest(h.answering_since, CAST(:since AS timestamptz)) <= counterfoil.now() - :for_s * interval '1 second'
    AND h.answering_since IS NOT NULL) AS answered;

-- name: open_outages
-- One alarm for a provider and account, whichever way fails, whoever finds it first: the unique index decides.
INSERT INTO counterfoil.alarm (kind, subject, tenant, since)
SELECT CASE h.way WHEN 'configuration' THEN 'unreachable' ELSE 'outage' END, h.provider || '/' || h.account, '*',
       h.failing_since
FROM counterfoil.provider_health AS h
WHERE h.failing_since <= counterfoil.now() - :outage_s * interval '1 second' AND h.failed_count >= :batches
  AND h.failed_at > counterfoil.now() - :fresh_s * interval '1 second'
  AND NOT EXISTS (
    SELECT FROM counterfoil.alarm AS o
    WHERE o.kind = CASE h.way WHEN 'configuration' THEN 'unreachable' ELSE 'outage' END
      AND o.subject = h.provider || '/' || h.account AND o.ended_at IS NULL)
ORDER BY h.failing_since
ON CONFLICT (kind, subject) WHERE ended_at IS NULL DO NOTHING
RETURNING kind, subject, since;

-- name: describe_outage
-- For the log: what it answered last, and how many rows wait for it. Counts up to 10000.
SELECT h.last_code AS code,
  (SELECT count(*)::integer FROM (
    SELECT FROM counterfoil.action AS a
    WHERE a.state = 'uncertain' AND a.provider = h.provider AND a.account = h.account LIMIT 10000) AS u)
  + (SELECT count(*)::integer FROM (
    SELECT FROM counterfoil.action AS a
    WHERE a.state IN ('ready', 'retryable_failure') AND a.in_doubt AND a.provider = h.provider AND a.account = h.account
    LIMIT 10000) AS r) AS waiting
FROM counterfoil.provider_health AS h
WHERE h.provider = :provider AND h.account = :account AND h.failing_since IS NOT NULL
ORDER BY h.failing_since LIMIT 1;

-- name: end_outages
-- It answers again, for a while already (one answer in an outage is none), or nothing has asked for long and nothing waits to
-- be asked about. Compare-and-set: of two reconcilers one gets the row.
WITH by_subject AS (
  SELECT CASE h.way WHEN 'configuration' THEN 'unreachable' ELSE 'outage' END AS kind,
         h.provider || '/' || h.account AS subject,
         bool_and(h.failing_since IS NULL AND h.answering_since <= counterfoil.now() - :steady_s * interval '1 second')
           AS answers,
         bool_or(h.failing_since IS NOT NULL)
           AND bool_and(h.failing_since IS NULL OR h.failed_at < counterfoil.now() - :lapse_s * interval '1 second'
             AND NOT EXISTS (SELECT FROM counterfoil.action AS a
                             WHERE a.state = 'uncertain' AND a.provider = h.provider AND a.account = h.account)) AS lapsed,
         max(h.answering_since) AS since
  FROM counterfoil.provider_health AS h
  GROUP BY 1, 2
)
UPDATE counterfoil.alarm AS o
SET ended_at = CASE WHEN b.answers THEN greatest(b.since, o.since) ELSE counterfoil.now() END
FROM by_subject AS b
WHERE o.kind = b.kind AND o.subject = b.subject AND o.ended_at IS NULL AND (b.answers OR b.lapsed)
RETURNING o.kind, o.subject, b.answers,
  extract(epoch FROM CASE WHEN b.answers THEN greatest(b.since, o.since) ELSE counterfoil.now() END - o.since)
    ::double precision AS lasted_s;

-- name: escalate_too_long
-- A person knows more than further look-ups will: the row was asked about, and its provider has answered, for `limits_s`
-- since the newest attempt, since the outcome became unknown, and since the newest outage (while one lasts that is NULL, so
-- nobody is meant). What a person has asked for, and what a look-up holds, is left to that.
WITH due AS MATERIALIZED (
  SELECT a.action_id
  FROM counterfoil.provider_health AS h
  JOIN counterfoil.action AS a ON a.provider = h.provider AND a.account = h.account
  JOIN unnest(CAST(:tools AS text[]), CAST(:versions AS integer[]), CAST(:limits_s AS double precision[]))
    AS t (tool, version, limit_s) ON t.tool = a.tool AND t.version = a.tool_version
  WHERE h.way = 'look_up'
    AND h.answered_at > counterfoil.now() - :fresh_s * interval '1 second'
    AND a.state = 'uncertain'
    AND a.uncertain_since <= counterfoil.now() - :least_s * interval '1 second'
    AND a.updated_at >= h.answering_since AND a.lookup_count > 0
    AND greatest(a.uncertain_since, a.quiet_from, h.answering_since)
      <= counterfoil.now() - t.limit_s * interval '1 second'
    AND NOT EXISTS (SELECT FROM counterfoil.review AS r WHERE r.action_id = a.action_id AND r.answered_at IS NULL)
  ORDER BY a.uncertain_since LIMIT :batch FOR UPDATE OF a SKIP LOCKED
)
UPDATE counterfoil.action AS a
SET state = 'operator_review', last_error_code = 'uncertain_too_long', changed_by = :by,
    change_reason = 'uncertain for too long', change_evidence = NULL
FROM due WHERE a.action_id = due.action_id AND a.state = 'uncertain'
RETURNING a.action_id;

-- name: escalate_unreachable
-- Nobody can ask: no reconciler has had this account, or its secret, for as long as that. No answer will ever come.
WITH due AS MATERIALIZED (
  SELECT a.action_id
  FROM counterfoil.provider_health AS h
  JOIN counterfoil.action AS a ON a.provider = h.provider AND a.account = h.account
  JOIN unnest(CAST(:tools AS text[]), CAST(:versions AS integer[]), CAST(:limits_s AS double precision[]))
    AS t (tool, version, limit_s) ON t.tool = a.tool AND t.version = a.tool_version
  WHERE h.way = 'configuration' AND h.failing_since IS NOT NULL
    AND h.failed_at > counterfoil.now() - :fresh_s * interval '1 second'
    AND a.state = 'uncertain'
    AND a.uncertain_since <= counterfoil.now() - :least_s * interval '1 second'
    AND a.updated_at >= h.failing_since AND a.lookup_count > 0
    AND greatest(a.uncertain_since, a.quiet_from, h.failing_since) <= counterfoil.now() - t.limit_s * interval '1 second'
    AND NOT EXISTS (SELECT FROM counterfoil.review AS r WHERE r.action_id = a.action_id AND r.answered_at IS NULL)
  ORDER BY a.uncertain_since LIMIT :batch FOR UPDATE OF a SKIP LOCKED
)
UPDATE counterfoil.action AS a
SET state = 'operator_review', last_error_code = 'unreachable', changed_by = :by, change_reason = 'unreachable',
    change_evidence = NULL
FROM due WHERE a.action_id = due.action_id AND a.state = 'uncertain'
RETURNING a.action_id;
