-- Child runs, which are opened under an open parent; and rejections that a later revision hides.

-- Opens or re-opens a run; the new epoch takes the run over from every older handle. A child needs its parent open, and
-- (with `p_parent_epoch`) the parent's newest handle. The parent's lock lasts until the child is committed, so an unwind
-- of the parent meets each child, or the child meets the unwind.
DROP FUNCTION counterfoil.open_run(text, text, text, double precision, text);
CREATE FUNCTION counterfoil.open_run(
  p_tenant text, p_run text, p_actor text, p_deadline_s double precision DEFAULT NULL, p_parent text DEFAULT NULL,
  p_parent_epoch integer DEFAULT NULL)
RETURNS TABLE (epoch integer, state text, deadline_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  parent counterfoil.run;
  opened counterfoil.run;
BEGIN
  PERFORM counterfoil.check_principal(p_tenant);
  IF p_parent IS NOT NULL THEN
    SELECT * INTO parent FROM counterfoil.run AS r WHERE r.tenant = p_tenant AND r.run = p_parent FOR SHARE;
    IF NOT FOUND OR p_parent = p_run THEN
      RAISE EXCEPTION 'no such parent run' USING ERRCODE = 'CF404';
    END IF;
    IF parent.epoch <> p_parent_epoch THEN
      RAISE EXCEPTION 'another handle has opened the parent run' USING ERRCODE = 'CF410';
    END IF;
    IF parent.state <> 'open' THEN
      RAISE EXCEPTION 'the parent run is %: no child', parent.state USING ERRCODE = 'CF403';
    END IF;
  END IF;
  INSERT INTO counterfoil.run AS r (tenant, run, actor, epoch, parent_run, deadline_at)
  VALUES (p_tenant, p_run, p_actor, 1, p_parent,
          coalesce(counterfoil.now() + p_deadline_s * interval '1 second', parent.deadline_at))
  ON CONFLICT (tenant, run) DO UPDATE SET epoch = r.epoch + 1, updated_at = counterfoil.now()
  RETURNING r.* INTO opened;
  IF p_parent IS NOT NULL AND opened.parent_run IS DISTINCT FROM p_parent THEN
    RAISE EXCEPTION 'this run was opened as no child of that parent' USING ERRCODE = 'CF403';
  END IF;
  RETURN QUERY SELECT opened.epoch, opened.state, opened.deadline_at;
END $$;
GRANT EXECUTE ON FUNCTION counterfoil.open_run TO counterfoil_agent;

-- As before, and `rejected_before`: the arguments' hashes of the step's earlier revisions that a reviewer has rejected.
CREATE OR REPLACE FUNCTION counterfoil.lock_and_read(p_tenant text, p_run text, p_epoch integer)
RETURNS TABLE (state text, calls_count integer, deadline_at timestamptz, actions jsonb, refs jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  r counterfoil.run;
BEGIN
  PERFORM counterfoil.check_principal(p_tenant);
  UPDATE counterfoil.run AS u SET calls_count = u.calls_count + 1, updated_at = counterfoil.now()
  WHERE u.tenant = p_tenant AND u.run = p_run RETURNING u.* INTO r;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'no such run' USING ERRCODE = 'CF404';
  END IF;
  IF r.epoch <> p_epoch THEN
    RAISE EXCEPTION 'another handle has opened this run' USING ERRCODE = 'CF410';
  END IF;
  RETURN QUERY
  SELECT r.state, r.calls_count, r.deadline_at,
    (SELECT coalesce(jsonb_agg(jsonb_build_object(
       'action_id', a.action_id, 'step', a.step, 'seq', a.seq, 'revision', a.revision, 'tool', a.tool,
       'effect', a.effect, 'target', a.target, 'class', a.class, 'state', a.state, 'arguments', a.arguments,
       'arguments_sha256', a.arguments_sha256, 'once_key', a.once_key, 'result', a.result, 'receipt', a.receipt,
       'last_error_code', a.last_error_code, 'last_error_field', a.last_error_field,
       'rejected_before', CASE WHEN a.revision > 1 THEN (
          SELECT jsonb_agg(e.arguments_sha256) FROM counterfoil.action AS e
          WHERE e.tenant = p_tenant AND e.run = p_run AND e.step = a.step AND e.phase = 'do'
            AND e.superseded_by IS NOT NULL AND e.state = 'cancelled'
            AND e.last_error_code = 'rejected_by_reviewer') END) ORDER BY a.created_at, a.seq), '[]')
     FROM counterfoil.action AS a
     WHERE a.tenant = p_tenant AND a.run = p_run AND a.phase = 'do' AND a.superseded_by IS NULL),
    (SELECT coalesce(jsonb_agg(jsonb_build_object('ref', f.ref, 'action_id', f.action_id) ORDER BY f.created_at), '[]')
     FROM counterfoil.step_ref AS f WHERE f.tenant = p_tenant AND f.run = p_run);
END $$;
