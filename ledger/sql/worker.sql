-- What a worker writes. Every statement is one compare-and-set: no row returned means that somebody else moved the row.

-- name: read_batch
-- The rows of one message, as they stand now; those that another wake-up has already moved on are left out.
SELECT a.action_id, a.generation, a.tenant, a.tool, a.tool_version, a.provider, a.account, a.attempt_count,
  a.not_sent_count, a.in_doubt, a.state
FROM counterfoil.action AS a
JOIN unnest(CAST(:action_ids AS text[]), CAST(:generations AS integer[])) AS m (action_id, generation)
  ON m.action_id = a.action_id AND m.generation = a.generation
WHERE a.state IN ('ready', 'retryable_failure') AND a.ready_at <= counterfoil.now();

-- name: claim_if_ready
-- The claim: takes the row, counts the attempt, records it, and (by trigger) deletes the wake-up, in one statement.
-- `fence` is a token that the claimer made before the statement: after a lost COMMIT the row is the claimer's only if it
-- holds that token. `quiet_from` is the lease's end, since a killed worker's connection may live as long as its lease.
WITH claimed AS (
  UPDATE counterfoil.action AS a
  SET state = 'executing',
      fence = :fence,
      lease_until = counterfoil.now() + :lease_s * interval '1 second',
      quiet_from = counterfoil.now() + :lease_s * interval '1 second',
      attempt_count = a.attempt_count + 1,
      first_sent_at = coalesce(a.first_sent_at, counterfoil.now()),
      last_sent_at = counterfoil.now(),
      absent_count = 0,
      last_absent_at = NULL,
      key = coalesce(a.key, :key),
      key_version = coalesce(a.key_version, :key_version),
      reach = CASE WHEN a.in_doubt THEN coalesce(a.reach, :reach) ELSE :reach END,
      changed_by = :worker,
      change_reason = 'claimed',
      change_evidence = NULL
  WHERE a.action_id = :action_id
    AND a.generation = :generation
    AND a.state IN ('ready', 'retryable_failure')
    AND a.ready_at <= counterfoil.now()
    AND a.attempt_count < :attempts_max
    AND a.cancel_requested_at IS NULL
    AND NOT EXISTS (                                         -- paused: nothing; draining: what was begun, or takes back
      SELECT FROM counterfoil.provider_mode AS m
      WHERE m.provider = a.provider
        AND (m.mode = 'paused' OR a.phase = 'do' AND NOT a.in_doubt AND a.attempt_count + a.not_sent_count = 0))
    AND (a.phase <> 'do' OR NOT EXISTS (                     -- the run is taken back: nothing new begins
      SELECT FROM counterfoil.run AS r
      WHERE r.tenant = a.tenant AND r.run = a.run AND r.state IN ('unwinding', 'unwind_blocked', 'unwound')))
    AND NOT EXISTS (                                         -- approved, but too late: the expire tick tells so
      SELECT FROM counterfoil.approval AS g
      WHERE g.approval_id = a.approval_id AND g.consumed_at IS NULL AND g.expires_at <= counterfoil.now())
    AND (a.deadline_at IS NULL OR a.deadline_at > counterfoil.now())
  RETURNING a.*
), recorded AS (
  INSERT INTO counterfoil.attempt (attempt_id, action_id, tenant, number, worker, started_at)
  SELECT c.fence, c.action_id, c.tenant, c.attempt_count, :worker, c.last_sent_at
  FROM claimed AS c
)
SELECT c.*,  -- all of it, since the guards judge by nearly all of it; see `recorded` in claims.py
       extract(epoch FROM counterfoil.now() - c.first_sent_at)::double precision AS key_age_s,
       p.action_id AS of_action_id, p.tool AS of_tool, p.key AS of_key, p.reach AS of_reach, p.receipt AS of_receipt,
       p.arguments AS of_arguments, g.subject_id AS approval_subject_id, g.digest AS approval_digest,
       g.people AS approval_people, g.amount_max_minor AS approval_amount_max_minor,
       g.expires_at AS approval_expires_at
