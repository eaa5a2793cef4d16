#!/usr/bin/env bash
# Runs once, inside the Postgres container, when its data folder is made: a login for each role, none with a right yet.
# `counterfoil db grant` gives the rights. Passwords come from the environment and go through psql's variables, never argv.
set -euo pipefail
psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'SQL'
\getenv agent CF_AGENT_PASSWORD
\getenv worker CF_WORKER_PASSWORD
\getenv operator CF_OPERATOR_PASSWORD
\getenv reader CF_READER_PASSWORD
CREATE ROLE cf_agent LOGIN PASSWORD :'agent';
CREATE ROLE cf_worker LOGIN PASSWORD :'worker';
CREATE ROLE cf_operator LOGIN PASSWORD :'operator';
CREATE ROLE cf_reader LOGIN PASSWORD :'reader';
SQL
