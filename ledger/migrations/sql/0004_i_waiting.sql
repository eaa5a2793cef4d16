-- What waits for people, for whoever tells them and for dashboards; and the number that must be 0 in every run.

CREATE INDEX action_waits_in_review ON counterfoil.action (updated_at) WHERE state = 'operator_review';
CREATE INDEX proposal_expired ON counterfoil.proposal (decided_at) WHERE state = 'expired';
CREATE INDEX approval_unused ON counterfoil.approval (expires_at) WHERE consumed_at IS NULL;
CREATE INDEX run_pivot ON counterfoil.run (updated_at) WHERE pivot IS NOT NULL;

-- One row for each thing that only a person moves on. `since`: the last thing that a person should know of, so that who
-- was told about an earlier `since` is told again. `why` of a proposal: new, one_more (of two persons) or edited; of an
-- action in review its error code; of a correction new, or no_effect where a person has sent it in vain.
CREATE VIEW counterfoil.waiting_for_people WITH (security_invoker = true) AS
SELECT 'proposal' AS kind, p.proposal_id AS id, p.tenant, p.run, coalesce(d.at, p.created_at) AS since, p.expires_at,
       CASE d.verdict WHEN 'approved' THEN 'one_more' WHEN 'edited' THEN 'edited' ELSE 'new' END AS why
FROM counterfoil.proposal AS p
LEFT JOIN LATERAL (
  SELECT d.verdict, d.at FROM counterfoil.decision AS d
  WHERE d.subject_id = p.proposal_id ORDER BY d.decision_id DESC LIMIT 1) AS d ON true
WHERE p.state = 'open' AND p.expires_at > counterfoil.now()
  AND EXISTS (SELECT FROM counterfoil.action AS a     -- none: a version is still to be read, so it cannot be decided
              WHERE a.proposal_id = p.proposal_id AND a.superseded_by IS NULL AND a.state = 'awaiting_approval')
UNION ALL
SELECT 'review', a.action_id, a.tenant, a.run, greatest(coalesce(h.at, a.updated_at), r.answered_at), NULL,
       coalesce(a.last_error_code, 'review')
FROM counterfoil.action AS a
LEFT JOIN LATERAL (
  SELECT max(h.at) AS at FROM counterfoil.history AS h
  WHERE h.action_id = a.action_id AND h.to_state = 'operator_review' AND h.from_state <> 'operator_review') AS h ON true
LEFT JOIN LATERAL (
  SELECT max(r.answered_at) AS answered_at, count(*) FILTER (WHERE r.answered_at IS NULL) AS open
  FROM counterfoil.review AS r WHERE r.action_id = a.action_id) AS r ON true
WHERE a.state = 'operator_review' AND r.open = 0      -- else a person has asked, and the reconciler is to answer
UNION ALL
SELECT 'correction', c.correction_id, c.tenant, c.run, c.open_since, NULL,
       CASE WHEN c.sent_as IS NULL THEN 'new' ELSE 'no_effect' END
FROM counterfoil.correction AS c WHERE c.state = 'open';

-- How many of the run's irreversible effects, its child runs' included, were sent although its pivot was still ahead: by
-- a step of a plan that nobody had approved by then, or by any other call before the first plan was approved, or proposed
-- after the run had staged again. Must be 0; a run that never stages has no pivot, so it has 0.
CREATE FUNCTION counterfoil.irreversible_before_pivot(p_tenant text, p_run text) RETURNS integer
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  WITH RECURSIVE tree AS (
    SELECT r.run FROM counterfoil.run AS r WHERE r.tenant = p_tenant AND r.run = p_run AND r.pivot IS NOT NULL
    UNION ALL
    SELECT c.run FROM tree AS t JOIN counterfoil.run AS c ON c.tenant = p_tenant AND c.parent_run = t.run
  ), passed AS (
    SELECT p.decided_at AS at FROM counterfoil.proposal AS p
    WHERE p.tenant = p_tenant AND p.run = p_run AND p.is_plan AND p.state = 'approved'
  ), staged AS (
    SELECT s.created_at AS at FROM counterfoil.action AS s WHERE s.tenant = p_tenant AND s.run = p_run AND s.staged
    UNION ALL
    SELECT p.created_at FROM counterfoil.proposal AS p WHERE p.tenant = p_tenant AND p.run = p_run AND p.is_plan
  )
  SELECT count(*)::integer
  FROM tree AS t JOIN counterfoil.action AS a ON a.tenant = p_tenant AND a.run = t.run
  WHERE a.phase = 'do' AND a.class = 'irreversible' AND a.first_sent_at IS NOT NULL
    AND a.state NOT IN ('permanent_failure', 'not_executed', 'cancelled', 'stale')
    AND CASE WHEN a.place IS NOT NULL THEN NOT EXISTS (
          SELECT FROM counterfoil.proposal AS p
          WHERE p.proposal_id = a.proposal_id AND p.state = 'approved' AND p.decided_at <= a.first_sent_at)
        ELSE NOT EXISTS (SELECT FROM passed AS p WHERE p.at <= a.first_sent_at)
          OR EXISTS (
            SELECT FROM staged AS s
            WHERE s.at <= a.created_at AND EXISTS (SELECT FROM passed AS p WHERE p.at <= s.at)
              AND NOT EXISTS (SELECT FROM passed AS p WHERE p.at > s.at AND p.at <= a.first_sent_at))
        END
$$;

-- Notices that were told as long ago as that, at least thirty days, of what waits no more; those of what still waits are
-- kept, since it would be told again.
CREATE FUNCTION counterfoil.prune_notices(p_older_s double precision) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n integer;
BEGIN
  DELETE FROM counterfoil.notice AS o
  WHERE o.told_at < counterfoil.now() - greatest(p_older_s, 2592000) * interval '1 second'
    AND NOT EXISTS (SELECT FROM counterfoil.waiting_for_people AS w WHERE w.id = o.subject_id);
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n;
END $$;

REVOKE ALL ON counterfoil.waiting_for_people FROM PUBLIC;
REVOKE ALL ON FUNCTION counterfoil.irreversible_before_pivot, counterfoil.prune_notices FROM PUBLIC;
GRANT SELECT ON counterfoil.waiting_for_people TO counterfoil_worker, counterfoil_operator, counterfoil_reader;
GRANT EXECUTE ON FUNCTION counterfoil.irreversible_before_pivot
  TO counterfoil_agent, counterfoil_worker, counterfoil_operator, counterfoil_reader;
GRANT EXECUTE ON FUNCTION counterfoil.prune_notices TO counterfoil_worker;
