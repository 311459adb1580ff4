"""A workspace out of a file: what is refused, with its path; what changes, and what a second run leaves alone."""

from __future__ import annotations

import copy
import io
import itertools
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from django.conf import settings
from django.contrib.auth import authenticate, get_user_model
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from ledger import provisioning, tenancy, tokens
from ledger.keys import current
from ledger.models import (
    Capability,
    Entry,
    Mandate,
    Membership,
    Receiver,
    Runtime,
    RuntimeToken,
    Workspace,
)
from ledger.provisioning import Problem, Refused
from ledger.provisioning.applying import OVERLAP_S
from ledger.provisioning.checking import DEPTH_MAX
from ledger.provisioning.reading import FILE_BYTES_MAX
from tests.arrange import Agent, Arranged, nonce

ROOT = Path(settings.BASE_DIR)
GONE = object()

TEXT = """
workspace: acme
members:
  - {email: Olive@Example.org, roles: [operator], password_env: OLIVE_PASSWORD}
  - {email: ada@example.org, roles: [approver]}
  - {email: grace@example.org, roles: [approver, operator]}
  - {email: alan@example.org, roles: [admin]}
runtimes:
  - {name: support-agent, scopes: [intent, permit, outcome, reconcile, read], capabilities: ["refund.*"],
     subjects: ["agent:support-*"], owner: alan@example.org}
receivers:
  - {name: acme-pay, base_url: "https://pay.example.org/v1", headers: {Authorization: "Bearer ${ACME_PAY_KEY}"},
     allow_private_addresses: false, callback_secret_env: ACME_PAY_WHSEC}
capabilities:
  - name: refund.create
    receiver: acme-pay
    risk: high
    lease_s: 60
    intent_valid_s: 86400
    duplicates: off
    amount: {value: /arguments/amount, currency: /arguments/currency}
    summary: "Refund {amount} to order {order_id}"
    arguments_schema: {type: object, required: [amount], properties: {amount: {$ref: "#/$defs/money"}}, $defs: {money: {type: string}}}
    sensitive: ["/card/number"]
    contract:
      deduplicates: key
      key_carrier: "header Idempotency-Key"
      key_retained_s: 86400
      key_claimed: before_effect
      replays: original
      verified: false
      lookup: by_reference
      lookup_reaches_back_s: 7776000
      visibility_lag_s: 5
      in_flight_s: 30
      refusals: {402: standing, 422: standing, 429: {clears_after_s: 60}}
      max_attempts: 3
    reconciler:
      kind: http_lookup
      url: "{base_url}/refunds?reference={business_reference}"
      items: "$.data[*]"
      complete: {path: "$.has_more", equals: false}
      attributed: {path: "$.metadata.operation_id", equals: operation_id}
      reference: "$.id"
      status: {path: "$.status", completed: [succeeded], in_progress: [pending, processing], denied: [failed, canceled]}
      match: {"$.amount": {to: /arguments/amount, as: minor_units}, "$.currency": /arguments/currency}
      namespace: {path: "$.account", equals: acct_1}
      absent_status: [404]
    approval: {required: false, when: [{param: tier, op: in, value: [gold, house]}],
               above: {amount: {value: "1000.00", currency: EUR}}, approvals: 2, valid_s: 3600, step_up: true}
mandates:
  - {subject: "agent:*", capability: "refund.*", valid_until: 2027-01-01T00:00:00Z}
"""
PASSWORD = "correct horse battery"
ENVIRON = {"OLIVE_PASSWORD": PASSWORD, "ACME_PAY_KEY": "k", "ACME_PAY_WHSEC": "w"}

_numbers = itertools.count(1)


_WHOLE = provisioning.read(TEXT.encode(), name="acme.yaml")


def whole_file() -> dict[str, Any]:
    """Every key that a file may have, with a value that can be used."""
    return copy.deepcopy(_WHOLE)


def fresh(*, passwords: bool = False) -> dict[str, Any]:
    """The whole file, for a workspace and people of this test's own; hashing passwords is what takes time."""
    mark = f"{os.getpid()}-{next(_numbers)}-{secrets.token_hex(3)}"
    document = whole_file()
    document["workspace"] = f"acme-{mark}"
    for entry, key in (
        (document["runtimes"][0], "owner"),
        *((each, "email") for each in document["members"]),
    ):
        entry[key] = entry[key].replace("@", f"-{mark}@")
    if not passwords:
        del document["members"][0]["password_env"]
    return document