FROM claimed AS c
LEFT JOIN counterfoil.action AS p ON p.action_id = c.parent_action_id
LEFT JOIN counterfoil.approval AS g ON g.approval_id = c.approval_id;

-- name: reread_mine
-- After a connection was lost while the claim ran: is the row mine?
SELECT a.*,
       extract(epoch FROM counterfoil.now() - a.first_sent_at)::double precision AS key_age_s,
       p.action_id AS of_action_id, p.tool AS of_tool, p.key AS of_key, p.reach AS of_reach, p.receipt AS of_receipt,
       p.arguments AS of_arguments, g.subject_id AS approval_subject_id, g.digest AS approval_digest,
       g.people AS approval_people, g.amount_max_minor AS approval_amount_max_minor,
       g.expires_at AS approval_expires_at
FROM counterfoil.action AS a
LEFT JOIN counterfoil.action AS p ON p.action_id = a.parent_action_id
LEFT JOIN counterfoil.approval AS g ON g.approval_id = a.approval_id
WHERE a.action_id = :action_id AND a.state = 'executing' AND a.fence = :fence;

-- name: review_if_refused
-- The database has refused the claim: the row has no approval of exactly what it says. Nothing was sent by this claim; in
-- doubt, an earlier one may have been, and evidence decides about that.
UPDATE counterfoil.action
SET state = CASE WHEN in_doubt THEN 'uncertain' ELSE 'operator_review' END, no_resend = true,
    uncertain_since = CASE WHEN in_doubt THEN coalesce(uncertain_since, counterfoil.now()) ELSE uncertain_since END,
    next_lookup_at = CASE WHEN in_doubt THEN counterfoil.now() ELSE next_lookup_at END,
    last_error_code = 'approval_mismatch', last_error_field = NULL,
    changed_by = :worker, change_reason = 'approval mismatch', change_evidence = NULL
WHERE action_id = :action_id AND generation = :generation AND state IN ('ready', 'retryable_failure')
RETURNING state;

-- name: record_attempt
-- What the answer proved about this attempt, whoever holds the row by now. Evidence is never thrown away.
UPDATE counterfoil.attempt
SET finished_at = counterfoil.now(), outcome = :outcome, code = :code, evidence = :evidence, receipt = :receipt,
    result = :result
WHERE action_id = :action_id AND attempt_id = :fence AND finished_at IS NULL;

-- name: settle_succeeded
-- The provider did it and this worker still holds the row.
WITH noted AS (
  UPDATE counterfoil.attempt
  SET finished_at = counterfoil.now(), outcome = 'succeeded', receipt = :receipt, result = :result
  WHERE action_id = :action_id AND attempt_id = :fence AND finished_at IS NULL
)
UPDATE counterfoil.action
SET state = 'succeeded', lease_until = NULL, receipt = :receipt, result = :result, last_error_code = NULL,
    last_error_field = NULL, changed_by = :worker, change_reason = 'succeeded', change_evidence = :evidence
WHERE action_id = :action_id AND state = 'executing' AND fence = :fence
RETURNING action_id;

-- name: settle_retryable
-- Definitely refused for now, and no earlier attempt is in doubt: claimable again after the backoff.
WITH noted AS (
  UPDATE counterfoil.attempt
  SET finished_at = counterfoil.now(), outcome = 'rejected', code = :code, evidence = :evidence
  WHERE action_id = :action_id AND attempt_id = :fence AND finished_at IS NULL
)
UPDATE counterfoil.action
SET state = 'retryable_failure', lease_until = NULL, quiet_from = counterfoil.now(),
    ready_at = counterfoil.now() + :delay_s * interval '1 second', last_error_code = :code, last_error_field = :field,
    changed_by = :worker, change_reason = 'refused for now', change_evidence = :evidence
