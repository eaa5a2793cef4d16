-- Who may do what with the tables of 0004_a and the doors of 0004_b to d; reviews and corrections grant their own doors.

REVOKE ALL ON counterfoil.proposal, counterfoil.decision, counterfoil.approval, counterfoil.review,
  counterfoil.correction, counterfoil.notice, counterfoil.effect_lock FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA counterfoil FROM PUBLIC;
GRANT EXECUTE ON FUNCTION counterfoil.lock_and_read, counterfoil.propose, counterfoil.open_plan TO counterfoil_agent;
GRANT EXECUTE ON FUNCTION counterfoil.propose_intake, counterfoil.expire_proposals, counterfoil.prune_effect_locks
  TO counterfoil_worker;
GRANT EXECUTE ON FUNCTION counterfoil.decide, counterfoil.edit_step TO counterfoil_operator;
GRANT EXECUTE ON FUNCTION counterfoil.netstring, counterfoil.intent_digest, counterfoil.proposal_digest,
  counterfoil.is_carried, counterfoil.pivot_of
  TO counterfoil_agent, counterfoil_worker, counterfoil_operator;

-- Operators decide through doors only: an approval or a verdict that nobody gave cannot be written by hand.
REVOKE UPDATE ON counterfoil.action FROM counterfoil_operator;
REVOKE UPDATE (state, approval_id, ready_at, lease_until, fence, no_resend, in_doubt, receipt, last_error_code,
  uncertain_since, next_lookup_at, changed_by, change_reason, change_evidence) ON counterfoil.action
  FROM counterfoil_operator;

GRANT SELECT ON counterfoil.proposal TO counterfoil_agent;
GRANT SELECT ON counterfoil.proposal, counterfoil.decision, counterfoil.approval, counterfoil.review,
  counterfoil.correction, counterfoil.notice TO counterfoil_worker, counterfoil_operator;
GRANT UPDATE (expected_resource_version) ON counterfoil.action TO counterfoil_worker;
GRANT INSERT, UPDATE (tries, next_try_at, in_hand_until, told_at) ON counterfoil.notice TO counterfoil_worker;

-- Readers see that something waits and who decided it, never what was said.
GRANT SELECT (proposal_id, tenant, run, actor, is_plan, people, expires_at, state, decided_by, decided_at, created_at)
  ON counterfoil.proposal TO counterfoil_reader;
GRANT SELECT (decision_id, subject_id, tenant, verdict, by_person, db_role, channel, at)
  ON counterfoil.decision TO counterfoil_reader;
GRANT SELECT (review_id, action_id, tenant, verb, by_person, db_role, channel, asked_at, answered_at, answer)
  ON counterfoil.review TO counterfoil_reader;
GRANT SELECT (correction_id, action_id, tenant, run, audience, rank, state, sent_as, decided_by, decided_at, created_at)
  ON counterfoil.correction TO counterfoil_reader;
GRANT SELECT (proposal_id, place, staged, effect_scope, reads_version) ON counterfoil.action TO counterfoil_reader;

DO $$
DECLARE
  t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['proposal', 'decision', 'approval', 'review', 'correction', 'notice'] LOOP
    EXECUTE format('ALTER TABLE counterfoil.%I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format(
      'CREATE POLICY own_tenants ON counterfoil.%I FOR ALL TO counterfoil_agent, counterfoil_operator, counterfoil_reader '
      'USING (tenant = ANY ((SELECT counterfoil.my_tenants())::text[]) '
      '       OR ''*'' = ANY ((SELECT counterfoil.my_tenants())::text[]))', t);
    EXECUTE format('CREATE POLICY all_tenants ON counterfoil.%I FOR ALL TO counterfoil_worker USING (true)', t);
  END LOOP;
END $$;
