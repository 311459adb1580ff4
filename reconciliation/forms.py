"""What a person fills in. Only shapes are read here: whether a decision may be taken is the service's to say."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django import forms

from reconciliation.resolutions import TEXT_MAX, Fault, Given, Kind

REFERENCES_MAX = 20  # of one operation; two are a duplicate


class DecisionForm(forms.Form):
    """One decision, on the version of the case that its page showed."""

    case = forms.IntegerField(required=False)
    version = forms.IntegerField(min_value=1)
    kind = forms.ChoiceField(
        choices=[(kind.value, kind.value) for kind in Kind],
        error_messages={"required": "Choose one.", "invalid_choice": "Choose one of these."},
    )
    remark = forms.CharField(required=False, max_length=TEXT_MAX)
    evidence = forms.CharField(required=False, max_length=TEXT_MAX)
    references = forms.CharField(required=False, max_length=TEXT_MAX)
    wait_until = forms.CharField(required=False, max_length=40)
    compensated_by = forms.CharField(required=False, max_length=200)

    def clean_references(self) -> tuple[str, ...]:
        """One a line, in the order given, each once."""
        lines = [line.strip() for line in self.cleaned_data["references"].splitlines()]
        found = tuple(dict.fromkeys(line for line in lines if line))
        if len(found) > REFERENCES_MAX:
            raise forms.ValidationError(f"At most {REFERENCES_MAX} references.")
        return found

    def clean_wait_until(self) -> datetime | None:
        """The time in UTC, whatever the browser sends of it."""
        text = self.cleaned_data["wait_until"]
        if not text:
            return None
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise forms.ValidationError("Give a date and a time, such as 2026-12-01T09:30.") from None
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)

    @property
    def given(self) -> Given:
        """What the rules are held against; needs a valid form."""
        read = self.cleaned_data
        return Given(
            remark=read["remark"],
            evidence=read["evidence"],
            references=read["references"],
            wait_until=read["wait_until"],
            compensated_by=read["compensated_by"] or None,
        )

    def show(self, found: tuple[Fault, ...]) -> None:
        """Puts the service's or the rules' objections beside the fields they are about."""
        for fault in found:
            name = fault.field if fault.field in self.fields else None
            self.add_error(name, fault.why)

    def carried(self) -> list[tuple[str, Any]]:
        """Every field as it was sent, to travel through the review unchanged."""
        return [(name, self.data.get(name, "")) for name in self.fields]


class RemarkForm(forms.Form):
    """A note, or why a second person agrees."""

    remark = forms.CharField(
        max_length=TEXT_MAX, error_messages={"required": "Write something, or leave it be."}
    )


class ConfirmationForm(RemarkForm):
    """A second person's word on a proposal, on the version that the page showed."""

    version = forms.IntegerField(min_value=1)