WHERE action_id = :action_id AND state = 'executing' AND fence = :fence AND NOT in_doubt
RETURNING action_id;

-- name: settle_failed
-- Definitely refused for good, and no earlier attempt is in doubt.
WITH noted AS (
  UPDATE counterfoil.attempt
  SET finished_at = counterfoil.now(), outcome = :outcome, code = :code, evidence = :evidence
  WHERE action_id = :action_id AND attempt_id = :fence AND finished_at IS NULL
)
UPDATE counterfoil.action
SET state = 'permanent_failure', lease_until = NULL, last_error_code = :error_code, last_error_field = :field,
    changed_by = :worker, change_reason = :reason, change_evidence = :evidence
WHERE action_id = :action_id AND state = 'executing' AND fence = :fence AND NOT in_doubt
RETURNING action_id;

-- name: settle_uncertain
-- The request may have landed, or an earlier one may have (then a refusal of this one proves nothing about that).
-- The worker has closed its connection, so the landing window begins now.
WITH noted AS (
  UPDATE counterfoil.attempt
  SET finished_at = counterfoil.now(), outcome = :outcome, code = :code, evidence = :evidence
  WHERE action_id = :action_id AND attempt_id = :fence AND finished_at IS NULL
)
UPDATE counterfoil.action
SET state = 'uncertain', lease_until = NULL, quiet_from = counterfoil.now(),
    attempt_count = attempt_count - CASE WHEN :outcome = 'not_sent' THEN 1 ELSE 0 END,
    not_sent_count = not_sent_count + CASE WHEN :outcome = 'not_sent' THEN 1 ELSE 0 END,
    no_resend = no_resend OR :no_resend,
    ready_at = counterfoil.now() + :delay_s * interval '1 second',
    uncertain_since = coalesce(uncertain_since, counterfoil.now()),
    next_lookup_at = counterfoil.now() + :look_after_s * interval '1 second',
    last_error_code = :code, last_error_field = NULL,
    changed_by = :worker, change_reason = 'outcome unknown', change_evidence = :evidence
WHERE action_id = :action_id AND state = 'executing' AND fence = :fence
RETURNING action_id;

-- name: settle_not_sent
-- No byte has left and no earlier attempt is in doubt: the attempt is given back, with a backoff and a cap of its own.
WITH noted AS (
  UPDATE counterfoil.attempt
  SET finished_at = counterfoil.now(), outcome = 'not_sent', code = :code, evidence = :evidence
  WHERE action_id = :action_id AND attempt_id = :fence AND finished_at IS NULL
)
UPDATE counterfoil.action
SET state = 'ready', lease_until = NULL, quiet_from = counterfoil.now(),
    attempt_count = attempt_count - 1, not_sent_count = not_sent_count + 1,
    first_sent_at = CASE WHEN attempt_count = 1 THEN NULL ELSE first_sent_at END,
    ready_at = counterfoil.now() + :delay_s * interval '1 second', last_error_code = :code, last_error_field = NULL,
    changed_by = :worker, change_reason = 'not sent', change_evidence = :evidence
WHERE action_id = :action_id AND state = 'executing' AND fence = :fence AND NOT in_doubt
RETURNING action_id;

-- name: let_go
-- Given back before anything was sent: no attempt, no doubt added, none taken away. A row in doubt that may not be sent
-- again (a cancel or a late success came meanwhile) has no way through ready: evidence decides.
WITH noted AS (
  UPDATE counterfoil.attempt
  SET finished_at = counterfoil.now(), outcome = 'let_go', code = :code
  WHERE action_id = :action_id AND attempt_id = :fence AND finished_at IS NULL
)
UPDATE counterfoil.action
SET state = CASE WHEN in_doubt AND no_resend THEN 'uncertain' ELSE 'ready' END,
    lease_until = NULL, quiet_from = counterfoil.now(), attempt_count = attempt_count - 1,
    first_sent_at = CASE WHEN attempt_count = 1 AND NOT in_doubt THEN NULL ELSE first_sent_at END,
    ready_at = counterfoil.now() + :delay_s * interval '1 second',
    next_lookup_at = CASE WHEN in_doubt THEN counterfoil.now() ELSE next_lookup_at END,
    changed_by = :worker, change_reason = :code, change_evidence = NULL
