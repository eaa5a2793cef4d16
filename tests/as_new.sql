-- In the test databases' template: how a database that a test has used becomes as new, and when it cannot.

CREATE SCHEMA cf_test;

-- What a statement of any role has made, altered or dropped, but for the clock that `advance` replaces.
CREATE TABLE cf_test.altered (what text);
CREATE FUNCTION cf_test.note_altered() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF tg_event = 'sql_drop' THEN
    INSERT INTO cf_test.altered SELECT d.object_identity FROM pg_event_trigger_dropped_objects() AS d WHERE NOT d.is_temporary;
  ELSE
    INSERT INTO cf_test.altered SELECT c.object_identity FROM pg_event_trigger_ddl_commands() AS c
    WHERE c.object_identity IS DISTINCT FROM 'counterfoil.now()' AND c.schema_name IS DISTINCT FROM 'pg_temp';
  END IF;
END $$;

CREATE TABLE cf_test.clock (definition text);
INSERT INTO cf_test.clock SELECT pg_get_functiondef('counterfoil.now'::regproc);

-- Tables that are not empty in the template, and what is in them.
CREATE FUNCTION cf_test.digest(name regclass) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  found text;
BEGIN
  EXECUTE format('SELECT md5(string_agg(t::text, chr(10) ORDER BY t::text)) FROM %s AS t', name) INTO found;
  RETURN found;
END $$;
CREATE TABLE cf_test.filled AS
SELECT c.oid::regclass AS name, cf_test.digest(c.oid::regclass) AS digest
FROM pg_class AS c WHERE c.relnamespace = 'counterfoil'::regnamespace AND c.relkind = 'r' AND pg_relation_size(c.oid) > 0;

-- Empties the database. False: something is not as in the template, so it can only be dropped. Rows are deleted: TRUNCATE
-- makes a file for each of a hundred indexes. Their dead versions stay, so a large table is not as new.
CREATE FUNCTION cf_test.make_as_new() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  used regclass;
  clock text;
BEGIN
  IF EXISTS (SELECT FROM cf_test.altered)
     OR EXISTS (SELECT FROM cf_test.filled AS f WHERE cf_test.digest(f.name) IS DISTINCT FROM f.digest)
     OR EXISTS (SELECT FROM pg_statistic AS s JOIN pg_class AS c ON c.oid = s.starelid   -- somebody has analysed it
                WHERE c.relnamespace = 'counterfoil'::regnamespace) THEN
    RETURN false;
  END IF;
  PERFORM set_config('session_replication_role', 'replica', true);                       -- else some refuse to be emptied
  FOR used IN
    SELECT c.oid FROM pg_class AS c
    WHERE c.relnamespace = 'counterfoil'::regnamespace AND c.relkind = 'r' AND pg_relation_size(c.oid) > 0
      AND c.oid NOT IN (SELECT f.name FROM cf_test.filled AS f)
  LOOP
    IF pg_relation_size(used) > 2000000 THEN
      RETURN false;
    END IF;
    EXECUTE format('DELETE FROM %s', used);
  END LOOP;
  PERFORM setval(q.oid::regclass, 1, false)
  FROM pg_class AS q JOIN pg_sequences AS s ON q.oid = format('%I.%I', s.schemaname, s.sequencename)::regclass
  WHERE s.schemaname = 'counterfoil' AND s.last_value IS NOT NULL;
  SELECT c.definition INTO clock FROM cf_test.clock AS c WHERE c.definition <> pg_get_functiondef('counterfoil.now'::regproc);
  IF FOUND THEN
    EXECUTE clock;
  END IF;
  PERFORM pg_stat_reset();
  RETURN true;
END $$;

-- Also of statements that were made with the triggers off.
CREATE EVENT TRIGGER cf_test_altered ON ddl_command_end EXECUTE FUNCTION cf_test.note_altered();
CREATE EVENT TRIGGER cf_test_dropped ON sql_drop EXECUTE FUNCTION cf_test.note_altered();
ALTER EVENT TRIGGER cf_test_altered ENABLE ALWAYS;
ALTER EVENT TRIGGER cf_test_dropped ENABLE ALWAYS;
