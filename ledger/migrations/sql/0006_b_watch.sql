-- What the reconciler must know about providers, and about rows that have ended and may have been wrong.

-- Whether a provider answers, for each account and each way to ask: by a look-up, by sending (a tool without a look-up repeats
-- its native key), or not at all, since nothing is configured to ask it with. A row goes to a person for its age alone only
-- after it could be asked about for long; `answering_since` begins anew with each outage that has ended.
CREATE TABLE counterfoil.provider_health (
  provider text NOT NULL,
  account text NOT NULL,
  way text NOT NULL CHECK (way IN ('look_up', 'send', 'configuration')),
  answered_at timestamptz,
  answering_since timestamptz,                 -- NULL during an outage
  failing_since timestamptz,                   -- NULL once it has answered
  failed_at timestamptz,                       -- the newest failure
  failed_count integer NOT NULL DEFAULT 0,     -- failures since failing_since
  last_code text CHECK (length(last_code) <= 100),
  PRIMARY KEY (provider, account, way)
);

-- Something that an operator must know, told once: an outage, a wake-up that died, a duplicate that was found.
CREATE TABLE counterfoil.alarm (
  alarm_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind text NOT NULL CHECK (kind ~ '^[a-z_]{1,40}$'),
  subject text NOT NULL CHECK (length(subject) BETWEEN 1 AND 400),   -- a provider and account, a queue or an action
  tenant text NOT NULL,                        -- '*': of the whole fleet
  run text NOT NULL DEFAULT '',
  evidence text CHECK (length(evidence) <= 500),                     -- receipts and codes
  since timestamptz NOT NULL DEFAULT counterfoil.now(),
  ended_at timestamptz,
  ended_by text CHECK (length(ended_by) <= 200),                     -- a person; NULL: it is over by itself
  end_reason text CHECK (length(end_reason) <= 500)
);
CREATE UNIQUE INDEX alarm_open ON counterfoil.alarm (kind, subject) WHERE ended_at IS NULL;

-- Rows that ended without an effect, or as taken back, after something was sent, and those that were sent again after a
-- look-up: they are looked up for a while longer. `watch_at`: when next; NULL: not watched (any more).
ALTER TABLE counterfoil.action
  ADD COLUMN resent boolean NOT NULL DEFAULT false,
  ADD COLUMN watch_at timestamptz,
  ADD COLUMN watched_since timestamptz,
  ADD COLUMN watch_count integer NOT NULL DEFAULT 0;
CREATE INDEX action_watch_due ON counterfoil.action (watch_at) WHERE watch_at IS NOT NULL;
CREATE INDEX action_watch_group ON counterfoil.action (tool, tool_version, account, watch_at) WHERE watch_at IS NOT NULL;
CREATE INDEX action_lookup_group ON counterfoil.action (tool, tool_version, account, tenant, next_lookup_at)
  WHERE state = 'uncertain';
CREATE INDEX action_uncertain_since ON counterfoil.action (provider, account, uncertain_since)
  WHERE state = 'uncertain';

-- A settled row is watched from its move on; any other move ends that. What was erased cannot be asked about any more. Of a
-- row that was never in doubt each request got a definite answer, so nothing is on its way: it is asked about less often.
CREATE FUNCTION counterfoil.action_watch() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  was_in_doubt boolean;
BEGIN
  IF OLD.state = 'reconciling' AND NEW.state = 'ready' THEN
    NEW.resent := true;
  END IF;
  was_in_doubt := NEW.resent OR NEW.uncertain_since IS NOT NULL;
  NEW.watch_at := NULL;
  IF NEW.erased_at IS NULL AND NEW.first_sent_at IS NOT NULL AND (NEW.attempt_count > 0 OR was_in_doubt)
     AND (NEW.state IN ('permanent_failure', 'not_executed', 'cancelled', 'stale', 'compensated')
          OR NEW.state = 'succeeded' AND NEW.resent) THEN
    NEW.watched_since := counterfoil.now();
    NEW.watch_at := counterfoil.now() + CASE WHEN was_in_doubt THEN interval '1 minute' ELSE interval '30 minutes' END;
    NEW.watch_count := 0;
  END IF;
  RETURN NEW;
END $$;
-- After action_guard, by name: what is refused there does not get here.
CREATE TRIGGER action_watch BEFORE UPDATE ON counterfoil.action
FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state OR OLD.erased_at IS DISTINCT FROM NEW.erased_at)
EXECUTE FUNCTION counterfoil.action_watch();

-- What is under way while this is installed, and was sent again after a look-up already.
UPDATE counterfoil.action AS a
SET resent = true
WHERE a.state IN ('ready', 'executing', 'retryable_failure', 'uncertain', 'reconciling', 'operator_review')
  AND EXISTS (SELECT FROM counterfoil.history AS h
              WHERE h.action_id = a.action_id AND h.from_state = 'reconciling' AND h.to_state = 'ready');

