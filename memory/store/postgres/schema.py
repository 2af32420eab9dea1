"""Tables of the fleet's store in PostgreSQL, the roles that may use them, and their migrations as SQL."""

from __future__ import annotations

from typing import NamedTuple

#: The name of a document's file, as `memory.store.sqlite.schema.FILE_NAME`.
FILE_NAME = r"""lower(regexp_replace(path, '^.*/(rollout-.{4}-..-..T..-..-..-)?', '') COLLATE "C")"""

#: Type of texts that are compared and sorted by their bytes, as SQLite does.
TEXT = 'text COLLATE "C"'

_DOUBLE = "double precision"
_KEY = f"tenant {TEXT}, agent {TEXT}, generation {TEXT}"

#: Roles belong to a server: another of its databases may have brought them.
_BASE = """
DO $$
BEGIN
    IF to_regnamespace('recalld') IS NULL THEN CREATE SCHEMA recalld; END IF;
    IF to_regrole('recalld_writer') IS NULL THEN CREATE ROLE recalld_writer NOLOGIN; END IF;
    IF to_regrole('recalld_reader') IS NULL THEN CREATE ROLE recalld_reader NOLOGIN; END IF;
END $$;
CREATE TABLE recalld.schema_steps (
    number integer PRIMARY KEY, name text NOT NULL, made_at timestamptz NOT NULL DEFAULT now()
);
GRANT USAGE ON SCHEMA recalld TO recalld_writer, recalld_reader;
GRANT SELECT ON recalld.schema_steps TO recalld_writer, recalld_reader;
"""

