-- The hot path. These functions recognise the all-clear and nothing else: known token and capability, one covering
-- mandate without limits, no approval, no pause, no twin, nothing standing. Then they act, in the one statement. In
-- every other case they change nothing and return no row, and ledger/services.py puts the facts to the tables.
-- tests/ledger/test_hot.py walks the combinations: all-clear here means that the table says dispatch.

CREATE OR REPLACE FUNCTION ledger_lock_name(p_workspace bigint, p_operation_id text, p_parks boolean)
RETURNS void LANGUAGE plpgsql AS $$
-- Recording an intent and parking evidence for its name go one after the other, so that neither misses the other.
-- Intents do not wait for each other here.
DECLARE
    k bigint := hashtextextended(p_workspace || '/operation/' || p_operation_id, 7);
BEGIN
    IF p_parks THEN
        PERFORM pg_advisory_xact_lock(k);
    ELSE
        PERFORM pg_advisory_xact_lock_shared(k);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION ledger_lock_twins(p_workspace bigint, p_capability text, p_digest text, p_reference text)
RETURNS void LANGUAGE sql AS $$
    -- Two first permits for one business reference, or for equal arguments, go one after the other. Sorted: no deadlock.
    SELECT pg_advisory_xact_lock(k) FROM (
        SELECT hashtextextended(name, 7) AS k FROM unnest(ARRAY[
            p_workspace || '/' || p_capability || '/digest/' || p_digest,
            p_workspace || '/' || p_capability || '/reference/' || p_reference]) name
        WHERE name IS NOT NULL ORDER BY 1) keys
$$;

-- How long permission stands for this actor and capability; null: not all-clear.
CREATE OR REPLACE FUNCTION ledger_all_clear_until(p_workspace bigint, p_open boolean, p_capability text,
                                                  p_receiver bigint, p_subject text)
RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN EXISTS (SELECT FROM ledger_pause p WHERE p.workspace_id = p_workspace AND p.lifted_at IS NULL
                     AND (p.capability IS NULL OR p.capability = p_capability)
                     AND (p.receiver_id IS NULL OR p.receiver_id = p_receiver)) THEN NULL
        WHEN coalesce(bool_or(m.limits <> '[]'::jsonb), false) THEN NULL
        WHEN p_open THEN 'infinity'::timestamptz
        ELSE max(m.valid_until) FILTER (WHERE m.valid_until > clock_timestamp())
    END
    FROM ledger_mandate m
    WHERE m.workspace_id = p_workspace AND m.revoked_at IS NULL
      AND ledger_matches(m.capability, p_capability) AND ledger_matches(m.subject, p_subject)
$$;

CREATE OR REPLACE FUNCTION ledger_record_intent(
    p_token_id text, p_secret_hash bytea, p_invocation_id uuid, p_operation_id text, p_task_id text,
    p_capability_id bigint, p_subject text, p_on_behalf_of text, p_arguments text, p_digest text,
    p_business_reference text, p_key text, p_key_given boolean, p_amount text, p_currency text,
    p_checkpoint text, p_purpose text, p_detail text, p_nonce_hash bytea
) RETURNS TABLE (recorded_at timestamptz, lease_until timestamptz, permission_until timestamptz)
LANGUAGE plpgsql AS $$
-- p_nonce_hash null: record only; else attempt 1 is opened too.
DECLARE
    who record;
    cap record;
    task bigint;
    until_ timestamptz;
    now_ timestamptz;
    lease timestamptz;
    permits boolean := p_nonce_hash IS NOT NULL;
