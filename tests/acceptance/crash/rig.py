"""What the laboratory adds to its database: faults that are rows of a table, counts of takeovers, an old copy.

The site connects as a role without a superuser's rights, so that the role's connections can be limited.
"""

from __future__ import annotations

from typing import Any

import psycopg

SITE = "lab_site"
REPLICA = "lab_replica"

# Claims of runs whose lease had expired, and how long before.
TAKEOVERS = """
CREATE TABLE lab_takeover (run uuid NOT NULL, epoch bigint NOT NULL, late_s float NOT NULL);
CREATE FUNCTION lab_took_over() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO lab_takeover (run, epoch, late_s)
  VALUES (NEW.id, NEW.lease_epoch, extract(epoch FROM clock_timestamp() - OLD.lease_expires_at));
  RETURN NULL;
END $$;
CREATE TRIGGER lab_took_over AFTER UPDATE ON ravi_run FOR EACH ROW
WHEN (OLD.status = 'running' AND NEW.status = 'running' AND NEW.lease_epoch > OLD.lease_epoch)
EXECUTE FUNCTION lab_took_over();
"""

# A row is a fault until its time is over. "slow": each row of a journal delays its commit. Another name is the SQLSTATE
# of every statement that writes to a table of the app.
FAULTS = """
CREATE TABLE lab_fault (name text PRIMARY KEY, until timestamptz NOT NULL, delay_s float NOT NULL DEFAULT 0);
CREATE FUNCTION lab_slow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_sleep(delay_s) FROM lab_fault WHERE name = 'slow' AND until > clock_timestamp();
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER lab_slow AFTER INSERT ON ravi_journalentry DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION lab_slow();
CREATE FUNCTION lab_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE code text;
BEGIN
  SELECT name INTO code FROM lab_fault WHERE name <> 'slow' AND until > clock_timestamp() LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'the laboratory refuses this with %', code USING ERRCODE = code;
  END IF;
  RETURN NULL;
END $$;
DO $$
DECLARE name text;
BEGIN
  FOR name IN SELECT tablename FROM pg_tables WHERE tablename ~ '^(ravi_|lab_row)' LOOP
    EXECUTE format('CREATE TRIGGER lab_refuse BEFORE INSERT OR UPDATE OR DELETE ON %I '
                   'FOR EACH STATEMENT EXECUTE FUNCTION lab_refuse()', name);
  END LOOP;
END $$;
"""

# The server's clock, as every new connection sees it.
CLOCK = """
CREATE FUNCTION public.{name}() RETURNS timestamptz LANGUAGE sql STABLE AS
'SELECT pg_catalog.{name}() + interval ''{seconds} s''';
"""
CLOCKS = ("now", "statement_timestamp", "clock_timestamp", "transaction_timestamp")


def make_site(connection: psycopg.Connection[Any], password: str) -> None:
    """Before the migration: the role that the site connects as."""
    connection.execute(f"CREATE ROLE {SITE} LOGIN PASSWORD '{password}' IN ROLE postgres")


def copy(server_url: str) -> None:
    """A replica that falls behind for ever. Nobody may be connected to the original."""
    with psycopg.connect(server_url.rpartition("/")[0] + "/template1", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {REPLICA} TEMPLATE postgres")


def rig(connection: psycopg.Connection[Any], clock_s: float) -> None:
    """After the migration. `clock_s`: how far the server's clock is ahead of the site's."""
    connection.execute(TAKEOVERS + FAULTS)  # type: ignore[arg-type]
    if clock_s:
        for name in CLOCKS:
            connection.execute(CLOCK.format(name=name, seconds=clock_s))  # type: ignore[arg-type]
        connection.execute("ALTER DATABASE postgres SET search_path = public, pg_catalog")
