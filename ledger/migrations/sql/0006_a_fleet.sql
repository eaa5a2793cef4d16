-- One fleet: what people change while it runs, what the relay holds back, and wake-ups that nobody ever takes.

-- Every change of a setting, and of what a provider may do, with who and why. The newest one of a key is in force; without a
-- value the configuration's own is again.
CREATE TABLE counterfoil.setting_change (
  change_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  key text NOT NULL CHECK (key ~ '^providers\.[A-Za-z0-9_-]{1,63}(\.[a-z_]{1,40}){1,2}$'),
  value text CHECK (value IS JSON AND length(value) <= 1000),
  reason text NOT NULL CHECK (length(reason) BETWEEN 1 AND 500),
  by_person text NOT NULL CHECK (length(by_person) BETWEEN 1 AND 200),
  channel text NOT NULL,
  db_role text NOT NULL DEFAULT session_user,
  at timestamptz NOT NULL DEFAULT counterfoil.now()
);
CREATE INDEX setting_change_key ON counterfoil.setting_change (key, change_id);
CREATE TRIGGER setting_change_append_only BEFORE UPDATE OR DELETE ON counterfoil.setting_change
FOR EACH ROW EXECUTE FUNCTION counterfoil.refuse_change();
CREATE TRIGGER setting_change_no_truncate BEFORE TRUNCATE ON counterfoil.setting_change
FOR EACH STATEMENT EXECUTE FUNCTION counterfoil.refuse_change();

-- What a provider may be sent, read by every claim; no row: everything. paused: nothing. draining: only what was sent
-- before, or takes something back.
CREATE TABLE counterfoil.provider_mode (
  provider text PRIMARY KEY,
  mode text NOT NULL CHECK (mode IN ('paused', 'draining')),
  since timestamptz NOT NULL DEFAULT counterfoil.now()
);

