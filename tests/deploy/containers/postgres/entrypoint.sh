#!/bin/bash
# What the image postgres does of its variables POSTGRES_USER, POSTGRES_PASSWORD and POSTGRES_DB: at the first start it
# makes the cluster with a server that listens on its socket alone, then starts the real one.
set -euo pipefail

if [ "$1" != postgres ]; then exec "$@"; fi
if [ "$(id -u)" = 0 ]; then
    install -d -o postgres -g postgres -m 0700 "$PGDATA"
    chown -R postgres:postgres "$PGDATA"
    exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    : "${POSTGRES_PASSWORD:?set POSTGRES_PASSWORD}"
    user=${POSTGRES_USER:-postgres}
    database=${POSTGRES_DB:-$user}
    initdb --username="$user" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") --auth-host=scram-sha-256 \
        --auth-local=trust --encoding=UTF8 --locale=C.UTF-8 --pgdata="$PGDATA"
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
    pg_ctl --pgdata="$PGDATA" --options="-c listen_addresses=''" --wait start
    if [ "$database" != postgres ]; then
        createdb --username="$user" --maintenance-db=postgres "$database"
    fi
    pg_ctl --pgdata="$PGDATA" --mode=fast --wait stop
fi
exec "$@" -c listen_addresses='*'