WHERE action_id = :action_id AND state = 'executing' AND fence = :fence
RETURNING action_id;

-- name: hold_for_evidence
-- Before sending, in doubt, and a resend is not safe (key too old): only evidence may decide now.
WITH noted AS (
  UPDATE counterfoil.attempt
  SET finished_at = counterfoil.now(), outcome = 'let_go', code = :code
  WHERE action_id = :action_id AND attempt_id = :fence AND finished_at IS NULL
)
UPDATE counterfoil.action
SET state = 'uncertain', lease_until = NULL, quiet_from = counterfoil.now(), attempt_count = attempt_count - 1,
    no_resend = true, next_lookup_at = counterfoil.now(), last_error_code = :code,
    changed_by = :worker, change_reason = :code, change_evidence = NULL
WHERE action_id = :action_id AND state = 'executing' AND fence = :fence AND in_doubt
RETURNING action_id;

-- name: hand_to_person
-- Before sending, not in doubt: the row and this worker's own registry disagree.
WITH noted AS (
  UPDATE counterfoil.attempt
  SET finished_at = counterfoil.now(), outcome = 'let_go', code = :code, evidence = :evidence
  WHERE action_id = :action_id AND attempt_id = :fence AND finished_at IS NULL
)
UPDATE counterfoil.action
SET state = 'operator_review', lease_until = NULL, quiet_from = counterfoil.now(), attempt_count = attempt_count - 1,
    last_error_code = :code, changed_by = :worker, change_reason = :code, change_evidence = :evidence
WHERE action_id = :action_id AND state = 'executing' AND fence = :fence AND NOT in_doubt
RETURNING action_id;

-- name: stale_if_changed
-- Before sending, not in doubt: what the call is about has changed since it was decided on, or cannot be read.
WITH noted AS (
  UPDATE counterfoil.attempt
  SET finished_at = counterfoil.now(), outcome = 'let_go', code = :code, evidence = :evidence
  WHERE action_id = :action_id AND attempt_id = :fence AND finished_at IS NULL
)
UPDATE counterfoil.action
SET state = 'stale', lease_until = NULL, quiet_from = counterfoil.now(), attempt_count = attempt_count - 1,
    first_sent_at = CASE WHEN attempt_count = 1 THEN NULL ELSE first_sent_at END,
    last_error_code = :code, last_error_field = NULL,
    changed_by = :worker, change_reason = replace(CAST(:code AS text), '_', ' '), change_evidence = :evidence
WHERE action_id = :action_id AND state = 'executing' AND fence = :fence AND NOT in_doubt
RETURNING action_id;

-- name: settle_stale
-- The provider has checked the version itself and definitely refused, and no earlier attempt is in doubt.
WITH noted AS (
  UPDATE counterfoil.attempt
  SET finished_at = counterfoil.now(), outcome = 'rejected', code = :code
  WHERE action_id = :action_id AND attempt_id = :fence AND finished_at IS NULL
)
UPDATE counterfoil.action
SET state = 'stale', lease_until = NULL, quiet_from = counterfoil.now(), last_error_code = 'resource_changed',
    last_error_field = NULL, changed_by = :worker, change_reason = 'resource changed', change_evidence = :code
WHERE action_id = :action_id AND state = 'executing' AND fence = :fence AND NOT in_doubt
RETURNING action_id;

