-- What a process asks of each new connection, before anything else.

-- name: introduce
-- A pooler gives every client a process id of its own making. The schema's comment is its version (ledger/schema.py).
SELECT pg_backend_pid() AS pid,
       to_regnamespace('counterfoil') IS NOT NULL AS has_ledger,
       obj_description(CAST(to_regnamespace('counterfoil') AS oid), 'pg_namespace') AS comment;

-- name: worker_s_right
-- Whether this login may do a worker's work: relay, workers and webhooks ask before they begin.
SELECT session_user::text AS login, pg_has_role(session_user, 'counterfoil_worker', 'MEMBER') AS is_worker;

-- name: set_limits
-- For the session, so only where it is ours: behind a pooler the next transaction may be somebody else's. A statement of its
-- own, since some proxies keep a server connection for whoever so much as names a setting.
SELECT set_config('statement_timeout', :statement_ms, false),
       set_config('idle_in_transaction_session_timeout', :idle_ms, false);
