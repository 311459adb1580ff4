-- Rules that hold whoever writes: append-only tables, states that move only along the table in ledger/states.py,
-- attempt numbers that rise by one, and the hash of each entry.

CREATE OR REPLACE FUNCTION ledger_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
-- Arguments: the columns that retention may empty. Nothing else ever changes.
DECLARE
    kept jsonb;
    was jsonb;
    bodies text[] := TG_ARGV;
BEGIN
    IF TG_OP = 'UPDATE' AND array_length(bodies, 1) > 0 THEN
        kept := to_jsonb(NEW);
        was := to_jsonb(OLD);
        IF kept - bodies = was - bodies
           AND NOT EXISTS (SELECT FROM unnest(bodies) body WHERE kept -> body NOT IN ('null', was -> body)) THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = TG_TABLE_NAME || '_is_append_only';
END $$;

CREATE OR REPLACE FUNCTION ledger_never_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% keeps its names for ever: % refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = TG_TABLE_NAME || '_is_never_deleted';
END $$;

-- One place that says how a table is guarded; other apps' migrations call it for theirs.
CREATE OR REPLACE PROCEDURE ledger_guard_append_only(guarded regclass, VARIADIC bodies text[]) LANGUAGE plpgsql AS $$
DECLARE
    arguments text := (SELECT coalesce(string_agg(quote_literal(body), ', '), '') FROM unnest(bodies) body WHERE body <> '');
