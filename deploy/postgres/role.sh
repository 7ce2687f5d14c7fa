#!/bin/sh
# Run once, when the database is made: Penstock's own role, which owns its database and is no superuser. The superuser
# loses its password, so that it can only connect from within the container.
set -eu
psql --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres --set password="$POSTGRES_PASSWORD" \
    --set superuser="$POSTGRES_USER" <<'SQL'
CREATE ROLE penstock LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION PASSWORD :'password';
CREATE DATABASE penstock OWNER penstock;
REVOKE CONNECT ON DATABASE penstock FROM PUBLIC;
ALTER ROLE :"superuser" PASSWORD NULL;
SQL