-- Changes settings of the fleet, all of them or none, and returns the id of the last change. A person's, for all tenants.
-- `p_values` are JSON texts, NULL = as configured. providers.NAME.mode is "running", "paused" or "draining".
CREATE FUNCTION counterfoil.change_settings(
  p_keys text[], p_values text[], p_by text, p_channel text, p_reason text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  changed bigint;
  i integer;
  named text;
  wanted text;
BEGIN
  IF NOT counterfoil.serves('*') THEN
    RAISE EXCEPTION 'only an operator of all tenants changes settings of the fleet' USING ERRCODE = 'CF403';
  END IF;
  IF cardinality(p_keys) <> cardinality(p_values) THEN
    RAISE EXCEPTION 'a value for each key' USING ERRCODE = '22023';
  END IF;
  -- One at a time, so that ids are in the order of the commits: a process reads what came after the last one it has seen.
  LOCK TABLE counterfoil.setting_change IN SHARE ROW EXCLUSIVE MODE;
  FOR i IN 1 .. cardinality(p_keys) LOOP
    INSERT INTO counterfoil.setting_change (key, value, reason, by_person, channel)
    VALUES (p_keys[i], p_values[i], p_reason, p_by, p_channel)
    RETURNING change_id INTO changed;
    IF p_keys[i] ~ '^providers\.[^.]+\.mode$' THEN
      named := split_part(p_keys[i], '.', 2);
      wanted := coalesce(p_values[i]::jsonb #>> '{}', 'running');
      IF wanted = 'running' THEN
        DELETE FROM counterfoil.provider_mode WHERE provider = named;
      ELSE
        INSERT INTO counterfoil.provider_mode (provider, mode) VALUES (named, wanted)
        ON CONFLICT (provider) DO UPDATE SET mode = EXCLUDED.mode, since = counterfoil.now();
      END IF;
    END IF;
  END LOOP;
  RETURN changed;
END $$;

-- A wake-up tells whether its action was tried before: retries can be held back by themselves; and whether it takes back or
-- corrects something, which goes on while a provider is draining. outbox_fair is walked from tenant to tenant.
-- `lacking_since`: workers had it, and none of them its tool, version or account.
ALTER TABLE counterfoil.outbox
  ADD COLUMN is_retry boolean NOT NULL DEFAULT false,
  ADD COLUMN takes_back boolean NOT NULL DEFAULT false,
  ADD COLUMN lacking_since timestamptz;
DROP INDEX counterfoil.outbox_due;
CREATE INDEX outbox_due ON counterfoil.outbox (queue, is_retry, not_before, outbox_id);
CREATE INDEX outbox_takes_back ON counterfoil.outbox (queue, not_before, outbox_id) WHERE takes_back AND NOT is_retry;
CREATE INDEX outbox_fair ON counterfoil.outbox (queue, is_retry, tenant, not_before, outbox_id);
CREATE INDEX outbox_lacking ON counterfoil.outbox (lacking_since) WHERE lacking_since IS NOT NULL;
CREATE INDEX outbox_published ON counterfoil.outbox (queue) WHERE publish_count > 0;

-- Wake-ups that were published often although workers were up, and never claimed. The action stays as it is; a person
-- returns it to the outbox. Gone once the action moves on otherwise.
CREATE TABLE counterfoil.outbox_dead (
  action_id text PRIMARY KEY,
  generation integer NOT NULL,
  tenant text NOT NULL,
  queue text NOT NULL,
  publish_count integer NOT NULL,
  waited_since timestamptz NOT NULL,
  died_at timestamptz NOT NULL DEFAULT counterfoil.now()
);

-- Moves one back. False: it is not there (any more), or is another tenant's.
CREATE FUNCTION counterfoil.revive(p_action_id text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  d counterfoil.outbox_dead;
BEGIN
  SELECT * INTO d FROM counterfoil.outbox_dead AS x WHERE x.action_id = p_action_id FOR UPDATE;
  IF NOT FOUND OR NOT counterfoil.serves(d.tenant) THEN
    RETURN false;
  END IF;
  DELETE FROM counterfoil.outbox_dead AS x WHERE x.action_id = p_action_id;
  INSERT INTO counterfoil.outbox (action_id, generation, tenant, queue, not_before, is_retry, takes_back)
  SELECT a.action_id, a.generation, a.tenant, a.queue, counterfoil.now(),
         a.attempt_count + a.not_sent_count > 0 OR a.in_doubt, a.phase <> 'do'
  FROM counterfoil.action AS a
  WHERE a.action_id = p_action_id AND a.state IN ('ready', 'retryable_failure')
  ON CONFLICT (action_id) DO NOTHING;
  RETURN FOUND;
END $$;

-- As in 0001, and: the wake-up of a retry says so, a dead wake-up goes with the state that it was for.
CREATE OR REPLACE FUNCTION counterfoil.action_follow() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  was text := CASE WHEN TG_OP = 'UPDATE' THEN OLD.state END;
  retry boolean := NEW.attempt_count + NEW.not_sent_count > 0 OR NEW.in_doubt;
BEGIN
  INSERT INTO counterfoil.history (action_id, tenant, run, at, from_state, to_state, generation, attempt_count,
                                   changed_by, db_role, reason, evidence, approval_id)
  VALUES (NEW.action_id, NEW.tenant, NEW.run, NEW.updated_at, was, NEW.state, NEW.generation, NEW.attempt_count,
          NEW.changed_by, session_user, NEW.change_reason, NEW.change_evidence, NEW.approval_id);

  IF NEW.state IN ('ready', 'retryable_failure') THEN
    INSERT INTO counterfoil.outbox AS o (action_id, generation, tenant, queue, not_before, is_retry, takes_back)
    VALUES (NEW.action_id, NEW.generation, NEW.tenant, NEW.queue, NEW.ready_at, retry, NEW.phase <> 'do')
    ON CONFLICT (action_id) DO UPDATE
    SET generation = EXCLUDED.generation, not_before = EXCLUDED.not_before, is_retry = EXCLUDED.is_retry,
        publish_count = 0;
  ELSIF was IN ('ready', 'retryable_failure') THEN
    DELETE FROM counterfoil.outbox WHERE action_id = NEW.action_id;
  END IF;
  IF was IN ('ready', 'retryable_failure') THEN    -- after the wake-up, whose lock is waited for: a burial has ended then
    DELETE FROM counterfoil.outbox_dead WHERE action_id = NEW.action_id;
  END IF;

  IF NEW.state = 'succeeded' AND NEW.phase = 'do' THEN
    UPDATE counterfoil.run SET state = 'unwinding', updated_at = counterfoil.now()
    WHERE tenant = NEW.tenant AND run = NEW.run AND state = 'unwound';
  END IF;
  RETURN NULL;
END $$;
UPDATE counterfoil.outbox AS o
SET is_retry = a.attempt_count + a.not_sent_count > 0 OR a.in_doubt, takes_back = a.phase <> 'do'
FROM counterfoil.action AS a
WHERE a.action_id = o.action_id AND (a.attempt_count + a.not_sent_count > 0 OR a.in_doubt OR a.phase <> 'do');

REVOKE ALL ON counterfoil.setting_change, counterfoil.provider_mode, counterfoil.outbox_dead FROM PUBLIC;
REVOKE ALL ON FUNCTION counterfoil.change_settings, counterfoil.revive FROM PUBLIC;
GRANT EXECUTE ON FUNCTION counterfoil.change_settings, counterfoil.revive TO counterfoil_operator;
GRANT SELECT ON counterfoil.setting_change, counterfoil.provider_mode
  TO counterfoil_worker, counterfoil_operator, counterfoil_reader;
GRANT SELECT, INSERT ON counterfoil.outbox_dead TO counterfoil_worker;
GRANT DELETE, UPDATE (lacking_since) ON counterfoil.outbox TO counterfoil_worker;
GRANT SELECT ON counterfoil.outbox_dead TO counterfoil_operator, counterfoil_reader;
-- Who changed what of the fleet and why may name any tenant: not for those who serve one. What is paused is, to all.
ALTER TABLE counterfoil.setting_change ENABLE ROW LEVEL SECURITY;
CREATE POLICY whole_fleet ON counterfoil.setting_change FOR SELECT TO counterfoil_operator, counterfoil_reader
  USING ('*' = ANY ((SELECT counterfoil.my_tenants())::text[]));
CREATE POLICY all_tenants ON counterfoil.setting_change FOR SELECT TO counterfoil_worker USING (true);
ALTER TABLE counterfoil.outbox_dead ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_tenants ON counterfoil.outbox_dead FOR ALL
  TO counterfoil_agent, counterfoil_operator, counterfoil_reader
  USING (tenant = ANY ((SELECT counterfoil.my_tenants())::text[])
         OR '*' = ANY ((SELECT counterfoil.my_tenants())::text[]));
CREATE POLICY all_tenants ON counterfoil.outbox_dead FOR ALL TO counterfoil_worker USING (true);