BEGIN
    SELECT * INTO who FROM ledger_authenticate(p_token_id, p_secret_hash);
    IF NOT FOUND OR NOT 'intent' = ANY (who.scopes) OR (permits AND NOT 'permit' = ANY (who.scopes)) THEN
        RETURN;
    END IF;
    PERFORM set_config('counterfoil.workspace', who.workspace_id::text, true);
    PERFORM ledger_lock_name(who.workspace_id, p_operation_id, false);
    SELECT c.id, c.name, c.receiver_id, c.lease_s, c.intent_valid_s, c.duplicates INTO cap FROM ledger_capability c
        WHERE c.id = p_capability_id AND c.workspace_id = who.workspace_id AND c.current AND c.enabled;
    IF NOT FOUND OR NOT ledger_matches_any(who.capabilities, cap.name)
       OR NOT ledger_matches_any(who.subjects, p_subject)
       OR EXISTS (SELECT FROM ledger_invocation i
                  WHERE i.workspace_id = who.workspace_id AND i.operation_id = p_operation_id)
       OR EXISTS (SELECT FROM ledger_parkedevidence k WHERE k.workspace_id = who.workspace_id
                  AND k.operation_id = p_operation_id AND k.matched_at IS NULL) THEN
        RETURN;
    END IF;
    IF permits AND cap.duplicates <> 'off' THEN
        PERFORM ledger_lock_twins(who.workspace_id, cap.name, p_digest, p_business_reference);
    END IF;
    IF cap.duplicates <> 'off' AND EXISTS (
        SELECT FROM ledger_reservation v WHERE v.workspace_id = who.workspace_id AND v.capability_name = cap.name
        AND (v.twin_digest = p_digest OR v.business_reference = p_business_reference)
    ) THEN
        RETURN;
    END IF;
    until_ := ledger_all_clear_until(who.workspace_id, who.mandates_open, cap.name, cap.receiver_id, p_subject);
    now_ := clock_timestamp();
    IF until_ IS NULL OR until_ <= now_ THEN
        RETURN;
    END IF;
    lease := least(now_ + make_interval(secs => cap.lease_s), until_);

    INSERT INTO ledger_task (workspace_id, task_id) VALUES (who.workspace_id, p_task_id)
        ON CONFLICT DO NOTHING RETURNING id INTO task;
    IF task IS NULL THEN
        SELECT t.id INTO task FROM ledger_task t WHERE t.workspace_id = who.workspace_id AND t.task_id = p_task_id;
    END IF;
    INSERT INTO ledger_invocation (
        id, workspace_id, operation_id, task_id, capability_id, receiver_id, recorded_by_id, actor_subject, on_behalf_of,
        arguments, arguments_digest, business_reference, idempotency_key, key_given, amount_value, amount_currency,
        checkpoint, purpose, approvals_needed, state, standing, flags, version, attempt_count, first_permit_at,
        created_at, intent_valid_until
    ) VALUES (
        p_invocation_id, who.workspace_id, p_operation_id, task, cap.id, cap.receiver_id, who.runtime_id, p_subject,
        p_on_behalf_of, p_arguments, p_digest, p_business_reference, p_key, p_key_given, p_amount, p_currency,
        p_checkpoint, p_purpose, 0, CASE WHEN permits THEN 'dispatched' ELSE 'intended' END, 'none', '{}',
        CASE WHEN permits THEN 2 ELSE 1 END, CASE WHEN permits THEN 1 ELSE 0 END, CASE WHEN permits THEN now_ END,
        now_, now_ + make_interval(secs => cap.intent_valid_s)
    ) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN  -- another request recorded it, or the key is taken: the slow path says which
        RETURN;
    END IF;
    INSERT INTO ledger_entry (workspace_id, invocation_id, position, at, actor_kind, actor_name, event, from_state, to_state, detail)
        VALUES (who.workspace_id, p_invocation_id, 1, now_, 'runtime', who.runtime, 'record', NULL, 'intended', p_detail);
    IF permits THEN
        INSERT INTO ledger_attempt (workspace_id, invocation_id, number, state, nonce_hash, permitted_at, lease_until, runtime_id)
            VALUES (who.workspace_id, p_invocation_id, 1, 'open', p_nonce_hash, now_, lease, who.runtime_id);
        INSERT INTO ledger_reservation (invocation_id, workspace_id, operation_id, capability_name, business_reference, twin_digest, lease_until, held_since)
            VALUES (p_invocation_id, who.workspace_id, p_operation_id, cap.name, p_business_reference, p_digest, lease, now_);
        INSERT INTO ledger_entry (workspace_id, invocation_id, position, at, actor_kind, actor_name, event, from_state, to_state, detail)
            VALUES (who.workspace_id, p_invocation_id, 2, now_, 'runtime', who.runtime, 'dispatch', 'intended', 'dispatched',
                    '{"attempt":1}');
    END IF;
    RETURN QUERY SELECT now_, lease, nullif(until_, 'infinity'::timestamptz);
END $$;

-- Attempt 1 of what is intended; facts as they stand after the permit.
CREATE OR REPLACE FUNCTION ledger_ask_permit(
    p_token_id text, p_secret_hash bytea, p_operation_id text, p_nonce_hash bytea
) RETURNS TABLE (caller jsonb, facts jsonb) LANGUAGE plpgsql AS $$
DECLARE
    who record;
    inv ledger_invocation;
    cap record;
    until_ timestamptz;
    now_ timestamptz;
    lease timestamptz;
    digest text;
