-- Users of a fleet's database, for psql 15 or newer as a superuser, once, before `recalld migrate`:
--   createdb recalld && psql recalld -f fleet.sql
-- Passwords come from the environment: OWNER_PASSWORD, WORKER_PASSWORD, QUERY_PASSWORD, BACKUP_PASSWORD,
-- PGBOUNCER_PASSWORD. The container of PostgreSQL runs this file when its volume is empty.
\set ON_ERROR_STOP on
\getenv owner_password OWNER_PASSWORD
\getenv worker_password WORKER_PASSWORD
\getenv query_password QUERY_PASSWORD
\getenv backup_password BACKUP_PASSWORD
\getenv pgbouncer_password PGBOUNCER_PASSWORD

BEGIN;
CREATE EXTENSION IF NOT EXISTS vector;

-- The two roles of the store. `recalld migrate` grants them its tables, but not the partitions.
CREATE ROLE recalld_writer NOLOGIN;
CREATE ROLE recalld_reader NOLOGIN;

-- `recalld migrate`: makes the tables and owns them. No other process may use it.
CREATE ROLE recalld_owner LOGIN PASSWORD :'owner_password';
GRANT CREATE ON DATABASE :"DBNAME" TO recalld_owner;

-- `recalld ingest`, `recalld work`, `recalld tenant` and `recalld token`; then `recalld serve`.
CREATE ROLE recalld_worker LOGIN PASSWORD :'worker_password' IN ROLE recalld_writer;
CREATE ROLE recalld_query LOGIN PASSWORD :'query_password' IN ROLE recalld_reader;

-- pg_dump: row security hides every row from the owner, too.
CREATE ROLE recalld_backup LOGIN BYPASSRLS PASSWORD :'backup_password' IN ROLE pg_read_all_data;

-- PgBouncer looks up the hashed passwords of the users above, and of no other.
CREATE ROLE recalld_pgbouncer LOGIN PASSWORD :'pgbouncer_password';
CREATE SCHEMA pgbouncer;
CREATE FUNCTION pgbouncer.lookup(name text) RETURNS TABLE (usename name, passwd text)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog AS $$
    SELECT s.usename, s.passwd FROM pg_shadow AS s
    WHERE s.usename = name AND s.usename IN ('recalld_worker', 'recalld_query')
$$;
REVOKE ALL ON FUNCTION pgbouncer.lookup(text) FROM PUBLIC;
GRANT USAGE ON SCHEMA pgbouncer TO recalld_pgbouncer;
GRANT EXECUTE ON FUNCTION pgbouncer.lookup(text) TO recalld_pgbouncer;
COMMIT;
