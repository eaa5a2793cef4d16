-- The watch: settled rows that are looked up again. `watch_at` is both when a row is due and, claimed, the claim's lease and
-- its token: no state changes, and whatever moves the row meanwhile changes it.

-- name: oldest_watched
-- The tool, version and account whose row is due for longest, with how many of its rows are due, counted up to `batch`.
SELECT o.tool, o.tool_version, o.account, o.provider,
       (SELECT count(*)
        FROM (SELECT FROM counterfoil.action AS d
              WHERE d.tool = o.tool AND d.tool_version = o.tool_version AND d.account = o.account
                AND d.watch_at <= counterfoil.now() LIMIT :batch) AS few) AS due
FROM counterfoil.action AS o
WHERE o.watch_at <= counterfoil.now()
  AND (o.tool, o.tool_version) IN (SELECT * FROM unnest(CAST(:tools AS text[]), CAST(:versions AS integer[])))
ORDER BY o.watch_at LIMIT 1;

-- name: claim_watched
-- Takes due rows of one tool, version and account: they are asked about together. `as_of` is a time before the look-up
-- begins.
WITH due AS MATERIALIZED (
  SELECT d.action_id FROM counterfoil.action AS d
  WHERE d.tool = :tool AND d.tool_version = :version AND d.account = :account AND d.watch_at <= counterfoil.now()
  ORDER BY d.watch_at LIMIT :batch FOR UPDATE SKIP LOCKED
), claimed AS (
  UPDATE counterfoil.action AS a
  SET watch_at = counterfoil.now() + :lease_s * interval '1 second'
  FROM due WHERE a.action_id = due.action_id
  RETURNING a.*
)
SELECT c.action_id, c.tenant, c.run, c.step, c.revision, c.phase, c.tool, c.tool_version, c.class, c.effect, c.target,
       c.provider, c.account, c.reach, c.arguments, c.arguments_sha256, c.amount_minor, c.currency,
       c.expected_resource_version, c.key, c.fence,
       c.attempt_count, c.not_sent_count, c.in_doubt, c.no_resend, c.first_sent_at,
       c.state, c.receipt, c.resent OR c.uncertain_since IS NOT NULL AS was_in_doubt,
       c.watched_since, c.watch_at, c.watch_count, counterfoil.now() AS as_of,
       p.action_id AS of_action_id, p.tool AS of_tool, p.key AS of_key, p.reach AS of_reach, p.receipt AS of_receipt,
       p.arguments AS of_arguments
FROM claimed AS c
LEFT JOIN counterfoil.action AS p ON p.action_id = c.parent_action_id;

-- name: providers_behind
-- Whose uncertain rows are overdue: their look-ups come first. Not for ever: a watched row waits for an hour at most.
SELECT u.provider FROM counterfoil.action AS u
WHERE u.state = 'uncertain' AND u.next_lookup_at <= counterfoil.now() - :behind_s * interval '1 second'
EXCEPT
SELECT w.provider FROM counterfoil.action AS w
WHERE w.watch_at <= counterfoil.now() - interval '1 hour';

-- name: watched_again
-- For each claimed row when it is due next, NULL = never: its time is over. A look-up that failed does not count.
UPDATE counterfoil.action AS a
SET watch_at = v.next_at, watch_count = a.watch_count + v.counts
FROM unnest(CAST(:action_ids AS text[]), CAST(:claimed AS timestamptz[]), CAST(:next AS timestamptz[]),
            CAST(:counts AS integer[])) AS v (action_id, claimed, next_at, counts)
WHERE a.action_id = v.action_id AND a.watch_at = v.claimed
RETURNING a.action_id;

-- name: found_after_all
-- It had ended without an effect, and the provider holds one: that was wrong, a person decides.
UPDATE counterfoil.action
SET state = 'operator_review', last_error_code = :code, changed_by = :by, change_reason = 'found after all',
    change_evidence = :evidence
WHERE action_id = :action_id AND watch_at = :claimed
  AND state IN ('permanent_failure', 'not_executed', 'cancelled', 'stale')
RETURNING action_id;

-- name: duplicate_found
-- A second effect under one key. The row stays as it is; at most one alarm about it is open.
INSERT INTO counterfoil.alarm (kind, subject, tenant, run, evidence)
SELECT 'duplicate', a.action_id, a.tenant, a.run, :evidence
FROM counterfoil.action AS a
WHERE a.action_id = :action_id AND a.watch_at = :claimed AND a.state IN ('succeeded', 'compensated')
ON CONFLICT (kind, subject) WHERE ended_at IS NULL DO NOTHING
RETURNING alarm_id;

-- name: end_blind_watches
-- Due, and of a tool without a look-up: nobody can be asked.
WITH blind AS MATERIALIZED (
  SELECT b.action_id FROM counterfoil.action AS b
  WHERE b.watch_at <= counterfoil.now()
    AND (b.tool, b.tool_version) IN (SELECT * FROM unnest(CAST(:tools AS text[]), CAST(:versions AS integer[])))
  ORDER BY b.watch_at LIMIT :batch FOR UPDATE SKIP LOCKED
)
UPDATE counterfoil.action AS a SET watch_at = NULL
FROM blind WHERE a.action_id = blind.action_id
RETURNING a.action_id;

-- name: end_orphaned_watches
-- Nobody has asked although it is long due, and this process lacks its tool, too. A hundred at a
-- time: there are none but after a tool was removed.
WITH orphaned AS MATERIALIZED (
  SELECT o.action_id FROM counterfoil.action AS o
  WHERE o.watch_at <= counterfoil.now() - :older_s * interval '1 second'
    AND (o.tool, o.tool_version) NOT IN (SELECT * FROM unnest(CAST(:tools AS text[]), CAST(:versions AS integer[])))
  ORDER BY o.watch_at LIMIT 100 FOR UPDATE SKIP LOCKED
)
UPDATE counterfoil.action AS a SET watch_at = NULL
FROM orphaned WHERE a.action_id = orphaned.action_id
RETURNING a.action_id;
