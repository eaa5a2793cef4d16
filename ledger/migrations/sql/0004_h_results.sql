-- What is told about an action that a person has edited or rejected; counterfoil/outbox/results.py tells the same.

-- The revision that reviewers have put in this one's place, else the action itself.
CREATE FUNCTION counterfoil.as_edited(p_action_id text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  WITH RECURSIVE chain AS (
    SELECT a.action_id, a.superseded_by, 0 AS edits FROM counterfoil.action AS a WHERE a.action_id = p_action_id
    UNION ALL
    SELECT n.action_id, n.superseded_by, c.edits + 1
    FROM chain AS c
    JOIN counterfoil.action AS n ON n.action_id = c.superseded_by AND n.edited_from = c.action_id
    WHERE c.edits < 1000
  )
  SELECT c.action_id FROM chain AS c ORDER BY c.edits DESC LIMIT 1
$$;

-- As in 0002, and: a reviewer's revision stands for the action that it has replaced; a rejection comes with its reason.
CREATE OR REPLACE FUNCTION counterfoil.result(p_action_id text)
RETURNS TABLE (status text, next_step text, value json, code text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT
    CASE
      WHEN a.state IN ('proposed', 'ready', 'executing', 'retryable_failure') THEN 'pending'
      WHEN a.state IN ('uncertain', 'reconciling', 'operator_review') THEN 'uncertain'
      WHEN a.state IN ('succeeded', 'compensated') THEN 'succeeded'
      WHEN a.state IN ('permanent_failure', 'not_executed') THEN 'failed'
      ELSE a.state
    END,
    CASE
      WHEN a.state IN ('proposed', 'ready', 'executing', 'retryable_failure', 'uncertain', 'reconciling') THEN 'wait'
      WHEN a.state = 'operator_review' THEN 'person'
      WHEN a.state IN ('awaiting_approval', 'compensated') THEN 'end_turn'
      WHEN a.state = 'stale' THEN 'new_preview'
      WHEN a.state = 'cancelled' AND a.last_error_code IN ('rejected_by_reviewer', 'edited_by_reviewer')
        THEN a.last_error_code
      WHEN a.state IN ('succeeded', 'permanent_failure', 'not_executed') AND a.edited_from IS NOT NULL
        THEN 'edited_by_reviewer'
      ELSE 'none'
    END,
    CASE
      WHEN a.state IN ('succeeded', 'compensated') THEN a.result::json
      WHEN a.state = 'cancelled' AND a.last_error_code = 'rejected_by_reviewer' AND a.superseded_by IS NULL
           AND a.change_reason IS NOT NULL THEN json_build_object('reason', a.change_reason)
    END,
    CASE
      WHEN a.state = 'compensated' THEN 'compensated'
      WHEN a.state IN ('permanent_failure', 'not_executed', 'cancelled', 'stale') THEN
        CASE WHEN a.last_error_code ~ '^[A-Za-z0-9_.:-]{1,100}$' THEN a.last_error_code
             WHEN a.last_error_code IS NOT NULL THEN 'refused' END
    END
  FROM counterfoil.action AS a WHERE a.action_id = counterfoil.as_edited(p_action_id)
$$;

REVOKE ALL ON FUNCTION counterfoil.as_edited FROM PUBLIC;
GRANT EXECUTE ON FUNCTION counterfoil.as_edited TO counterfoil_agent, counterfoil_operator;
