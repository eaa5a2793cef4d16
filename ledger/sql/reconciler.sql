-- What the reconciler writes: sweeps (idempotent, any number at once) and verdicts (fenced by the look-up's own claim).

-- name: sweep_lapsed_executing
-- A worker died or lost its lease: its request may be on the wire, so the outcome is unknown. Never ready.
WITH lapsed AS MATERIALIZED (
  SELECT action_id FROM counterfoil.action
  WHERE state = 'executing' AND lease_until <= counterfoil.now()
  ORDER BY lease_until LIMIT :batch FOR UPDATE SKIP LOCKED
)
UPDATE counterfoil.action AS a
SET state = 'uncertain', lease_until = NULL, uncertain_since = coalesce(a.uncertain_since, counterfoil.now()),
    next_lookup_at = counterfoil.now(), last_error_code = 'lease_lapsed', changed_by = :by,
    change_reason = 'lease lapsed', change_evidence = NULL
FROM lapsed WHERE a.action_id = lapsed.action_id
RETURNING a.action_id;

-- name: sweep_lapsed_reconciling
-- A reconciler died: look again now; doubt and window are unchanged.
WITH lapsed AS MATERIALIZED (
  SELECT action_id FROM counterfoil.action
  WHERE state = 'reconciling' AND lease_until <= counterfoil.now()
  ORDER BY lease_until LIMIT :batch FOR UPDATE SKIP LOCKED
)
UPDATE counterfoil.action AS a
SET state = 'uncertain', lease_until = NULL, uncertain_since = coalesce(a.uncertain_since, counterfoil.now()),
    next_lookup_at = counterfoil.now(), changed_by = :by, change_reason = 'look-up lapsed', change_evidence = NULL
FROM lapsed WHERE a.action_id = lapsed.action_id
RETURNING a.action_id;

-- name: due_groups
-- What one look-up can share: rows of one tool, in one version, at one account. Steps from group to group and tenant to
-- tenant through the index of uncertain rows, and counts each tenant's due rows up to twice its share of a batch, so that
-- the cost follows the groups and the batch, never the settled rows. The longest due first.
WITH RECURSIVE part AS (
  (SELECT tool, tool_version, account, tenant FROM counterfoil.action
   WHERE state = 'uncertain'
   ORDER BY tool, tool_version, account, tenant LIMIT 1)
  UNION ALL
  SELECT n.tool, n.tool_version, n.account, n.tenant
  FROM part AS p CROSS JOIN LATERAL (
    SELECT a.tool, a.tool_version, a.account, a.tenant FROM counterfoil.action AS a
    WHERE a.state = 'uncertain'
      AND (a.tool, a.tool_version, a.account, a.tenant) > (p.tool, p.tool_version, p.account, p.tenant)
    ORDER BY a.tool, a.tool_version, a.account, a.tenant LIMIT 1) AS n
), known AS (
  SELECT p.*, count(*) OVER (PARTITION BY p.tool, p.tool_version, p.account) AS tenants
  FROM part AS p
  WHERE (p.tool, p.tool_version) IN (SELECT * FROM unnest(CAST(:tools AS text[]), CAST(:versions AS integer[])))
)
SELECT k.tool, k.tool_version, k.account, CAST(sum(d.actions) AS integer) AS due, min(d.since) AS since
FROM known AS k CROSS JOIN LATERAL (
  SELECT count(*) AS actions, min(s.next_lookup_at) AS since
  FROM (
    SELECT a.next_lookup_at FROM counterfoil.action AS a
    WHERE a.state = 'uncertain' AND a.tool = k.tool AND a.tool_version = k.tool_version AND a.account = k.account
      AND a.tenant = k.tenant AND a.next_lookup_at <= counterfoil.now()
      AND (a.uncertain_since <= counterfoil.now() - :uncertain_after_s * interval '1 second' OR a.lookup_count > 0
           OR EXISTS (SELECT FROM counterfoil.review AS r WHERE r.action_id = a.action_id AND r.answered_at IS NULL))
    ORDER BY a.next_lookup_at LIMIT 2 * CAST(:batch AS bigint) / k.tenants + 1) AS s) AS d
WHERE d.actions > 0
GROUP BY k.tool, k.tool_version, k.account
ORDER BY since;

-- name: claim_uncertain
-- Takes due uncertain rows of one group. `as_of` is a time before the look-up begins. Fair: the longest due row of every
-- tenant, then the second of each, and so on, so that nobody waits behind another's backlog. Each tenant's rows are read up
-- to ten times its share of the batch, which bounds the cost where one has many rows and the others few.
-- What a person has asked for does not wait for late landings, which that person may have waited for already.
WITH RECURSIVE part AS (
  (SELECT tenant FROM counterfoil.action
   WHERE state = 'uncertain' AND tool = :tool AND tool_version = :version AND account = :account
   ORDER BY tenant LIMIT 1)
  UNION ALL
  SELECT n.tenant
  FROM part AS p CROSS JOIN LATERAL (
    SELECT a.tenant FROM counterfoil.action AS a
    WHERE a.state = 'uncertain' AND a.tool = :tool AND a.tool_version = :version AND a.account = :account
      AND a.tenant > p.tenant
    ORDER BY a.tenant LIMIT 1) AS n
), counted AS (
  SELECT p.tenant, count(*) OVER () AS tenants FROM part AS p
), candidate AS MATERIALIZED (
  SELECT c.action_id
  FROM counted AS p CROSS JOIN LATERAL (
    SELECT s.action_id, s.next_lookup_at, row_number() OVER (ORDER BY s.next_lookup_at) AS place
    FROM (
      SELECT a.action_id, a.next_lookup_at FROM counterfoil.action AS a
      WHERE a.state = 'uncertain' AND a.tool = :tool AND a.tool_version = :version AND a.account = :account
        AND a.tenant = p.tenant AND a.next_lookup_at <= counterfoil.now()
        AND (a.uncertain_since <= counterfoil.now() - :uncertain_after_s * interval '1 second' OR a.lookup_count > 0
             OR EXISTS (SELECT FROM counterfoil.review AS r WHERE r.action_id = a.action_id AND r.answered_at IS NULL))
      ORDER BY a.next_lookup_at LIMIT least(CAST(:batch AS bigint), 10 * CAST(:batch AS bigint) / p.tenants + 1)) AS s) AS c
  ORDER BY c.place, c.next_lookup_at LIMIT CAST(:batch AS bigint)
), due AS MATERIALIZED (
  SELECT a.action_id
  FROM counterfoil.action AS a JOIN candidate ON candidate.action_id = a.action_id
  WHERE a.state = 'uncertain' AND a.next_lookup_at <= counterfoil.now()
  FOR UPDATE OF a SKIP LOCKED
), claimed AS (
  UPDATE counterfoil.action AS a
  SET state = 'reconciling', fence = :fence, lease_until = counterfoil.now() + :lease_s * interval '1 second',
      lookup_count = a.lookup_count + 1, changed_by = :by, change_reason = 'look-up', change_evidence = NULL
  FROM due WHERE a.action_id = due.action_id
  RETURNING a.*
)
SELECT c.action_id, c.tenant, c.run, c.step, c.revision, c.phase, c.tool, c.tool_version, c.class, c.effect, c.target,
       c.provider, c.account, c.reach, c.arguments, c.arguments_sha256, c.amount_minor, c.currency,
       c.expected_resource_version, c.key, c.fence,
       c.attempt_count, c.not_sent_count, c.in_doubt, c.no_resend, c.first_sent_at, c.quiet_from, c.absent_count,
       c.last_absent_at, c.lookup_count, c.last_error_code, counterfoil.now() AS as_of,
       p.action_id AS of_action_id, p.tool AS of_tool, p.key AS of_key, p.reach AS of_reach, p.receipt AS of_receipt,
       p.arguments AS of_arguments, t.receipt AS late_receipt, t.result AS late_result,
       r.verb AS asked, r.receipt AS asked_receipt, r.asked_at, r.by_person AS asked_by
FROM claimed AS c
LEFT JOIN counterfoil.action AS p ON p.action_id = c.parent_action_id
LEFT JOIN counterfoil.review AS r ON r.action_id = c.action_id AND r.answered_at IS NULL
LEFT JOIN LATERAL (
  SELECT receipt, result FROM counterfoil.attempt AS t
  WHERE t.action_id = c.action_id AND t.outcome = 'succeeded' ORDER BY t.started_at LIMIT 1) AS t ON true;

-- name: claim_unread_version
-- Takes one proposed row whose resource's version is to be read, of the tools that this process has: for `lease_s` nobody
-- else reads it, and the try is counted now, so that a reading that kills its process ends too.
WITH due AS MATERIALIZED (
  SELECT action_id FROM counterfoil.action
  WHERE state = 'proposed' AND reads_version AND expected_resource_version IS NULL AND superseded_by IS NULL
    AND next_lookup_at <= counterfoil.now() AND lookup_count < :tries_max
    AND (tool, tool_version) IN (SELECT * FROM unnest(CAST(:tools AS text[]), CAST(:versions AS integer[])))
  ORDER BY next_lookup_at LIMIT 1 FOR UPDATE SKIP LOCKED
), claimed AS (
  UPDATE counterfoil.action AS a
  SET next_lookup_at = counterfoil.now() + :lease_s * interval '1 second', lookup_count = a.lookup_count + 1
  FROM due WHERE a.action_id = due.action_id
  RETURNING a.*
)
SELECT c.action_id, c.tenant, c.tool, c.tool_version, c.target, c.provider, c.account, c.arguments, c.lookup_count,
       p.action_id AS of_action_id, p.tool AS of_tool, p.key AS of_key, p.reach AS of_reach, p.receipt AS of_receipt,
       p.arguments AS of_arguments
FROM claimed AS c
LEFT JOIN counterfoil.action AS p ON p.action_id = c.parent_action_id;

-- name: record_version
-- The first reading stands, whoever made it. A later step of a plan waits for its turn, what is gated for a person.
UPDATE counterfoil.action
SET expected_resource_version = :version, lookup_count = 0, next_lookup_at = NULL,
    state = CASE WHEN place > 1 THEN 'proposed' WHEN needs_approval THEN 'awaiting_approval' ELSE 'ready' END,
    changed_by = :by, change_reason = 'version read', change_evidence = NULL
WHERE action_id = :action_id AND state = 'proposed' AND reads_version AND expected_resource_version IS NULL
  AND superseded_by IS NULL
RETURNING state;

-- name: read_version_later
-- Only after the try that failed: a later one may be under way.
UPDATE counterfoil.action SET next_lookup_at = counterfoil.now() + :after_s * interval '1 second'
WHERE action_id = :action_id AND state = 'proposed' AND expected_resource_version IS NULL
  AND lookup_count = :lookup_count
RETURNING action_id;

-- name: stale_unread
-- The version could not be read: what nobody can compare is not done. Or nobody has read it, and this process lacks its
-- tool, too.
WITH unread AS MATERIALIZED (
  SELECT action_id FROM counterfoil.action
  WHERE state = 'proposed' AND reads_version AND expected_resource_version IS NULL
    AND (next_lookup_at <= counterfoil.now() AND lookup_count >= :tries_max
         OR next_lookup_at <= counterfoil.now() - :older_s * interval '1 second'
            AND (tool, tool_version) NOT IN (SELECT * FROM unnest(CAST(:tools AS text[]), CAST(:versions AS integer[]))))
  ORDER BY next_lookup_at LIMIT :batch FOR UPDATE SKIP LOCKED
)
UPDATE counterfoil.action AS a
SET state = 'stale', last_error_code = 'version_unreadable', changed_by = :by, change_reason = 'version unreadable',
    change_evidence = NULL
FROM unread WHERE a.action_id = unread.action_id AND a.state = 'proposed'
RETURNING a.action_id;

-- name: verdict_succeeded
UPDATE counterfoil.action
SET state = 'succeeded', lease_until = NULL, receipt = :receipt, result = :result, last_error_code = NULL,
    last_error_field = NULL, changed_by = :by, change_reason = 'found', change_evidence = :evidence
WHERE action_id = :action_id AND state = 'reconciling' AND fence = :fence
RETURNING action_id;

-- name: verdicts_succeeded
-- The same for many rows of one look-up's claim: one commit for all.
UPDATE counterfoil.action AS a
SET state = 'succeeded', lease_until = NULL, receipt = v.receipt, result = v.result, last_error_code = NULL,
    last_error_field = NULL, changed_by = :by, change_reason = 'found', change_evidence = v.evidence
FROM unnest(CAST(:action_ids AS text[]), CAST(:receipts AS text[]), CAST(:results AS text[]), CAST(:evidences AS text[]))
  AS v (action_id, receipt, result, evidence)
WHERE a.action_id = v.action_id AND a.state = 'reconciling' AND a.fence = :fence
RETURNING a.action_id;

-- name: verdict_failed
UPDATE counterfoil.action
SET state = 'permanent_failure', in_doubt = false, lease_until = NULL, last_error_code = :code, changed_by = :by,
    change_reason = :reason, change_evidence = :evidence
WHERE action_id = :action_id AND state = 'reconciling' AND fence = :fence
RETURNING action_id;

-- name: verdict_not_executed
UPDATE counterfoil.action
SET state = 'not_executed', in_doubt = false, lease_until = NULL, last_error_code = :code, changed_by = :by,
    change_reason = :reason, change_evidence = :evidence
WHERE action_id = :action_id AND state = 'reconciling' AND fence = :fence
RETURNING action_id;

-- name: verdict_resend
-- Claimable again with the same key and bytes. Earned absence ends the doubt; a resend by native key does not.
-- A cancel that arrived during the look-up forbids it: `no_resend` is read here once more. So does an approval that is not
-- (any more) of exactly this intent, which the gate would refuse.
UPDATE counterfoil.action AS a
SET state = 'ready', in_doubt = NOT :ends_doubt, lease_until = NULL,
    absent_count = CASE WHEN :ends_doubt THEN 0 ELSE absent_count END,
    uncertain_since = CASE WHEN :ends_doubt THEN NULL ELSE uncertain_since END,
    lookup_count = CASE WHEN :ends_doubt THEN 0 ELSE lookup_count END,
    ready_at = greatest(ready_at, counterfoil.now() + :delay_s * interval '1 second'),
    changed_by = :by, change_reason = :reason, change_evidence = :evidence
WHERE action_id = :action_id AND state = 'reconciling' AND fence = :fence AND NOT no_resend
  AND (NOT a.needs_approval OR EXISTS (
    SELECT FROM counterfoil.approval AS g
    WHERE g.approval_id = a.approval_id AND g.action_id = a.action_id
      AND g.digest = counterfoil.intent_digest(a, g.expires_at)))
RETURNING action_id;

-- name: verdict_unapproved
-- It would be sent again, but has no approval of exactly what it says: a person's.
UPDATE counterfoil.action AS a
SET state = 'operator_review', lease_until = NULL, last_error_code = 'approval_mismatch', changed_by = :by,
    change_reason = 'approval mismatch', change_evidence = :evidence
WHERE action_id = :action_id AND state = 'reconciling' AND fence = :fence AND NOT no_resend
  AND NOT (NOT a.needs_approval OR EXISTS (
    SELECT FROM counterfoil.approval AS g
    WHERE g.approval_id = a.approval_id AND g.action_id = a.action_id
      AND g.digest = counterfoil.intent_digest(a, g.expires_at)))
RETURNING action_id;

-- name: verdict_ask_later
UPDATE counterfoil.action
SET state = 'uncertain', lease_until = NULL, absent_count = :absent_count, last_absent_at = :last_absent_at,
    uncertain_since = coalesce(uncertain_since, counterfoil.now()),
    next_lookup_at = counterfoil.now() + :after_s * interval '1 second', changed_by = :by, change_reason = :reason,
    change_evidence = :evidence
WHERE action_id = :action_id AND state = 'reconciling' AND fence = :fence
RETURNING action_id;

-- name: verdicts_ask_later
-- The same for many rows of one look-up's claim.
UPDATE counterfoil.action AS a
SET state = 'uncertain', lease_until = NULL, absent_count = v.absent_count, last_absent_at = v.last_absent_at,
    uncertain_since = coalesce(a.uncertain_since, counterfoil.now()),
    next_lookup_at = counterfoil.now() + v.after_s * interval '1 second', changed_by = :by, change_reason = v.reason,
    change_evidence = v.evidence
FROM unnest(CAST(:action_ids AS text[]), CAST(:after_s AS float8[]), CAST(:absent_counts AS integer[]),
            CAST(:last_absent_at AS timestamptz[]), CAST(:reasons AS text[]), CAST(:evidences AS text[]))
  AS v (action_id, after_s, absent_count, last_absent_at, reason, evidence)
WHERE a.action_id = v.action_id AND a.state = 'reconciling' AND a.fence = :fence
RETURNING a.action_id;

-- name: verdict_person
UPDATE counterfoil.action
SET state = 'operator_review', lease_until = NULL, last_error_code = :code, changed_by = :by, change_reason = :reason,
    change_evidence = :evidence
WHERE action_id = :action_id AND state = 'reconciling' AND fence = :fence
RETURNING action_id;

-- name: verdict_back_to_review
-- What a person said was not borne out. Why the row had come up for a person stays, unless there is a new reason.
UPDATE counterfoil.action
SET state = 'operator_review', lease_until = NULL, last_error_code = coalesce(:code, last_error_code),
    changed_by = :by, change_reason = :answer, change_evidence = :evidence
WHERE action_id = :action_id AND state = 'reconciling' AND fence = :fence
RETURNING action_id;

-- name: hand_orphans_to_person
-- Nobody has looked at it although it is due, and this process lacks its tool, too: no evidence will come by itself.
WITH orphaned AS MATERIALIZED (
  SELECT action_id FROM counterfoil.action
  WHERE state = 'uncertain' AND next_lookup_at <= counterfoil.now() - :older_s * interval '1 second'
    AND (tool, tool_version) NOT IN (SELECT * FROM unnest(CAST(:tools AS text[]), CAST(:versions AS integer[])))
  ORDER BY next_lookup_at LIMIT :batch FOR UPDATE SKIP LOCKED
)
UPDATE counterfoil.action AS a
SET state = 'operator_review', last_error_code = 'tool_unknown', changed_by = :by, change_reason = 'tool unknown',
    change_evidence = NULL
FROM orphaned WHERE a.action_id = orphaned.action_id
RETURNING a.action_id;

-- name: rescue_lost_wakeups
-- Claimable without a wake-up: must never happen; put right and told. A dead wake-up is a person's to revive.
WITH lost AS MATERIALIZED (
  SELECT a.action_id FROM counterfoil.action AS a
  WHERE a.state IN ('ready', 'retryable_failure')
    AND a.ready_at <= counterfoil.now() - :older_s * interval '1 second'
    AND NOT EXISTS (SELECT FROM counterfoil.outbox AS o WHERE o.action_id = a.action_id)
    AND NOT EXISTS (SELECT FROM counterfoil.outbox_dead AS d
                    WHERE d.action_id = a.action_id AND d.generation = a.generation)
  ORDER BY a.ready_at LIMIT :batch FOR UPDATE SKIP LOCKED
)
INSERT INTO counterfoil.outbox (action_id, generation, tenant, queue, not_before, is_retry, takes_back)
SELECT a.action_id, a.generation, a.tenant, a.queue, counterfoil.now(),
       a.attempt_count + a.not_sent_count > 0 OR a.in_doubt, a.phase <> 'do'
FROM counterfoil.action AS a JOIN lost ON lost.action_id = a.action_id
ON CONFLICT (action_id) DO NOTHING
RETURNING action_id;

-- name: forget_lacking
-- Held back for long, or taken by nobody: no worker has had it in its hands of late, so nothing is known about who could send
-- it. An outage or a pause hands nobody anything.
UPDATE counterfoil.outbox
SET lacking_since = NULL
WHERE lacking_since IS NOT NULL
  AND (publish_count = 0 AND not_before <= counterfoil.now() - :held_s * interval '1 second' OR publish_count > 2)
RETURNING action_id;

-- name: tools_lacking
-- What workers have had in their hands for so long, and none of them could send.
SELECT DISTINCT a.tool || '/' || a.tool_version || '/' || a.account AS subject
FROM counterfoil.outbox AS o
JOIN counterfoil.action AS a ON a.action_id = o.action_id
WHERE o.lacking_since <= counterfoil.now() - :older_s * interval '1 second'
ORDER BY subject LIMIT :batch;

-- name: hand_lacking_to_person
-- Of that, what is in doubt: nobody asks about it while it is ready to be sent again, and no deadline ends it.
WITH lacking AS MATERIALIZED (
  SELECT a.action_id FROM counterfoil.outbox AS o
  JOIN counterfoil.action AS a ON a.action_id = o.action_id
  WHERE o.lacking_since <= counterfoil.now() - :older_s * interval '1 second' AND a.in_doubt
    AND a.state IN ('ready', 'retryable_failure')
  ORDER BY o.lacking_since LIMIT :batch FOR UPDATE OF a SKIP LOCKED
)
UPDATE counterfoil.action AS a
SET state = 'operator_review', last_error_code = 'no_worker', changed_by = :by, change_reason = 'no worker can send it',
    change_evidence = NULL
FROM lacking WHERE a.action_id = lacking.action_id AND a.state IN ('ready', 'retryable_failure')
RETURNING a.action_id;

-- name: expire_waiting
-- Past the run's deadline and never sent, or certainly refused so far: stale.
WITH late AS MATERIALIZED (
  SELECT action_id FROM counterfoil.action
  WHERE deadline_at <= counterfoil.now() AND NOT in_doubt
    AND state IN ('proposed', 'awaiting_approval', 'ready', 'retryable_failure')
  ORDER BY deadline_at LIMIT :batch FOR UPDATE SKIP LOCKED
)
UPDATE counterfoil.action AS a
SET state = 'stale', last_error_code = 'deadline_passed', changed_by = :by, change_reason = 'deadline passed',
    change_evidence = NULL
FROM late WHERE a.action_id = late.action_id
RETURNING a.action_id;

-- name: expire_in_doubt
-- Past the deadline but in doubt: nothing is sent again, evidence decides.
WITH late AS MATERIALIZED (
  SELECT action_id FROM counterfoil.action
  WHERE deadline_at <= counterfoil.now() AND in_doubt AND state IN ('ready', 'retryable_failure')
  ORDER BY deadline_at LIMIT :batch FOR UPDATE SKIP LOCKED
)
UPDATE counterfoil.action AS a
SET state = 'uncertain', no_resend = true, uncertain_since = coalesce(a.uncertain_since, counterfoil.now()),
    next_lookup_at = counterfoil.now(), changed_by = :by, change_reason = 'deadline passed', change_evidence = NULL
FROM late WHERE a.action_id = late.action_id
RETURNING a.action_id;

-- name: expire_proposals
-- Proposals that nobody has decided, and approved actions that nobody has claimed, in time.
SELECT subject_id FROM counterfoil.expire_proposals(:by, :batch);

-- name: prune_effect_locks
SELECT counterfoil.prune_effect_locks(:older_s) AS pruned;

-- name: due_cancels
-- A cancel that found the row executing, and the row came back to a claimable state: now it can be carried out.
SELECT action_id FROM counterfoil.action
WHERE cancel_requested_at IS NOT NULL AND state IN ('ready', 'retryable_failure')
ORDER BY cancel_requested_at LIMIT :batch;

-- name: request_cancel
SELECT counterfoil.request_cancel(:action_id, :by, :reason) AS state;

-- name: sent_before_pivot
-- Must be none. Runs with a pivot only, and only those that were called of late: they are few.
SELECT c.tenant, c.run, c.actions
FROM (
  SELECT r.tenant, r.run, counterfoil.irreversible_before_pivot(r.tenant, r.run) AS actions
  FROM counterfoil.run AS r
  WHERE r.pivot IS NOT NULL AND r.updated_at > counterfoil.now() - :within_s * interval '1 second'
  ORDER BY r.updated_at DESC LIMIT :batch) AS c
WHERE c.actions > 0;

-- name: make_partitions
SELECT counterfoil.make_partitions(:ahead) AS made;