BEGIN
    SELECT * INTO who FROM ledger_authenticate(p_token_id, p_secret_hash);
    IF NOT FOUND OR NOT 'permit' = ANY (who.scopes) THEN
        RETURN;
    END IF;
    PERFORM set_config('counterfoil.workspace', who.workspace_id::text, true);
    SELECT * INTO inv FROM ledger_invocation i
        WHERE i.workspace_id = who.workspace_id AND i.operation_id = p_operation_id FOR NO KEY UPDATE;
    IF NOT FOUND OR inv.state <> 'intended' OR inv.standing <> 'none' OR inv.approvals_needed <> 0
       OR inv.supersedes IS NOT NULL THEN
        RETURN;
    END IF;
    SELECT c.name, c.lease_s, c.duplicates INTO cap FROM ledger_capability c
        WHERE c.id = inv.capability_id AND c.current AND c.enabled;
    IF NOT FOUND OR NOT ledger_matches_any(who.capabilities, cap.name)
       OR NOT ledger_matches_any(who.subjects, inv.actor_subject) THEN
        RETURN;
    END IF;
    digest := coalesce(inv.twin_digest, inv.arguments_digest);
    IF cap.duplicates <> 'off' THEN
        PERFORM ledger_lock_twins(who.workspace_id, cap.name, digest, inv.business_reference);
        IF EXISTS (
            SELECT FROM ledger_reservation v WHERE v.workspace_id = who.workspace_id AND v.capability_name = cap.name
            AND (v.twin_digest = digest OR v.business_reference = inv.business_reference)
        ) THEN
            RETURN;
        END IF;
    END IF;
    until_ := ledger_all_clear_until(who.workspace_id, who.mandates_open, cap.name, inv.receiver_id, inv.actor_subject);
    now_ := clock_timestamp();
    IF until_ IS NULL OR until_ <= now_ OR inv.intent_valid_until <= now_ THEN
        RETURN;
    END IF;
    lease := least(now_ + make_interval(secs => cap.lease_s), until_);

    INSERT INTO ledger_attempt (workspace_id, invocation_id, number, state, nonce_hash, permitted_at, lease_until, runtime_id)
        VALUES (who.workspace_id, inv.id, 1, 'open', p_nonce_hash, now_, lease, who.runtime_id);
    UPDATE ledger_invocation SET state = 'dispatched', version = inv.version + 1, attempt_count = 1, first_permit_at = now_
        WHERE id = inv.id RETURNING * INTO inv;
    INSERT INTO ledger_reservation (invocation_id, workspace_id, operation_id, capability_name, business_reference, twin_digest, lease_until, held_since)
        VALUES (inv.id, who.workspace_id, p_operation_id, cap.name, inv.business_reference, digest, lease, now_);
    INSERT INTO ledger_entry (workspace_id, invocation_id, position, at, actor_kind, actor_name, event, from_state, to_state, detail)
        VALUES (who.workspace_id, inv.id, inv.version, now_, 'runtime', who.runtime, 'dispatch', 'intended', 'dispatched',
                '{"attempt":1}');
    RETURN QUERY SELECT to_jsonb(who), ledger_facts_of(inv);
END $$;

-- The open attempt's holder reports, within its lease, that the effect exists, and shows the receiver's evidence.
CREATE OR REPLACE FUNCTION ledger_report_completed(
    p_token_id text, p_secret_hash bytea, p_operation_id text, p_number int, p_nonce_hash bytea,
    p_source text, p_reference text, p_result text, p_raw bytea, p_raw_sha256 bytea, p_raw_size int, p_parsed text
) RETURNS TABLE (caller jsonb, facts jsonb) LANGUAGE plpgsql AS $$
DECLARE
    who record;
    inv ledger_invocation;
    att record;
    now_ timestamptz;
BEGIN
    SELECT * INTO who FROM ledger_authenticate(p_token_id, p_secret_hash);
    IF NOT FOUND OR NOT 'outcome' = ANY (who.scopes) THEN
        RETURN;
    END IF;
    PERFORM set_config('counterfoil.workspace', who.workspace_id::text, true);
    SELECT * INTO inv FROM ledger_invocation i
        WHERE i.workspace_id = who.workspace_id AND i.operation_id = p_operation_id FOR NO KEY UPDATE;
    IF NOT FOUND OR inv.state <> 'dispatched' OR inv.standing <> 'none' OR inv.attempt_count <> p_number
       OR EXISTS (SELECT FROM ledger_capability c WHERE c.id = inv.capability_id AND c.matches_evidence) THEN
        RETURN;
    END IF;
    SELECT a.id, a.lease_until INTO att FROM ledger_attempt a
        WHERE a.invocation_id = inv.id AND a.number = p_number AND a.state = 'open' AND a.nonce_hash = p_nonce_hash;
    now_ := clock_timestamp();
    IF NOT FOUND OR att.lease_until <= now_ THEN
        RETURN;
    END IF;

    INSERT INTO ledger_evidence (workspace_id, invocation_id, attempt_number, source, authenticated, claim, stored_as,
                                 receiver_reference, scope, raw, raw_sha256, raw_size, parsed, recorded_at, recorded_by)
        VALUES (who.workspace_id, inv.id, p_number, p_source, false, 'completed', 'completed',
                p_reference, '', p_raw, p_raw_sha256, p_raw_size, p_parsed, now_, who.runtime);
    UPDATE ledger_attempt SET state = 'completed', reported_at = now_, ended_at = now_ WHERE id = att.id;
    UPDATE ledger_invocation SET state = 'completed', version = inv.version + 1, outcome = 'completed',
        receiver_reference = p_reference, result = p_result, outcome_source = 'runtime', settled_at = now_
        WHERE id = inv.id RETURNING * INTO inv;
    DELETE FROM ledger_reservation WHERE invocation_id = inv.id;
    INSERT INTO ledger_entry (workspace_id, invocation_id, position, at, actor_kind, actor_name, event, from_state, to_state, detail)
        VALUES (who.workspace_id, inv.id, inv.version, now_, 'runtime', who.runtime, 'complete', 'dispatched', 'completed',
                json_build_object('attempt', p_number, 'source', 'runtime')::text);
    RETURN QUERY SELECT to_jsonb(who), ledger_facts_of(inv);
END $$;
