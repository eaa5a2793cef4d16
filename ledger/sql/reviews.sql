-- What people read and do about actions in review. Writes go through the definer functions of the migration.

-- name: list_in_review
-- What waits for a person, the longest waiting first, and what the provider is being asked about for a person. Keeps to
-- the columns that a reader may see.
SELECT a.action_id, a.tenant, a.run, a.step, a.phase, a.tool, a.effect, a.target, a.amount_minor, a.currency, a.state,
       a.last_error_code, a.in_doubt, a.no_resend, r.verb AS asked, r.by_person AS asked_by,
       coalesce(h.at, a.updated_at) AS since, counterfoil.now() AS now
FROM counterfoil.action AS a
LEFT JOIN counterfoil.review AS r ON r.action_id = a.action_id AND r.answered_at IS NULL
LEFT JOIN LATERAL (
  SELECT x.at FROM counterfoil.history AS x
  WHERE x.action_id = a.action_id AND x.to_state = 'operator_review' ORDER BY x.history_id DESC LIMIT 1) AS h ON true
WHERE a.action_id IN (SELECT x.action_id FROM counterfoil.action AS x WHERE x.state = 'operator_review'
                      UNION SELECT x.action_id FROM counterfoil.review AS x WHERE x.answered_at IS NULL)
  AND (CAST(:tenant AS text) IS NULL OR a.tenant = :tenant)
ORDER BY since, a.action_id LIMIT :limit;

-- name: requests_about
-- Keeps to the columns that a reader may see.
SELECT review_id, verb, by_person, db_role, channel, asked_at, answered_at, answer
FROM counterfoil.review WHERE action_id = :action_id ORDER BY review_id;

-- name: requests_in_full
SELECT review_id, verb, receipt, by_person, db_role, channel, reason, asked_at, answered_at, answer, evidence
FROM counterfoil.review WHERE action_id = :action_id ORDER BY review_id;

-- name: sent_in_full
-- Every request that may have left, with what its answer proved.
SELECT number, worker, started_at, finished_at, outcome, code, evidence, receipt
FROM counterfoil.attempt WHERE action_id = :action_id ORDER BY started_at;

-- name: evidence_on
-- What the attempts prove, and whether giving up is backed by that; for operators.
SELECT counterfoil.sent_of(a) AS sent, counterfoil.may_give_up(a) AS may_give_up
FROM counterfoil.action AS a WHERE a.action_id = :action_id;

-- name: may_read_in_full
SELECT has_column_privilege('counterfoil.review', 'evidence', 'SELECT') AS may;

-- name: read_answer
SELECT r.answer, r.evidence, r.answered_at, a.state
FROM counterfoil.review AS r JOIN counterfoil.action AS a ON a.action_id = r.action_id
WHERE r.review_id = :review_id;

-- name: ask_provider
SELECT answer, state, review_id
FROM counterfoil.ask_provider(:action_id, :verb, :receipt, :by, :channel, :reason);

-- name: give_up
SELECT answer, state, review_id
FROM counterfoil.give_up(:action_id, :by, :channel, :reason, :as_happened);
