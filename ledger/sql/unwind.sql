-- What the unwind of a run reads and writes.

-- name: runs_to_unwind
-- Each visit moves the run to the end of the line, so that runs which wait for long keep none from its turn. A child run
-- whose parent is being taken back comes with the parent's visit, in one order with its steps.
WITH due AS MATERIALIZED (
  SELECT r.tenant, r.run FROM counterfoil.run AS r
  WHERE r.state IN ('unwinding', 'unwind_blocked')
    AND NOT EXISTS (
      SELECT FROM counterfoil.run AS p
      WHERE p.tenant = r.tenant AND p.run = r.parent_run AND p.state IN ('unwinding', 'unwind_blocked'))
  ORDER BY r.updated_at LIMIT :batch FOR NO KEY UPDATE OF r SKIP LOCKED
)
UPDATE counterfoil.run AS r SET updated_at = counterfoil.now()
FROM due WHERE r.tenant = due.tenant AND r.run = due.run
RETURNING r.tenant, r.run, r.state;

-- name: tree_of_run
-- The run and the child runs below it, the deepest first. A run is younger than its parent, so there are no circles.
WITH RECURSIVE tree AS (
  SELECT r.tenant, r.run, r.parent_run, r.state, 0 AS depth
  FROM counterfoil.run AS r WHERE r.tenant = :tenant AND r.run = :run
  UNION ALL
  SELECT c.tenant, c.run, c.parent_run, c.state, t.depth + 1
  FROM tree AS t JOIN counterfoil.run AS c ON c.tenant = t.tenant AND c.parent_run = t.run
)
SELECT tenant, run, parent_run, state FROM tree ORDER BY depth DESC, run;

-- name: steps_of_run
-- The actions of the run and of the child runs below it, each with its counter-action, its correction and the message
-- that was sent as it, where there are any; only what a reader may see. A superseded one was taken for ended without an
-- effect; it counts only when that turned out wrong (and then before the live one: NULL comes last).
WITH RECURSIVE tree AS (
  SELECT r.tenant, r.run FROM counterfoil.run AS r WHERE r.tenant = :tenant AND r.run = :run
  UNION ALL
  SELECT c.tenant, c.run FROM tree AS t JOIN counterfoil.run AS c ON c.tenant = t.tenant AND c.parent_run = t.run
)
SELECT a.action_id, a.tenant, a.run, a.step, a.revision, a.superseded_by IS NOT NULL AS superseded, a.tool,
       a.class AS class_, a.parent_action_id AS parent_id, a.state, a.in_doubt,
       a.cancel_requested_at IS NOT NULL AS cancel_requested, a.last_error_code, a.audience,
       counterfoil.undo_tool_of(a.action_id) AS undo_tool, a.created_at, u.action_id AS undo_id, u.state AS undo_state,
       u.revision AS undo_revision, u.last_error_code AS undo_error_code,
       CASE WHEN u.state IN ('permanent_failure', 'not_executed') THEN counterfoil.decided_by_person(u.action_id)
            ELSE false END AS undo_by_person,
       c.correction_id, c.state AS correction_state, m.action_id AS message_id, m.state AS message_state,
       m.last_error_code AS message_error_code
FROM tree AS t
JOIN counterfoil.action AS a ON a.tenant = t.tenant AND a.run = t.run
LEFT JOIN LATERAL (
  SELECT u.action_id, u.state, u.revision, u.last_error_code FROM counterfoil.action AS u
  WHERE u.parent_action_id = a.action_id AND u.phase = 'undo' AND (u.superseded_by IS NULL OR u.state = 'operator_review')
  ORDER BY u.superseded_by LIMIT 1) AS u ON true
LEFT JOIN counterfoil.correction AS c ON c.action_id = a.action_id
LEFT JOIN LATERAL (
  SELECT m.action_id, m.state, m.last_error_code FROM counterfoil.action AS m
  WHERE m.parent_action_id = a.action_id AND m.phase = 'correct' AND (m.superseded_by IS NULL OR m.state = 'operator_review')
  ORDER BY m.superseded_by LIMIT 1) AS m ON true
WHERE a.phase = 'do'
  AND (a.superseded_by IS NULL OR a.state IN ('uncertain', 'reconciling', 'operator_review', 'succeeded'))
ORDER BY a.created_at, a.action_id;

-- name: read_compensation
-- What takes the action back, as it was written down before its call.
SELECT compensation FROM counterfoil.action WHERE action_id = :action_id;

-- name: propose_undo
SELECT counterfoil.propose_undo(
  :action_id, :parent, :by, :tool_version, :class, :effect, :target, :provider, :account, :queue, :arguments,
  :arguments_sha256, :audience, :amount_minor, :currency) AS created;

-- name: mark_compensated
-- Its counter-action has succeeded, or what carries it on was compensated.
UPDATE counterfoil.action AS a
SET state = 'compensated', changed_by = :by, change_reason = 'compensated', change_evidence = u.action_id
FROM counterfoil.action AS u
WHERE a.action_id = :action_id AND a.state = 'succeeded' AND u.parent_action_id = a.action_id
  AND (u.phase = 'undo' AND u.state = 'succeeded' OR u.state = 'compensated' AND counterfoil.is_carried_on(a, u))
RETURNING a.action_id;

-- name: review_undo
-- The counter-action has ended without an effect, and no person has said yet what is to become of that.
UPDATE counterfoil.action
SET state = 'operator_review', changed_by = :by, change_reason = 'compensation ended without an effect',
    change_evidence = last_error_code
WHERE action_id = :undo_id AND phase = 'undo' AND superseded_by IS NULL
  AND state IN ('permanent_failure', 'not_executed', 'cancelled', 'stale')
  AND NOT (state IN ('permanent_failure', 'not_executed') AND counterfoil.decided_by_person(action_id))
RETURNING action_id;

-- name: set_run_state
UPDATE counterfoil.run SET state = :to_state, updated_at = counterfoil.now()
WHERE tenant = :tenant AND run = :run AND state = :from_state
RETURNING run;

-- name: finish_unwind
SELECT counterfoil.finish_unwind(:tenant, :run) AS finished;