_FIRST_TABLES = f"""
CREATE TABLE recalld.tenants (
    tenant {TEXT} PRIMARY KEY CHECK (tenant ~ '^[A-Za-z0-9][A-Za-z0-9._-]*$' AND length(tenant) <= 64),
    weight real NOT NULL DEFAULT 1, tokens_a_day bigint, made_at timestamptz NOT NULL DEFAULT now()
);
-- `settings` overrides settings of all agents (`MemorySettings`).
CREATE TABLE recalld.agents (
    tenant {TEXT}, agent {TEXT} CHECK (agent ~ '^[A-Za-z0-9][A-Za-z0-9._-]*$' AND length(agent) <= 64),
    weight real NOT NULL DEFAULT 1, settings jsonb NOT NULL DEFAULT '{{}}', made_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, agent)
);
-- `agents` NULL is all agents of the tenant, `machine` NULL any machine.
CREATE TABLE recalld.access_tokens (
    hash bytea PRIMARY KEY, tenant {TEXT} NOT NULL, name {TEXT} NOT NULL, rights text[] NOT NULL, agents text[],
    machine text, expires_at timestamptz, revoked_at timestamptz, made_at timestamptz NOT NULL DEFAULT now(),
    used_on date, UNIQUE (tenant, name)
);
CREATE TABLE recalld.audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tenant {TEXT} NOT NULL, at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL, act text NOT NULL, subject jsonb NOT NULL DEFAULT '{{}}'
);
CREATE INDEX audit_by_tenant ON recalld.audit (tenant, id);
-- The holder of 'indexes' owns all generations. `fence` grows with each holder.
CREATE TABLE recalld.leases (
    name {TEXT} PRIMARY KEY, holder text NOT NULL, fence bigint NOT NULL, expires_at timestamptz NOT NULL
);

-- A commit locks its generation's row: it takes `transactions` + 1 as revision, and the ids after the last ones.
-- Times are Unix seconds, here and below. Free space in the pages lets commits change the row in place.
CREATE TABLE recalld.generations (
    {_KEY}, state text NOT NULL CHECK (state IN ('current', 'next', 'old')), fingerprint text NOT NULL,
    identity text NOT NULL, takeover text, dimensions integer, transactions bigint NOT NULL DEFAULT 0,
    deletions bigint NOT NULL DEFAULT 0, last_chunk_id bigint NOT NULL DEFAULT 0,
    last_file_id bigint NOT NULL DEFAULT 0, last_commit_at {_DOUBLE}, meta jsonb NOT NULL DEFAULT '{{}}',
    made_at {_DOUBLE} NOT NULL DEFAULT extract(epoch FROM now()), PRIMARY KEY (tenant, agent, generation),
    UNIQUE (generation)
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX generations_current ON recalld.generations (tenant, agent) WHERE state = 'current';
CREATE UNIQUE INDEX generations_next ON recalld.generations (tenant, agent) WHERE state = 'next';

-- The indexes of its rows begin with the generation, whose name is unique, and have tenant and agent beside their keys.
-- The planner takes the three for independent: with all of them in a key it expects one row, takes any such index for
-- as good as the one with the document's name, and reads a large agent whole.
CREATE TABLE recalld.files (
    {_KEY}, id bigint, source {TEXT} NOT NULL, path {TEXT} NOT NULL, size bigint NOT NULL, mtime_ns bigint NOT NULL,
    inode numeric(20) NOT NULL, ctime_ns bigint, content_hash {TEXT} NOT NULL, revision bigint NOT NULL,
    indexed_at {_DOUBLE} NOT NULL, notes text NOT NULL, touches integer NOT NULL DEFAULT 0,
    position_offset bigint, position_lines bigint, position_digest {TEXT}, position_state text,
    name {TEXT} GENERATED ALWAYS AS ({FILE_NAME}) STORED,
    PRIMARY KEY (generation, id) INCLUDE (tenant, agent), UNIQUE (generation, source, path) INCLUDE (tenant, agent)
) PARTITION BY HASH (generation);
-- A column, because under row security an index on an expression serves no search.
CREATE INDEX files_by_name ON recalld.files (generation, name);

-- A chunk with a negative ordinal is stale: it was at -1 - ordinal. `words` are the tokens of the text in order, with
-- spaces between and around them; `users_words` those of a transcript's user. The vector stays in the row, so that a
-- search reads no other pages; pglz, unlike lz4, gives up on a vector at once.
CREATE TABLE recalld.chunks (
    {_KEY}, id bigint, file_id bigint NOT NULL, ordinal integer NOT NULL, start_line integer NOT NULL,
    end_line integer NOT NULL, said_at {_DOUBLE}, refusal text, text_hash {TEXT} NOT NULL,
    embedding halfvec STORAGE MAIN COMPRESSION pglz,
    vector_state text NOT NULL CHECK (vector_state IN ('ready', 'pending', 'refused', 'unread')),
    text text NOT NULL, words {TEXT} NOT NULL, users_words {TEXT}, sentence_users bytea, sentence_signs bytea,
    PRIMARY KEY (generation, id) INCLUDE (tenant, agent), CHECK ((vector_state = 'ready') = (embedding IS NOT NULL))
) PARTITION BY HASH (generation);
CREATE INDEX chunks_by_file ON recalld.chunks (generation, file_id, ordinal);
CREATE INDEX chunks_by_hash ON recalld.chunks (generation, text_hash);
CREATE INDEX chunks_pending ON recalld.chunks (generation, id) INCLUDE (tenant, agent)
    WHERE vector_state = 'pending';
CREATE INDEX chunks_refused ON recalld.chunks (generation, file_id, ordinal) INCLUDE (tenant, agent)
    WHERE vector_state = 'refused';
CREATE INDEX chunks_unread ON recalld.chunks (generation, refusal, file_id) INCLUDE (tenant, agent)
    WHERE vector_state = 'unread';

CREATE TABLE recalld.dead_letters (
    {_KEY}, source {TEXT}, path {TEXT}, reason text NOT NULL, error_class text NOT NULL, attempts integer NOT NULL,
    first_at {_DOUBLE} NOT NULL, last_at {_DOUBLE} NOT NULL, PRIMARY KEY (tenant, agent, generation, source, path)
);

-- `vector` is little-endian float16. `used` is the day of the last use, in days since 1970.
CREATE TABLE recalld.embeddings (
    tenant {TEXT}, identity {TEXT}, hash bytea, vector bytea STORAGE EXTERNAL NOT NULL, used integer NOT NULL,
    PRIMARY KEY (tenant, identity, hash)
) PARTITION BY HASH (tenant, hash);
CREATE INDEX embeddings_by_use ON recalld.embeddings (tenant, used);

-- `memory.embedding.batch_jobs.batch_ledger` describes the columns.
CREATE TABLE recalld.batch_jobs (
    tenant {TEXT}, id bigint GENERATED ALWAYS AS IDENTITY, reference {TEXT} NOT NULL, job_id text,
    identity {TEXT} NOT NULL, account text NOT NULL, provider text NOT NULL, model text NOT NULL, agent {TEXT} NOT NULL,
    state text NOT NULL, made_at {_DOUBLE} NOT NULL, tried_at {_DOUBLE} NOT NULL, looked_at {_DOUBLE} NOT NULL,
    look_at {_DOUBLE} NOT NULL, stopped_at {_DOUBLE}, ended_at {_DOUBLE}, attempts integer NOT NULL DEFAULT 0,
    texts integer NOT NULL, completed integer NOT NULL DEFAULT 0, failed integer NOT NULL DEFAULT 0,
    taken integer NOT NULL DEFAULT 0, stop_reason text NOT NULL DEFAULT '', message text NOT NULL DEFAULT '',
    missing_since {_DOUBLE}, missing_looks integer NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, id), UNIQUE (tenant, reference)
);
CREATE TABLE recalld.batch_texts (
    tenant {TEXT}, identity {TEXT}, hash {TEXT}, job bigint NOT NULL, PRIMARY KEY (tenant, identity, hash)
);
CREATE INDEX batch_texts_by_job ON recalld.batch_texts (tenant, job);

-- Documents that machines sent. `version` grows with each new content; 0 is none yet. `size` and `digest` are of the
-- content as sent, `stored` is the size as kept, redacted once more. `arrived_ns` is by the server's clock.
CREATE TABLE recalld.documents (
    tenant     {TEXT},
    agent      {TEXT},
    source     {TEXT},
    path       {TEXT},
    machine    {TEXT},
    version    bigint NOT NULL DEFAULT 0,
    size       bigint NOT NULL DEFAULT 0,
    stored     bigint NOT NULL DEFAULT 0,
    digest     {TEXT} NOT NULL DEFAULT '',
    format     text,
    arrived_ns bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, agent, source, path, machine)
) PARTITION BY HASH (tenant, agent);

-- Parts of a version, Zstandard frames. "offset" and `length` are of the content as sent, `digest` runs up to the end
-- of the part, `place` and `stored` are the part's place and size in the content as kept.
CREATE TABLE recalld.document_parts (
    tenant   {TEXT},
    agent    {TEXT},
    source   {TEXT},
    path     {TEXT},
    machine  {TEXT},
    version  bigint,
    "offset" bigint,
    length   integer NOT NULL,
    digest   {TEXT} NOT NULL,
    place    bigint NOT NULL,
    stored   integer NOT NULL,
    content  bytea NOT NULL,
    PRIMARY KEY (tenant, agent, source, path, machine, version, "offset")
) PARTITION BY HASH (tenant, agent);
ALTER TABLE recalld.document_parts ALTER COLUMN content SET STORAGE EXTERNAL;

-- Ids of events whose content was taken, with the digest of what came.
CREATE TABLE recalld.arrivals (
    tenant {TEXT},
    id     {TEXT},
    digest {TEXT} NOT NULL,
    at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, id)
);
CREATE INDEX arrivals_by_time ON recalld.arrivals (tenant, at);

DO $$
BEGIN
    -- lz4 packs texts faster, where the server has it. Partitions take over the settings of their parent.
    IF (SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'default_toast_compression') THEN
        ALTER TABLE recalld.chunks ALTER COLUMN text SET COMPRESSION lz4, ALTER COLUMN words SET COMPRESSION lz4,
            ALTER COLUMN users_words SET COMPRESSION lz4;
    END IF;
    -- Searches of one agent read one partition. A chunk is a third of a page, with its words, which a first search
    -- reads; a longer one puts its text elsewhere.
    EXECUTE (
        SELECT string_agg(format('CREATE TABLE recalld.%1$s_%2$s PARTITION OF recalld.%1$s
            FOR VALUES WITH (MODULUS %3$s, REMAINDER %2$s) %4$s', parent, number, parts, options), ';')
        FROM (VALUES ('files', 64, ''), ('chunks', 64, 'WITH (toast_tuple_target = 2700)'), ('documents', 64, ''),
            ('document_parts', 64, ''), ('embeddings', 16, '')) AS tables (parent, parts, options),
            generate_series(0, parts - 1) AS number
    );
END $$;

GRANT SELECT, INSERT, UPDATE, DELETE ON recalld.leases TO recalld_writer;
GRANT SELECT ON recalld.leases TO recalld_reader;
CREATE POLICY directory ON recalld.tenants FOR SELECT USING (current_setting('recalld.tenant', true) = '*');
CREATE POLICY directory ON recalld.agents FOR SELECT USING (current_setting('recalld.tenant', true) = '*');
CREATE POLICY holder ON recalld.access_tokens FOR SELECT
    USING (hash = (SELECT decode(nullif(current_setting('recalld.token_hash', true), ''), 'hex')));
"""  # noqa: S608 - a constant