-- name: late_success_on_unknown
-- A success that was learnt after the row was lost: settles a row whose outcome is unknown.
UPDATE counterfoil.action
SET state = 'succeeded', lease_until = NULL, receipt = :receipt, result = :result, last_error_code = NULL,
    changed_by = :worker, change_reason = 'late success', change_evidence = :evidence
WHERE action_id = :action_id AND state IN ('uncertain', 'reconciling')
RETURNING action_id;

-- name: late_success_on_waiting
-- The same for a row that was about to be sent again: the verdict reads the attempt's receipt.
UPDATE counterfoil.action
SET state = 'uncertain', uncertain_since = coalesce(uncertain_since, counterfoil.now()),
    next_lookup_at = counterfoil.now(), changed_by = :worker, change_reason = 'late success',
    change_evidence = :evidence
WHERE action_id = :action_id AND state IN ('ready', 'retryable_failure')
RETURNING action_id;

-- name: late_success_on_executing
-- The same for a row that is being sent again: a refusal of that attempt must not end it as failed. In doubt, it turns
-- uncertain (by its settle or its lease's end), and the verdict reads the first attempt's receipt.
UPDATE counterfoil.action
SET in_doubt = true, no_resend = true, uncertain_since = coalesce(uncertain_since, counterfoil.now())
WHERE action_id = :action_id AND state = 'executing' AND fence <> :fence
RETURNING action_id;

-- name: late_success_on_negative
-- The same for a row that ended without an effect: that was wrong, a person decides.
UPDATE counterfoil.action
SET state = 'operator_review', last_error_code = 'late_success', changed_by = :worker, change_reason = 'late success',
    change_evidence = :evidence
WHERE action_id = :action_id AND state IN ('permanent_failure', 'not_executed', 'cancelled', 'stale')
RETURNING action_id;

-- name: fail_if_attempts_used_up
-- Claimable, but no attempt is left, and nothing is in doubt.
UPDATE counterfoil.action
SET state = 'permanent_failure', last_error_code = 'attempts_exhausted', changed_by = :worker,
    change_reason = 'attempts exhausted', change_evidence = NULL
WHERE action_id = :action_id AND state = 'retryable_failure' AND attempt_count >= :attempts_max AND NOT in_doubt
RETURNING action_id;

-- name: look_if_attempts_used_up
-- The same in doubt (or for a ready row): evidence decides, nothing is sent again.
UPDATE counterfoil.action
SET state = 'uncertain', no_resend = true, uncertain_since = coalesce(uncertain_since, counterfoil.now()),
    next_lookup_at = counterfoil.now(), changed_by = :worker, change_reason = 'attempts exhausted',
    change_evidence = NULL
WHERE action_id = :action_id AND state IN ('ready', 'retryable_failure') AND attempt_count >= :attempts_max
RETURNING action_id;

-- name: postpone_wakeup
-- A worker had it and did not claim it: the fleet's limits say later. Not an attempt, and not lost.
UPDATE counterfoil.outbox
SET not_before = counterfoil.now() + :delay_s * interval '1 second', publish_count = 0, lacking_since = NULL
WHERE action_id = :action_id AND generation = :generation;

-- name: leave_to_others
-- The same: this worker lacks the tool, its version or its account. If all of them do, people are told.
UPDATE counterfoil.outbox
SET not_before = counterfoil.now() + :delay_s * interval '1 second', publish_count = 0,
    lacking_since = coalesce(lacking_since, counterfoil.now())
WHERE action_id = :action_id AND generation = :generation;

-- name: heartbeat
INSERT INTO counterfoil.worker_heartbeat (worker, queues, last_claim_at)
VALUES (:worker, :queues, CASE WHEN :claimed THEN counterfoil.now() END)
ON CONFLICT (worker) DO UPDATE
SET seen_at = counterfoil.now(), queues = EXCLUDED.queues,
    last_claim_at = coalesce(EXCLUDED.last_claim_at, counterfoil.worker_heartbeat.last_claim_at);
