-- What `counterfoil db check` asks. Runs on any database and under any login.

-- name: check_login
-- pg_has_role follows nested groups; a superuser is a member of everything, so plain membership is asked for.
SELECT session_user::text AS login, current_setting('server_version') AS server,
       current_setting('statement_timeout') AS statement_timeout,
       to_regclass('counterfoil.action') IS NOT NULL AS has_schema,
       coalesce((SELECT array_agg(g.rolname::text ORDER BY g.rolname)
                 FROM pg_auth_members AS m
                 JOIN pg_roles AS g ON g.oid = m.roleid
                 JOIN pg_roles AS u ON u.oid = m.member
                 WHERE u.rolname = session_user AND g.rolname LIKE 'counterfoil\_%'), '{}') AS groups,
       coalesce(has_table_privilege(to_regclass('counterfoil.schema_version'), 'SELECT'), false) AS reads_version;

-- name: check_tenants
SELECT counterfoil.my_tenants() AS tenants;
