-- Alarms reach people by the same notices as what waits for a decision.

ALTER TABLE counterfoil.notice DROP CONSTRAINT notice_kind_check;
ALTER TABLE counterfoil.notice ADD CONSTRAINT notice_kind_check
  CHECK (kind IN ('proposal', 'review', 'correction', 'expiring', 'expired', 'alarm', 'alarm_ended'));
CREATE INDEX alarm_ended ON counterfoil.alarm (ended_at) WHERE ended_at IS NOT NULL;

-- As in 0004, and: the notice of an alarm that is still open is kept, too.
CREATE OR REPLACE FUNCTION counterfoil.prune_notices(p_older_s double precision) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n integer;
BEGIN
  DELETE FROM counterfoil.notice AS o
  WHERE o.told_at < counterfoil.now() - greatest(p_older_s, 2592000) * interval '1 second'
    AND NOT EXISTS (SELECT FROM counterfoil.waiting_for_people AS w WHERE w.id = o.subject_id)
    AND NOT EXISTS (SELECT FROM counterfoil.alarm AS l
                    WHERE l.ended_at IS NULL AND o.subject_id = 'A-' || l.alarm_id);
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n;
END $$;
