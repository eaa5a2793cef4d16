-- What people might have to be told: queued by the unwind, written, sent or dismissed by a person.

-- name: list_corrections
-- What waits before what is decided; inside first, then customers, the public, what has legal weight; within a rank the
-- one that waits longest. Decided ones: the newest decision first. Only what a reader may see.
SELECT c.correction_id, c.tenant, c.run, c.action_id, a.step, a.tool, a.target, c.audience, c.rank, c.state, c.sent_as,
       m.state AS message_state, c.decided_by, c.decided_at, c.open_since, c.created_at
FROM counterfoil.correction AS c
JOIN counterfoil.action AS a ON a.action_id = c.action_id
LEFT JOIN counterfoil.action AS m ON m.action_id = c.sent_as
WHERE (CAST(:tenant AS text) IS NULL OR c.tenant = :tenant)
  AND (CAST(:run AS text) IS NULL OR c.run = :run)
  AND (CAST(:state AS text) IS NULL OR c.state = :state)
ORDER BY c.state <> 'open', CASE WHEN c.state = 'open' THEN c.rank END, CASE WHEN c.state = 'open' THEN c.open_since END,
         c.decided_at DESC, c.correction_id LIMIT :limit;

-- name: corrections_named
-- Those that begin so; two are enough to know that it is not one.
SELECT c.correction_id FROM counterfoil.correction AS c
WHERE starts_with(c.correction_id, :prefix) ORDER BY c.correction_id LIMIT 6;

-- name: read_correction
-- With what was seen, and the revision that a message sent now would have: see send_correction.
SELECT c.correction_id, c.tenant, c.run, c.action_id, a.step, a.tool, a.target, c.audience, c.rank, c.state, c.sent_as,
       m.state AS message_state, c.decided_by, c.decided_at, c.open_since, c.created_at, c.call,
       a.revision, a.actor, a.state AS action_state, a.arguments, a.receipt,
       (SELECT max(h.at) FROM counterfoil.history AS h
        WHERE h.action_id = a.action_id AND h.to_state = 'succeeded') AS seen_at,
       coalesce((SELECT e.revision + 1 FROM counterfoil.action AS e
                 WHERE e.tenant = a.tenant AND e.run = a.run AND e.step = a.step AND e.phase = 'correct'
                   AND e.superseded_by IS NULL), a.revision) AS next_revision,
       (SELECT coalesce(jsonb_agg(jsonb_build_object(
          'verdict', d.verdict, 'digest', d.digest, 'by_person', d.by_person, 'db_role', d.db_role,
          'channel', d.channel, 'reason', d.reason, 'at', d.at) ORDER BY d.decision_id), '[]')
        FROM counterfoil.decision AS d WHERE d.subject_id = c.correction_id) AS decisions
FROM counterfoil.correction AS c
JOIN counterfoil.action AS a ON a.action_id = c.action_id
LEFT JOIN counterfoil.action AS m ON m.action_id = c.sent_as
WHERE c.correction_id = :correction_id;

-- name: queue_correction
-- Once for an action, whoever asks and however often.
SELECT counterfoil.queue_correction(:action_id, :by, :declared) AS correction_id;

-- name: edit_correction
SELECT answer, decided_by FROM counterfoil.edit_correction(:correction_id, :call, :by, :channel, :reason);

-- name: dismiss_correction
SELECT answer, decided_by FROM counterfoil.dismiss_correction(:correction_id, :by, :channel, :reason);

-- name: send_correction
-- The message, its approval and the decision, in one transaction.
SELECT answer, decided_by, sent_as
FROM counterfoil.send_correction(
  :correction_id, :digest, :by, :channel, :reason, :action_id, :tool, :tool_version, :class, :effect, :effect_scope,
  :target, :provider, :account, :queue, :arguments, :arguments_sha256, CAST(:audience AS text[]), :amount_minor, :currency);
