"""What schemathesis is told beside the OpenAPI document: names on record, how long to wait, what no schema can foresee."""

from __future__ import annotations

import os
import re
import zlib
from typing import Any

import schemathesis

from ledger.intake import valid_name

LONGEST_WAIT_S = 0.05
ON_RECORD = os.environ["OPERATIONS_ON_RECORD"].split()
TASK, CAPABILITY = "task-1", "refund.create"

# Of a request that the document allows: what may be wrong with it all the same.
UNFORESEEABLE = re.compile(
    r"I-JSON|NUL|surrogate|2\^53|double|digits|deeper|levels|Permit-Nonce|bytes at most"
    r"|names no operation on record|agree with the amount"
)
CODES = {"intent-mismatch", "capability-unknown", "reference-required", "key-in-use"}


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Every other generated name becomes one that is on record; nobody waits for what nobody changes."""
    path, query = case.path_parameters or {}, case.query or {}
    chance = zlib.crc32(f"{case.method} {path} {case.body!r}".encode("utf-8", "replace"))
    if chance % 2:
        if _is_name(path.get("operation_id")):
            path["operation_id"] = ON_RECORD[chance // 2 % len(ON_RECORD)]
            if re.fullmatch("[1-9][0-9]{0,3}", str(path.get("number", ""))):
                path["number"] = "1"
        if _is_name(path.get("task_id")):
            path["task_id"] = TASK
        if isinstance(case.body, dict) and _is_name(case.body.get("capability")):
            case.body["capability"] = CAPABILITY
    try:
        if float(query.get("wait", 0)) > LONGEST_WAIT_S:
            query["wait"] = str(LONGEST_WAIT_S)
    except (TypeError, ValueError):
        pass


def _is_name(value: object) -> bool:
    return isinstance(value, str) and valid_name(value)


@schemathesis.check
def a_request_that_the_document_allows_is_refused_for_what_no_schema_can_say(
    context: Any, response: Any, case: Any
) -> None:
    """The rest of ``positive_data_acceptance``."""
    mode = getattr(getattr(case.meta, "generation", None), "mode", None)
    if response.status_code not in (400, 413, 415, 422) or mode is None or not mode.is_positive:
        return
    problem = response.json()
    if problem["code"] not in CODES and not UNFORESEEABLE.search(problem["detail"]):
        raise AssertionError(f"{problem['code']}: {problem['detail']}")
