-- What the unwind of a run reads and writes.

-- name: runs_to_unwind
-- Each visit moves the run to the end of the line, so that runs which wait for long keep none from its turn.
WITH due AS MATERIALIZED (
  SELECT tenant, run FROM counterfoil.run
  WHERE state IN ('unwinding', 'unwind_blocked')
  ORDER BY updated_at LIMIT :batch FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE counterfoil.run AS r SET updated_at = counterfoil.now()
FROM due WHERE r.tenant = due.tenant AND r.run = due.run
RETURNING r.tenant, r.run, r.state;

-- name: steps_of_run
-- The run's actions, each with its counter-action's state where one was recorded. A superseded one was taken for
-- ended without an effect; it counts only when that turned out wrong.
SELECT a.action_id, a.tenant, a.run, a.step, a.revision, a.superseded_by IS NOT NULL AS superseded, a.tool,
       a.tool_version, a.class, a.state, a.in_doubt, a.audience, a.compensation, a.created_at, u.action_id AS undo_id, u.state AS undo_state
FROM counterfoil.action AS a
LEFT JOIN counterfoil.action AS u ON u.parent_action_id = a.action_id AND u.phase = 'undo' AND u.superseded_by IS NULL
WHERE a.tenant = :tenant AND a.run = :run AND a.phase = 'do'
  AND (a.superseded_by IS NULL OR a.state IN ('uncertain', 'reconciling', 'operator_review', 'succeeded'))
ORDER BY a.created_at, a.action_id;

-- name: propose_undo
SELECT counterfoil.propose_undo(
  :action_id, :parent, :by, :tool_version, :class, :effect, :target, :provider, :queue, :arguments, :arguments_sha256,
  :audience, :amount_minor, :currency) AS created;

-- name: mark_compensated
-- Its counter-action has succeeded.
UPDATE counterfoil.action AS a
SET state = 'compensated', changed_by = :by, change_reason = 'compensated', change_evidence = u.action_id
FROM counterfoil.action AS u
WHERE a.action_id = :action_id AND a.state = 'succeeded' AND u.parent_action_id = a.action_id AND u.phase = 'undo'
  AND u.state = 'succeeded'
RETURNING a.action_id;

-- name: set_run_state
UPDATE counterfoil.run SET state = :to_state, updated_at = counterfoil.now()
WHERE tenant = :tenant AND run = :run AND state = :from_state
RETURNING run;

-- name: finish_unwind
SELECT counterfoil.finish_unwind(:tenant, :run) AS finished;
