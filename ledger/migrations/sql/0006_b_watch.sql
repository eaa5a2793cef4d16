-- What the reconciler must know about providers, and about rows that have ended and may have been wrong.

-- Whether a provider answers look-ups, for each account. A row is due for a person only after it was asked about for long
-- while the provider answered; `answering_since` begins anew with each outage that has ended.
CREATE TABLE counterfoil.provider_health (
  provider text NOT NULL,
  account text NOT NULL,
  answered_at timestamptz,
  answering_since timestamptz,                 -- NULL while it does not answer
  failing_since timestamptz,                   -- NULL while it answers
  last_code text,
  PRIMARY KEY (provider, account)
);

-- Something that an operator must know, told once: an outage, a wake-up that died, a duplicate that was found.
CREATE TABLE counterfoil.alarm (
  alarm_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind text NOT NULL CHECK (kind ~ '^[a-z_]{1,40}$'),
  subject text NOT NULL CHECK (length(subject) BETWEEN 1 AND 400),   -- a provider and account, a queue or an action
  tenant text NOT NULL,                        -- '*': of the whole fleet
  run text NOT NULL DEFAULT '',
  since timestamptz NOT NULL DEFAULT counterfoil.now(),
  ended_at timestamptz
);
CREATE UNIQUE INDEX alarm_open ON counterfoil.alarm (kind, subject) WHERE ended_at IS NULL;

-- Rows that ended without an effect, or as taken back, after something may have been sent, and those that were sent again
-- after a look-up: they are looked up for a while longer. `watch_at`: when next; NULL: not watched (any more).
ALTER TABLE counterfoil.action
  ADD COLUMN resent boolean NOT NULL DEFAULT false,
  ADD COLUMN watch_at timestamptz,
  ADD COLUMN watched_since timestamptz,
  ADD COLUMN watch_count integer NOT NULL DEFAULT 0;
CREATE INDEX action_watch_due ON counterfoil.action (watch_at) WHERE watch_at IS NOT NULL;
CREATE INDEX action_lookup_group ON counterfoil.action (tool, tool_version, account, tenant, next_lookup_at)
  WHERE state = 'uncertain';
CREATE INDEX action_uncertain_since ON counterfoil.action (provider, account, uncertain_since)
  WHERE state = 'uncertain';

CREATE FUNCTION counterfoil.action_watch() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF OLD.state = 'reconciling' AND NEW.state = 'ready' THEN
    NEW.resent := true;
  END IF;
  IF NEW.first_sent_at IS NOT NULL
     AND (NEW.state IN ('permanent_failure', 'not_executed', 'cancelled', 'stale', 'compensated')
          OR NEW.state = 'succeeded' AND NEW.resent) THEN
    NEW.watched_since := counterfoil.now();
    NEW.watch_at := counterfoil.now() + interval '1 minute';
    NEW.watch_count := 0;
  ELSE
    NEW.watch_at := NULL;
  END IF;
  RETURN NEW;
END $$;
-- After action_guard, by name: what is refused there does not get here.
CREATE TRIGGER action_watch BEFORE UPDATE ON counterfoil.action
FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION counterfoil.action_watch();

REVOKE ALL ON counterfoil.provider_health, counterfoil.alarm FROM PUBLIC;
REVOKE ALL ON FUNCTION counterfoil.action_watch FROM PUBLIC;
GRANT SELECT, INSERT, UPDATE ON counterfoil.provider_health TO counterfoil_worker;
GRANT SELECT ON counterfoil.provider_health TO counterfoil_operator, counterfoil_reader;
GRANT SELECT, INSERT, UPDATE (ended_at) ON counterfoil.alarm TO counterfoil_worker;
GRANT SELECT ON counterfoil.alarm TO counterfoil_operator, counterfoil_reader;
GRANT UPDATE (resent, watch_at, watched_since, watch_count) ON counterfoil.action TO counterfoil_worker;
GRANT SELECT (resent, watch_at, watched_since, watch_count) ON counterfoil.action TO counterfoil_reader;
ALTER TABLE counterfoil.alarm ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_tenants ON counterfoil.alarm FOR ALL TO counterfoil_operator, counterfoil_reader
  USING (tenant = ANY ((SELECT counterfoil.my_tenants())::text[])
         OR '*' = ANY ((SELECT counterfoil.my_tenants())::text[]));
CREATE POLICY all_tenants ON counterfoil.alarm FOR ALL TO counterfoil_worker USING (true);
