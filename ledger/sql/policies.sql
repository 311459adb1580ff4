-- The second wall. Web and workers act as counterfoil_app, which owns nothing: a row is theirs only while
-- counterfoil.workspace names its workspace, and only in the ways granted here.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'counterfoil_app') THEN
        CREATE ROLE counterfoil_app NOLOGIN;
    END IF;
    IF NOT pg_has_role(current_user, 'counterfoil_app', 'MEMBER') THEN
        GRANT counterfoil_app TO CURRENT_USER;
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE EXCEPTION 'the role counterfoil_app is missing and % may not create it', current_user
        USING HINT = 'as a superuser: CREATE ROLE counterfoil_app NOLOGIN; GRANT counterfoil_app TO ' || quote_ident(current_user);
END $$;

GRANT USAGE ON SCHEMA public TO counterfoil_app;
-- Tables of the libraries (users, sessions, addresses), now and later; our own are narrowed below.
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO counterfoil_app;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO counterfoil_app;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO counterfoil_app;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE ON SEQUENCES TO counterfoil_app;

-- May: which of select, insert, update, delete the application role keeps.
CREATE OR REPLACE PROCEDURE ledger_isolate(isolated regclass, may text) LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('REVOKE ALL ON %s FROM counterfoil_app', isolated);
    EXECUTE format('GRANT %s ON %s TO counterfoil_app', may, isolated);
    EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', isolated);
    EXECUTE format('DROP POLICY IF EXISTS own_workspace ON %s', isolated);
    EXECUTE format('CREATE POLICY own_workspace ON %s USING
        (workspace_id = nullif(current_setting(''counterfoil.workspace'', true), '''')::bigint)', isolated);
END $$;

CALL ledger_isolate('ledger_runtime', 'SELECT, INSERT, UPDATE');
CALL ledger_isolate('ledger_runtimetoken', 'SELECT, INSERT, UPDATE');
CALL ledger_isolate('ledger_mandate', 'SELECT, INSERT, UPDATE');
CALL ledger_isolate('ledger_pause', 'SELECT, INSERT, UPDATE');
CALL ledger_isolate('ledger_receiver', 'SELECT, INSERT, UPDATE');
CALL ledger_isolate('ledger_capability', 'SELECT, INSERT, UPDATE');
CALL ledger_isolate('ledger_task', 'SELECT, INSERT');
CALL ledger_isolate('ledger_invocation', 'SELECT, INSERT, UPDATE');
CALL ledger_isolate('ledger_attempt', 'SELECT, INSERT, UPDATE');
CALL ledger_isolate('ledger_reservation', 'SELECT, INSERT, UPDATE, DELETE');
CALL ledger_isolate('ledger_evidence', 'SELECT, INSERT');
CALL ledger_isolate('ledger_parkedevidence', 'SELECT, INSERT, UPDATE');
CALL ledger_isolate('ledger_grant', 'SELECT, INSERT, UPDATE');
CALL ledger_isolate('ledger_entry', 'SELECT, INSERT');
REVOKE DELETE ON ledger_workspace FROM counterfoil_app;
