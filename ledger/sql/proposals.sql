-- What people read and do about proposals. Writes go through the definer functions of the migration.

-- name: list_proposals
-- With what each is about; keeps to the columns that a reader may see. What waits comes first, the soonest to
-- expire before the others; then what is decided, the newest decision first.
SELECT p.proposal_id, p.tenant, p.run, p.actor, p.is_plan, p.people, p.state, p.expires_at, p.decided_by, p.decided_at,
       p.created_at, counterfoil.now() AS now,
  (SELECT coalesce(json_agg(to_json(s) ORDER BY s.place, s.revision), '[]')
   FROM (SELECT coalesce(a.place, 1) AS place, a.revision, a.tool, a.target, a.class, a.audience, a.amount_minor,
                a.currency, a.superseded_by
         FROM counterfoil.action AS a WHERE a.proposal_id = p.proposal_id) AS s) AS steps
FROM counterfoil.proposal AS p
WHERE (CAST(:tenant AS text) IS NULL OR p.tenant = :tenant)
  AND (CAST(:run AS text) IS NULL OR p.run = :run)
  AND (CAST(:state AS text) IS NULL OR p.state = :state)
ORDER BY p.state <> 'open', CASE WHEN p.state = 'open' THEN p.expires_at END, p.decided_at DESC NULLS LAST, p.proposal_id
LIMIT :limit;

-- name: proposals_named
-- By the first signs of the id, as people type them.
SELECT p.proposal_id FROM counterfoil.proposal AS p
WHERE starts_with(p.proposal_id, :prefix) ORDER BY p.proposal_id LIMIT 6;

-- name: read_proposal
-- Everything that a person decides on, and the database's digest of it, in one statement: one snapshot. `steps` has the
-- replaced revisions, too; `staged` is in the order in which the digest takes it.
SELECT p.proposal_id, p.tenant, p.run, p.actor, p.is_plan, p.note, p.people, p.state, p.expires_at, p.decided_by,
       p.decided_at, p.created_at, counterfoil.now() AS now, counterfoil.proposal_digest(p.proposal_id) AS digest,
  (SELECT coalesce(json_agg(to_json(s) ORDER BY s.place, s.revision), '[]')
   FROM (SELECT coalesce(a.place, 1) AS place, a.action_id, a.step, a.revision, a.phase, a.parent_action_id,
                a.edited_from, a.superseded_by, a.actor, a.tool, a.tool_version, a.class, a.effect, a.target,
                a.provider, a.account, a.arguments, a.audience, a.amount_minor, a.currency, a.compensation,
                a.correction, a.reads_version, a.expected_resource_version, a.repeat_reason, a.state,
                a.last_error_code, a.erased_at, a.created_at, g.amount_field, g.amount_max_minor, g.carried_from,
                g.consumed_at, g.expires_at AS approval_expires_at
         FROM counterfoil.action AS a LEFT JOIN counterfoil.approval AS g ON g.action_id = a.action_id
         WHERE a.proposal_id = p.proposal_id) AS s) AS steps,
  (SELECT coalesce(json_agg(to_json(s) ORDER BY s.seq, s.action_id), '[]')
   FROM (SELECT a.seq, a.action_id, a.tool, a.tool_version, a.target, a.arguments, a.audience, a.amount_minor,
                a.currency, a.receipt, a.result
         FROM counterfoil.action AS a
         WHERE p.is_plan AND a.tenant = p.tenant AND a.run = p.run AND a.staged AND a.state = 'succeeded'
           AND a.superseded_by IS NULL) AS s) AS staged,
  (SELECT coalesce(json_agg(to_json(s) ORDER BY s.decision_id), '[]')
   FROM (SELECT d.decision_id, d.verdict, d.digest, d.by_person, d.db_role, d.channel, d.reason, d.at
         FROM counterfoil.decision AS d WHERE d.subject_id = p.proposal_id) AS s) AS decisions,
  (SELECT coalesce(json_agg(to_json(s) ORDER BY s.at), '[]')
   FROM (SELECT a.proposal_id, a.action_id, a.tool, a.target, a.arguments, d.by_person, d.reason,
                coalesce(d.at, a.updated_at) AS at
         FROM counterfoil.action AS a
         LEFT JOIN counterfoil.decision AS d ON d.subject_id = a.proposal_id AND d.verdict = 'rejected'
         WHERE a.tenant = p.tenant AND a.run = p.run AND a.phase = 'do' AND a.state = 'cancelled'
           AND a.last_error_code = 'rejected_by_reviewer' AND a.proposal_id <> p.proposal_id
           AND EXISTS (SELECT FROM counterfoil.action AS b
                       WHERE b.proposal_id = p.proposal_id AND b.effect = a.effect AND b.target = a.target)
         ORDER BY coalesce(d.at, a.updated_at) DESC LIMIT 10) AS s) AS rejected
FROM counterfoil.proposal AS p WHERE p.proposal_id = :proposal_id;

-- name: decide
SELECT answer, decided_by, decided_at, missing
FROM counterfoil.decide(:proposal_id, :verdict, :digest, :by, :channel, :reason, :amount_field,
                        CAST(:amount_max_minor AS bigint));

-- name: edit_step
SELECT answer, proposal_id
FROM counterfoil.edit_step(
  :action_id, :new_id, :digest, :by, :channel, :reason, :target, :arguments, :arguments_sha256,
  CAST(:audience AS text[]), :compensation, :correction, :once_key, CAST(:amount_minor AS bigint), :currency);

-- name: decisions_on
-- What people said about a proposal or a correction; the columns that a reader may see.
SELECT decision_id, verdict, by_person, db_role, channel, at
FROM counterfoil.decision WHERE subject_id = :subject_id ORDER BY decision_id;

-- name: said_on
-- The same with reasons and digests, for logins that may read them.
SELECT decision_id, verdict, digest, by_person, db_role, channel, reason, at
FROM counterfoil.decision WHERE subject_id = :subject_id ORDER BY decision_id;

-- name: approval_of
-- The approval of one action, for logins that may read it.
SELECT approval_id, subject_id, digest, people, amount_field, amount_max_minor, carried_from, expires_at, created_at,
       consumed_at
FROM counterfoil.approval WHERE action_id = :action_id;