-- As in 0004: what was found after the action had ended contradicts that end, too.
CREATE OR REPLACE FUNCTION counterfoil.may_give_up(a counterfoil.action) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE counterfoil.sent_of(a)
    WHEN 'happened' THEN false
    WHEN 'unknown' THEN a.last_error_code IS NOT DISTINCT FROM 'absent'
    ELSE coalesce(a.last_error_code, '') NOT IN ('mismatch', 'many_found', 'found_unsettled', 'late_success',
                                                      'idempotency_mismatch', 'found_after_all')
  END
$$;

-- As in 0004, and: of what has succeeded and was found twice, if somebody saw it and its tool declares a correction, whether
-- or not the run is taken back.
CREATE OR REPLACE FUNCTION counterfoil.queue_correction(p_action_id text, p_by text, p_declared boolean) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  a counterfoil.action;
BEGIN
  SELECT * INTO a FROM counterfoil.action AS x WHERE x.action_id = p_action_id AND x.phase = 'do' FOR UPDATE;
  IF NOT FOUND
     OR NOT (
       a.state = 'succeeded'
         AND (a.superseded_by IS NOT NULL
              OR counterfoil.undo_tool_of(a.action_id) IS NULL AND NOT a.audience <@ ARRAY['agent'])
         AND EXISTS (SELECT FROM counterfoil.run AS r
                     WHERE r.tenant = a.tenant AND r.run = a.run AND r.state IN ('unwinding', 'unwind_blocked'))
       OR a.state = 'succeeded' AND (p_declared OR a.correction IS NOT NULL) AND NOT a.audience <@ ARRAY['agent']
         AND EXISTS (SELECT FROM counterfoil.alarm AS d
                     WHERE d.kind = 'duplicate' AND d.subject = a.action_id AND d.ended_at IS NULL)
       OR a.state = 'compensated' AND counterfoil.rank_of(a.audience) > 0
         AND (p_declared OR a.correction IS NOT NULL)) THEN
    RETURN NULL;
  END IF;
  INSERT INTO counterfoil.correction (correction_id, action_id, tenant, run, audience, rank, call)
  VALUES ('C-' || upper(substr(a.action_id, 5, 12)), a.action_id, a.tenant, a.run, a.audience,
          counterfoil.rank_of(a.audience), a.correction)
  ON CONFLICT (action_id) DO NOTHING;
  RETURN (SELECT c.correction_id FROM counterfoil.correction AS c WHERE c.action_id = p_action_id);
END $$;

-- A person has dealt with what an alarm is about that does not end by itself: a second effect. False: it is not open, ends by
-- itself, or is another tenant's.
CREATE FUNCTION counterfoil.settle_alarm(p_alarm text, p_by text, p_reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE counterfoil.alarm AS x
  SET ended_at = counterfoil.now(), ended_by = p_by, end_reason = p_reason
  WHERE 'A-' || x.alarm_id = p_alarm AND x.kind = 'duplicate' AND x.ended_at IS NULL AND counterfoil.serves(x.tenant);
  RETURN FOUND;
END $$;

REVOKE ALL ON counterfoil.provider_health, counterfoil.alarm FROM PUBLIC;
REVOKE ALL ON FUNCTION counterfoil.action_watch, counterfoil.settle_alarm FROM PUBLIC;
GRANT EXECUTE ON FUNCTION counterfoil.settle_alarm TO counterfoil_operator;
GRANT SELECT, INSERT, UPDATE (answered_at, answering_since, failing_since, failed_at, failed_count, last_code)
  ON counterfoil.provider_health TO counterfoil_worker;
GRANT SELECT ON counterfoil.provider_health TO counterfoil_operator, counterfoil_reader;
GRANT SELECT, INSERT, UPDATE (ended_at) ON counterfoil.alarm TO counterfoil_worker;
GRANT SELECT ON counterfoil.alarm TO counterfoil_operator;
GRANT SELECT (alarm_id, kind, subject, tenant, run, since, ended_at, ended_by) ON counterfoil.alarm TO counterfoil_reader;
GRANT UPDATE (watch_at, watch_count) ON counterfoil.action TO counterfoil_worker;   -- the other two are the trigger's
GRANT SELECT (resent, watch_at, watched_since, watch_count) ON counterfoil.action TO counterfoil_reader;
-- Another account's name may be another tenant's: who serves one sees the account that everybody may go by.
ALTER TABLE counterfoil.provider_health ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_accounts ON counterfoil.provider_health FOR SELECT TO counterfoil_operator, counterfoil_reader
  USING (account = 'default' OR '*' = ANY ((SELECT counterfoil.my_tenants())::text[]));
CREATE POLICY all_tenants ON counterfoil.provider_health FOR ALL TO counterfoil_worker USING (true);
ALTER TABLE counterfoil.alarm ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_tenants ON counterfoil.alarm FOR ALL TO counterfoil_operator, counterfoil_reader
  USING (tenant = ANY ((SELECT counterfoil.my_tenants())::text[])
         OR '*' = ANY ((SELECT counterfoil.my_tenants())::text[]));
CREATE POLICY all_tenants ON counterfoil.alarm FOR ALL TO counterfoil_worker USING (true);
