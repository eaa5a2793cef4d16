-- How much of an effect class a run and a tenant's day hold already.

-- name: cap_use
-- What counts against a call: actions of its effect (and, apart, of its tool) in its run and in its day, in UTC, but those
-- that ended without an effect. The day is that of the first attempt, or of the recording before there is one. For a row
-- that is about to be sent (`recorded_at` is given) those count that were recorded before it or are claimed already: of two
-- rows that are claimed at once, at least the one whose claim commits later sees the other, so no lock is needed. Where both
-- see each other, the one that was recorded first asks again `without_rivals`: those that are recorded later and whose first
-- attempt is under way, so that they may yet be held. What waits for a person and was never sent takes no place. At the door
-- (`recorded_at` is NULL) everything counts. `bulk` counts what could not be taken back, on other targets or seen outside
-- the company. A row has its place already when the answer to an earlier attempt is on record; a claim alone gives none,
-- since its worker may have died before it counted.
-- What carries an effect on (the capture of a hold) takes over its place: of the class, the two count as one.
SELECT count(*) FILTER (WHERE per = 'run' AND NOT u.carried) AS run_effect_count,
       count(*) FILTER (WHERE per = 'run' AND u.tool = :tool) AS run_tool_count,
       count(*) FILTER (WHERE per = 'day' AND NOT u.carried) AS day_effect_count,
       count(*) FILTER (WHERE per = 'day' AND u.tool = :tool) AS day_tool_count,
       coalesce(sum(u.minor) FILTER (WHERE per = 'run' AND NOT u.carried), 0) AS run_effect_minor,
       coalesce(sum(u.minor) FILTER (WHERE per = 'run' AND u.tool = :tool), 0) AS run_tool_minor,
       coalesce(sum(u.minor) FILTER (WHERE per = 'day' AND NOT u.carried), 0) AS day_effect_minor,
       coalesce(sum(u.minor) FILTER (WHERE per = 'day' AND u.tool = :tool), 0) AS day_tool_minor,
       count(*) FILTER (
         WHERE per = 'run' AND u.class = 'irreversible' AND (u.before OR NOT u.needs_approval)
           AND (u.target <> :target OR CAST(:audience AS text[]) && ARRAY['customer', 'public', 'legal'])) AS bulk,
       EXISTS (SELECT FROM counterfoil.attempt AS t
               WHERE t.action_id = CAST(:action_id AS text)
                 AND t.outcome IN ('rejected', 'uncertain', 'succeeded')) AS has_place
FROM (
  SELECT c.per, c.tool, c.target, c.class, c.needs_approval, c.before,
         c.action_id = coalesce(CAST(:parent AS text), '') OR EXISTS (
           SELECT FROM counterfoil.action AS n
           WHERE n.parent_action_id = c.action_id AND n.effect = :effect AND n.phase = 'do'
             AND n.state NOT IN ('permanent_failure', 'not_executed', 'cancelled', 'stale')) AS carried,
         CASE WHEN c.currency IS NOT DISTINCT FROM CAST(:currency AS text) THEN greatest(c.amount_minor, 0) END AS minor
  FROM (
    SELECT 'run' AS per, a.action_id, a.tool, a.target, a.class, a.needs_approval, a.currency, a.amount_minor, a.state,
           a.attempt_count, a.in_doubt,
           a.attempt_count > 0 OR a.in_doubt OR a.state IN ('succeeded', 'compensated') AS sent,
           CAST(:recorded_at AS timestamptz) IS NULL
             OR (a.created_at, a.action_id) < (CAST(:recorded_at AS timestamptz), CAST(:action_id AS text)) AS before
    FROM counterfoil.action AS a
    WHERE a.tenant = :tenant AND a.run = :run AND a.effect = :effect AND a.phase = 'do'
    UNION ALL
    SELECT 'day', a.action_id, a.tool, a.target, a.class, a.needs_approval, a.currency, a.amount_minor, a.state,
           a.attempt_count, a.in_doubt,
           a.attempt_count > 0 OR a.in_doubt OR a.state IN ('succeeded', 'compensated'),
           CAST(:recorded_at AS timestamptz) IS NULL
             OR (a.created_at, a.action_id) < (CAST(:recorded_at AS timestamptz), CAST(:action_id AS text))
    FROM counterfoil.action AS a
    WHERE CAST(:per_day AS boolean)           -- else nobody asks about the day, which may hold very many
      AND a.tenant = :tenant AND a.effect = :effect AND a.phase = 'do'
      AND coalesce(a.first_sent_at, a.created_at)
          >= date_trunc('day', coalesce(CAST(:at AS timestamptz), counterfoil.now()), 'UTC')
      AND coalesce(a.first_sent_at, a.created_at)
          < date_trunc('day', coalesce(CAST(:at AS timestamptz), counterfoil.now()), 'UTC') + interval '1 day'
  ) AS c
  WHERE c.action_id <> CAST(:action_id AS text)
    AND c.state NOT IN ('permanent_failure', 'not_executed', 'cancelled', 'stale')
    AND (c.sent OR (c.before AND c.state <> 'operator_review'))
    AND NOT (CAST(:without_rivals AS boolean) AND NOT c.before AND c.state = 'executing' AND c.attempt_count = 1
             AND NOT c.in_doubt)
) AS u;
