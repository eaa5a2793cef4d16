-- What a process asks of each new connection, before anything else.

-- name: introduce
-- A pooler gives every client a process id of its own making: where it is not the server's, the session is somebody
-- else's after the transaction, and nothing is set. The schema's comment is its version (ledger/schema.py).
SELECT s.ours AS has_session,
       to_regnamespace('counterfoil') IS NOT NULL AS has_ledger,
       obj_description(CAST(to_regnamespace('counterfoil') AS oid), 'pg_namespace') AS comment,
       CASE WHEN s.ours THEN set_config('statement_timeout', :statement_ms, false) END AS statement,
       CASE WHEN s.ours THEN set_config('idle_in_transaction_session_timeout', :idle_ms, false) END AS idle
FROM (SELECT :session_is_ours OR pg_backend_pid() = :pid AS ours) AS s;