def put(document: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """The document with one value set (or, GONE, taken out) at a path such as ``members[0].email``."""
    document = copy.deepcopy(document)
    steps: list[Any] = [
        int(step) if step.isdigit() else step for step in re.findall(r"\$\.\w+|[^.\[\]]+", path)
    ]
    at: Any = document
    for step in steps[:-1]:
        at = at[step]
    if value is GONE:
        del at[steps[-1]]
    elif isinstance(at, list) and steps[-1] == len(at):
        at.append(value)
    else:
        at[steps[-1]] = value
    return document


def check(document: Mapping[str, Any], environ: Mapping[str, str] = ENVIRON) -> provisioning.Plan:
    return provisioning.check(document, environ, checks=provisioning.configured_checks())


def faults(document: Mapping[str, Any], environ: Mapping[str, str] = ENVIRON) -> list[str]:
    with pytest.raises(Refused) as refused:
        check(document, environ)
    return [problem.path for problem in refused.value.problems]


# -- files that are refused before anybody looks at what they say ------------------------------------------------------

UNREADABLE: tuple[tuple[bytes, str, str, str], ...] = (
    (b"", "f.yaml", "f.yaml", "must be a mapping"),  # nothing
    (b"- workspace: acme\n", "f.yaml", "f.yaml", "must be a mapping"),  # a list
    (b"workspace: a\nworkspace: b\n", "f.yaml", "f.yaml, line 2", "workspace stands twice"),
    (b"members:\n  - {email: a, email: b}\n", "f.yaml", "f.yaml, line 2", "email stands twice"),
    (b"workspace: [a,\n", "f.yaml", "f.yaml, line 2", "expected the node content"),  # an open bracket
    (b"workspace: a\n---\nworkspace: b\n", "f.yaml", "f.yaml, line 2", "another document"),
    (b"workspace: a\n\tmembers: []\n", "f.yaml", "f.yaml, line 2", "'\\t'"),  # a tab for indentation
    (b"workspace: !!python/object:os.system x\n", "f.yaml", "f.yaml, line 1", "constructor"),  # a foreign tag
    (b"workspace: *nobody\n", "f.yaml", "f.yaml, line 1", "undefined alias"),
    (b"%YAML 1.1\n---\nworkspace: no\n", "f.yaml", "f.yaml, line 1", "YAML 1.2"),  # in which no is false
    (b"workspace: a\n\nmembers: \xff\n", "f.yaml", "f.yaml, line 3", "UTF-8"),
    (b"workspace: a\x00\n", "f.yaml", "f.yaml", "character"),
    (b"workspace: 2027-13-01\n", "f.yaml", "f.yaml", "cannot be read"),  # a date that no calendar has
    (b"a: " + b"[" * 500, "f.yaml", "f.yaml", "nested too deeply"),
    (b"#" * (FILE_BYTES_MAX + 1), "f.yaml", "f.yaml", "are the most"),
    (b'{"workspace": "a",\n}', "f.json", "f.json, line 2", "Expecting property name"),
    (b'{"workspace": "a", "workspace": "b"}', "f.json", "f.json", "/workspace"),
    (b'{"workspace": NaN}', "f.json", "f.json", "/workspace"),
    (b"workspace: a", "f.json", "f.json, line 1", "Expecting value"),  # YAML under a JSON name
)


@pytest.mark.parametrize(("text", "name", "path", "why"), UNREADABLE)
def test_what_cannot_be_read_is_refused_with_its_line(text: bytes, name: str, path: str, why: str) -> None:
    with pytest.raises(Refused) as refused:
        provisioning.read(text, name=name)
    (problem,) = refused.value.problems
    assert problem.path == path
    assert why in problem.why


def test_a_key_that_stands_twice_is_named_without_its_values() -> None:
    with pytest.raises(Refused) as refused:
        provisioning.read(b"workspace: s3cret\nworkspace: s3cret\n", name="f.yaml")
    assert "s3cret" not in str(refused.value)


def test_yaml_words_that_look_like_truth_values_stay_words() -> None:
    read = provisioning.read(b"workspace: no\nduplicates: off\nat: 12:30\n", name="f.yaml")
    assert read == {"workspace": "no", "duplicates": "off", "at": "12:30"}


def test_the_same_document_in_json_and_yaml_makes_the_same_plan() -> None:
    document = put(whole_file(), "mandates[0].valid_until", "2027-01-01T00:00:00Z")
    as_json = provisioning.read(json.dumps(document).encode(), name="acme.JSON")
    assert check(as_json) == check(whole_file())


# -- documents that are refused: one value each, and the path that is named ----------------------------------------------

CAPABILITY = "capabilities[0]"
CONTRACT = f"{CAPABILITY}.contract"
RECONCILER = f"{CAPABILITY}.reconciler"
APPROVAL = f"{CAPABILITY}.approval"

# (where, what is put there, the path that is refused when it is another)
BAD: tuple[tuple[Any, ...], ...] = (
    # the whole
    ("workspace", GONE),
    ("workspace", None),
    ("workspace", 7),
    ("workspace", ""),
    ("workspace", "-acme"),
    ("workspace", "acme corp"),
    ("workspace", "a" * 101),
    ("workspace", "a\x00b"),
    ("workspace", "a\ud800"),  # half of a surrogate pair, which no database text holds
    ("unheard_of", 1),
    (7, 1, "7"),  # a number as a key
    ("members", {}),  # a mapping where a list belongs
    ("members", [None] * 2_001),
    # members
    ("members[0]", "olive@example.org"),
    ("members[0].email", GONE),
    ("members[0].email", "olive"),
    ("members[0].email", "o" * 150 + "@example.org"),
    ("members[1].email", "OLIVE@example.org"),  # the same address in another case
    ("members[0].roles", []),
    ("members[0].roles", "operator"),
    ("members[0].roles", ["operator", "root"], "members[0].roles[1]"),
    ("members[0].roles", ["operator", "operator"]),
    ("members[0].password", "hunter2"),  # secrets by the name of a variable only
    ("members[0].password_env", "NOT_SET"),
    ("members[0].password_env", "not a name"),
    # runtimes
    ("runtimes[0].name", GONE),
    ("runtimes[0].name", "support agent"),
    ("runtimes[0].name", "*"),
    ("runtimes[1]", {"name": "support-agent"}, "runtimes[1].name"),  # twice
    ("runtimes[0].scopes", ["decide"], "runtimes[0].scopes[0]"),  # people decide
    ("runtimes[0].scopes", []),
    ("runtimes[0].capabilities", ["refund.?"], "runtimes[0].capabilities[0]"),  # only * is a wildcard
    ("runtimes[0].capabilities", ["refund.[ab]"], "runtimes[0].capabilities[0]"),
    ("runtimes[0].subjects", ["^agent:.*$"], "runtimes[0].subjects[0]"),
    ("runtimes[0].subjects", [""], "runtimes[0].subjects[0]"),
    ("runtimes[0].owner", "nobody@example.org"),  # no member
    ("runtimes[0].token", "cfl_x"),
    ("runtimes[0].token_env", "NOT_SET"),
    ("runtimes[0].token_env", "ACME_PAY_KEY"),  # a variable that holds no token
    # receivers
    ("receivers[0].name", GONE),
    ("receivers[0].base_url", GONE),  # a reconciler asks it
    ("receivers[0].base_url", "http://pay.example.org"),
    ("receivers[0].base_url", "ftp://pay.example.org"),
    ("receivers[0].base_url", "https://pay.example.org:8443"),
    ("receivers[0].base_url", "https://10.0.0.1"),
    ("receivers[0].base_url", "https://user:pass@pay.example.org"),
    ("receivers[0].base_url", "https://pay.example.org/?key=1"),
    ("receivers[0].base_url", "https://[oops"),
    ("receivers[0].allow_private_addresses", "false"),
    ("receivers[0].headers", ["Authorization"]),
    ("receivers[0].headers.Authorization", "Bearer sk_live_1"),  # the secret itself
    ("receivers[0].headers.X-Api-Key", "sk_live_1"),
    ("receivers[0].headers.Authorization", "Bearer ${DATABASE_URL}"),  # this service's own
    ("receivers[0].headers.Host", "elsewhere.example.org"),
    ("receivers[0].headers.X-Tier", 7),
    ("receivers[0].headers.X-Line", "a\nb"),
    ("receivers[0].headers.authorization", "${OTHER}", "receivers[0].headers"),  # twice but for its case
    ("receivers[0].callback_secret_env", "whsec_/+="),
    # capabilities
    (f"{CAPABILITY}.name", GONE),
    (f"{CAPABILITY}.name", "refund.*"),
    (f"{CAPABILITY}.receiver", GONE),
    (f"{CAPABILITY}.receiver", "acme-mail"),  # no receiver of the file
    (f"{CAPABILITY}.risk", "severe"),
    (f"{CAPABILITY}.lease_s", 0),
    (f"{CAPABILITY}.lease_s", 60.5),
    (f"{CAPABILITY}.lease_s", True),
    (f"{CAPABILITY}.lease_s", "60"),
    (f"{CAPABILITY}.lease_s", 86_401),
    (f"{CAPABILITY}.intent_valid_s", -1),
    (f"{CAPABILITY}.duplicates", False),  # what YAML 1.1 makes of the word off
    (f"{CAPABILITY}.amount", "/arguments/amount"),
    (f"{CAPABILITY}.amount.value", "/amount"),
    (f"{CAPABILITY}.amount.currency", "euro"),
    (f"{CAPABILITY}.amount.currency", GONE),
    (f"{CAPABILITY}.sensitive", ["/amount"], f"{CAPABILITY}.amount.value"),  # an amount stands in clear
    (f"{CAPABILITY}.sensitive", ["card"], f"{CAPABILITY}.sensitive[0]"),
    (f"{CAPABILITY}.sensitive", ["/card", "/card/number"], f"{CAPABILITY}.sensitive[1]"),
    (f"{CAPABILITY}.sensitive", "/card"),
    (f"{CAPABILITY}.summary", "Refund {amount"),
    (f"{CAPABILITY}.summary", "Refund {}"),
    (f"{CAPABILITY}.summary", "Refund\n{amount}"),
    (f"{CAPABILITY}.arguments_schema", []),
    (f"{CAPABILITY}.arguments_schema.type", "thing"),
    (f"{CAPABILITY}.arguments_schema.pattern", "("),  # no regular expression
    (
        f"{CAPABILITY}.arguments_schema",
        {"$ref": "https://example.org/s"},
        f"{CAPABILITY}.arguments_schema.$ref",
    ),
    (f"{CAPABILITY}.arguments_schema", {"$ref": "#/$defs/x"}, f"{CAPABILITY}.arguments_schema.$ref"),
    (f"{CAPABILITY}.arguments_schema", {"$ref": "#"}),  # round and round
    (
        f"{CAPABILITY}.arguments_schema",
        {"$schema": "http://json-schema.org/draft-07/schema#"},
        f"{CAPABILITY}.arguments_schema.$schema",
    ),
    (
        f"{CAPABILITY}.arguments_schema",
        {"const": datetime(2027, 1, 1, tzinfo=UTC)},
        f"{CAPABILITY}.arguments_schema.const",
    ),
    (
        f"{CAPABILITY}.arguments_schema",
        {"properties": {7: {}}},
        f"{CAPABILITY}.arguments_schema.properties.7",
    ),
    (f"{CAPABILITY}.arguments_schema", {"const": float("nan")}, f"{CAPABILITY}.arguments_schema.const"),
    (f"{CAPABILITY}.verified", True),
    # contract
    (CONTRACT, GONE),
    (CONTRACT, []),
    (f"{CONTRACT}.deduplicates", GONE),
    (f"{CONTRACT}.lookup", GONE),
    (f"{CONTRACT}.lookup", "by_magic"),
    (f"{CONTRACT}.verified", True),  # two people, never a file
    (f"{CONTRACT}.in_flight_s", -1),
    (f"{CONTRACT}.refusals", {409: "standing"}, f"{CONTRACT}.refusals.409"),
    (f"{CONTRACT}.limits", []),
    # reconciler: its own words
    (RECONCILER, "http_lookup"),
    (f"{RECONCILER}.kind", GONE),
    (f"{RECONCILER}.kind", "carrier_pigeon"),
    (f"{RECONCILER}.url", "https://elsewhere.example.org"),
    (f"{RECONCILER}.status", GONE),
    (f"{RECONCILER}.items", "data[*]"),
    (f"{RECONCILER}.absent_status", [200]),
    (f"{RECONCILER}.namespace.equals", datetime(2027, 1, 1, tzinfo=UTC)),
    (f"{CONTRACT}.lookup", "by_key", f"{RECONCILER}.url"),  # good for another contract
    # approval
    (APPROVAL, GONE),
    (APPROVAL, "never"),
    (f"{APPROVAL}.required", "no"),
    (f"{APPROVAL}.asks", "ada"),
    (f"{APPROVAL}.when", {}),
    (f"{APPROVAL}.when[0].op", "~"),
    (f"{APPROVAL}.when[0].param", GONE),
    (f"{APPROVAL}.when[0].value", "gold"),  # in wants a list
    (f"{APPROVAL}.when[0]", {"param": "amount", "op": ">", "value": "1000"}, f"{APPROVAL}.when[0].value"),
    (f"{APPROVAL}.when[0]", {"param": "amount", "op": "=="}, f"{APPROVAL}.when[0].value"),
    (f"{APPROVAL}.when[0].values", []),
    (f"{APPROVAL}.above", {}, f"{APPROVAL}.above.amount"),
    (f"{APPROVAL}.above.amount.value", 1000.0),  # money is text
    (f"{APPROVAL}.above.amount.value", "-5"),
    (f"{APPROVAL}.above.amount.currency", GONE),
    (f"{CAPABILITY}.amount", GONE, f"{APPROVAL}.above"),  # above what?
    (f"{CAPABILITY}.amount.currency", "USD", f"{APPROVAL}.above.amount.currency"),  # never above
    (f"{APPROVAL}.approvals", 3),  # two approvers
    (f"{APPROVAL}.approvals", 0),
    (f"{APPROVAL}.valid_s", 0),
    ("members[1].roles", ["viewer"], f"{APPROVAL}.approvals"),  # one approver is left
    ("runtimes[0].owner", "ada@example.org", f"{APPROVAL}.approvals"),  # and nobody approves their own
    # mandates
    ("mandates", "closed"),
    ("mandates[0].subject", GONE),
    ("mandates[0].capability", "refund.{create}"),
    ("mandates[0].valid_until", "2027-01-01"),
    ("mandates[0].valid_until", "2027-01-01T00:00:00"),  # in which zone?
    ("mandates[0].valid_until", "soon"),
    ("mandates[0].valid_until", 1_800_000_000),
    ("mandates[0].limits", [{"per": "day", "count": 50}]),
    ("mandates[1]", {"subject": "agent:*", "capability": "refund.*"}, "mandates[1].subject"),  # twice
)


@pytest.mark.parametrize(
    "row", BAD, ids=lambda row: f"{row[0]}={str(row[1])[:40]}" if row[1] is not GONE else f"no {row[0]}"
)
def test_a_bad_value_is_refused_by_its_path_alone(row: tuple[Any, ...]) -> None:
    where, value, *named = row
    document = {**whole_file(), where: value} if where == 7 else put(whole_file(), where, value)
    assert faults(document) == [named[0] if named else where]


def test_a_date_without_a_time_is_refused_wherever_it_stands() -> None:
    document = provisioning.read(TEXT.replace("2027-01-01T00:00:00Z", "2027-01-01").encode(), name="f.yaml")
    assert faults(document) == ["mandates[0].valid_until"]


def test_everything_that_is_wrong_is_said_at_once_in_the_order_of_the_file() -> None:
    document = whole_file()
    wrong = (
        "members[0].roles",
        "runtimes[0].scopes",
        "receivers[0].base_url",
        "capabilities[0].lease_s",
        "capabilities[0].contract.lookup",
        "mandates[0].subject",
    )
    for path in wrong:
        document = put(document, path, False)
    assert faults(document) == list(wrong)


def test_a_missing_variable_is_named_with_its_path() -> None:
    with pytest.raises(Refused) as refused:
        check(whole_file(), {})
    assert refused.value.problems == (
        Problem("members[0].password_env", "the environment variable OLIVE_PASSWORD is not set"),
    )


def test_a_secret_in_place_of_a_variables_name_is_not_repeated() -> None:
    token = tokens.mint("live", pepper=b"p").token
    with pytest.raises(Refused) as refused:
        check(put(whole_file(), "runtimes[0].token_env", token))
    assert [problem.path for problem in refused.value.problems] == ["runtimes[0].token_env"]
    assert token not in str(refused.value)


def test_a_thousand_aliases_of_a_thousand_aliases_are_refused() -> None:
    lines = ["a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    document = provisioning.read("\n".join(lines).encode(), name="f.yaml")
    assert faults(document) == ["the file"]


def test_a_list_that_holds_itself_is_refused() -> None:
    assert faults(provisioning.read(b"workspace: &w [*w]\n", name="f.yaml")) == ["the file"]


def test_nesting_beyond_the_limit_is_refused() -> None:
    deep: Any = 1
    for _ in range(DEPTH_MAX + 1):
        deep = {"a": deep}
    assert faults({"workspace": "acme", "a": deep}) == ["the file"]


# -- what is taken -----------------------------------------------------------------------------------------------------


def test_the_whole_file_is_taken_without_a_warning() -> None:
    assert check(whole_file()).warnings == ()


def test_required_keys_alone_are_enough_and_the_rest_has_careful_defaults() -> None:
    plan = check(
        {
            "workspace": "acme",
            "receivers": [{"name": "r"}],
            "capabilities": [
                {
                    "name": "mail.send",
                    "receiver": "r",
                    "approval": {"required": False},
                    "contract": {"deduplicates": "none", "lookup": "none"},
                }
            ],
        }
    )
    assert plan.capabilities is not None
    (capability,) = plan.capabilities
    assert (capability.risk, capability.lease_s, capability.intent_valid_s) == ("medium", 60, 86_400)
    assert (capability.duplicates, capability.sensitive, capability.audit_sensitive) == ("hold", (), False)
    assert plan.members is plan.runtimes is plan.mandates is plan.mandates_open is None


# (the rule as written, whether it asks always, whether it can ask at all)
RULES: tuple[tuple[dict[str, Any], bool, bool], ...] = (
    ({"required": False}, False, False),
    ({"required": True}, True, True),
    ({}, True, True),  # a rule that says nothing is not an open one
    ({"when": []}, True, True),  # nor one whose conditions were all taken out
    ({"required": False, "when": []}, False, False),
    ({"when": [{"param": "tier", "op": "exists"}]}, False, True),
    ({"above": {"amount": {"value": "1", "currency": "EUR"}}}, False, True),
)


@pytest.mark.parametrize(("rule", "always", "ever"), RULES)
def test_an_approval_rule_is_never_open_by_omission(rule: dict[str, Any], always: bool, ever: bool) -> None:
    plan = check(put(whole_file(), APPROVAL, rule))
    assert plan.capabilities is not None
    assert plan.capabilities[0].approval["required"] is always
    one_member = put(put(whole_file(), APPROVAL, rule), "members", [{"email": "a@example.org"}])
    one_member = put(one_member, "runtimes[0].owner", GONE)
    if ever:
        assert faults(one_member) == [f"{APPROVAL}.approvals"]
    else:
        check(one_member)


def test_step_up_follows_the_risk_unless_it_is_said() -> None:
    rule = {"required": False}
    for risk, stepped in (("low", False), ("medium", False), ("high", True)):
        plan = check(put(put(whole_file(), f"{CAPABILITY}.risk", risk), APPROVAL, rule))
        assert plan.capabilities is not None
        assert plan.capabilities[0].approval["step_up"] is stepped


def test_the_pointer_to_the_whole_seals_all_arguments() -> None:
    document = put(
        put(put(whole_file(), f"{CAPABILITY}.sensitive", [""]), f"{CAPABILITY}.amount", GONE),
        f"{APPROVAL}.above",
        GONE,
    )
    plan = check(document)
    assert plan.capabilities is not None
    assert plan.capabilities[0].audit_sensitive
    assert plan.capabilities[0].sensitive == ()


def test_private_addresses_open_http_and_every_port() -> None:
    document = put(whole_file(), "receivers[0].base_url", "http://127.0.0.1:9999/v1")
    check(put(document, "receivers[0].allow_private_addresses", True))


# (where, what is put there, the path that is warned about)
WARNED: tuple[tuple[str, object, str], ...] = (
    (f"{CONTRACT}.deduplicates", "none", f"{CONTRACT}.key_retained_s"),  # a value that nothing uses
    (f"{CONTRACT}.key_retained_s", 100, f"{CONTRACT}.key_retained_s"),  # over before a retry could be
    (
        f"{CONTRACT}.lookup_reaches_back_s",
        3_600,
        f"{CONTRACT}.lookup_reaches_back_s",
    ),  # looked for longer than kept
    (RECONCILER, GONE, f"{CONTRACT}.lookup"),  # nobody asks
    (f"{CONTRACT}.lookup", "none", RECONCILER),  # nobody is asked
    ("mandates[0].valid_until", GONE, "mandates[0].valid_until"),  # no end
    ("mandates[0].capability", "order.*", "mandates[0].capability"),  # no such capability
    ("runtimes[0].capabilities", ["order.*"], "runtimes[0].capabilities[0]"),
    ("receivers[0].headers.Authorization", "${NOT_SET_HERE}", "receivers[0].headers.Authorization"),
    ("receivers[0].callback_secret_env", "NOT_SET_HERE", "receivers[0].callback_secret_env"),
)


@pytest.mark.parametrize(("where", "value", "path"), WARNED)
def test_what_works_but_is_hardly_meant_is_warned_about(where: str, value: object, path: str) -> None:
    assert path in [warning.path for warning in check(put(whole_file(), where, value)).warnings]


def test_secrets_stand_in_no_printed_plan() -> None:
    token = tokens.mint("live", pepper=b"p").token
    document = put(whole_file(), "runtimes[0].token_env", "TOKEN")
    printed = repr(check(document, {**ENVIRON, "TOKEN": token}))
    assert PASSWORD not in printed
    assert token.rpartition("_")[2] not in printed


# -- the workspace -----------------------------------------------------------------------------------------------------


def apply(
    document: Mapping[str, Any], environ: Mapping[str, str] = ENVIRON, **options: Any
) -> provisioning.Result:
    return provisioning.apply(document, environ=environ, **options)


def lines(result: provisioning.Result) -> list[str]:
    return [str(change) for change in result.changes]


def workspace_of(document: Mapping[str, Any]) -> Workspace:
    return Workspace.objects.get(name=document["workspace"])


def token_opens(token: str) -> bool:
    """Whether the API's own look-up knows the token."""
    presented = tokens.parse(token)
    assert presented is not None
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM ledger_authenticate(%s, %s)",
            [presented.token_id, tokens.hash_secret(presented.secret, current().pepper)],
        )
        return bool(cursor.fetchone()[0])


def capability_of(document: Mapping[str, Any], name: str = "refund.create") -> Capability:
    workspace = workspace_of(document)
    with tenancy.workspace(workspace.pk):
        return Capability.objects.select_related("receiver").get(workspace=workspace, name=name, current=True)


TABLES = (Workspace, Membership, Runtime, RuntimeToken, Receiver, Capability, Mandate, Entry)


def everything(workspace_id: int) -> dict[str, list[dict[str, Any]]]:
    """All rows of one workspace."""
    with tenancy.workspace(workspace_id):
        return {
            table.__name__: list(
                table.objects.filter(**{"pk" if table is Workspace else "workspace_id": workspace_id})
                .order_by("pk")
                .values()
            )
            for table in TABLES
        }


@pytest.mark.usefixtures("record")
def test_a_refused_file_writes_nothing() -> None:
    document = put(fresh(), f"{CAPABILITY}.lease_s", 0)
    with pytest.raises(Refused):
        apply(document)
    assert not Workspace.objects.filter(name=document["workspace"]).exists()


@pytest.mark.usefixtures("record")
def test_a_dry_run_tells_the_difference_and_writes_nothing() -> None:
    document = fresh()
    told = apply(document, dry_run=True)
    assert not Workspace.objects.filter(name=document["workspace"]).exists()
    assert not get_user_model().objects.filter(email=document["members"][1]["email"]).exists()
    assert told.runtimes == ({"name": "support-agent"},), "a token that was rolled back must not be shown"
    done = apply(document)
    assert [line for line in lines(told) if "token" not in line] == [
        line for line in lines(done) if "token" not in line
    ]
    before = everything(workspace_of(document).pk)
    assert lines(apply(put(document, "capabilities[0].lease_s", 61), dry_run=True)) == [
        "~ capability refund.create: version 1 → 2: lease_s 60 → 61"
    ]
    assert everything(workspace_of(document).pk) == before


@pytest.mark.usefixtures("record")
def test_a_second_run_changes_nothing() -> None:
    document = fresh()
    first = apply(document)
    assert len(first.changes) == 10
    before = everything(workspace_of(document).pk)
    second = apply(document)
    assert second.changes == ()
    assert second.runtimes == ({"name": "support-agent"},)
    assert everything(workspace_of(document).pk) == before


@pytest.mark.usefixtures("record")
def test_each_change_has_its_entry_and_no_entry_a_secret() -> None:
    document = fresh(passwords=True)
    result = apply(document)
    with tenancy.workspace(workspace_of(document).pk):
        entries = list(Entry.objects.filter(workspace=workspace_of(document)).order_by("pk"))
    assert [json.loads(entry.detail or "")["name"] for entry in entries] == [c.name for c in result.changes]
    assert {entry.actor_name for entry in entries} == {"provision"}
    kept = "".join(str(entry.detail) for entry in entries)
    assert PASSWORD not in kept
    assert result.runtimes[0]["token"].rpartition("_")[2] not in kept


@pytest.mark.usefixtures("record")
def test_a_capability_is_stored_whole() -> None:
    document = fresh()
    apply(document)
    row = capability_of(document)
    assert (row.version, row.enabled, row.verified, row.matches_evidence) == (1, True, False, True)
    assert (row.risk, row.lease_s, row.max_attempts, row.duplicates) == ("high", 60, 3, "off")
    assert row.sensitive == ["/card/number"]
    assert row.contract["refusals"] == {"402": "standing", "422": "standing", "429": {"clears_after_s": 60}}
    assert row.approval["above"] == {"amount": {"value": "1000.00", "currency": "EUR"}}
    assert row.receiver.headers == {"Authorization": "Bearer ${ACME_PAY_KEY}"}, "the name, never the value"


# What a change of it does: (where, value, a new version?)
CHANGES: tuple[tuple[str, object, bool], ...] = (
    (f"{CAPABILITY}.risk", "low", True),
    (f"{CAPABILITY}.lease_s", 61, True),
    (f"{CAPABILITY}.intent_valid_s", 3_600, True),
    (f"{CAPABILITY}.duplicates", "flag", True),
    (f"{CAPABILITY}.amount.currency", "EUR", True),
    (f"{CAPABILITY}.arguments_schema.maxProperties", 9, True),
    (f"{CAPABILITY}.sensitive", ["/card"], True),
    (f"{CONTRACT}.in_flight_s", 31, True),
    (f"{CONTRACT}.max_attempts", 4, True),
    (f"{CONTRACT}.refusals", {402: "standing"}, True),
    (f"{APPROVAL}.approvals", 1, True),
    (f"{APPROVAL}.when[0].value", ["gold"], True),
    (f"{RECONCILER}.namespace.equals", "acct_2", True),  # another account is another receiver
    (f"{CAPABILITY}.summary", "Refund {amount}", False),
    (f"{RECONCILER}.absent_status", [404, 410], False),
    (f"{RECONCILER}.match", {}, False),
    (RECONCILER + ".status.denied", ["failed"], False),
)


@pytest.mark.usefixtures("record")
@pytest.mark.parametrize(("where", "value", "versioned"), CHANGES)
def test_rules_and_promises_make_a_new_version_and_settings_do_not(
    where: str, value: object, versioned: bool
) -> None:
    document = fresh()
    apply(document)
    old = capability_of(document)
    changed = put(document, where, value)
    told = lines(apply(changed))
    assert len(told) == 1, told
    new = capability_of(document)
    assert (new.version, new.pk == old.pk) == ((2, False) if versioned else (1, True))
    if versioned:
        with tenancy.workspace(old.workspace_id):
            kept = Capability.objects.get(pk=old.pk)
        assert not kept.current
        for name in ("lease_s", "risk", "contract", "approval", "amount", "reconciler", "arguments_schema"):
            assert getattr(kept, name) == getattr(old, name), f"version 1 lost its {name}"
    assert apply(changed).changes == ()


@pytest.mark.usefixtures("record")
def test_another_receiver_makes_a_new_version() -> None:
    document = fresh()
    apply(document)
    other = {**document["receivers"][0], "name": "acme-pay-eu"}
    moved = put(put(document, "receivers[1]", other), f"{CAPABILITY}.receiver", "acme-pay-eu")
    apply(moved)
    row = capability_of(document)
    assert (row.version, row.receiver.name) == (2, "acme-pay-eu")


@pytest.mark.usefixtures("record")
def test_a_mended_look_up_also_serves_what_stands_under_older_versions() -> None:
    document = fresh()
    apply(document)
    old = capability_of(document)
    longer = put(document, f"{CAPABILITY}.lease_s", 90)
    apply(longer)
    mended = put(longer, f"{RECONCILER}.absent_status", [404, 410])
    assert lines(apply(mended)) == [
        "~ capability refund.create: reconciler",
        "~ capability refund.create version 1: reconciler",
    ]
    with tenancy.workspace(old.workspace_id):
        assert Capability.objects.get(pk=old.pk).reconciler["absent_status"] == [404, 410]


@pytest.mark.usefixtures("record")
def test_what_stands_under_another_account_keeps_being_asked_there() -> None:
    document = fresh()
    apply(document)
    old = capability_of(document)
    apply(put(put(document, f"{RECONCILER}.namespace.equals", "acct_2"), f"{RECONCILER}.absent_status", []))
    with tenancy.workspace(old.workspace_id):
        kept = Capability.objects.get(pk=old.pk)
    assert (kept.reconciler["namespace"]["equals"], kept.reconciler["absent_status"]) == ("acct_1", [404])


@pytest.mark.usefixtures("record")
def test_a_verified_version_stays_verified_until_its_contract_changes() -> None:
    document = fresh()
    apply(document)
    row = capability_of(document)
    with tenancy.workspace(row.workspace_id):
        Capability.objects.filter(pk=row.pk).update(
            verified=True, contract={**row.contract, "verified": True}
        )
    assert apply(document).changes == ()
    assert capability_of(document).verified
    apply(put(document, f"{CONTRACT}.in_flight_s", 31))
    assert not capability_of(document).verified


@pytest.mark.usefixtures("record")
def test_a_capability_that_is_gone_is_disabled_and_comes_back_as_the_same_version() -> None:
    document = fresh()
    apply(document)
    assert lines(apply(put(document, "capabilities", []))) == ["- capability refund.create: disabled"]
    row = capability_of(document)
    assert (row.current, row.enabled) == (True, False)
    assert apply(put(document, "capabilities", [])).changes == ()
    assert lines(apply(document)) == ["~ capability refund.create: enabled False → True"]
    assert capability_of(document).pk == row.pk


@pytest.mark.usefixtures("record")
def test_a_section_that_is_left_out_stays_as_it_is() -> None:
    document = fresh()
    apply(document)
    before = everything(workspace_of(document).pk)
    assert apply({"workspace": document["workspace"]}).changes == ()
    assert everything(workspace_of(document).pk) == before


@pytest.mark.usefixtures("record")
def test_a_file_without_members_is_judged_by_those_the_workspace_has() -> None:
    document = fresh()
    apply(document)
    alone = {name: document[name] for name in ("workspace", "receivers", "capabilities")}
    with pytest.raises(Refused) as refused:
        apply(put(alone, f"{APPROVAL}.approvals", 3))
    assert [problem.path for problem in refused.value.problems] == [f"{APPROVAL}.approvals"]
    assert apply(alone).changes == ()


@pytest.mark.usefixtures("record")
def test_members_whom_a_standing_rule_needs_cannot_be_taken_away() -> None:
    document = fresh()
    apply(document)
    fewer = {"workspace": document["workspace"], "members": document["members"][:2]}
    with pytest.raises(Refused) as refused:
        apply(fewer)
    assert [problem.path for problem in refused.value.problems] == [
        "capability refund.create.approval.approvals"
    ]
    with tenancy.workspace(workspace_of(document).pk):
        assert Membership.objects.filter(workspace=workspace_of(document)).count() == 5


# -- people ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("record")
def test_members_have_a_verified_address_their_roles_and_a_password_only_where_one_is_named() -> None:
    document = fresh(passwords=True)
    apply(document)
    olive, ada = (
        get_user_model().objects.get(email=member["email"].lower()) for member in document["members"][:2]
    )
    assert olive.check_password(PASSWORD)
    assert not ada.has_usable_password()
    for user in (olive, ada):
        address = EmailAddress.objects.get(user=user)
        assert (address.email, address.verified, address.primary) == (user.email, True, True)
    roles = Membership.objects.filter(workspace=workspace_of(document), user=olive).values_list(
        "role", flat=True
    )
    assert list(roles) == ["operator"]
    assert authenticate(email=olive.email, password=PASSWORD) == olive


@pytest.mark.usefixtures("record")
def test_roles_are_brought_to_the_files_state_and_the_account_is_kept() -> None:
    document = fresh()
    apply(document)
    grace, alan = (member["email"] for member in document["members"][2:])
    changed = put(document, "members[2].roles", ["approver", "viewer"])
    changed = put(put(changed, "runtimes[0].owner", GONE), "members[3]", GONE)
    assert lines(apply(changed)) == [
        f"~ member {grace}: +viewer, -operator",
        f"- member {alan}: admin",
        f"~ runtime support-agent: owner {alan} → none",
    ]
    assert get_user_model().objects.filter(email=alan).exists()
    assert apply(changed).changes == ()


@pytest.mark.usefixtures("record")
def test_a_password_changes_only_with_its_variable() -> None:
    document = fresh(passwords=True)
    apply(document)
    email = document["members"][0]["email"].lower()
    told = lines(apply(document, {**ENVIRON, "OLIVE_PASSWORD": "another horse battery"}))
    assert told == [f"~ member {email}: password"]
    without = put(document, "members[0].password_env", GONE)
    assert apply(without).changes == ()
    assert get_user_model().objects.get(email=email).check_password("another horse battery")


@pytest.mark.usefixtures("record")
def test_a_weak_password_is_warned_about_and_not_shown() -> None:
    result = apply(fresh(passwords=True), {**ENVIRON, "OLIVE_PASSWORD": "hunter"})
    (warning,) = result.warnings
    assert warning.path == "members[0].password_env"
    assert "hunter" not in warning.why


@pytest.mark.usefixtures("record")
def test_a_person_of_two_workspaces_is_one_account() -> None:
    document = fresh()
    apply(document)
    second = {**document, "workspace": document["workspace"] + "-b"}
    result = apply(second)
    assert f"+ member {document['members'][1]['email']}: approver" in lines(result)
    assert get_user_model().objects.filter(email=document["members"][1]["email"]).count() == 1
    apply(put(put(second, "members", []), "capabilities", []) | {"runtimes": []})
    assert Membership.objects.filter(workspace=workspace_of(document)).count() == 5


# -- runtimes and tokens -----------------------------------------------------------------------------------------------


def supplied() -> str:
    return tokens.mint(settings.ENVIRONMENT, pepper=b"unused: the secret alone counts").token


@pytest.mark.usefixtures("record")
def test_a_token_is_minted_once_and_opens() -> None:
    document = fresh()
    token = apply(document).runtimes[0]["token"]
    assert token_opens(token)
    assert token.startswith(f"cfl_{settings.ENVIRONMENT}_")
    assert "token" not in apply(document).runtimes[0]


@pytest.mark.usefixtures("record")
def test_a_supplied_token_opens_and_is_not_told_again() -> None:
    token = supplied()
    document = put(fresh(), "runtimes[0].token_env", "TOKEN")
    result = apply(document, {**ENVIRON, "TOKEN": token})
    assert result.runtimes == ({"name": "support-agent"},)
    assert token_opens(token)
    assert apply(document, {**ENVIRON, "TOKEN": token}).changes == ()


@pytest.mark.usefixtures("record")
def test_of_the_tokens_two_are_alive_and_the_one_before_has_an_end() -> None:
    document = put(fresh(), "runtimes[0].token_env", "TOKEN")
    first, second, third = supplied(), supplied(), supplied()
    apply(document, {**ENVIRON, "TOKEN": first})
    apply(document, {**ENVIRON, "TOKEN": second})
    assert [token_opens(token) for token in (first, second)] == [True, True]
    with tenancy.workspace(workspace_of(document).pk):
        ends = RuntimeToken.objects.get(token_id=first.split("_")[2]).expires_at
    assert ends is not None
    assert abs(ends - datetime.now(UTC) - timedelta(seconds=OVERLAP_S)) < timedelta(minutes=5)
    apply(document, {**ENVIRON, "TOKEN": third})
    assert [token_opens(token) for token in (first, second, third)] == [False, True, True]
    with pytest.raises(Refused) as refused:  # an ended one does not come back
        apply(document, {**ENVIRON, "TOKEN": first})
    assert [problem.path for problem in refused.value.problems] == ["runtimes[0].token_env"]


@pytest.mark.usefixtures("record")
def test_going_back_to_the_token_before_makes_it_the_current_one() -> None:
    document = put(fresh(), "runtimes[0].token_env", "TOKEN")
    first, second, third = supplied(), supplied(), supplied()
    for token in (first, second, first, third):
        apply(document, {**ENVIRON, "TOKEN": token})
    assert [token_opens(token) for token in (first, second, third)] == [True, False, True]


@pytest.mark.usefixtures("record")
def test_rotating_mints_another_and_leaves_the_one_before_its_day() -> None:
    document = fresh()
    first = apply(document, rotate={"support-agent"}).runtimes[0]["token"]  # new: minted once
    second = apply(document, rotate={"support-agent"}).runtimes[0]["token"]
    assert first != second
    assert token_opens(first)
    assert token_opens(second)
    with pytest.raises(Refused):
        apply(document, rotate={"nobody"})


@pytest.mark.usefixtures("record")
def test_a_removed_runtime_is_revoked_and_its_tokens_stay_so_when_it_returns() -> None:
    document = fresh()
    old = apply(document).runtimes[0]["token"]
    gone = lines(apply(put(document, "runtimes", [])))
    assert gone == ["- runtime support-agent: revoked, with its tokens"]
    assert not token_opens(old)
    new = apply(document).runtimes[0]["token"]
    assert token_opens(new)
    assert not token_opens(old)


@pytest.mark.usefixtures("record")
def test_a_token_of_another_runtime_or_workspace_is_refused() -> None:
    token = supplied()
    document = put(fresh(), "runtimes[0].token_env", "TOKEN")
    apply(document, {**ENVIRON, "TOKEN": token})
    elsewhere = put(fresh(), "runtimes[0].token_env", "TOKEN")
    with pytest.raises(Refused) as refused:
        apply(elsewhere, {**ENVIRON, "TOKEN": token})
    assert [problem.path for problem in refused.value.problems] == ["runtimes[0].token_env"]
    assert not Workspace.objects.filter(name=elsewhere["workspace"]).exists()
    twice = put(document, "runtimes[1]", {"name": "twin", "token_env": "TOKEN"})
    with pytest.raises(Refused) as refused:
        apply(twice, {**ENVIRON, "TOKEN": token})
    assert [problem.path for problem in refused.value.problems] == ["runtimes[1].token_env"]


@pytest.mark.usefixtures("record")
def test_a_known_id_with_another_secret_is_refused() -> None:
    token = supplied()
    document = put(fresh(), "runtimes[0].token_env", "TOKEN")
    apply(document, {**ENVIRON, "TOKEN": token})
    public, _, _ = token.rpartition("_")
    body = f"{public}_{supplied().rpartition('_')[2][:-6]}"
    forged = body + tokens._checksum(body)
    with pytest.raises(Refused) as refused:
        apply(document, {**ENVIRON, "TOKEN": forged})
    assert "another secret" in refused.value.problems[0].why


# -- receivers and mandates --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("record")
def test_the_callback_endpoint_is_minted_once_and_a_receiver_changes_in_place() -> None:
    document = fresh()
    (first,) = apply(document).receivers
    moved = put(document, "receivers[0].base_url", "https://pay.example.org/v2")
    result = apply(moved)
    assert lines(result) == [
        "~ receiver acme-pay: base_url https://pay.example.org/v1 → https://pay.example.org/v2"
    ]
    assert result.receivers == (first,)
    assert len(first["callback_endpoint"]) == 32
    assert capability_of(document).version == 1


@pytest.mark.usefixtures("record")
def test_moving_a_receiver_that_holds_open_operations_is_warned_about(
    workspace: Arranged, agent: Agent
) -> None:
    answer = agent.put_intent(workspace.operation_id(), workspace.intent(dispatch=True), nonce=nonce())
    assert answer.json()["state"] == "dispatched"
    with tenancy.workspace(workspace.id):
        receiver = Receiver.objects.get(pk=workspace.receiver_id)
    moved = {
        "workspace": workspace.name,
        "receivers": [
            {"name": receiver.name, "base_url": "https://moved.example.org", "allow_private_addresses": True}
        ],
    }
    assert [warning.path for warning in apply(moved).warnings] == ["receivers[0].base_url"]


@pytest.mark.usefixtures("record")
def test_a_removed_mandate_is_revoked_and_a_returning_one_is_new() -> None:
    document = fresh()
    apply(document)
    name = "agent:* → refund.*"
    assert lines(apply(put(document, "mandates", []))) == [f"- mandate {name}: revoked"]
    assert lines(apply(document)) == [f"+ mandate {name}: valid until: 2027-01-01T00:00:00Z"]
    with tenancy.workspace(workspace_of(document).pk):
        rows = Mandate.objects.filter(workspace=workspace_of(document)).order_by("pk")
        assert [row.revoked_at is None for row in rows] == [False, True]


@pytest.mark.usefixtures("record")
def test_a_mandates_end_moves_in_place_and_one_that_is_over_is_warned_about() -> None:
    document = fresh()
    apply(document)
    result = apply(put(document, "mandates[0].valid_until", "2020-01-01T00:00:00+02:00"))
    assert lines(result) == [
        "~ mandate agent:* → refund.*: valid_until 2027-01-01T00:00:00Z → 2019-12-31T22:00:00Z"
    ]
    assert [warning.path for warning in result.warnings] == ["mandates[0].valid_until"]


@pytest.mark.usefixtures("record")
def test_mandates_are_open_only_while_the_file_says_so() -> None:
    document = fresh()
    apply(document)
    assert not workspace_of(document).mandates_open
    apply(put(document, "mandates", "open"))
    assert workspace_of(document).mandates_open
    result = apply(document)
    assert lines(result) == [f"~ mandates {document['workspace']}: closed, only what a mandate covers"], (
        "the mandate that stood before stands again"
    )
    assert not workspace_of(document).mandates_open


@pytest.mark.usefixtures("record")
def test_two_workspaces_with_the_same_names_have_nothing_in_common() -> None:
    one, other = fresh(), fresh()
    apply(one)
    apply(other)
    before = everything(workspace_of(one).pk)
    changed = put(
        put(other, f"{CAPABILITY}.lease_s", 90), "receivers[0].base_url", "https://other.example.org"
    )
    apply(changed)
    apply({"workspace": other["workspace"], "runtimes": [], "capabilities": [], "mandates": []})
    assert everything(workspace_of(one).pk) == before


@pytest.mark.usefixtures("record")
def test_a_failure_in_the_middle_leaves_nothing() -> None:
    document = fresh()
    with pytest.raises(RuntimeError), transaction.atomic():
        apply(document)
        raise RuntimeError
    assert not Workspace.objects.filter(name=document["workspace"]).exists()


# -- the command -------------------------------------------------------------------------------------------------------


def run(*arguments: str, environ: Mapping[str, str] = ENVIRON) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "manage.py", "provision", *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def written(document: Mapping[str, Any], folder: Path) -> str:
    path = folder / "file.json"
    path.write_text(json.dumps(document, default=lambda moment: moment.isoformat()))
    return str(path)


@pytest.mark.processes
@pytest.mark.usefixtures("record")
def test_the_command_prints_one_json_object_and_warns_elsewhere(tmp_path: Path) -> None:
    document = put(fresh(), "mandates[0].valid_until", GONE)
    done = run(written(document, tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    (runtime,) = printed["runtimes"]
    assert runtime["name"] == "support-agent"
    assert token_opens(runtime["token"])
    assert "warning: mandates[0].valid_until" in done.stderr
    assert runtime["token"] not in done.stderr


@pytest.mark.usefixtures("record")
def test_the_command_prints_the_difference_and_the_token_once(tmp_path: Path) -> None:
    file = written(fresh(), tmp_path)
    printed = [io.StringIO() for _ in range(3)]
    for out, options in zip(printed, (["--dry-run"], [], []), strict=True):
        call_command("provision", file, *options, stdout=out, stderr=io.StringIO())
    dry, first, second = (out.getvalue().splitlines() for out in printed)
    assert dry[-1] == "dry run: nothing was written"
    assert first[0].startswith("+ workspace ")
    token = first[-1].rpartition(" ")[2]
    assert token_opens(token)
    assert token not in "".join(dry + second)
    (only,) = second
    assert only.endswith("is as the file says: nothing to change")


@pytest.mark.processes
@pytest.mark.usefixtures("record")
def test_the_command_says_every_fault_and_exits_with_2(tmp_path: Path) -> None:
    document = put(put(fresh(), "members[0].roles", []), f"{CONTRACT}.verified", True)
    done = run(written(document, tmp_path), "--json")
    assert (done.returncode, done.stdout) == (2, "")
    told = done.stderr.splitlines()
    assert [line.partition(":")[0] for line in told[-3:]] == [
        "members[0].roles",
        f"{CONTRACT}.verified",
        "CommandError",
    ]


def test_a_file_that_is_not_there_exits_with_2(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="No such file") as refused:
        call_command("provision", str(tmp_path / "nowhere.yaml"))
    assert refused.value.returncode == 2


def test_a_file_comes_from_standard_input_too(monkeypatch: pytest.MonkeyPatch) -> None:
    told = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"workspace: a\nworkspace: b\n")))
    with pytest.raises(CommandError) as refused:
        call_command("provision", "-", stderr=told)
    assert refused.value.returncode == 2
    assert told.getvalue() == "standard input, line 2: the key workspace stands twice\n"


@pytest.mark.processes
def test_the_command_exits_with_1_where_nothing_runs(tmp_path: Path) -> None:
    nothing = {"COUNTERFOIL_DATA": str(tmp_path), "DATABASE_URL": "", "REDIS_URL": ""}
    done = run(written(whole_file(), tmp_path), environ={**ENVIRON, **nothing})
    assert (done.returncode, done.stdout) == (1, "")


def test_the_shipped_sample_can_be_used() -> None:
    sample = ROOT / "config" / "demo.yaml"
    document = provisioning.read(sample.read_bytes(), name="demo.yaml")
    environ = {member["password_env"]: PASSWORD for member in document["members"]}
    assert check(document, environ).warnings == ()