#: Ends each migration: every table with a tenant gets its policy and grants. A parent's policy does not guard its
#: partitions, so no role is granted them, and without a policy of their own they show no row. Audit rows never change.
GUARD = """
DO $$
DECLARE
    guarded record;
BEGIN
    FOR guarded IN
        SELECT c.oid::regclass AS name, c.relispartition FROM pg_class AS c
        JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'tenant' AND NOT a.attisdropped
        WHERE c.relnamespace = 'recalld'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relforcerowsecurity
    LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', guarded.name);
        CONTINUE WHEN guarded.relispartition;
        EXECUTE format('CREATE POLICY scope ON %s
            USING (tenant = (SELECT nullif(current_setting(''recalld.tenant'', true), '''')))', guarded.name);
        EXECUTE format('GRANT SELECT, INSERT%s ON %s TO recalld_writer',
            CASE WHEN guarded.name = 'recalld.audit'::regclass THEN '' ELSE ', UPDATE, DELETE' END, guarded.name);
        EXECUTE format('GRANT SELECT ON %s TO recalld_reader', guarded.name);
    END LOOP;
END $$;
"""


class Migration(NamedTuple):
    """Step of the schema. Code of the schema number `works_with` and of later ones works on the tables after it.

    A step that only adds leaves `works_with` as it was: processes of the version before run on, and may restart. Drop
    or rename in a later release, by a step of its own.
    """

    name: str
    statements: str
    works_with: int


#: Numbered from 1 on.
MIGRATIONS = (Migration("first tables", _BASE + _FIRST_TABLES, works_with=1),)

#: Number of the schema with all migrations.
SCHEMA_NUMBER = len(MIGRATIONS)

#: Tables of the first days have no such column.
ADD_WORKS_WITH = "ALTER TABLE recalld.schema_steps ADD COLUMN IF NOT EXISTS works_with integer"

NOTE_MIGRATION = "INSERT INTO recalld.schema_steps (number, name, works_with) VALUES (%s, %s, %s)"
