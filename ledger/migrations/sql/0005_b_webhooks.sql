-- What a provider's event is about is looked up now. An event moves no row and proves nothing: the look-up does.

-- What is written to a provider's object without a key of its own that its events show (a note, a comment) is found by the
-- object that it goes to. As large as the open doubts, not as the settled rows.
CREATE INDEX action_uncertain_target ON counterfoil.action (provider, target) WHERE state = 'uncertain';

-- Looks soon at every uncertain row that an event names: by the row's key, by the key of the row that it is about (a hold's
-- capture, a ticket's closing), or by the object that it goes to. Only rows of this provider and of these accounts, whose
-- secret the event was signed with. Never later than planned, and not sooner than 2 s after the row was last touched, so
-- that a storm of events costs one look-up in 2 s; and none of those counts, since the pauses between look-ups double with
-- their number (but of one that a person has asked for, whom the number bounds). Returns how many rows are looked up sooner
-- now. Whoever holds a row's lock is looking at it, or has just moved it: no event waits for that.
CREATE FUNCTION counterfoil.look_now_by_key(p_provider text, p_accounts text[], p_keys text[], p_targets text[])
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  sooner integer;
BEGIN
  IF NOT pg_has_role(session_user, 'counterfoil_worker', 'MEMBER') THEN
    RAISE EXCEPTION 'login % may not hear providers', session_user USING ERRCODE = 'CF403';
  END IF;
  WITH named AS (
    SELECT a.action_id FROM counterfoil.action AS a WHERE a.key = ANY (p_keys)
    UNION
    SELECT c.action_id
    FROM counterfoil.action AS p JOIN counterfoil.action AS c ON c.parent_action_id = p.action_id
    WHERE p.key = ANY (p_keys)
    UNION
    SELECT a.action_id FROM counterfoil.action AS a
    WHERE a.state = 'uncertain' AND a.provider = p_provider AND a.target = ANY (p_targets)
  ), due AS MATERIALIZED (
    SELECT a.action_id, greatest(counterfoil.now(), a.updated_at + interval '2 seconds') AS look_at
    FROM named JOIN counterfoil.action AS a ON a.action_id = named.action_id
    WHERE a.state = 'uncertain' AND a.provider = p_provider AND a.account = ANY (p_accounts)
      AND a.next_lookup_at > greatest(counterfoil.now(), a.updated_at + interval '2 seconds')
    LIMIT 100 FOR UPDATE OF a SKIP LOCKED
  )
  UPDATE counterfoil.action AS a
  SET next_lookup_at = due.look_at,
      lookup_count = CASE
        WHEN a.lookup_count < 2 OR EXISTS (SELECT FROM counterfoil.review AS r
                                           WHERE r.action_id = a.action_id AND r.answered_at IS NULL)
        THEN a.lookup_count ELSE a.lookup_count - 1 END
  FROM due WHERE a.action_id = due.action_id;
  GET DIAGNOSTICS sooner = ROW_COUNT;
  RETURN sooner;
END $$;

REVOKE ALL ON FUNCTION counterfoil.look_now_by_key FROM PUBLIC;
GRANT EXECUTE ON FUNCTION counterfoil.look_now_by_key TO counterfoil_worker;