BEGIN
    EXECUTE format('CREATE OR REPLACE TRIGGER append_only BEFORE UPDATE OR DELETE ON %s
                    FOR EACH ROW EXECUTE FUNCTION ledger_append_only(%s)', guarded, arguments);
    EXECUTE format('CREATE OR REPLACE TRIGGER append_only_truncate BEFORE TRUNCATE ON %s
                    FOR EACH STATEMENT EXECUTE FUNCTION ledger_append_only()', guarded);
END $$;

CALL ledger_guard_append_only('ledger_entry', 'detail');
CALL ledger_guard_append_only('ledger_evidence', 'raw', 'parsed');

CREATE OR REPLACE TRIGGER never_deleted BEFORE DELETE ON ledger_invocation
    FOR EACH ROW EXECUTE FUNCTION ledger_never_deleted();
CREATE OR REPLACE TRIGGER never_truncated BEFORE TRUNCATE ON ledger_invocation
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_never_deleted();
CREATE OR REPLACE TRIGGER never_deleted BEFORE DELETE ON ledger_attempt
    FOR EACH ROW EXECUTE FUNCTION ledger_never_deleted();
CREATE OR REPLACE TRIGGER never_truncated BEFORE TRUNCATE ON ledger_attempt
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_never_deleted();

-- What an entry's hash covers. The detail enters by its own digest, so that the hash still verifies once the detail
-- has aged out. The text is what Python's json.dumps(…, ensure_ascii=False) prints of the same list.
CREATE OR REPLACE FUNCTION ledger_entry_content(e ledger_entry) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_array(
        'counterfoil-entry-v1', e.workspace_id, e.invocation_id, e.position,
        to_char(e.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        e.actor_kind, e.actor_name, e.event, e.from_state, e.to_state, encode(e.detail_sha256, 'hex')
    )::text
$$;

CREATE OR REPLACE FUNCTION ledger_hash_entry() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.detail_sha256 := sha256(convert_to(NEW.detail, 'UTF8'));
    NEW.content_hash := sha256(convert_to(ledger_entry_content(NEW), 'UTF8'));
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER hash_entry BEFORE INSERT ON ledger_entry FOR EACH ROW EXECUTE FUNCTION ledger_hash_entry();

-- The moves of ledger/states.py; tests/ledger/test_guards.py compares the two, pair by pair.
CREATE OR REPLACE FUNCTION ledger_guard_state() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        -- An intent and its first permit may be one transaction; parked evidence makes it unknown from the start.
        IF NEW.state IN ('intended', 'unknown') OR (NEW.state = 'dispatched' AND NEW.attempt_count = 1) THEN
            RETURN NEW;
        END IF;
        RAISE EXCEPTION 'an invocation cannot begin as %', NEW.state
            USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'state_moves_along_the_table';
    END IF;
    IF (OLD.state, NEW.state) NOT IN (
        ('intended', 'dispatched'), ('intended', 'denied'), ('intended', 'withdrawn'), ('intended', 'unknown'),
        ('dispatched', 'completed'), ('dispatched', 'denied'), ('dispatched', 'unknown'),
        ('unknown', 'completed'), ('unknown', 'denied'), ('unknown', 'dispatched'),
        ('denied', 'dispatched'), ('denied', 'withdrawn'), ('denied', 'unknown'),
        ('withdrawn', 'unknown'), ('completed', 'unknown')
    ) THEN
        RAISE EXCEPTION 'an invocation cannot go from % to %', OLD.state, NEW.state
            USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'state_moves_along_the_table';
    END IF;
    IF OLD.state = 'unknown' AND NEW.state IN ('completed', 'denied') AND NOT EXISTS (
        SELECT FROM ledger_evidence v WHERE v.invocation_id = NEW.id AND v.recorded_at >= transaction_timestamp()
    ) THEN
        RAISE EXCEPTION 'unknown is left only with evidence recorded in the same transaction'
            USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'unknown_is_left_with_evidence_or_a_permit';
    END IF;
    IF NEW.state = 'dispatched' AND NOT EXISTS (
        SELECT FROM ledger_attempt a WHERE a.invocation_id = NEW.id AND a.state = 'open'
    ) THEN
        RAISE EXCEPTION 'dispatched means that a permit stands'
            USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'unknown_is_left_with_evidence_or_a_permit';
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER guard_state_insert BEFORE INSERT ON ledger_invocation
    FOR EACH ROW EXECUTE FUNCTION ledger_guard_state();
CREATE OR REPLACE TRIGGER guard_state_update BEFORE UPDATE OF state ON ledger_invocation
    FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION ledger_guard_state();

-- What was intended never changes: only its bodies may age out.
CREATE OR REPLACE FUNCTION ledger_guard_intent() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'what was intended does not change'
        USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'intent_never_changes';
END $$;
CREATE OR REPLACE TRIGGER guard_intent BEFORE UPDATE ON ledger_invocation FOR EACH ROW WHEN (
    (OLD.id, OLD.workspace_id, OLD.operation_id, OLD.task_id, OLD.actor_subject, OLD.arguments_digest, OLD.idempotency_key)
    IS DISTINCT FROM
    (NEW.id, NEW.workspace_id, NEW.operation_id, NEW.task_id, NEW.actor_subject, NEW.arguments_digest, NEW.idempotency_key)
    OR OLD.on_behalf_of IS DISTINCT FROM NEW.on_behalf_of
    OR OLD.business_reference IS DISTINCT FROM NEW.business_reference
    OR (OLD.arguments IS DISTINCT FROM NEW.arguments AND NEW.arguments IS NOT NULL)
    OR NEW.version < OLD.version
) EXECUTE FUNCTION ledger_guard_intent();

CREATE OR REPLACE FUNCTION ledger_guard_attempt() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.state <> 'open' OR NEW.number <> 1 + coalesce(
            (SELECT max(a.number) FROM ledger_attempt a WHERE a.invocation_id = NEW.invocation_id), 0
        ) THEN
            RAISE EXCEPTION 'attempt numbers rise by one, each beginning open'
                USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'attempt_numbers_rise_by_one';
        END IF;
        RETURN NEW;
    END IF;
    IF (OLD.state, NEW.state) NOT IN (
        ('open', 'completed'), ('open', 'denied'), ('open', 'not_sent'), ('open', 'lost'),
        ('lost', 'completed'), ('lost', 'denied'), ('lost', 'not_sent')
    ) THEN
        RAISE EXCEPTION 'an attempt cannot go from % to %', OLD.state, NEW.state
            USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'attempt_state_moves_along_the_table';
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER guard_attempt_insert BEFORE INSERT ON ledger_attempt
    FOR EACH ROW EXECUTE FUNCTION ledger_guard_attempt();
CREATE OR REPLACE TRIGGER guard_attempt_update BEFORE UPDATE OF state ON ledger_attempt
    FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION ledger_guard_attempt();
