#!/usr/bin/env bash
# Makes what compose.yaml needs and is not in the repository: .env with a password for each login, and the secret files.
# What is there stays as it is, so it may be run again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
umask 077
random() { head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n'; } # 64 hex digits: safe in a URL and in a shell

touch .env
for name in ADMIN AGENT WORKER OPERATOR READER VALKEY; do
  grep -q "^CF_${name}_PASSWORD=" .env || printf 'CF_%s_PASSWORD=%s\n' "$name" "$(random)" >>.env
done

mkdir -p deploy/secrets
[ -s deploy/secrets/counterfoil_key ] || random >deploy/secrets/counterfoil_key
if [ ! -s deploy/secrets/valkey_conf ]; then # a full broker refuses, it never drops a message
  password=$(sed -n 's/^CF_VALKEY_PASSWORD=//p' .env)
  printf '%s\n' "requirepass $password" 'appendonly yes' 'maxmemory-policy noeviction' >deploy/secrets/valkey_conf
fi
for name in stripe_key jira_token mail_password; do
  [ -s "deploy/secrets/$name" ] || printf 'put-the-real-one-here\n' >"deploy/secrets/$name"
done
chmod 644 deploy/secrets/* # compose mounts them as they are, and the container's user is another one; the folder is closed
echo "made .env and deploy/secrets/; put the real values into deploy/secrets/: stripe_key, jira_token, mail_password"
